"""Complexity: how few features carry the map?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
