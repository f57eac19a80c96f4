"""One cell of the atlas: what one metric can see on one task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.atlas import measures
from benchmarks.atlas.bench import Bench, Size, modality_of, nearness
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.explainers.input_noise import why_no_noise
from veridical.meta import meta_evaluate
from veridical.meta.admissible import concordance, interval, tolerance
from veridical.meta.damage import BLENDED, KINDS, NEGATED, NOISE_SHARE, NONE, PERMUTED, Step, distinct_maps
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric
from veridical.models.context import Memo
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores

REPEATED = (NONE, f"{PERMUTED} 0.4", f"{PERMUTED} 1")
"""The maps that are scored again under other seeds."""
STEADY = ("gradient", "saliency", "input_x_gradient")
"""The explainers of the meta-evaluation."""
UNTIED = f"{BLENDED} {NOISE_SHARE:g}"
"""The map whose score is counted and timed: true maps may tie, and several orders would be asked."""
FAILED = "it failed"
Row = dict[str, Any]


def described(task: str, samples: int, label: str, metric: AnyMetric, reason: str | None) -> Row:
    """The head of a row: who was asked about what, and why not where it was not."""
    return {
        "metric": label,
        "category": metric.category,
        "judges": "methods" if isinstance(metric, ExplainerMetric) else "maps",
        "needs": ", ".join(sorted(metric.needs)),
        "modality": modality_of(task),
        "task": task,
        "samples": samples,
        "reason": reason or "",
    }


def measured(bench: Bench, label: str, metric: AnyMetric, size: Size, steady: bool) -> tuple[Row, float]:
    """A row of the atlas, and the seconds that one score of a sample took; what fails is a reason."""
    row = described(bench.name, len(bench.task), label, metric, metric.inapplicable_reason(bench.task))
    if row["reason"]:
        return row, float("nan")
    try:
        # a task that has no answers yet: what a score costs must not depend on who asked before
        bench = replace(bench, task=bench.task.changed(alone=True))
        found, seconds = _scores_and_cost(bench, metric, row)
        row |= _seen(bench, metric, found, size)
    except Exception as error:  # one that fails must not take the others along
        return {**row, "reason": f"{FAILED}: {error}"}, float("nan")
    if steady:
        steadiness = _steadiness(bench, label, metric, size.draws)
        remarks = [row["remark"], steadiness.pop("remark")]
        row |= {**steadiness, "remark": "; ".join(filter(None, remarks))}
    return row, seconds


def _scores_and_cost(bench: Bench, metric: AnyMetric, row: Row) -> tuple[dict[str, Scores], float]:
    """The scores of every map or method, and what one of them costs alone."""
    subjects: Mapping[str, Any] = bench.methods if isinstance(metric, ExplainerMetric) else bench.maps
    key, start = Key(bench.seed), time.perf_counter()
    alone = _score(bench, metric, subjects[UNTIED], key)
    seconds = (time.perf_counter() - start) / len(bench.task)
    row["rows"] = (alone.cost.forward + alone.cost.backward) / len(bench.task)
    memo = Memo()
    if isinstance(metric, ExplainerMetric):
        scores = metric.score_all(bench.task, subjects, key, memo)
    else:
        scores = {label: _tried(bench, metric, one, key, memo) for label, one in subjects.items()}
    failed = {label: said for label, said in scores.items() if isinstance(said, Exception)}
    for label in failed:
        if label in bench.ladder:
            raise failed[label]
    row["remark"] = "; ".join(f"without {label}: {said}" for label, said in failed.items())
    return {label: said for label, said in scores.items() if isinstance(said, Scores)}, seconds


def _score(bench: Bench, metric: AnyMetric, subject: Any, key: Key, memo: Memo | None = None) -> Scores:
    assert isinstance(metric, Metric | ExplainerMetric)
    return metric(bench.task, subject, key, memo)


def _tried(bench: Bench, metric: AnyMetric, subject: Any, key: Key, memo: Memo) -> Scores | Exception:
    try:
        return _score(bench, metric, subject, key, memo)
    except Exception as error:
        return error


def _seen(bench: Bench, metric: AnyMetric, found: Mapping[str, Scores], size: Size) -> Row:
    """Power, agreement with the truth, noise and blindness, from the scores of all maps."""
    methods = isinstance(metric, ExplainerMetric)
    maps = bench.maps_of_methods if methods else bench.maps
    utility = {label: scores.utility.cpu() for label, scores in found.items()}
    ties = _ties(bench, torch.stack(list(utility.values())))
    row: Row = {}
    chains = {kind: [label for label in bench.ladder if label.split()[0] in (NONE, kind)] for kind in KINDS}
    ordered = {}
    for kind, chain in chains.items():
        steps = [Step(kind, 0.0, maps[label]) for label in chain]
        scores = torch.stack([utility[label] for label in chain])
        ordered[kind] = concordance(scores, distinct_maps(steps).cpu(), ties)
        found_share = measures.share(ordered[kind], -1.0)
        row |= _triple(kind, found_share) if kind == PERMUTED else {kind: found_share[0]}
    all_kinds = torch.stack(list(ordered.values())).nanmean(0)
    row |= _triple("power", measures.share(all_kinds, -1.0))
    if bench.truth is not None:
        near = {label: nearness(maps[label], bench.truth).cpu() for label in utility}
        row |= _against_truth(bench, utility, near, ties)
    row["noise"] = _noise(bench, metric, utility, size)
    first = found[NONE]
    raised = [flag.cpu() for flag in (*first.flags.values(), first.values.isnan())]
    row["flagged"] = float(torch.stack(raised).any(0).double().mean())
    row["missing"] = float(first.values.isnan().double().mean())
    row["flag"] = max((count, reason) for reason, count in first.flagged.items())[1] if row["flagged"] else ""
    for name, other in (("blind_places", f"{PERMUTED} 1"), ("blind_sign", f"{NEGATED} 1")):
        differs = _differ(maps[NONE], maps[other])
        row[name] = measures.unmoved(utility[NONE], utility[other], ties, differs)
    return row


def _against_truth(
    bench: Bench, utility: Mapping[str, Tensor], near: Mapping[str, Tensor], ties: Tensor
) -> Row:
    rivals = [label for label in bench.rivals if label in utility]
    duels = torch.stack([utility[label] for label in rivals]), torch.stack([near[label] for label in rivals])
    won = measures.truth_first(utility[NONE], *duels, ties)
    every = torch.stack(list(utility.values())), torch.stack([near[label] for label in utility])
    agreed = interval(measures.agreement(*every, ties), measures.LEVEL)
    return _triple("first", measures.share(won)) | _triple("agreement", agreed)


def _noise(bench: Bench, metric: AnyMetric, utility: Mapping[str, Tensor], size: Size) -> float:
    subjects: Mapping[str, Any] = bench.methods if isinstance(metric, ExplainerMetric) else bench.maps
    seeds = [torch.stack([utility[label] for label in REPEATED])]
    for k in range(1, size.seeds):
        again = [_score(bench, metric, subjects[label], Key(bench.seed + k)) for label in REPEATED]
        seeds.append(torch.stack([scores.utility.cpu() for scores in again]))
    return measures.noise_share(torch.stack(seeds))


def _ties(bench: Bench, scores: Tensor) -> Tensor:
    return tolerance(bench.task) * scores.abs().nan_to_num(0.0, 0.0, 0.0).amax(0)


def _differ(one: Explanation, other: Explanation) -> Tensor:
    return (one.values != other.values).any(-1).cpu()


def _steadiness(bench: Bench, label: str, metric: AnyMetric, draws: int) -> Row:
    """Meta-consistency with plain explainers, and why there is none."""
    # where inputs cannot move a little, as parts of a prompt cannot, only weights are perturbed
    tests = ("ipt", "mpt") if why_no_noise(bench.task) is None else ("mpt",)
    given: dict[str, Any] = {"draws": draws, "iterations": draws, "resamples": 0, "progress": False}
    try:
        result = meta_evaluate(bench.task, {label: metric}, STEADY, tests=tests, seed=bench.seed, **given)
    except VeridicalError as error:
        return {"remark": f"no meta-consistency: {error}"}
    if result.failures:
        return {"remark": f"no meta-consistency: {result.failures[0].message}"}
    frame = result.to_frame()
    found = frame[frame["test"] == "mean"].iloc[0]
    remark = result.scores[label].dependence.remark
    return {"mc": float(found["mc"]), "dependence": float(found["dependence"]), "remark": remark}


def _triple(name: str, found: tuple[float, float, float]) -> Row:
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
