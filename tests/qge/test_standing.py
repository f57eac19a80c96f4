"""Standing: exact percentiles, antithetic sampling with honest intervals, and the pictures."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import veridical as vd
from tests.qge.conftest import respond, table
from tests.reference import qge as reference
from veridical import testing
from veridical.errors import InputError
from veridical.metrics.base import registry
from veridical.qge.gap import IDENTICALLY_ZERO
from veridical.qge.paths import random_orders


def test_quality_and_gap_are_those_of_the_metrics() -> None:
    task = table(5, 3)
    e = vd.explain("gradient", task)
    found = vd.qge.standing(task, "pixel_flipping", e)
    assert torch.allclose(found.quality, -vd.score("pixel_flipping", task, e).values, atol=1e-8)
    assert torch.allclose(found.gap, vd.score("qge:pixel_flipping", task, e).values, atol=1e-8)
    assert found.cost.forward == 3 * (2**5 - 1)


@pytest.mark.parametrize("kind", ["series", "text"])
def test_only_valid_features_are_ranked(kind: str) -> None:
    task, padded = testing.tiny_task(kind, samples=3), testing.tiny_task(kind, samples=3, padding=3)
    results = [
        vd.qge.standing(t, "pixel_flipping", "random", exact=exact, draws=200)
        for exact in (True, False)
        for t in (task, padded)
    ]
    for a, b in (results[:2], results[2:]):
        assert torch.allclose(a.percentile, b.percentile, atol=1e-9)
    off = (results[0].percentile - results[2].percentile).abs()
    assert bool((off < 0.15).all())


def test_intervals_cover_the_exact_percentile() -> None:
    task = table(6, 40, seed=5)
    e = vd.explain("random", task)
    exact = vd.qge.standing(task, "pixel_flipping", e).percentile
    hits, total = 0, 0
    for seed in range(5):
        found = vd.qge.standing(task, "pixel_flipping", e, exact=False, draws=60, seed=seed)
        hits += int(((found.low <= exact) & (exact <= found.high)).sum())
        total += len(task)
    assert hits / total >= 0.9
    assert bool((found.high - found.low < 0.4).all())


def test_pairing_removes_variance_where_inverses_oppose() -> None:
    task = table(6, 20, seed=5)
    found = vd.qge.standing(task, "kept_features", "random", exact=False, draws=400)
    middling = (found.percentile - 0.5).abs() < 0.25
    assert bool(middling.any())
    assert bool((found.variance_ratio[middling] < 0.9).all())
    assert "of the variance" in repr(found)


@dataclass(frozen=True)
class Middle(vd.Metric):
    """A score that a ranking shares with its inverse: the sum of the two features in the middle."""

    name: ClassVar[str] = "middle"

    def evaluate(
        self, task: vd.Task, explanation: vd.Explanation, context: vd.models.Context
    ) -> vd.metrics.Outcome:
        middle = explanation.order[:, 2:4]
        return vd.metrics.Outcome(task.inputs.gather(-1, middle).sum(-1).abs())


def test_plain_draws_where_pairing_would_hurt() -> None:
    """A quality that is the same for a ranking and its inverse: pairs are then one draw counted twice."""
    task = table(6, 4)
    metric = Middle()
    found = vd.qge.standing(task, metric, "random", draws=200)
    assert set(found.method) == {"plain"}
    assert bool((found.variance_ratio > 1.5).all())
    assert found.sample.shape == (4, 200)
    # the middle pair of six features is drawn once in fifteen times
    assert torch.allclose(found.percentile, found.percentile.round(decimals=6))


def test_missing_maps_and_metrics_without_a_standing() -> None:
    task = table(5, 3)
    values = vd.explain("gradient", task).values.clone()
    values[1] = torch.nan
    found = vd.qge.standing(task, "pixel_flipping", values)
    assert found.percentile.isnan().tolist() == [False, True, False]
    assert "no explanation" in found.flags
    flat = vd.qge.standing(task, "sparseness", "gradient", draws=4)
    assert bool(flat.percentile.isnan().all())
    assert IDENTICALLY_ZERO in flat.flags
    for draws, message in ((7, "pairs"), (1.5, "draws is a whole number")):
        with pytest.raises(InputError, match=message):
            vd.qge.standing(task, "pixel_flipping", "gradient", draws=draws)
    with pytest.raises(InputError, match="out of reach"):
        vd.qge.standing(table(16, 1), "pixel_flipping", "gradient", exact=True)


def test_what_a_standing_costs_by_default() -> None:
    task = table(14, 3)
    place = vd.qge.standing(task, "pixel_flipping", "input_x_gradient", exact=False)
    # 100 rankings of D - 1 steps and one empty input, beside the map, its inverse and theirs
    assert place.sample.shape == (3, 100)
    if "plain" not in place.method:
        assert place.cost.forward == 3 * (100 * 13 + 1 + 2 * 13 + 1)
    assert float((place.high - place.low).max()) <= 0.2
    many = vd.qge.standing(task, "pixel_flipping", "input_x_gradient", exact=False, draws=1000)
    assert float((many.high - many.low).max()) <= 0.063


@pytest.mark.parametrize(
    ("metric", "rows"),
    [
        (registry.make("faithfulness_correlation", runs=30), 30),
        (registry.make("sensitivity_n", draws=10, shares=(0.2, 0.5, 0.8)), 30),
        (registry.make("infidelity", draws=30, units="contribution", scaling="optimal"), 30),
    ],
)
def test_questions_that_do_not_depend_on_the_map_are_asked_once(metric: vd.Metric, rows: int) -> None:
    task = table(14, 3)
    e = vd.explain("input_x_gradient", task)
    assert vd.score(metric, task, e).cost.forward == 3 * rows
    place = vd.qge.standing(task, metric, e)
    assert place.cost.forward == 3 * rows  # not once a ranking
    assert vd.score(vd.qge.QGE(metric), task, e).cost.forward == 3 * rows
    # answers and masks that are shared give what a ranking gets when it is asked about alone
    sign = 1.0 if metric.better is vd.values.Direction.HIGHER else -1.0
    assert torch.allclose(place.quality, sign * vd.score(metric, task, e).values, atol=1e-12)
    key = vd.core.Key(0) / "standing"
    ids = task.draw_ids
    kept = torch.tensor([i for i, how in enumerate(place.method) if how == "antithetic"])
    for pair in (0, 7):
        order = random_orders(key, ids, pair, 14)
        for at, map_ in enumerate((e.along(order), e.along(order).inverted())):
            alone = sign * vd.score(metric, task, map_).values
            assert torch.allclose(place.sample[kept, 2 * pair + at], alone[kept], atol=1e-12)


def test_results_do_not_depend_on_the_batch() -> None:
    task = table(13, 4)
    e = vd.explain("gradient", task)
    whole = vd.qge.standing(task, "pixel_flipping", e, draws=40)
    part = vd.qge.standing(task[2], "pixel_flipping", e.take(slice(2, 3)), draws=40)
    assert torch.allclose(part.percentile[0], whole.percentile[2])
    assert set(whole.method) <= {"antithetic", "plain"}


def test_frames_repr_and_pictures() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    task = table(5, 2)
    found = vd.qge.standing(task, "pixel_flipping", "gradient")
    assert len(found.to_frame()) == 2
    assert "2 exact" in repr(found)
    assert "points at" not in repr(found)
    assert found.sample.shape == (2, 1000)  # looked up, so many of them cost nothing
    assert found.cost.forward == 2 * (2**5 - 1)
    guessed = vd.qge.standing(task, "pixel_flipping", "gradient", exact=False, draws=20, level=0.9)
    half = 50 * float((guessed.high - guessed.low).mean())
    assert f"(+-{half:.1f} points at 90%)" in repr(guessed)
    _, ax = pyplot.subplots()
    assert found.plot(1, ax=ax) is ax
    assert "better than" in ax.get_title()
    study = vd.qge.exhaustive_study(task, draws=2, progress=False)
    for rho in (False, True):
        _, ax = pyplot.subplots()
        assert study.plot(ax, rho) is ax
        assert ax.get_xlabel()
    pyplot.close("all")


def test_the_best_reachable_ranking_is_told() -> None:
    task = table(5, 3)
    found = vd.qge.standing(task, "pixel_flipping", "input_x_gradient")
    for i in range(3):
        x, ask = task.inputs[i].numpy(), respond(task, i)
        scores = [-reference.flipped(ask, x, order) for order in itertools.permutations(range(5))]
        assert float(found.best[i]) == pytest.approx(max(scores), abs=1e-7)
        assert float(found.worst[i]) == pytest.approx(min(scores), abs=1e-7)
    assert bool(((found.reached >= 0) & (found.reached <= 1)).all())
    assert "from the worst ranking to the best" in repr(found)
    sampled = vd.qge.standing(task, "pixel_flipping", "input_x_gradient", exact=False, draws=20)
    assert bool(sampled.best.isnan().all())


def test_a_gap_of_few_features_is_exact_too() -> None:
    task = table(4, 3)
    e = vd.explain("input_x_gradient", task)
    found = vd.qge.standing(task, "qge:pixel_flipping", e)
    assert set(found.method) == {"exact"}
    metric = vd.qge.QGE("pixel_flipping")
    gaps = torch.stack(
        [
            metric(task, e.along(torch.tensor([order] * 3))).values
            for order in itertools.permutations(range(4))
        ]
    )
    for i in range(3):
        expected = reference.percentile(gaps[:, i].numpy(), float(found.quality[i]), 1e-8)
        assert float(found.percentile[i]) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found.best, gaps.amax(0))


def test_small_scores_do_not_all_tie() -> None:
    """Scores tie within a share of their size, so that those of a model that answers 1e-8 differ, too."""
    large = table(5, 4)
    targets = large.targets
    model = torch.nn.Sequential(large.model, torch.nn.Linear(3, 3, bias=False).double()).float()
    found = []
    for scale in (1.0, 1e-8):
        with torch.no_grad():
            model[1].weight.copy_(scale * torch.eye(3))
        task = vd.Task(model, large.inputs.float(), head="regression", fill=0.0, targets=targets)
        e = vd.explain("input_x_gradient", task)
        found.append(vd.qge.standing(task, registry.make("pixel_flipping", response="logit"), e).percentile)
    torch.testing.assert_close(*found, atol=0.02, rtol=0)
    assert not torch.allclose(found[1], torch.full_like(found[1], 0.5))


def test_constant_maps_stand_in_the_middle_and_are_flagged() -> None:
    for features, settings in ((5, {}), (9, {}), (5, {"exact": False, "draws": 20})):
        found = vd.qge.standing(table(features), "pixel_flipping", torch.ones(4, features), **settings)
        assert found.percentile.tolist() == found.low.tolist() == found.high.tolist() == [0.5] * 4
        assert set(found.method) == {"exact"}
        assert "constant map: it tells no feature from another" in found.flags
        assert "certain in 0 of 4" in repr(found)


def five_maps(features: int) -> torch.Tensor:
    """Maps without ties, with a rectifier's, of two levels, of three, and a constant one."""
    wild = torch.randn(5, features, generator=torch.Generator().manual_seed(features)).double()
    wild[1] = wild[1].clamp(min=0)
    wild[2] = (wild[2] >= wild[2].topk(2).values[-1]).double()
    wild[3] = wild[3].sign() * (wild[3].abs() > 0.5)
    wild[4] = 1.0
    return wild


