"""Randomisation: does the explanation depend on the model and on the output it is asked about?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
