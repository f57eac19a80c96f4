"""What a meta-evaluation found: the consistencies of every metric, with everything needed to doubt them.

Also on disk, and made of parts: iterations may run in processes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.errors import InputError, unknown_name
from veridical.functional import holm
from veridical.meta.consistency import (
    MIN_SAMPLES,
    Consistencies,
    consistencies,
    meta_consistency,
    resampled_vectors,
)
from veridical.meta.dependence import Dependence
from veridical.meta.perturbations import MODES, Amount, Mode, Test
from veridical.models.cost import Cost
from veridical.values.evaluation import Failure
from veridical.values.scores import Direction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ENTRIES = ("iac_nr", "iac_ar", "iec_nr", "iec_ar")
MEAN = "mean"
"""The name of the row that averages IPT and MPT."""


@dataclass(eq=False)
class MetricScores:
    """One metric's scores: `unperturbed` (L, N) by test, `perturbed` (iterations, draws, L, N) by mode."""

    metric: str
    category: str
    direction: Direction
    unperturbed: dict[Test, Tensor] = field(default_factory=dict)
    perturbed: dict[tuple[Test, Mode], Tensor] = field(default_factory=dict)
    checks: dict[str, Dependence] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    @property
    def dependence(self) -> Dependence:
        """How far the scores depend on the explanation, over all explainers."""
        return Dependence.over(self.checks)


@dataclass(frozen=True, eq=False)
class Reliability:
    """One metric under one test: `vectors` (iterations, 4), and the same of every resample (B, 4).

    Entries are IAC_NR, IAC_AR, IEC_NR, IEC_AR; higher is better in each. `effects` (iterations, 2) are the
    versions of the two IAC that do not depend on the number of samples.
    """

    vectors: Tensor
    effects: Tensor
    resampled: Tensor
    kept: tuple[float, float]
    reasons: tuple[str, ...] = ()

    @property
    def vector(self) -> Tensor:
        """The mean over the iterations that have a value (4,)."""
        return self.vectors.nanmean(0)

    @property
    def mc(self) -> float:
        """Meta-consistency, mean over iterations; NaN as soon as one of the four entries has no value."""
        return float(meta_consistency(self.vector))

    @property
    def mc_std(self) -> float:
        """Its standard deviation over iterations (of the population, as the paper's program takes it)."""
        return float(self.spread[-1])

    @property
    def spread(self) -> Tensor:
        """Standard deviations (5,) over the iterations that have a value: of the four entries and of MC.

        NaN where fewer than two have one: a single iteration shows no spread, which is not a spread of none.
        """
        table = with_mc(self.vectors)
        spread = (table - table.nanmean(0)).square().nanmean(0).sqrt()
        return spread.masked_fill((~table.isnan()).sum(0) < 2, torch.nan)

    def interval(self, level: float) -> Tensor:
        """Bootstrap intervals (2, 5) over samples: of the four entries and of MC.

        Centred on the values themselves: a resample repeats samples, which lowers p-values, so that resamples
        tell how far the values spread but not where they lie.
        """
        if not len(self.resampled):
            return torch.full((2, 5), torch.nan, dtype=torch.float64)
        return _centred(with_mc(self.resampled), with_mc(self.vector), level).clamp(0.0, 1.0)

    @classmethod
    def mean(cls, parts: Sequence[Reliability]) -> Reliability:
        """The mean over tests."""
        kept = torch.tensor([p.kept for p in parts], dtype=torch.float64).mean(0).tolist()
        return cls(
            torch.stack([p.vectors for p in parts]).mean(0),
            torch.stack([p.effects for p in parts]).mean(0),
            torch.stack([p.resampled for p in parts]).mean(0),
            (kept[0], kept[1]),
            tuple(reason for p in parts for reason in p.reasons),
        )


def with_mc(vectors: Tensor) -> Tensor:
    """The four consistencies (..., 4) and MC behind them (..., 5)."""
    return torch.cat([vectors, meta_consistency(vectors)[..., None]], -1)


