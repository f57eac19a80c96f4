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
    tell what matters, if it finds that (truth). GEF, robustness, MPRT and complexity describe.

    Parameters
    ----------
    task : Task
        The model and the samples whose explanations are compared; at least two.
    train : array, optional
        Rows, or rows with labels, on which F-Fidelity may fine-tune where masks disturb the model; those of
        the task by default.
    explainers : sequence or mapping, optional
        Names or objects; one of every family that applies by default. Named ones run whatever they cost,
        unless `budget` is given, too.
    effort : str or Effort
        "glance", "quick", "standard" or "thorough": samples, draws and budget.
    seed : int
        Seed of all draws.
    metrics, controls : sequence or mapping, optional
        What decides under removal, and what has to be beaten, in the place of ours.
    criteria : sequence of str, optional
        Which of "removal", "randomisation" and "truth" must hold; all that the task offers by default.
    others : sequence of models, optional
        Models of the same kind, trained on shuffled labels, say, in the place of copies with other weights: a
        black box cannot be copied, and without `others` trust in its explanations stays provisional.
    budget, samples : int, optional
        Rows that may be asked of the model, and samples that are explained; override the effort's.
    concepts : optional
        Concept methods to compare by SURF. By default a few where the head is linear and the task has train
        rows; `()` compares none.
    folder : path, optional
        What is finished is kept here: after Ctrl-C the same call goes on.
    executor : concurrent.futures.Executor, optional
        Spreads the work, and gives the same bits; also `veridical.jobs.RayPool`.
    device : str or torch.device, optional
        Where to compute; where the task is by default.
    progress : bool, optional
        Whether to show a bar; in a terminal by default.

    Returns
    -------
    Audit
        The verdict with its evidence; prints it, and `report` writes it.

    Raises
    ------
    InputError
        Where there is nothing to compare, a name is unknown or no explainer fits the budget.

    Examples
    --------
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
