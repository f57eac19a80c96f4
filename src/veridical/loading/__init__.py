"""A user's own model and data, from files: each read as data, and as code only where that was allowed."""

from veridical.loading.columns import label_column, text_column
from veridical.loading.examples import Examples, read_examples
from veridical.loading.models import LoadedModel, checked_device, load_model
from veridical.loading.task import load_task
from veridical.loading.trust import import_attribute
from veridical.loading.weights import load_weights, read_weights

__all__ = [
    "Examples",
    "LoadedModel",
    "checked_device",
    "import_attribute",
    "label_column",
    "load_model",
    "load_task",
    "load_weights",
    "read_examples",
    "read_weights",
    "text_column",
]
