"""Sparse dictionaries: what they are, and how they are trained. `vd.dictionaries` judges them."""

from veridical.surf.dictionary.dictionary import Activation, Dictionary
from veridical.surf.dictionary.recipes import BatchTopK, Recipe, ReLU, TopK
from veridical.surf.dictionary.stream import Stream
from veridical.surf.dictionary.training import Trained, train

__all__ = ["Activation", "BatchTopK", "Dictionary", "ReLU", "Recipe", "Stream", "TopK", "Trained", "train"]
