"""Axiomatic: does the explanation keep a rule that it should keep by definition?"""

from veridical.core.name_index import names_on_demand

__getattr__, __dir__ = names_on_demand(__name__)
