"""Faithfulness: does the output move when what the map calls relevant is removed?"""

from veridical.metrics.faithfulness.deletion import Deletion
from veridical.metrics.faithfulness.eraser import Comprehensiveness, TextSufficiency
from veridical.metrics.faithfulness.faithfulness_correlation import FaithfulnessCorrelation
from veridical.metrics.faithfulness.faithfulness_estimate import FaithfulnessEstimate
from veridical.metrics.faithfulness.infidelity import Infidelity
from veridical.metrics.faithfulness.insertion import Insertion
from veridical.metrics.faithfulness.irof import Irof
from veridical.metrics.faithfulness.monotonicity import Monotonicity
from veridical.metrics.faithfulness.monotonicity_correlation import MonotonicityCorrelation
from veridical.metrics.faithfulness.pixel_flipping import PixelFlipping
from veridical.metrics.faithfulness.region_perturbation import RegionPerturbation
from veridical.metrics.faithfulness.road import Road
from veridical.metrics.faithfulness.selectivity import Selectivity
from veridical.metrics.faithfulness.sensitivity_n import SensitivityN
from veridical.metrics.faithfulness.sufficiency import Sufficiency

__all__ = [
    "Comprehensiveness",
    "Deletion",
    "FaithfulnessCorrelation",
    "FaithfulnessEstimate",
    "Infidelity",
    "Insertion",
    "Irof",
    "Monotonicity",
    "MonotonicityCorrelation",
    "PixelFlipping",
    "RegionPerturbation",
    "Road",
    "Selectivity",
    "SensitivityN",
    "Sufficiency",
    "TextSufficiency",
]
