"""Robustness: does the explanation stay when the input hardly moves?"""

from veridical.core.name_index import names_on_demand

__getattr__, __dir__ = names_on_demand(__name__)
