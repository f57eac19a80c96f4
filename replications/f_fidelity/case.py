"""One sample seen closely: the ranking study of its map alone, size by size (D.6)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from veridical.errors import InputError
from veridical.fidelity import RankingStudy, ranking_study
from veridical.values.explanation import Explanation
from veridical.values.task import Task


def case_study(task: Task, sample: int, explainer: Any = "gradcam", **settings: Any) -> RankingStudy:
    """Degrade the map of one sample (by its place in the task) and evaluate every metric at every size.

    `settings` are those of `fidelity.ranking_study`. Finished maps are those of the whole task, or of the one
    sample. The result is a study of one sample and one repeat: `curves()` and `plot()` show its falls.
    """
    if not -len(task) <= sample < len(task):
        raise InputError(f"sample {sample} is none of the {len(task)} of this task")
    if not {"finetuned", "metrics"} & set(settings):
        raise InputError("give finetuned=fidelity.finetune(task), or the metrics to evaluate")
    place = sample % len(task)
    one = slice(place, place + 1)
    if isinstance(explainer, Explanation) and len(explainer) == len(task):
        explainer = explainer.take(one)
    elif isinstance(explainer, Tensor) and len(explainer) == len(task):
        explainer = explainer[one]
    return ranking_study(task[one], explainer, repeats=1, **settings)