def true_places(task: vd.Task, maps: torch.Tensor, metric: str) -> torch.Tensor:
    sets = torch.arange(2 ** maps.shape[1])
    gone = (sets[:, None] >> torch.arange(maps.shape[1])) & 1 == 1
    found = []
    for i, row in enumerate(maps):
        with torch.no_grad():
            answers = task.model(task.inputs[i] * ~gone).softmax(-1)[:, int(task.targets[i])]
        found.append(reference.mean_place(answers.numpy(), row.numpy(), metric))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("features", [6, 8])
@pytest.mark.parametrize("metric", ["pixel_flipping", "insertion", "kept_features", "qge:pixel_flipping"])
def test_a_tied_map_has_the_mean_place_of_all_its_rankings(metric: str, features: int) -> None:
    task, maps = table(features, 5, seed=3), five_maps(features)
    truth = true_places(task, maps, metric)
    found = vd.qge.standing(task, metric, maps)
    assert set(found.method[:4]) == {"exact"}
    torch.testing.assert_close(found.percentile, truth, atol=1e-9, rtol=0)


@pytest.mark.parametrize("features", [6, 8])
def test_sampled_intervals_of_tied_maps_cover_their_mean_place(features: int) -> None:
    task, maps = table(features, 5, seed=3), five_maps(features)
    truth = true_places(task, maps, "pixel_flipping")
    hits = []
    for seed in range(12):
        found = vd.qge.standing(task, "pixel_flipping", maps, exact=False, seed=seed)
        hits.append((found.low <= truth) & (truth <= found.high))
    assert float(torch.stack(hits).double().mean()) >= 0.95


def test_where_too_many_rankings_agree_the_interval_is_honest() -> None:
    task, maps = table(9, 4), torch.zeros(4, 9).double()
    maps[:, 4] = 1.0
    found = vd.qge.standing(task, "pixel_flipping", maps)
    assert set(found.method) == {"ties drawn"}
    truth = true_places(task, maps, "pixel_flipping")
    assert int(((found.low <= truth) & (truth <= found.high)).sum()) >= 3
    assert 0 < float((found.high - found.low).max()) < 0.05


@pytest.mark.parametrize("name", ["rfid_plus", "faithfulness_estimate"])
def test_every_metric_of_maps_has_a_standing(name: str) -> None:
    task = table(5, 3)
    found = vd.qge.standing(task, name, "gradient", draws=8)
    assert found.percentile.shape == (3,)
    assert found.sample.shape[1] == 8
    want = vd.score(name, task, "gradient")
    torch.testing.assert_close(found.quality, want.utility, equal_nan=True)
