"""Embedded tasks: real models on real data that load offline, and synthetic ones whose answer is known."""

from veridical.tasks.catalogue import known, load, names
from veridical.tasks.causal_models import causal_model
from veridical.tasks.huggingface import from_huggingface
from veridical.tasks.images import from_image_folder
from veridical.tasks.joint import Part, from_parts, values_by_part
from veridical.tasks.known import KnownAnswer
from veridical.tasks.onnx_models import from_onnx
from veridical.tasks.packages import smollm2_file
from veridical.tasks.tables import from_arrays, from_table

__all__ = [
    "KnownAnswer",
    "causal_model",
    "Part",
    "from_arrays",
    "from_huggingface",
    "from_image_folder",
    "from_onnx",
    "from_parts",
    "from_table",
    "known",
    "load",
    "names",
    "smollm2_file",
    "values_by_part",
]
