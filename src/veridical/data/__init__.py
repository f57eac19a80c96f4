"""Data and models as tasks: embedded ones, known answers, a user's own files, a hub's folder."""

from veridical.data import tasks
from veridical.data.answer_matrix import AnswerMatrix, answer_matrix
from veridical.data.files import read_examples
from veridical.data.generation import Generation
from veridical.data.known_answers import KnownAnswer
from veridical.data.load import load_task
from veridical.data.model_files import import_attribute, load_model, load_weights, read_weights
from veridical.data.prompt_checks import circular_pairs, prompt_checks
from veridical.data.retraining import Retraining
from veridical.data.switching import switch
from veridical.data.tables import label_column, text_column
from veridical.data.tasks import Part, from_parts, values_by_part

__all__ = [
    "AnswerMatrix",
    "Generation",
    "KnownAnswer",
    "Part",
    "answer_matrix",
    "Retraining",
    "circular_pairs",
    "from_parts",
    "import_attribute",
    "label_column",
    "load_model",
    "load_task",
    "load_weights",
    "prompt_checks",
    "read_examples",
    "read_weights",
    "switch",
    "tasks",
    "text_column",
    "values_by_part",
]
