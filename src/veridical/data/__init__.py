"""Data and models as tasks: embedded ones, known answers, a user's own files, a hub's folder."""

from veridical.data import tasks
from veridical.data.diagnosis import estimate
from veridical.data.files import Examples, read_examples
from veridical.data.generation import Generation
from veridical.data.huggingface import causal_model, from_huggingface
from veridical.data.images import from_image_folder
from veridical.data.joint import Part, from_parts, values_by_part
from veridical.data.known_answers import KnownAnswer
from veridical.data.load import load_task
from veridical.data.model_files import (
    LoadedModel,
    import_attribute,
    load_model,
    load_weights,
    read_weights,
)
from veridical.data.onnx_models import from_onnx
from veridical.data.prompt_checks import circular_pairs, prompt_checks
from veridical.data.switching import switch
from veridical.data.tables import from_arrays, from_table, label_column, text_column
from veridical.data.tasks import known, load, names, smollm2_file

__all__ = [
    "Examples",
    "Generation",
    "KnownAnswer",
    "LoadedModel",
    "Part",
    "causal_model",
    "circular_pairs",
    "estimate",
    "from_arrays",
    "from_huggingface",
    "from_image_folder",
    "from_onnx",
    "from_parts",
    "from_table",
    "import_attribute",
    "known",
    "label_column",
    "load",
    "load_model",
    "load_task",
    "load_weights",
    "names",
    "prompt_checks",
    "read_examples",
    "read_weights",
    "smollm2_file",
    "switch",
    "tasks",
    "text_column",
    "values_by_part",
]
