"""Do groups of samples get explanations of one quality?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from veridical.errors import ShapeError
from veridical.values.scores import Scores

if TYPE_CHECKING:
    import pandas as pd


def group_gap(scores: Scores, groups: Any, level: float = 0.95) -> pd.DataFrame:
    """Compare the mean score of each group of samples with that of all others.

    Parameters
    ----------
    scores : Scores
        What `vd.score` gives.
    groups : sequence
        The group of each sample, such as a column of the data.
    level : float
        The level of the interval, by Welch's t.

    Returns
    -------
    DataFrame
        By group: samples with a score, mean, mean of the others, their difference, and its interval.

    Raises
    ------
    ShapeError
        If there is not one group for every sample.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.tasks.load("digits")[:20]
    >>> found = group_gap(vd.score("pixel_flipping", task, "gradient"), task.labels.tolist())
    >>> list(found.columns)
    ['group', 'samples', 'mean', 'others', 'gap', 'low', 'high']
    """
    import pandas as pd
    from scipy.stats import ttest_ind

    values, given = scores.values.double().cpu().numpy(), np.asarray(groups)
    if given.shape != values.shape:
        raise ShapeError(f"groups have shape {given.shape}; give one for each of {len(values)} samples")
    rows = []
    for group in dict.fromkeys(given.tolist()):
        inside, others = (values[side & ~np.isnan(values)] for side in (given == group, given != group))
        low = high = float("nan")
        if min(len(inside), len(others)) > 1:
            low, high = ttest_ind(inside, others, equal_var=False).confidence_interval(level)
        mean, rest = (float(part.mean()) if len(part) else float("nan") for part in (inside, others))
        rows.append((group, len(inside), mean, rest, mean - rest, float(low), float(high)))
    return pd.DataFrame(rows, columns=["group", "samples", "mean", "others", "gap", "low", "high"])
