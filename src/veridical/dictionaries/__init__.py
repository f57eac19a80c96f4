"""Sparse dictionaries with truth and controls: train them, read them, and learn which metric to believe."""

from veridical.concepts.dictionary import Dictionary, load, save
from veridical.concepts.dictionary_training import BatchTopK, Recipe, ReLU, TopK, Trained, train
from veridical.dictionaries.bench import Bench, Subject, activations
from veridical.dictionaries.controls import controls, damaged, family
from veridical.dictionaries.measures import MEASURES, Measure
from veridical.dictionaries.planted import Superposition, assign, chance_mcc, mcc, truth_scores
from veridical.dictionaries.standing import Standing, judge_one
from veridical.dictionaries.trust import Trust, judge, plot_trust

__all__ = [
    "Superposition",
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
    "judge_one",
    "Standing",
    "plot_trust",
]
