"""The verbs: explain, score, evaluate; and what there is to name in them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.progress import status, track
from veridical.core.registry import Catalogue, made
from veridical.core.settings import checked
from veridical.errors import InputError, MemoryLimitError, VeridicalError, visible, warn
from veridical.explainers.adapters import BoundExplainer, FinishedMaps, finished
from veridical.explainers.base import Explainer, as_explainer
from veridical.explainers.base import registry as explainer_registry
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric
from veridical.metrics.base import registry as metric_registry
from veridical.metrics.repeats import with_repeats
from veridical.models.context import Memo
from veridical.models.cost import Cost
from veridical.models.predictor import out_of_memory
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

R = TypeVar("R", bound=type[Any])
OTHER_OUTPUT = "explained for another output than the one scored: use task.with_targets(explanation.targets)"


@checked
def explain(
    explainer: Any,
    task: Task,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    repeats: Count = 1,
    **settings: Any,
) -> Explanation:
    """Explain every sample of a task, by an explainer's name, object, or the user's own function.

    Objects of other packages are taken as they are: captum's attributions, shap's and lime's explainers; so
    are finished maps (an array, a data frame with the task's columns, a `shap.Explanation`).

    Parameters
    ----------
    explainer : str, Explainer, callable, or object
        A name of `vd.list_explainers()`, an explainer, a function (model, inputs, targets) -> maps, an object
        of another package, or finished maps.
    task : Task
        Model, inputs and the outputs to explain.
    seed : int
        Seed of all draws.
    device : str or torch.device, optional
        Where to compute; by default where the task lies.
    repeats : int
        How often an explainer that draws is drawn: values are then means, with a standard error each
        (`.error`, `.interval()`). It costs so many times as much.
    **settings
        Settings of an explainer given by name or class.

    Returns
    -------
    Explanation
        One relevance for each sample and feature.

    Raises
    ------
    NotApplicableError
        Where the explainer cannot work on the task; it says why and names those that can.
    InputError
        Where maps contain NaN or do not fit the task.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4))
    >>> vd.explain("gradient", task)
    Explanation by gradient: 2 samples x 4 column features, cost 2 rows forward, 2 backward
    """
    task = task if device is None else task.to(device)
    method = as_method(explainer, task, **settings)
    if repeats == 1:
        return _explained(method, task, Key(seed), Memo(announces=True))
    if not method._draws_on(task):
        raise InputError(f"'{method.name}' draws nothing here: its values do not move, so leave out repeats")
    # each with a memo of its own: shared masks would be the same draw
    made = [_explained(method, task, Key(seed) / "repeat" / n, Memo(announces=True)) for n in range(repeats)]
    values = torch.stack([one.values.double() for one in made])
    mean = made[0].with_values(values.mean(0).to(made[0].values))
    return replace(
        mean,
        error=(values.std(0) / repeats**0.5).to(mean.values),
        cost=sum((one.cost for one in made), Cost()),
        provenance={**mean.provenance, "seed": seed, "repeats": repeats},
    )


def _explained(explainer: Explainer, task: Task, key: Key, memo: Memo | None) -> Explanation:
    if isinstance(explainer, FinishedMaps) and explainer.made is not None:
        return explainer.made  # whoever reads them says where they explain something else
    with _working(f"explaining by {explainer.name}", task):
        return explainer(task, key, memo)


@contextmanager
def _working(what: str, task: Task) -> Iterator[None]:
    """Show progress at a terminal, and say in a sentence where memory ends."""
    tally = task.predictor.meter.here
    try:
        with status(f"{what}, {len(task)} samples", lambda: tally.rows):
            yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, VeridicalError) or not out_of_memory(error):
            raise
        raise MemoryLimitError(
            f"{what} needs more memory than there is; ask for fewer draws, steps or samples, coarser "
            f"features (Space.patches), or smaller chunks (plan=Plan(rows=...)). It said: {str(error)[:99]}"
        ) from error


def as_metric(metric: Any, **settings: Any) -> AnyMetric:
    """Accept a metric, its name, or its class."""
    if isinstance(metric, str):
        return metric_registry.make(metric, **settings)
    if isinstance(metric, type) and issubclass(metric, AnyMetric):
        return made(metric, metric.__name__, settings)
    if isinstance(metric, AnyMetric):
        if settings:
            raise InputError(f"settings {sorted(settings)} go with a metric's name, not with an object")
        return metric
    raise InputError(f"a metric is a name or a Metric; got {type(metric).__name__}")


@checked
def score(
    metric: Any,
    task: Task,
    explanation: Any,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    repeats: Count = 1,
    **settings: Any,
) -> Scores:
    """Score an explanation: an `Explanation`, a tensor of maps, or an explainer in any accepted form.

    `repeats` scores again with a metric's draws, the fill and the order of ties drawn anew, one at a time, so
    that `scores.variance()` says what chance does; it costs up to 1 + 3 (repeats - 1) times as much.

    Parameters
    ----------
    metric : str or Metric
        A name of `vd.list_metrics()`, or a metric.
    task : Task
        Model, inputs and the outputs to explain.
    explanation : Explanation, array, str, Explainer, or callable
        Finished maps, or what makes them.
    seed : int
        Seed of all draws.
    device : str or torch.device, optional
        Where to compute; by default where the task lies.
    repeats : int
        How often draws, fill and tie orders are drawn anew, one at a time.
    **settings
        Settings of a metric given by name or class.

    Returns
    -------
    Scores
        One value for each sample, with direction, flags, cost and provenance.

    Raises
    ------
    NotApplicableError
        Where the metric or explainer cannot work on the task; it says why.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4))
    >>> vd.score("sparseness", task, torch.tensor([[0.0, 0.0, 0.0, 1.0]] * 2)).values
    tensor([0.7500, 0.7500], dtype=torch.float64)
    """
    task = task if device is None else task.to(device)
    return _scored(as_metric(metric, **settings), task, explanation, seed, repeats, Memo(announces=True))


def _scored(
    metric: AnyMetric,
    task: Task,
    explanation: Any,
    seed: int,
    repeats: int,
    memo: Memo,
) -> Scores:
    """What `score` gives, as a part of a call that may score more."""
    tally = task.predictor.meter.here
    before = tally.rows
    method = as_method(explanation, task)
    evaluated = tally.rows - before  # the targets of plain maps are the task's predictions
    if isinstance(metric, ExplainerMetric):
        if isinstance(method, FinishedMaps):
            raise InputError(
                f"metric '{metric.name}' explains again under noise: give it the explainer (a name, an "
                "object or a function), not a finished map"
            )
        with _working(f"scoring {method.name} by {metric.name}", task):
            if repeats == 1:
                return metric(task, method, Key(seed), memo)
            return with_repeats(
                lambda key: metric(task, method, key, memo), metric, task, method, seed, repeats
            )
    if not isinstance(metric, Metric):
        raise InputError(f"'{metric.name}' scores neither maps nor methods")
    key = Key(seed)
    with _working(f"scoring {method.name} by {metric.name}", task):
        maps = _explained(method, task, key, memo)
        if repeats == 1:
            found = metric(task, maps, key, memo)
        else:
            found = with_repeats(lambda key: metric(task, maps, key, memo), metric, task, maps, seed, repeats)
        found = replace(found, cost=found.cost + Cost(rows=evaluated)) if evaluated else found
        return _with_other_outputs(found, metric, task, maps)


def _with_other_outputs(scores: Scores, metric: Metric, task: Task, maps: Explanation) -> Scores:
    """Flag samples whose map explains another output than the one that is scored."""
    # fidelity scores the right answer and says so itself
    reads = metric.category in ("faithfulness", "axiomatic")
    if maps.targets is task.targets or not reads or hasattr(getattr(metric, "metric", metric), "reference"):
        return scores
    other = maps.targets.to(task.inputs.device) != task.targets
    return replace(scores, flags={**scores.flags, OTHER_OUTPUT: other}) if bool(other.any()) else scores


def as_explanation(explanation: Any, task: Task, seed: int = 0, memo: Memo | None = None) -> Explanation:
    """Accept an explanation, plain maps, or anything that makes one."""
    return _explained(as_method(explanation, task), task, Key(seed), memo)


def as_method(thing: Any, task: Task, **settings: Any) -> Explainer:
    """An explainer in any accepted form; finished maps as one that explains this task alone."""
    maps = None if settings else as_maps(thing, task)
    made = as_explainer(thing, **settings) if maps is None else FinishedMaps(made=maps)
    return made.at_home(task) if isinstance(made, BoundExplainer | FinishedMaps) else made


def as_maps(thing: Any, task: Task) -> Explanation | None:
    """Finished maps: an explanation, a tensor, an array, a data frame, a `shap.Explanation`; else None."""
    if isinstance(thing, Explanation):
        return thing
    values = None
    if isinstance(thing, torch.Tensor) or type(thing).__module__ == "numpy":
        values = task.values(thing, copy=True)
    elif type(thing).__module__.partition(".")[0] in ("pandas", "polars", "shap"):
        values = finished(thing, task)
    if values is None:
        return None
    return Explanation(values, task.space, task.targets, task.ids, draw_ids=task.draw_ids)


@checked
def evaluate(
    task: Task,
    explainers: Any,
    metrics: Any,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    repeats: Count = 1,
) -> Evaluation:
    """Score every explainer with every metric; each explanation is made once and serves all metrics.

    A cell that raises is kept with its traceback in `.failures` and announced; the others go on. Ctrl-C
    ends early and keeps what is finished. `progress` defaults to on when at a terminal. `repeats` as in
    `score`.

    Parameters
    ----------
    task : Task
        Model, inputs and the outputs to explain.
    explainers : one, a list, or a mapping label -> explainer
        What `explain` accepts, finished maps as well.
    metrics : one, a list, or a mapping label -> metric
        What `score` accepts.
    seed : int
        Seed of all draws.
    device : str or torch.device, optional
        Where to compute; by default where the task lies.
    progress : bool, optional
        Whether to show a progress bar; by default at a terminal.
    repeats : int
        As in `score`.

    Returns
    -------
    Evaluation
        The scores of every pair, the explanations, and what failed.
    """
    task = task if device is None else task.to(device)
    methods = labelled(explainers, lambda thing: as_method(thing, task))
    evaluators = labelled(metrics, as_metric)
    if not methods or not evaluators:
        raise InputError("give at least one explainer and one metric")
    scores: dict[tuple[str, str], Scores] = {}
    explanations: dict[str, Explanation] = {}
    failures: list[Failure] = []
    cells = [(method, metric) for method in methods for metric in evaluators]
    interrupted = False
    memo = Memo(announces=True)
    fits = {who: method for who, method in methods.items() if method.inapplicable_reason(task) is None}
    again = {who: method for who, method in methods.items() if not isinstance(method, FinishedMaps)}
    rows = {who: method._declared(task).forward for who, method in fits.items()}
    memo.expect(task.predictor.meter.here, sum(rows.values()), lambda: _many_rows(task, fits, rows))
    # a metric may share work between methods: GEF makes each perturbed model once
    together: dict[str, dict[str, Scores | Exception]] = {
        what: {}
        for what, metric in evaluators.items()
        if isinstance(metric, ExplainerMetric) and metric.shares_work and repeats == 1 and len(again) > 1
    }

    def keep(who: str, what: str | None, error: Exception) -> None:
        failures.append(Failure(who, what, str(error), "".join(traceback.format_exception(error))))
        where = f"explainer '{who}'" if what is None else f"metric '{what}' on '{who}'"
        warn(f"{where} failed: {error}")

    try:
        for who, what in track(cells, "scoring", progress):
            if any(f.explainer == who and f.metric is None for f in failures):
                continue
            step: str | None = None
            try:
                metric = evaluators[what]
                if not isinstance(metric, ExplainerMetric) and who not in explanations:
                    explanations[who] = _explained(methods[who], task, Key(seed), memo)
                step = what
                subject = methods[who] if isinstance(metric, ExplainerMetric) else explanations[who]
                scores[who, what] = (
                    _scored(metric, task, subject, seed, repeats, memo)
                    if what not in together or who not in again
                    else _of_group(together[what], metric, task, again, who, seed, memo)
                )
            except Exception as error:
                keep(who, step, error)
    except KeyboardInterrupt:
        interrupted = True
        warn("interrupted; the finished cells are kept")
    return Evaluation(task, scores, explanations, failures, interrupted, seed)


def _many_rows(task: Task, methods: Mapping[str, Explainer], rows: Mapping[str, int]) -> str:
    """What takes the rows of a table, and what takes fewer."""
    dearest = max(rows, key=lambda who: rows[who])
    return (
        f"the maps of {len(rows)} explainers, {rows[dearest]:,} of them {methods[dearest]._many_rows(task)}"
    )


def _of_group(
    known: dict[str, Scores | Exception],
    metric: AnyMetric,
    task: Task,
    methods: Mapping[str, Explainer],
    who: str,
    seed: int,
    memo: Memo,
) -> Scores:
    """The score of one method among several that share work, when the first is wanted."""
    assert isinstance(metric, ExplainerMetric)
    if not known:
        with _working(f"scoring {len(methods)} methods by {metric.name}", task):
            known.update(metric.score_all(task, methods, Key(seed), memo))
    found = known[who]
    if isinstance(found, Exception):
        raise found
    return replace(found, cost=found.cost + metric.basis(task, Key(seed)))


T = TypeVar("T", Explainer, AnyMetric)


def labelled(given: Any, read: Callable[..., T]) -> dict[str, T]:
    """Names for a list (each thing's own, numbered where two agree) or a mapping label -> thing."""
    # arrays and tables can be gone through, but are one thing
    if isinstance(given, str) or hasattr(given, "shape") or not isinstance(given, Iterable):
        given = [given]
    if isinstance(given, Mapping):
        return {visible(str(label)): read(thing) for label, thing in given.items()}
    out: dict[str, T] = {}
    for thing in given:
        made = read(thing)
        base = visible(thing if isinstance(thing, str) else made.name)
        label, count = base, 2
        while label in out:
            label, count = f"{base} {count}", count + 1
        out[label] = made
    return out


def list_explainers() -> Catalogue:
    """All explainers by name, with the kinds of input each applies to."""
    return Catalogue({name: _line(explainer_registry.maker(name)) for name in explainer_registry})


def list_metrics() -> Catalogue:
    """All metrics by name, with the kinds of input each applies to."""
    return Catalogue({name: _line(metric_registry.maker(name)) for name in metric_registry})


def _line(maker: Any) -> str:
    kinds = ", ".join(sorted(getattr(maker, "modalities", ())))
    return f"{getattr(maker, 'summary', '')}  [{kinds}]"


def register(cls: R) -> R:
    """Make the user's own explainer or metric class known by its `name`, everywhere a name is accepted.

    Parameters
    ----------
    cls : type
        A subclass of `Explainer`, `Metric` or `ExplainerMetric` with a `name`.

    Returns
    -------
    type
        The same class, so that it can be used as a decorator.

    Raises
    ------
    InputError
        Where it is no such class.
    """
    if isinstance(cls, type) and issubclass(cls, Explainer):
        explainer_registry.add(cls.name, cls)
    elif isinstance(cls, type) and issubclass(cls, AnyMetric):
        metric_registry.add(cls.name, cls)
    else:
        raise InputError("register takes a subclass of Explainer, Metric or ExplainerMetric")
    return cls
