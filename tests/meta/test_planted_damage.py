"""Admissible metrics: planted damage is seen by metrics that read maps, and by no others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from scipy.stats import ttest_1samp

import veridical as vd
from tests.meta.conftest import small_table
from tests.reference.meta import somers_d
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.meta.admissible import Admissibility, concordance, interval
from veridical.meta.damage import LEVELS, damaged_maps, distinct_maps, reference_for
from veridical.metrics.base import Metric, Outcome
from veridical.models.cost import Cost
from veridical.qge import QGE


@dataclass(frozen=True)
class Coin(Metric):
    """A number drawn by the bits of the map: it reads the map and knows nothing."""

    name: ClassVar[str] = "coin"

    def evaluate(self, task, explanation, context):
        ids = keyed.content_ids(explanation.values)
        return Outcome(keyed.uniform(Key(1), ids, 0, 1, torch.float64)[:, 0])


@dataclass(frozen=True)
class Partly(Metric):
    """Undefined in most samples, or raising."""

    known: int = 3
    """How many samples have a score."""
    raises: bool = False
    """Whether it fails instead."""
    name: ClassVar[str] = "partly"

    def evaluate(self, task, explanation, context):
        if self.raises:
            raise ValueError("out of order")
        values = explanation.values[:, 0].double().clone()
        values[self.known :] = torch.nan
        return Outcome(values)


REMOVAL = {
    "flipping": "pixel_flipping",
    "correlation": "faithfulness_correlation",
    "qge": QGE("pixel_flipping"),
}


@pytest.fixture(scope="module", params=["known/linear", "digits"])
def found(request):
    task = vd.tasks.load(request.param)[:12]
    cheats = {"coin": Coin(), "holds": vd.meta.PredictionHolds()}
    return vd.meta.planted_damage(
        task, {**REMOVAL, **cheats, "sparseness": "sparseness", "fast_gef": "fast_gef"}
    )


def test_removal_metrics_are_admissible(found):
    assert found.admissible == list(REMOVAL)
    for label in REMOVAL:
        assert found.metrics[label].mean("permuted")[1] > 0.25


def test_a_coin_a_prediction_and_a_shape_are_not_admissible_with_the_reason(found):
    assert set(found.inadmissible) == {"coin", "holds", "sparseness"}
    assert "cannot tell" in found.inadmissible["coin"]
    assert "no damage changes them" in found.inadmissible["holds"]
    assert found.inadmissible["sparseness"] == "it reads the values of a map, not their places"
    assert found.metrics["holds"].mean() == (0.0, 0.0, 0.0)


def test_a_metric_that_judges_methods_is_untested_with_the_reason(found):
    assert list(found.untested) == ["fast_gef"]
    assert "finished maps" in found.untested["fast_gef"]
    assert not found.metrics["fast_gef"].admissible
    assert math.isnan(found.metrics["fast_gef"].mean()[0])


def test_frame_text_and_picture_agree(found):
    frame = found.to_frame().set_index("metric")
    assert list(frame.index[frame["admissible"]]) == found.admissible
    assert (frame["reason"] == "").equals(frame["admissible"])
    assert "3 of 7 metrics are admissible" in repr(found)
    labels = [text.get_text() for text in found.plot().get_yticklabels()]
    assert labels == [label for label in reversed(found.metrics) if label != "fast_gef"]


def test_rows_are_counted():
    task = vd.tasks.load("digits")[:8]
    before = task.predictor.meter.cost.forward
    found = vd.meta.planted_damage(task, ["pixel_flipping", "faithfulness_correlation"])
    assert found.cost.forward == task.predictor.meter.cost.forward - before
    assert found.cost.forward > found.reference_cost.forward > 0


def test_a_coin_is_rarely_admissible():
    task = small_table(24)
    maps = vd.explain("gradient", task)
    admissible = 0
    for seed in range(60):
        admissible += bool(vd.meta.planted_damage(task, [Coin()], reference=maps, seed=seed).admissible)
    assert admissible <= 5  # both bounds above 0 happen in less than 2.5% of tasks


@pytest.mark.parametrize("ties", [0.0, 0.3])
def test_concordance_is_the_slow_one(ties):
    scores = keyed.normal(Key(2), torch.arange(6), 0, 20, torch.float64)
    scores[1, 3], scores[:, 5] = torch.nan, torch.nan
    maps = keyed.integers(Key(3), torch.arange(6 * 20), 0, 2, 3).view(6, 20, 2)
    distinct = (maps[:, None] != maps[None]).any(-1)
    got = concordance(scores, distinct, ties)
    for sample in range(20):
        slow = somers_d(scores[:, sample].tolist(), maps[:, sample].tolist(), ties)
        assert got[sample].item() == pytest.approx(slow, nan_ok=True)


def test_the_interval_is_students():
    values = keyed.normal(Key(5), torch.zeros(1, dtype=torch.int64), 0, 12, torch.float64)[0] * 0.2
    peer = ttest_1samp(values.numpy(), 0.0).confidence_interval(0.9)
    padded = torch.cat([values, torch.tensor([torch.nan])])
    assert interval(padded, 0.9) == pytest.approx((values.mean().item(), peer.low, peer.high))


def test_damage_is_nested_and_keeps_what_it_must(text):
    maps = vd.explain("occlusion", text)
    steps = damaged_maps(maps, LEVELS, Key(0))
    assert [(s.kind, s.share) for s in steps[1:]] == [
        *(("permuted", share) for share in LEVELS),
        ("blended", 0.5),
        ("negated", 1.0),
    ]
    for step in steps:
        assert not step.maps.values[~maps.valid].any()
    for before, after in pairwise(steps[:6]):
        assert torch.equal(before.maps.values.sort().values, after.maps.values.sort().values)
    assert torch.equal(steps[-1].maps.values, -maps.values)


def test_blending_halves_the_map_and_adds_noise_of_its_size():
    task = small_table(200)
    maps = vd.explain("gradient", task)
    blended = damaged_maps(maps, (1.0,), Key(0))[-2]
    noise = 2 * blended.maps.values - maps.values
    size = maps.values.square().mean(-1, keepdim=True).sqrt()
    assert (noise / size).std().item() == pytest.approx(1.0, abs=0.05)


def test_maps_that_permuting_leaves_alone_are_no_damage():
    task = small_table(8)
    values = torch.zeros(8, 6, dtype=torch.float64)
    values[:4, 0] = 1.0
    steps = damaged_maps(vd.api.as_explanation(values, task), (0.2, 1.0), Key(0))
    distinct = distinct_maps(steps[:3])
    moved = (steps[2].maps.values != values).any(-1)
    assert torch.equal(distinct[0, 2], moved)
    assert not distinct[:, :, 4:].any()


def test_constant_reference_maps_leave_all_untested():
    task = small_table(8)
    found = vd.meta.planted_damage(task, ["pixel_flipping"], reference="constant")
    assert "0 of 8 samples, and it takes 6" in found.untested["pixel_flipping"]
    assert "left out: 8" in repr(found)


def test_a_metric_with_few_scores_is_not_admissible_and_one_that_fails_is_said_to():
    task = small_table(12)
    found = vd.meta.planted_damage(
        task, {"few": Partly(), "broken": Partly(raises=True), "flip": "pixel_flipping"}, reference="gradient"
    )
    assert found.inadmissible["few"] == "it has scores of damaged maps in 3 of 12 samples, 6 are needed"
    assert found.untested["broken"] == "it failed: out of order"


def test_a_metric_that_prefers_damage_is_not_admissible():
    task = small_table(24)
    found = vd.meta.planted_damage(
        task, {"turned": QGE("pixel_flipping")}, reference=-vd.explain("occlusion", task).values
    )
    assert "prefers maps with" in found.inadmissible["turned"]


def test_lower_is_better_is_read_by_its_direction():
    found = vd.meta.planted_damage(small_table(24), ["pixel_flipping", "deletion"])
    assert found.admissible == ["pixel_flipping", "deletion"]


def test_the_reference_is_exact_where_all_subsets_can_be_asked():
    assert reference_for(small_table(8)) == "exact_shapley"
    assert reference_for(vd.tasks.load("breast_cancer")[:8]) == "occlusion"


@pytest.mark.parametrize(
    "wrong",
    [{"levels": ()}, {"levels": (0.5, 0.5)}, {"levels": (0.0, 1.0)}, {"levels": (1.5,)}, {"level": 1.0}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(vd.errors.InputError):
        vd.meta.planted_damage(small_table(8), ["pixel_flipping"], **wrong)


def test_admissibility_needs_permuted_places_and_all_damage():
    up, down = torch.full((10,), 0.5), torch.full((10,), -1.0)
    scores = torch.zeros(8, 10)
    blended = {"permuted": up, "blended": down, "negated": down}
    assert "damage" in Admissibility("m", "", blended, scores, Cost()).inadmissible
    assert Admissibility("m", "", {"permuted": up, "blended": up, "negated": up}, scores, Cost()).admissible
