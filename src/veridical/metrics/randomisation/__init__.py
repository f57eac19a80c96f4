"""Randomisation: does the explanation depend on the model and on the output it is asked about?"""

from veridical.core.name_index import names_on_demand

__getattr__, __dir__ = names_on_demand(__name__)
