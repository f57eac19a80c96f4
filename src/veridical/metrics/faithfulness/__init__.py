"""Faithfulness: does the output move when what the map calls relevant is removed?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
