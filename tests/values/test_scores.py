"""Scores: one number a sample, and no average that hides a missing one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core import key as keyed
from veridical.errors import InputError, ShapeError
from veridical.metrics.base import Metric, Outcome, registry
from veridical.values.scores import SOURCES, Curve, Variance


def scores(values: list[float], **more: object) -> vd.Scores:
    return vd.Scores(
        torch.tensor(values), vd.values.Direction.LOWER, "toy", torch.arange(len(values)), "me", **more
    )


def test_mean_never_hides_nan() -> None:
    s = scores([1.0, 2.0, math.nan])
    assert math.isnan(s.mean())
    assert s.mean(skip_nan=True) == 1.5
    assert math.isnan(scores([math.nan]).mean(skip_nan=True))
    assert scores([1.0, 2.0]).mean() == 1.5


def test_utility_points_upwards() -> None:
    s = scores([1.0, 2.0])
    assert s.utility.tolist() == [-1.0, -2.0]
    up = vd.Scores(s.values, vd.values.Direction.HIGHER, "toy", s.ids)
    assert up.utility.tolist() == [1.0, 2.0]


def test_the_interval_covers_the_mean_and_shrinks() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, generator=generator).tolist()
    low, high = scores(values).ci()
    assert low < sum(values) / 400 < high
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.25)
    wide = scores(values[:40]).ci()
    assert wide[1] - wide[0] > high - low
    assert scores(values).ci(level=0.5)[1] < high
    assert scores(values).ci() == (low, high)
    assert scores([*values, math.nan]).ci() == (low, high)
    assert all(map(math.isnan, scores([1.0]).ci()))
    assert all(map(math.isnan, scores([1.0, math.nan]).ci()))


@pytest.mark.parametrize(("samples", "level", "at_least"), [(5, 0.95, 0.88), (8, 0.5, 0.43)])
def test_the_interval_of_few_samples_holds_the_mean_as_often_as_it_says(samples, level, at_least) -> None:
    values = torch.randn(200, samples, generator=torch.Generator().manual_seed(1))
    ends = [scores(row).ci(level, resamples=300) for row in values.tolist()]
    held = sum(low <= 0 <= high for low, high in ends) / len(ends)
    assert at_least <= held <= level + 0.05
    assert all(row.min() <= low <= high <= row.max() for row, (low, high) in zip(values, ends, strict=True))


@pytest.mark.parametrize("level", [None, [0.5], (0.5,), {}, torch.tensor([0.5, 0.6]), "0.5", 0, 1, math.nan])
def test_the_level_of_an_interval_is_a_share(level) -> None:
    with pytest.raises(vd.errors.InputError, match="level"):
        scores([1.0, 2.0, 4.0]).ci(level)


def test_flags_that_nobody_carries_are_dropped_and_the_others_counted() -> None:
    flags = {"why": torch.tensor([True, False, True]), "never": torch.zeros(3, dtype=torch.bool)}
    s = scores([1.0, 2.0, 3.0], flags=flags)
    assert s.flagged == {"why": 2}
    assert "2 flagged 'why'" in repr(s)
    assert s.take(slice(1, 2)).flagged == {}


def test_to_frame_has_one_row_a_sample() -> None:
    s = scores(
        [1.0, math.nan],
        flags={"empty": torch.tensor([False, True]), "odd": torch.tensor([False, True])},
        details={"drop": torch.tensor([0.5, 0.25]), "pair": torch.ones(2, 3)},
    )
    frame = s.to_frame()
    assert frame["id"].tolist() == [0, 1]
    assert frame["value"].isna().tolist() == [False, True]
    assert frame["flags"].tolist() == ["", "empty; odd"]
    assert frame["drop"].tolist() == [0.5, 0.25]
    assert frame["pair"][1].tolist() == [1.0, 1.0, 1.0]
    assert set(frame["metric"]) == {"toy"}


def test_take_follows_a_subset() -> None:
    curve = Curve(torch.arange(3.0), torch.arange(6.0).reshape(2, 3), "x", "y")
    s = scores([1.0, 2.0], curve=curve, details={"d": torch.tensor([3, 4])}).take(torch.tensor([1]))
    assert (s.values.tolist(), s.ids.tolist()) == ([2.0], [1])
    assert s.curve.y.tolist() == [[3.0, 4.0, 5.0]]
    assert s.details["d"].tolist() == [4]


def test_save_and_load_give_everything_back(tmp_path: Path) -> None:
    s = scores(
        [1.0, math.nan],
        flags={"why / so": torch.tensor([False, True])},
        curve=Curve(torch.arange(3.0), torch.arange(6.0).reshape(2, 3), "x", "y"),
        cost=vd.models.Cost(5, 6),
        provenance={"seed": 3, "value": math.nan, "plan": {"rows": 8}},
    )
    shared = s.values
    s = scores([1.0, math.nan], flags=s.flags, curve=s.curve, cost=s.cost, provenance=s.provenance,
               details={"same": shared, "again": shared})  # fmt: skip
    loaded = vd.Scores.load(s.save(tmp_path / "s.safetensors"))
    torch.testing.assert_close(loaded.values, s.values, equal_nan=True)
    assert loaded.direction is vd.values.Direction.LOWER
    assert (loaded.metric, loaded.explainer, loaded.cost) == ("toy", "me", vd.models.Cost(5, 6))
    assert loaded.flagged == {"why / so": 1}
    assert (loaded.curve.x_label, loaded.curve.y_label) == ("x", "y")
    assert torch.equal(loaded.curve.y, s.curve.y)
    assert set(loaded.details) == {"same", "again"}
    assert loaded.provenance["plan"] == {"rows": 8}
    assert math.isnan(loaded.provenance["value"])


def test_repr_says_mean_interval_direction_and_cost() -> None:
    text = repr(scores([1.0, 1.0, 1.0], cost=vd.models.Cost(9, 0)))
    assert text == (
        "Scores toy of me: mean 1.0000 [1.0000, 1.0000] over 3 samples (lower is better), "
        "cost 9 rows forward, 0 backward"
    )


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"shape \(2,\), expected \(3,\)"):
        vd.Scores(torch.ones(2), vd.values.Direction.HIGHER, "toy", torch.arange(3))


SD = {"samples": 3.0, "draws": 1.0, "fill": 3.0, "tie orders": 2.0}
NOWHERE = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True)
class Planted(Metric):
    """A score that is the sum of what is planted; the fill moves all samples alike."""

    name: ClassVar[str] = "planted"

    def evaluate(self, task, explanation, context) -> Outcome:
        def normal(source: str, ids: torch.Tensor) -> torch.Tensor:
            return SD[source] * keyed.normal(context.key.of(source) / source, ids, 0, 1, torch.float64)[:, 0]

        own = SD["samples"] * keyed.normal(vd.core.Key(7), task.ids, 0, 1, torch.float64)[:, 0]
        noise = normal("draws", task.ids) + normal("tie orders", task.ids) + normal("fill", NOWHERE)
        return Outcome(own + noise)


def planted(samples: int, repeats: int) -> Variance:
    task = vd.Task(nn.Linear(3, 2), torch.randn(samples, 3), train=torch.randn(200, 3))
    return vd.score(Planted(), task, torch.ones(samples, 3), repeats=repeats).variance()


def test_a_planted_decomposition_is_found() -> None:
    found = planted(800, 40)
    for source, sd in SD.items():
        # the fill is one number per repeat, the others one per sample as well
        near = 0.6 if source == "fill" else 0.15
        assert found.score[source] == pytest.approx(sd**2, rel=near), source
    for source in ("samples", "draws", "tie orders"):
        assert found.mean[source] == pytest.approx(SD[source] ** 2 / 800, rel=0.6), source
    assert found.mean["fill"] == pytest.approx(SD["fill"] ** 2, rel=0.6)  # more samples do not help
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert "40 repeats of each source" in repr(found)


def table(train: int = 200, fill=None) -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return vd.Task(net, torch.randn(6, 14).double(), train=torch.randn(train, 14).double(), fill=fill)


def test_only_what_draws_varies() -> None:
    maps = torch.rand(6, 14)
    still = vd.score("pixel_flipping", table(fill=0.0), maps, repeats=3)
    assert [still.variance().score[source] for source in SOURCES] == [0.0, 0.0, 0.0]
    assert still.variance().shares["samples"] == 1.0
    rows = vd.score("pixel_flipping", table(fill=vd.fills.Marginal(4)), maps, repeats=3).variance()
    assert rows.score["fill"] > 0 == rows.score["draws"] == rows.score["tie orders"]
    inside = vd.qge.QGE(registry.make("pixel_flipping", fill=vd.fills.Marginal(4)))
    assert vd.score(inside, table(fill=0.0), maps, repeats=3).variance().score["fill"] > 0
    few = vd.score("pixel_flipping", table(train=4, fill=vd.fills.Marginal(4)), maps, repeats=3).variance()
    assert few.score["fill"] == 0.0  # all reference rows are taken, whatever the seed
    drawn = vd.score("rfid_plus", table(fill=0.0), maps, repeats=3, variant="probability", draws=5).variance()
    assert drawn.score["draws"] > 0 == drawn.score["fill"] == drawn.score["tie orders"]
    tied = vd.score("pixel_flipping", table(fill=0.0), (maps > 0.5).double(), repeats=3).variance()
    assert tied.score["tie orders"] > 0 == tied.score["draws"] == tied.score["fill"]
    gap = vd.score("qge:pixel_flipping", table(fill=0.0), (maps > 0.5).double(), repeats=3).variance()
    assert gap.score["tie orders"] > 0 == gap.score["draws"]


def test_the_score_itself_stays_and_rows_are_counted(tmp_path: Path) -> None:
    maps = torch.rand(6, 14)
    once = vd.score("rfid_plus", table(fill=0.0), maps, draws=5)
    more = vd.score("rfid_plus", table(fill=0.0), maps, draws=5, repeats=4)
    assert torch.equal(once.values, more.values)
    assert more.cost.forward == 4 * once.cost.forward  # neither a fill nor ties to draw again
    back = vd.Scores.load(more.save(tmp_path / "scores.safetensors"))
    assert back.variance() == more.variance()


def test_what_is_not_known_is_said() -> None:
    scores = vd.score("pixel_flipping", table(fill=0.0), torch.rand(6, 14))
    with pytest.raises(InputError, match="score with repeats=8"):
        scores.variance()
    with pytest.raises(InputError, match="repeats is a whole number from 1"):
        vd.score("pixel_flipping", table(fill=0.0), torch.rand(6, 14), repeats=0)
    one = vd.score("pixel_flipping", table(fill=0.0)[:1], torch.rand(1, 14), repeats=2)
    with pytest.raises(InputError, match="needs two"):
        one.variance()
