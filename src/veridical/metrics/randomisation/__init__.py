"""Randomisation: does the explanation depend on the model and on the output that is explained?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
