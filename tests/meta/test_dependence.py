"""No MC without a look at the map: cheats are flagged, however small a pinch of the map they add."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from scipy.stats import spearmanr

from tests.meta.conftest import small_table
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.meta import MetaEvaluation, PredictionHolds, by_category, meta_evaluate
from veridical.meta.dependence import BLIND, HARDLY, PLACELESS, Dependence, dependence, reach
from veridical.metrics.base import Metric, Outcome

QUICK = {"draws": 1, "iterations": 1, "resamples": 0, "ar": {"ipt": 1.0, "mpt": 2.0}}
METHODS = ["gradient", "input_x_gradient", "occlusion"]


@dataclass(frozen=True)
class Pinch(Metric):
    """Whether the prediction holds, plus a pinch of the map."""

    of: str = "first"
    """What is read of the map: its first value, its mean, its largest value."""
    weight: float = 1e-4
    """How large the pinch is."""
    name: ClassVar[str] = "pinch"

    def evaluate(self, task, explanation, context):
        values = explanation.values.double()
        values = values / values.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        pinch = {"first": values[:, 0], "mean": values.mean(-1), "max": values.amax(-1)}[self.of]
        return Outcome((task.predictions == task.targets).double() + self.weight * pinch)


CHEATS = {
    "holds": PredictionHolds(),
    **{f"pinch {of}": Pinch(of) for of in ("first", "mean", "max")},
    "larger pinch": Pinch("first", 1e-3),
}
HONEST = ["pixel_flipping", "faithfulness_correlation", "rfid_plus", "rfid_minus", "insertion", "infidelity"]
VALUES = ["sparseness", "complexity"]


@pytest.fixture(scope="module", params=["mpt", "ipt"])
def result(request, table) -> MetaEvaluation:
    judges = {**CHEATS, **{name: name for name in (*HONEST, *VALUES, "max_sensitivity", "random_logit")}}
    return meta_evaluate(table, judges, METHODS, tests=(request.param,), **QUICK)


def test_cheats_are_flagged_in_every_frame_and_text(result):
    frame = result.to_frame().set_index(["metric", "test"])
    for label in CHEATS:
        found = result.scores[label].dependence
        assert found.blind, (label, found)
        assert found.remark.startswith((BLIND, HARDLY))
        assert found.remark in frame.loc[(label, "mean"), "flags"]
        assert f"{label}: {found.remark}" in repr(result)


def test_metrics_that_read_the_map_are_not(result):
    for label in (*HONEST, "max_sensitivity", "random_logit"):
        found = result.scores[label].dependence
        assert found.remark == "", (label, found)
    for label in VALUES:
        assert result.scores[label].dependence.remark == PLACELESS


def test_a_rank_correlation_above_095_is_flagged():
    clear = Dependence(permuted=1.0, ranks=0.94, reach=0.5)
    assert not clear.blind
    assert replace(clear, ranks=0.96).remark == f"{HARDLY}: permuted maps rank samples alike (0.96)"
    # what permuting cannot change ranks alike by definition, and reads the values of a map
    assert Dependence(permuted=0.0, ranks=1.0, replaced=1.0, reach=0.5).remark == PLACELESS


def test_shares_ranks_and_reach_are_what_they_say():
    before = keyed.normal(Key(1), torch.arange(30), 0, 1, torch.float64)[:, 0]
    after = before + 0.5 * keyed.normal(Key(2), torch.arange(30), 0, 1, torch.float64)[:, 0]
    after[:3], before[4] = before[:3], torch.nan
    found, there = dependence(before, after), ~before.isnan()
    assert found.permuted == pytest.approx(27 / 30)
    assert found.ranks == pytest.approx(spearmanr(before[there], after[there]).statistic)
    moved = [abs(a - b) for a, b in zip(before[there].tolist(), after[there].tolist(), strict=True)]
    apart = [abs(a - b) for a in before[there].tolist() for b in before[there].tolist()]
    assert reach(before, after) == pytest.approx((sum(moved) / 29) / (sum(apart) / 29**2))
    assert reach(torch.ones(4), torch.zeros(4)) != reach(torch.ones(4), torch.zeros(4)), (
        "no distance, no value"
    )


def test_nobody_wins_a_category_in_one_iteration():
    judges = ["pixel_flipping", "faithfulness_correlation", "insertion"]
    one = meta_evaluate(small_table(), judges, METHODS, tests=("mpt",), **QUICK)
    assert not by_category(one)["wins"].any()
    assert by_category(one)["mc_std"].isna().all()
    assert one.to_frame()["mc_std"].isna().all()
    more = meta_evaluate(small_table(), judges, METHODS, tests=("mpt",), **{**QUICK, "iterations": 3})
    assert by_category(more)["mc_std"].notna().all()
