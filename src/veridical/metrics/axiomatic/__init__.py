"""Axiomatic: does the explanation keep a rule that it should keep by definition?"""

from veridical.core.lazy import lazy_names, public_names

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
