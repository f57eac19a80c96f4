"""The verb: audit a model's explanations with all five systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch

from veridical.allowed import MANY, Within
from veridical.audit.effort import Effort, effort_of
from veridical.errors import InputError
from veridical.settings import checked
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.audit.result import Audit


@checked
def audit(
    task: Task,
    train: Any = None,
    explainers: Sequence[Any] | Mapping[str, Any] | None = None,
    effort: str | Effort = "quick",
    seed: int = 0,
    *,
    concepts: Any = None,
    samples: Annotated[int, Within(2, MANY)] | None = None,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> Audit:
    """Audit the explanations of a model: which explainer to use, which not to trust, and how sure that is.

    The model is checked, explained by every applicable explainer and by controls that know nothing of it,
    scored by GEF, F-Fidelity, QGE and descriptive metrics, and the metrics themselves are meta-evaluated on
    this very task; the verdict weighs them by what they proved worth. `train` (rows, or rows with labels)
    lets F-Fidelity fine-tune where masks disturb the model. `concepts` are concept
    methods to compare by SURF: methods, their names, ready `Concepts` or dictionaries. By default a few are
    judged where the head is linear and the task has train rows; `concepts=()` judges none. `effort`
    sets samples and draws; `samples` overrides the number of samples.

    >>> import veridical as vd
    >>> task = vd.tasks.load("known/linear")
    >>> vd.audit(task, explainers=["input_x_gradient", "saliency"], samples=32).best
    'input_x_gradient'
    """
    if task.members is not None:
        raise InputError("the samples of this task are classes; an audit explains inputs")
    if len(task) < 2:
        raise InputError("an audit compares samples and needs at least two")
    task = task if device is None else task.to(device)
    plan = effort_of(effort, task)
    if samples is not None:
        plan = replace(plan, samples=samples, meta_samples=min(samples, plan.meta_samples))
    if concepts is not None:
        from veridical.surf.materials import entries

        concepts = entries(concepts)  # a name nobody knows is said now, not after the work
    # on first use: an audit needs all five systems, and everybody who imports veridical would wait for them
    from veridical.audit.run import run

    return run(task, train, explainers, plan, seed, concepts, progress)
