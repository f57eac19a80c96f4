"""Robustness: does the explanation stay when the input hardly moves?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
