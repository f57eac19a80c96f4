"""The verb: audit a model's explanations with all five systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from veridical.auditing.effort import Effort, effort_of
from veridical.core.allowed import MANY, Within
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.auditing.result import Audit


@checked
def audit(
    task: Task,
    train: Any = None,
    explainers: Sequence[Any] | Mapping[str, Any] | None = None,
    effort: str | Effort = "quick",
    seed: int = 0,
    *,
    metrics: Sequence[Any] | Mapping[str, Any] | None = None,
    controls: Sequence[Any] | Mapping[str, Any] | None = None,
    criteria: Sequence[str] | None = None,
    others: Sequence[Any] | None = None,
    budget: Annotated[int, Within(1, 10**15)] | None = None,
    concepts: Any = None,
    samples: Annotated[int, Within(2, MANY)] | None = None,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> Audit:
    """Audit the explanations of a model: which explainer to use, which not to trust, and how sure that is.

    Every applicable explainer, and controls that know nothing of the model, are compared on ever more
    samples. A method is trusted if it beats every control when features are removed (`metrics`), if its maps
    fit this model and not a copy with other weights (the model randomisation test), and, where object masks
    tell what matters, if it finds that (truth). `criteria` chooses among "removal", "randomisation" and
    "truth". `metrics` and `controls` take the place of ours. GEF, robustness, MPRT and complexity describe. A
    black box cannot be copied with other weights: give `others`, models of the same kind trained on
    shuffled labels, or trust stays provisional.

    `train` (rows, or rows with labels) lets F-Fidelity fine-tune where masks disturb the model. `effort` sets
    samples, draws and the budget; `samples` and `budget` (rows asked of the model) override it. What is
    finished is kept in `folder`: after Ctrl-C the same call goes on. `executor` (of concurrent.futures, or
    `veridical.jobs.RayPool`) spreads the work and gives the same bits. `concepts` are concept
    methods to compare by SURF; by default a few are judged where the head is linear and the task has train
    rows, `concepts=()` judges none.

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
    if budget is not None:
        plan = replace(plan, budget=budget)
    if concepts is not None:
        from veridical.concepts.materials import entries

        concepts = entries(concepts)  # a name nobody knows is said now, not after the work
    # on first use: an audit needs all five systems, and everybody who imports veridical would wait for them
    from veridical.auditing.run import run

    said = {"explainers": explainers, "metrics": metrics, "controls": controls, "criteria": criteria}
    call = repeated(
        {**said, "others": others, "samples": samples, "budget": budget, "concepts": concepts}, effort, seed
    )
    found = run(
        task,
        train,
        explainers,
        plan,
        seed,
        concepts,
        progress,
        metrics=metrics,
        controls=controls,
        criteria=criteria,
        others=others,
        # who names explainers wants them, whatever they cost
        keep_to_budget=explainers is None or budget is not None,
        folder=None if folder is None else Path(folder),
        executor=executor,
    )
    return replace(found, call=call)


def repeated(given: Mapping[str, Any], effort: Any, seed: int) -> str:
    """The call that repeats an audit, as far as names can say it."""

    def name(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {label: name(held) for label, held in value.items()}
        if isinstance(value, list | tuple):
            return [name(held) for held in value]
        if value is None or isinstance(value, str | int | float):
            return value
        return getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)

    effort = effort.name if isinstance(effort, Effort) else effort
    told = [f"{key}={name(value)!r}" for key, value in given.items() if value is not None]
    return f"vd.audit({', '.join(['task', *told, f'effort={effort!r}', f'seed={seed}'])})"
