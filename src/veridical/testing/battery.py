"""One battery for every explainer and metric: batches, order, padding, seed, purity, pickling, counts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.explainers import Explainer
from veridical.explainers.controls import Random
from veridical.explainers.gradients import Gradient
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric
from veridical.models.plan import Plan
from veridical.testing.tasks import MODALITIES, tiny_task
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

TOLERANCE = 1e-9
KEY = Key(3)


class ContractError(VeridicalError, AssertionError):
    """An explainer or metric broke a promise; the message says which."""


def check_explainer(explainer: Explainer, modality: str | None = None) -> list[str]:
    """Check every promise on each kind of input that applies; gives back those kinds.

    Parameters
    ----------
    explainer : Explainer
        What is checked.
    modality : {"image", "table", "series", "text"}, optional
        The only kind of input to check on; by default all that apply.

    Returns
    -------
    list of str
        The kinds of input it was checked on.

    Raises
    ------
    ContractError
        Where a promise is broken; it names the kind of input and the promise.
    """
    return _over(modality, explainer, _explainer_promises)


def check_metric(metric: AnyMetric, modality: str | None = None) -> list[str]:
    """Check every promise on each kind of input that applies; gives back those kinds.

    Parameters
    ----------
    metric : Metric or ExplainerMetric
        What is checked.
    modality : {"image", "table", "series", "text"}, optional
        The only kind of input to check on; by default all that apply.

    Returns
    -------
    list of str
        The kinds of input it was checked on.

    Raises
    ------
    ContractError
        Where a promise is broken; it names the kind of input and the promise.
    """
    return _over(modality, metric, _metric_promises)


def _over(modality: str | None, thing: Any, promises: Callable[[Any, str], None]) -> list[str]:
    kinds = MODALITIES if modality is None else (modality,)
    checked = [kind for kind in kinds if thing.inapplicable_reason(tiny_task(kind)) is None]
    _settings_survive(thing)
    for kind in checked:
        try:
            promises(thing, kind)
        except ContractError as error:
            raise ContractError(f"{thing.name} on {kind}: {error}") from error
    return checked


def _explainer_promises(explainer: Explainer, kind: str) -> None:
    task = tiny_task(kind)

    def run(on: Task, key: Key = KEY) -> tuple[Tensor, Explanation]:
        explanation = explainer(on, key)
        return explanation.values, explanation

    with _untouched(task):
        values, whole = run(task)
    _demand(values.shape == (len(task), task.space.n_features), f"gave shape {tuple(values.shape)}")
    if task.space.valid is not None:
        _demand(bool((values[~task.space.valid] == 0).all()), "gives relevance to features that do not exist")
    _same_everywhere(task, lambda on: run(on)[0], values)
    _demand(torch.equal(run(task)[0], values), "the same key gave another map")
    other = run(task, Key(11))[0]
    if explainer._draws_on(task):
        _demand(not torch.equal(other, values), "says it is stochastic but two keys gave one map")
    else:
        _demand(torch.equal(other, values), "says it is deterministic but two keys gave two maps")
    _counts_do_not_depend_on_the_plan(task, lambda on: run(on)[1].cost, whole.cost)
    _padding_changes_nothing(kind, lambda on: run(on)[0][:, : values.shape[1]], values)
    single = run(tiny_task(kind, dtype=torch.float32))[0]
    _demand(bool(torch.isfinite(single).all()), "gave a value that is not finite in float32")


def _metric_promises(metric: AnyMetric, kind: str) -> None:
    task = tiny_task(kind)

    def run(on: Task, key: Key = KEY, scorer: AnyMetric = metric) -> Scores:
        return _score(scorer, on, key)

    with _untouched(task):
        scores = run(task)
    values = scores.values
    _demand(values.shape == (len(task),) and values.dtype == torch.float64, "gives no float64 per sample")
    _every_nan_is_flagged(scores)
    _same_everywhere(task, lambda on: run(on).values, values)
    _demand(_equal(run(task).values, values), "the same key gave other scores")
    _counts_do_not_depend_on_the_plan(task, lambda on: run(on).cost, scores.cost)
    _padding_changes_nothing(kind, lambda on: run(on).values, values)
    _demand(
        _equal(run(task, scorer=pickle.loads(pickle.dumps(metric))).values, values), "pickling changed it"
    )
    single = run(tiny_task(kind, dtype=torch.float32))
    _every_nan_is_flagged(single)
    if isinstance(metric, Metric):
        _missing_map_is_nan(metric, task, values)
        _ties_are_not_broken_by_position(metric, task)


def _ties_are_not_broken_by_position(metric: Metric, task: Task) -> None:
    """A map with tied features does not score as if the first, or the last, of them were the larger one."""
    features = task.space.n_features
    if task.space.valid is not None or features < 6 or hasattr(metric, "metric"):
        return  # the draws of a metric around another one follow the ranking of each map
    ranked = Random()(task, Key(5)).order.argsort(-1).double() + 1
    # three pairs of neighbours in the ranking: at the bottom, where a half is cut off, and at the top
    low = torch.tensor([0, (features - 1) // 2, features - 2], device=task.device)[:, None]
    ranked = ranked - (ranked[:, None] == low + 2).double().sum(1)
    # sums over features do not tie by chance, as those of whole numbers would
    tied = ranked + 0.3 * ranked.sin()
    places = torch.linspace(0, 1e-3, features, dtype=torch.float64, device=task.device)

    def scored(maps: Tensor) -> Tensor:
        made = Explanation(
            maps.to(task.inputs.dtype), task.space, task.targets, task.ids, draw_ids=task.draw_ids
        )
        return metric(task, made, KEY).values

    forth, back, found = scored(tied + places), scored(tied - places), scored(tied)
    apart = (forth - back).abs()
    by_position = torch.minimum((found - forth).abs(), (found - back).abs()) <= 1e-3 * apart
    decides = apart > 0.01 * torch.maximum(forth.abs(), back.abs())
    _demand(
        not bool((by_position & decides).any()),
        "breaks ties by the position of features: say ranks_only=True, and read the map by its order",
    )


def _score(metric: AnyMetric, task: Task, key: Key) -> Scores:
    if isinstance(metric, ExplainerMetric):
        return metric(task, Gradient(), key)
    if not isinstance(metric, Metric):
        raise ContractError("a metric is a Metric or an ExplainerMetric")
    # a map that is neither trivial nor tied, and the same whatever the batch
    return metric(task, Random()(task, Key(5)), key)


def _same_everywhere(task: Task, run: Callable[[Task], Tensor], values: Tensor) -> None:
    """Promises 1 and 3: other chunks, other batches and another order give the same values."""
    for rows in (8, 256):
        _close(run(task.with_plan(Plan(rows=rows))), values, f"with {rows} rows per chunk")
    for size in (1, 7):
        pieces = [run(task[at : at + size]) for at in range(0, len(task), size)]
        _close(torch.cat(pieces), values, f"in batches of {size}")
    backwards = torch.arange(len(task) - 1, -1, -1)
    _close(run(task[backwards]), values[backwards], "in reverse order")


def _padding_changes_nothing(kind: str, run: Callable[[Task], Tensor], values: Tensor) -> None:
    if kind in ("series", "text"):
        _close(run(tiny_task(kind, padding=4)), values, "with invalid features added")


def _counts_do_not_depend_on_the_plan(task: Task, run: Callable[[Task], Any], cost: Any) -> None:
    again = run(task.with_plan(Plan(rows=8)))
    _demand(again == cost, f"counted {cost} in one plan and {again} in another")


def _missing_map_is_nan(metric: Metric, task: Task, values: Tensor) -> None:
    """A sample that could not be explained is NaN and flagged, and the others are as before."""
    explanation = Random()(task, Key(5))
    holed = explanation.values.clone()
    holed[1] = torch.nan
    scores = metric(task, replace(explanation, values=holed), KEY)
    _demand(bool(scores.values[1].isnan()), "scored a sample that has no explanation")
    _demand("no explanation" in scores.flags, "did not flag a sample that has no explanation")
    rest = torch.arange(len(task)) != 1
    _close(scores.values[rest], values[rest], "beside a sample without explanation")


def _settings_survive(thing: Any) -> None:
    if thing.to_json().get("function") is not None:
        return  # a function is named in JSON, not stored
    again = type(thing).from_json(thing.to_json())
    _demand(again == thing, f"{thing.name}: JSON gave {again!r} back for {thing!r}")
    _demand(pickle.loads(pickle.dumps(thing)) == thing, f"{thing.name}: pickling changed it")


@contextmanager
def _untouched(task: Task) -> Iterator[None]:
    """Inputs, weights, flags and torch's global generator are afterwards as they were."""
    model, copy = task.predictor.source.original, task.predictor.source.working.module
    before = {n: v.clone() for n, v in model.state_dict().items()}
    flags, hooks = [m.training for m in model.modules()], _hooks(model, copy)
    inputs, state = task.inputs.clone(), torch.get_rng_state()
    yield
    _demand(torch.equal(task.inputs, inputs), "changed the inputs in place")
    after = model.state_dict()
    _demand(all(torch.equal(after[n], v) for n, v in before.items()), "changed the model's weights")
    _demand([m.training for m in model.modules()] == flags, "changed the model's training flags")
    _demand(_hooks(model, copy) == hooks, "left hooks on the model")
    _demand(torch.equal(torch.get_rng_state(), state), "moved torch's global generator")


def _hooks(*models: nn.Module) -> list[int]:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [sum(len(getattr(m, table)) for table in tables) for model in models for m in model.modules()]


def _every_nan_is_flagged(scores: Scores) -> None:
    missing = scores.values.isnan()
    excused = torch.zeros_like(missing)
    for mask in scores.flags.values():
        excused |= mask
    _demand(bool((~missing | excused).all()), "gave NaN without a flag that says why")
    _demand(not bool(torch.isinf(scores.values).any()), "gave an infinite score")


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _close(got: Tensor, expected: Tensor, when: str) -> None:
    _demand(got.shape == expected.shape, f"gave shape {tuple(got.shape)} {when}")
    if not torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        gap = float((got - expected).abs().nan_to_num(0).max())
        raise ContractError(f"gave other values {when} (largest gap {gap:.3g})")


def _demand(kept: bool, otherwise: str) -> None:
    if not kept:
        raise ContractError(otherwise)
