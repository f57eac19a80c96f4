"""Sparse dictionaries with truth and controls: train them, read them, and learn which metric to believe."""

from veridical.concepts.dictionary import BatchTopK, Dictionary, Recipe, ReLU, Stream, TopK, Trained, train
from veridical.concepts.methods.saelens import load_saelens
from veridical.dictionaries.bench import Bench
from veridical.dictionaries.controls import controls
from veridical.dictionaries.files import from_overcomplete, load, save
from veridical.dictionaries.judgement import judge
from veridical.dictionaries.ladder import damaged, family
from veridical.dictionaries.layer_stream import activations
from veridical.dictionaries.measures import MEASURES, Measure
from veridical.dictionaries.planted import Superposition
from veridical.dictionaries.plots import plot_family, plot_trust
from veridical.dictionaries.subject import Subject
from veridical.dictionaries.trust import Trust
from veridical.dictionaries.truth import assign, chance_mcc, mcc, truth_scores

__all__ = [
    "Superposition",
    "Stream",
    "activations",
    "train",
    "Trained",
    "Recipe",
    "ReLU",
    "TopK",
    "BatchTopK",
    "Dictionary",
    "load",
    "save",
    "load_saelens",
    "from_overcomplete",
    "truth_scores",
    "mcc",
    "chance_mcc",
    "assign",
    "Bench",
    "Subject",
    "MEASURES",
    "Measure",
    "controls",
    "family",
    "damaged",
    "judge",
    "Trust",
    "plot_trust",
    "plot_family",
]