@dataclass(frozen=True, eq=False, repr=False)
class MetaEvaluation:
    """Meta-scores by (metric, test); `to_frame`, `compare`, `plot`, and the raw `scores` of each metric."""

    scores: Mapping[str, MetricScores]
    kept: Mapping[tuple[Test, Mode], Tensor]
    explainers: tuple[str, ...]
    tests: tuple[Test, ...]
    amounts: Mapping[tuple[Test, Mode], Amount]
    remarks: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    explanations: int = 0
    """How many explanations were made, each for all metrics."""
    explanation_cost: Cost = field(default_factory=Cost)
    published: bool = False
    average_first: bool = False
    ties: float = 0.0
    """The share of a sample's largest score by which explainers may differ and still tie in rank."""
    resamples: int = 200
    level: float = 0.95
    seed: int = 0
    interrupted: bool = False
    iterations: tuple[int, ...] = ()

    @property
    def metrics(self) -> list[str]:
        """The labels of the metrics that were scored."""
        return list(self.scores)

    @property
    def averaged(self) -> tuple[Test, ...]:
        """The tests that the row "mean" averages: IPT and MPT, or what there is."""
        return tuple(t for t in self.tests if t in ("ipt", "mpt")) or self.tests

    def __getitem__(self, place: tuple[str, str]) -> Reliability:
        metric, test = place
        if metric not in self.scores:
            raise unknown_name("meta-evaluated metric", metric, self.scores)
        if test not in (*self.tests, MEAN):
            raise unknown_name("test of this result", test, (*self.tests, MEAN))
        return self._reliabilities[metric, test]

    def mc(self, metric: str, test: str = MEAN) -> float:
        """The meta-consistency of a metric; read it beside `scores[metric].dependence`."""
        return self[metric, test].mc

    @cached_property
    def _picks(self) -> Tensor:
        """Samples drawn with replacement (resamples, N), the same ones for all metrics."""
        samples = next(iter(self.kept.values())).shape[-1]
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(samples, (self.resamples, samples), generator=generator)

    @cached_property
    def _reliabilities(self) -> dict[tuple[str, str], Reliability]:
        found: dict[tuple[str, str], Reliability] = {}
        for label, table in self.scores.items():
            for test in self.tests:
                found[label, test] = self._reliability(table, test)
            found[label, MEAN] = Reliability.mean([found[label, test] for test in self.averaged])
        return found

    def _reliability(self, table: MetricScores, test: Test) -> Reliability:
        near, far = (table.perturbed[test, mode] for mode in MODES)
        kept_near, kept_far = (self.kept[test, mode] for mode in MODES)
        rules: dict[str, Any] = {name: getattr(self, name) for name in ("published", "average_first", "ties")}
        given = (table.unperturbed[test], near, far, kept_near, kept_far, table.direction)
        found: Consistencies = consistencies(*given, **rules)
        resampled = torch.empty(0, 4, dtype=torch.float64)
        if self.resamples:
            resampled = resampled_vectors(*given, self._picks, **rules)
        return Reliability(
            found.vector,
            torch.stack([found.effect_nr, found.effect_ar], -1),
            resampled,
            (float(kept_near.double().mean()), float(kept_far.double().mean())),
            tuple(self._undefined(table, test)),
        )

    def why_no_value(self, metric: str, test: str = MEAN) -> str:
        """Why a metric has no meta-consistency here, in words; nothing where it has one."""
        if not math.isnan(self.mc(metric, test)):
            return ""
        return (
            "; ".join(self._reasons(metric, test))
            or "; ".join(self.remarks)
            or "no perturbed model was scored"
        )

    def _reasons(self, metric: str, test: str) -> list[str]:
        """What limits the values of a metric under a test: samples that did not count, scores undefined."""
        here = self.averaged if test == MEAN else (test,)
        return [*(few for t in here for few in self._too_few(t)), *self[metric, test].reasons]

    def _too_few(self, test: str) -> Iterable[str]:
        for mode in MODES:
            kept = self.kept[test, mode]  # type: ignore[index]
            few, total = int((kept.sum(-1) < MIN_SAMPLES).sum()), kept.shape[0] * kept.shape[1]
            if few:
                what = "held" if mode == "nr" else "changed"
                rest = "there is no value" if few == total else "they are left out"
                where = f"in {few} of {total} draws"
                yield f"{test} {mode}: fewer than {MIN_SAMPLES} predictions {what} {where}; {rest}"

    def _undefined(self, table: MetricScores, test: Test) -> Iterable[str]:
        for mode in MODES:
            scores, kept = table.perturbed[test, mode], self.kept[test, mode]
            enough = kept & (kept.sum(-1, keepdim=True) >= MIN_SAMPLES)
            counted = enough.unsqueeze(-2).expand_as(scores)
            missing = (scores.isnan() | table.unperturbed[test].isnan()) & counted
            if bool(missing.any()):
                part = float(missing.sum() / counted.sum())
                yield f"{test} {mode}: {part:.1%} of the kept scores are undefined"

    # --- tables -------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a (metric, test) and one of the mean of IPT and MPT.

        `*_std` is over iterations, `*_low` and `*_high` the bootstrap interval over samples; `effect_*` are
        1 - |r| and |r|; `kept_*` the shares of samples that counted; `dependence` the share of scores that
        permuted maps change.
        """
        import pandas as pd

        names, rows = (*ENTRIES, "mc"), []
        for label, test in product(self.scores, (*self.tests, MEAN)):
            found, table = self[label, test], self.scores[label]
            row: dict[str, Any] = {"metric": label, "category": table.category, "test": test}
            low, high = found.interval(self.level)
            numbers = {"": with_mc(found.vector), "_std": found.spread, "_low": low, "_high": high}
            for suffix, values in numbers.items():
                row |= {f"{name}{suffix}": float(v) for name, v in zip(names, values, strict=True)}
            row["effect_nr"], row["effect_ar"] = found.effects.nanmean(0).tolist()
            row["kept_nr"], row["kept_ar"] = found.kept
            row["dependence"] = table.dependence.permuted
            flags = [*self._reasons(label, test), table.dependence.remark]
            rows.append({**row, "flags": "; ".join(flag for flag in flags if flag)})
        return pd.DataFrame(rows)

    def compare(self, test: str = MEAN) -> pd.DataFrame:
        """Compare every pair of metrics: the difference of their MC, its interval, and p after Holm.

        Pairs share their resamples, so the difference is paired; p comes from its bootstrap standard error.

        Parameters
        ----------
        test
            The test to compare by, or "mean" of IPT and MPT.

        Returns
        -------
        pandas.DataFrame
            One row per pair.

        Raises
        ------
        InputError
            If there are no resamples, or fewer than two metrics.
        """
        import pandas as pd

        if not self.resamples:
            raise InputError("comparisons rest on resamples; meta-evaluate with resamples=200, say")
        if len(self.scores) < 2:
            raise InputError(f"a comparison needs two metrics, this result has {len(self.scores)}")
        rows = []
        for a, b in combinations(self.scores, 2):
            first, second = self[a, test], self[b, test]
            apart = meta_consistency(first.resampled) - meta_consistency(second.resampled)
            difference, spread = first.mc - second.mc, float(apart.std())
            # without spread only a difference of 0 is none
            p = math.erfc(abs(difference) / spread / 2**0.5) if spread != 0 else float(difference == 0)
            low, high = _centred(apart, torch.tensor(difference), self.level).tolist()
            rows.append({"a": a, "b": b, "difference": difference, "low": low, "high": high, "p": p})
        frame = pd.DataFrame(rows)
        frame["p_holm"] = holm(torch.tensor(frame["p"].tolist(), dtype=torch.float64)).tolist()
        return frame

    def save(self, path: str | Path) -> Path:
        """Write all scores to one safetensors file; `vd.meta.load` reads it."""
        return files.save_tensors(path, KIND, *packed(self))

    # --- pictures and text --------------------------------------------------------------------------

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> Any:
        """The area chart of one metric (returns its axes), or of all, one column per category (figure 7)."""
        from veridical.meta.plots import area_chart, area_charts

        return area_charts(self) if metric is None else area_chart(self, metric, ax)

    def __repr__(self) -> str:
        columns = ("metric", "test", *ENTRIES, "mc", "mc_std", "dependence")
        samples = next(iter(self.kept.values())).shape[-1]
        iterations, draws = next(iter(self.kept.values())).shape[:2]
        rule = "published program" if self.published else "paper"
        head = (
            f"MetaEvaluation ({rule}): {len(self.scores)} metrics, {len(self.explainers)} explainers, "
            f"{samples} samples, {iterations} iterations x {draws} draws; dependence = share of scores that "
            "permuted maps change"
        )
        body = self.to_frame()[list(columns)].round(3).to_string(index=False) if self.scores else "(none)"
        return "\n".join([head, body, *self._notes()])

    def _notes(self) -> Iterable[str]:
        for (test, mode), amount in self.amounts.items():
            kept = float(self.kept[test, mode].double().mean())
            yield f"{test} {mode}: {amount}, {kept:.0%} of samples kept"
        yield from (few for test in self.tests for few in self._too_few(test))
        yield f"explanations: {self.explanations}, each for all metrics"
        for label, table in self.scores.items():
            reasons = {reason: None for t in self.tests for reason in self[label, t].reasons}
            remark = table.dependence.remark
            if remark:
                share = f"{table.dependence.permuted:.0%} of its scores change with permuted maps"
                reasons = {f"{remark} ({share})": None} | reasons
            if reasons:
                yield f"{label}: {'; '.join(reasons)}"
        yield from self.remarks
        for failure in self.failures:
            yield f"{failure.metric} failed: {failure.message}"
        if self.interrupted:
            yield "interrupted: not all perturbed models were scored"

    def _repr_html_(self) -> str:
        from veridical.plots import html_summary

        columns = ["metric", "test", *ENTRIES, "mc", "mc_std", "dependence", "flags"]
        frame = self.to_frame()[columns].round(3)
        return html_summary("; ".join(self._notes()), columns, frame.itertuples(index=False))


def _centred(resampled: Tensor, value: Tensor, level: float) -> Tensor:
    """The quantiles (2, ...) of the resamples (B, ...), moved so that their mean is the value."""
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return torch.quantile(resampled - resampled.mean(0), ends, dim=0) + value


KIND = "meta-evaluation"
BY_HAND = ("scores", "kept", "amounts", "failures", "explanation_cost")
"""Fields of a result that are not plain data."""


def load(path: str | Path) -> MetaEvaluation:
    """Read a meta-evaluation from disk.

    Parameters
    ----------
    path
        The file that `MetaEvaluation.save` wrote.

    Returns
    -------
    MetaEvaluation
        The same result, with all its scores.
    """
    tensors, header = files.load_tensors(path, KIND)
    with files.understood(str(path)):
        return unpacked(tensors, header)


def packed(result: MetaEvaluation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a result by name, and the rest as plain data."""
    tensors = {f"kept/{test}/{mode}": kept for (test, mode), kept in result.kept.items()}
    metrics = []
    for place, (label, table) in enumerate(result.scores.items()):
        tensors |= {f"{place}/unperturbed/{test}": scores for test, scores in table.unperturbed.items()}
        tensors |= {f"{place}/{test}/{mode}": scores for (test, mode), scores in table.perturbed.items()}
        metrics.append(
            {
                "label": label,
                "metric": table.metric,
                "category": table.category,
                "direction": str(table.direction),
                "checks": {who: asdict(check) for who, check in table.checks.items()},
                "cost": asdict(table.cost),
            }
        )
    header: dict[str, Any] = {
        "metrics": metrics,
        "amounts": [[*place, asdict(amount)] for place, amount in result.amounts.items()],
        "failures": [asdict(failure) for failure in result.failures],
        "explanation_cost": asdict(result.explanation_cost),
    }
    plain = [field.name for field in fields(result) if field.name not in BY_HAND]
    return tensors, header | {name: getattr(result, name) for name in plain}


