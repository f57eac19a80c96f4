"""Sparse dictionaries: what they are, and how they are trained. `vd.dictionaries` judges them."""

from veridical.concepts.dictionary.dictionary import Activation, Dictionary
from veridical.concepts.dictionary.recipes import BatchTopK, Recipe, ReLU, TopK
from veridical.concepts.dictionary.stream import Stream
from veridical.concepts.dictionary.training import Trained, train

__all__ = ["Activation", "BatchTopK", "Dictionary", "ReLU", "Recipe", "Stream", "TopK", "Trained", "train"]
