"""GEF and Fast-GEF: does the explanation move as the model moves, under weight noise?"""

from veridical.gef.metric import GEF, FastGEF, gef_score
from veridical.gef.path import NoisePath, find_path

__all__ = ["GEF", "FastGEF", "NoisePath", "find_path", "gef_score"]