def unpacked(tensors: dict[str, Tensor], header: dict[str, Any]) -> MetaEvaluation:
    """The result of which `packed` made these."""
    places = [(test, mode) for test, mode, _ in header["amounts"]]
    scores = {}
    for place, about in enumerate(header["metrics"]):
        scores[about["label"]] = MetricScores(
            about["metric"],
            about["category"],
            Direction(about["direction"]),
            {test: tensors[f"{place}/unperturbed/{test}"] for test in header["tests"]},
            {(test, mode): tensors[f"{place}/{test}/{mode}"] for test, mode in places},
            {who: Dependence(**check) for who, check in about["checks"].items()},
            Cost(**about["cost"]),
        )
    known = [field.name for field in fields(MetaEvaluation) if field.name not in BY_HAND]
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value := header[name], list) else value
        for name in known
        if name in header
    }
    return MetaEvaluation(
        scores,
        {(test, mode): tensors[f"kept/{test}/{mode}"] for test, mode in places},
        amounts={(test, mode): Amount.read(amount) for test, mode, amount in header["amounts"]},
        failures=tuple(Failure(**failure) for failure in header["failures"]),
        explanation_cost=Cost(**header["explanation_cost"]),
        **plain,
    )


def joined(results: Sequence[MetaEvaluation]) -> MetaEvaluation:
    """Join results that differ in their iterations only, in the order of those.

    Counts are sums: each part made the explanations of its own unperturbed task. A metric that failed in
    one part is left out of the whole.

    Parameters
    ----------
    results
        Parts of one meta-evaluation, as of `meta_evaluate(..., iterations=range(2, 3))`.

    Returns
    -------
    MetaEvaluation
        As one call would have given it.

    Raises
    ------
    InputError
        If there is none, or they share an iteration or differ in anything else.
    """
    if not results:
        raise InputError("give at least one result to join")
    parts = sorted(results, key=lambda result: result.iterations)
    first = parts[0]
    for part in parts[1:]:
        for name in ("explainers", "tests", "amounts", "published", "average_first", "seed"):
            if getattr(part, name) != getattr(first, name):
                raise InputError(
                    f"results to join differ in {name}: {getattr(first, name)} and {getattr(part, name)}"
                )
    numbers = [number for part in parts for number in part.iterations]
    if len(set(numbers)) != len(numbers):
        raise InputError(f"an iteration is in two of the results to join: {numbers}")
    labels = [label for label in first.scores if all(label in part.scores for part in parts)]
    return replace(
        first,
        scores={label: _joined([part.scores[label] for part in parts]) for label in labels},
        kept={place: torch.cat([part.kept[place] for part in parts]) for place in first.kept},
        iterations=tuple(numbers),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
        failures=tuple(failure for part in parts for failure in part.failures),
        explanations=sum(part.explanations for part in parts),
        explanation_cost=sum((part.explanation_cost for part in parts), Cost()),
        interrupted=any(part.interrupted for part in parts),
    )


def _joined(parts: list[MetricScores]) -> MetricScores:
    """One metric's scores of all iterations, beside the unperturbed scores of the first.

    Another process may have got those with other last bits. What equals them there equals them here: a score
    that no noise can change must not look changed.
    """
    first = parts[0]

    def scores(table: MetricScores, test: Test, mode: Mode) -> Tensor:
        found, own = table.perturbed[test, mode], table.unperturbed[test]
        return torch.where(found == own, first.unperturbed[test], found)

    return replace(
        first,
        perturbed={place: torch.cat([scores(part, *place) for part in parts]) for place in first.perturbed},
        cost=sum((part.cost for part in parts), Cost()),
    )
