"""Faithfulness: does the output move when what the map calls relevant is removed?"""

from veridical.core.name_index import names_on_demand

__getattr__, __dir__ = names_on_demand(__name__)
