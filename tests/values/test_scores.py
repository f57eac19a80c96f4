"""Scores: one number a sample, and no average that hides a missing one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import veridical as vd
from veridical.errors import ShapeError
from veridical.values.scores import Curve


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


def test_values_are_float64_and_free_of_graphs() -> None:
    s = vd.Scores(torch.ones(2, requires_grad=True), vd.values.Direction.HIGHER, "toy", torch.arange(2))
    assert s.values.dtype == torch.float64
    assert not s.values.requires_grad


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


def test_costs_add_and_subtract() -> None:
    assert vd.models.Cost(3, 1) + vd.models.Cost(2, 2) == vd.models.Cost(5, 3)
    assert vd.models.Cost(3, 1) - vd.models.Cost(2, 1) == vd.models.Cost(1, 0)
    assert str(vd.models.Cost(3, 1)) == "3 rows forward, 1 backward"


def test_repr_says_mean_interval_direction_and_cost() -> None:
    text = repr(scores([1.0, 1.0, 1.0], cost=vd.models.Cost(9, 0)))
    assert text == (
        "Scores toy of me: mean 1.0000 [1.0000, 1.0000] over 3 samples (lower is better), "
        "cost 9 rows forward, 0 backward"
    )
    assert "sample" in scores([1.0])._repr_html_()


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"shape \(2,\), expected \(3,\)"):
        vd.Scores(torch.ones(2), vd.values.Direction.HIGHER, "toy", torch.arange(3))


def test_quantiles_of_students_t_are_those_of_scipy() -> None:
    from scipy.stats import t

    from veridical.values.scores import _students_t

    for freedom in (1, 2, 3, 4, 7, 30, 1000):
        for share in (0.6, 0.75, 0.9, 0.975):
            assert _students_t(freedom, share) == pytest.approx(t.ppf(share, freedom), rel=1.5e-3)
