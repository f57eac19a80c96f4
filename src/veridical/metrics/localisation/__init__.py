"""Localisation: does relevance lie on the object?"""

from veridical.core.name_index import names_on_demand

__getattr__, __dir__ = names_on_demand(__name__)
