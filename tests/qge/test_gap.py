"""QGE and QRAND as metrics: identities, direction, draws, costs, flags, nesting and the contract."""

import pytest
import torch

import veridical as vd
from tests.qge.conftest import respond, table
from tests.reference import qge as reference
from veridical import testing
from veridical.errors import InputError
from veridical.metrics import registry
from veridical.qge.gap import IDENTICALLY_ZERO

D = 5


def values(metric: object, task: vd.Task, e: object) -> torch.Tensor:
    return vd.score(metric, task, e).values


def test_kept_features_is_the_paper_s_quality(small: vd.Task) -> None:
    e = vd.explain("input_x_gradient", small)
    expected = [
        reference.kept(respond(small, i), small.inputs[i].numpy(), e.order[i].tolist())
        for i in range(len(small))
    ]
    assert torch.allclose(values("kept_features", small, e), torch.tensor(expected).double(), atol=1e-8)


def test_levels_are_counted_in_integers() -> None:
    task = table(10)
    counts = vd.qge.KeptFeatures(levels=20).path(task).counts
    assert counts.tolist() == list(range(1, 11))  # never more levels than features, and none lost
    counts = vd.qge.KeptFeatures(levels=20).path(table(64)).counts
    assert len(counts) == 20
    assert counts[-1] == 64
    assert bool((counts.diff() >= 3).all())


def test_gap_of_kept_features_is_lerf_less_morf_area(small: vd.Task) -> None:
    e = vd.explain("input_x_gradient", small)
    gap = values("qge:kept_features", small, e)
    areas = []
    for i in range(len(small)):
        ascending, x = e.order[i].tolist(), small.inputs[i].numpy()
        morf = reference.flipped(respond(small, i), x, ascending[::-1])
        areas.append(reference.flipped(respond(small, i), x, ascending) - morf)
    assert torch.allclose(gap, torch.tensor(areas).double(), atol=1e-8)
    assert torch.allclose(values("qge:pixel_flipping", small, e), gap, atol=1e-8)
    by_lerf = vd.qge.QGE(registry.make("pixel_flipping", order="lerf"))
    assert torch.allclose(values(by_lerf, small, e), gap, atol=1e-8)


@pytest.mark.parametrize("name", ["pixel_flipping", "insertion", "deletion", "kept_features"])
def test_shared_paths_give_what_two_calls_give(name: str) -> None:
    for kind in testing.MODALITIES:
        task = testing.tiny_task(kind)
        e = vd.explain("random", task)
        metric = registry.make(name)
        sign = 1 if metric.better is vd.values.Direction.HIGHER else -1
        apart = sign * (values(metric, task, e) - values(metric, task, e.inverted()))
        assert torch.allclose(values(vd.qge.QGE(metric), task, e), apart, atol=1e-8), kind


def test_random_fills_are_drawn_alike_for_both(small: vd.Task) -> None:
    task = vd.Task(small.model, small.inputs, train=torch.randn(20, D).double(), fill=vd.fills.Marginal(1))
    e = vd.explain("gradient", task)
    metric = registry.make("pixel_flipping")
    apart = values(metric, task, e.inverted()) - values(metric, task, e)
    assert torch.allclose(values(vd.qge.QGE(metric), task, e), apart, atol=1e-8)
    other = vd.qge.QGE(metric, independent_draws=True)
    assert not torch.allclose(values(other, task, e), apart, atol=1e-6)


def signs_are_right(score: object, small: vd.Task) -> bool:
    """A lower-is-better metric whose best map is known: its gap must be positive."""
    weights = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]).double()
    net = torch.nn.Linear(D, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.stack([weights, -weights]))
    task = vd.Task(net, torch.ones(3, D).double(), fill=0.0)
    found: torch.Tensor = score(task, weights.expand(3, -1))  # type: ignore[operator]
    return bool((found > 0).all())


def test_direction(small: vd.Task) -> None:
    for name in ("pixel_flipping", "kept_features", "insertion", "deletion", "faithfulness_estimate"):
        assert signs_are_right(lambda t, e, n=name: values(f"qge:{n}", t, e), small), name
        assert signs_are_right(lambda t, e, n=name: values(vd.qge.QRand(n, draws=20), t, e), small), name
    assert not signs_are_right(lambda t, e: -values("qge:pixel_flipping", t, e), small)


def test_evaluations_are_shared() -> None:
    features = 14
    small = table(features)
    e = vd.explain("input_x_gradient", small)
    n = len(small)
    alone = vd.score("pixel_flipping", small, e).cost.forward
    assert alone == n * features
    assert vd.score("qge:pixel_flipping", small, e).cost.forward == n * (2 * features - 1)
    random = vd.qge.QRand("pixel_flipping", draws=3)
    assert vd.score(random, small, e).cost.forward == n * (4 * (features - 1) + 2)
    assert vd.score("qge:sparseness", small, e).cost.forward == 0
    # random subsets know nothing of the map: the same answers serve the inverse and every random ranking
    runs = 20
    subsets = registry.make("faithfulness_correlation", runs=runs)
    for metric in (subsets, vd.qge.QGE(subsets), vd.qge.QRand(subsets, draws=3)):
        assert vd.score(metric, small, e).cost.forward == n * runs
    assert vd.score(vd.qge.QGE(subsets, independent_draws=True), small, e).cost.forward == 2 * n * runs


def test_details_add_up(small: vd.Task) -> None:
    e = vd.explain("gradient", small)
    gap = vd.score("qge:pixel_flipping", small, e)
    assert torch.allclose(gap.details["quality"], -values("pixel_flipping", small, e), atol=1e-8)
    assert torch.allclose(gap.details["quality"] - gap.details["inverse quality"], gap.values)
    assert gap.curve is not None
    assert torch.allclose(torch.trapezoid(gap.curve.y, gap.curve.x), gap.values, atol=1e-8)
    assert gap.direction is vd.values.Direction.HIGHER


@pytest.mark.parametrize(
    "name", ["sparseness", "complexity", "completeness", "random_logit", "mprt", "efficient_mprt"]
)
def test_what_cannot_differ_is_flagged_and_never_ranked(name: str, small: vd.Task) -> None:
    scores = vd.score(f"qge:{name}", small, "gradient")
    assert bool(scores.values.isnan().all())
    assert scores.flagged == {IDENTICALLY_ZERO: len(small)}
    assert scores.cost.forward == 0


def test_those_flagged_are_indeed_unmoved(small: vd.Task) -> None:
    e = vd.explain("gradient", small)
    for name in ("sparseness", "complexity"):
        assert torch.allclose(values(name, small, e), values(name, small, e.inverted()))
    for name in ("random_logit", "mprt", "efficient_mprt"):
        own, other = (vd.score(name, small, who).values for who in ("gradient", "inverse:gradient"))
        assert torch.allclose(own, other), name
    # an average of inverted maps is not the inverse of their average
    own, other = (vd.score("smooth_mprt", small, who).values for who in ("gradient", "inverse:gradient"))
    assert not torch.allclose(own, other)
    assert not bool(vd.score("qge:smooth_mprt", small, "gradient").values.isnan().any())


def test_methods_are_inverted_map_by_map(small: vd.Task) -> None:
    gap = vd.score("qge:max_sensitivity", small, "gradient")
    own, other = (vd.score("max_sensitivity", small, who).values for who in ("gradient", "inverse:gradient"))
    assert torch.allclose(gap.values, other - own, atol=1e-9)  # lower is better
    with pytest.raises(InputError, match="explains again"):
        vd.score("qge:max_sensitivity", small, vd.explain("gradient", small))


def test_random_rankings_differ_between_explanations(small: vd.Task) -> None:
    metric = vd.qge.QRand("pixel_flipping")
    shift = []
    for who in ("gradient", "input_x_gradient", "constant"):
        scores = vd.score(metric, small, who)
        shift.append(scores.details["random quality"])
    assert not torch.allclose(shift[0], shift[1])
    assert not torch.allclose(shift[1], shift[2])
    again = vd.score(metric, small, "gradient").details["random quality"]
    assert torch.equal(again, shift[0])


def test_negated_inverse_differs_only_where_values_are_read(small: vd.Task) -> None:
    e = vd.explain("integrated_gradients", small)
    key = vd.core.Key(3)
    ranks = [
        vd.qge.QGE("pixel_flipping", inverse=how)(small, e, key).values for how in ("reversed", "negated")
    ]
    assert torch.equal(*ranks)
    # a correlation changes its sign with the values, so the gap is twice the score
    inner = vd.score("faithfulness_correlation", small, e, seed=3).values
    gap = vd.score(vd.qge.QGE("faithfulness_correlation", inverse="negated"), small, e, seed=3).values
    assert torch.allclose(gap, 2 * inner, atol=1e-9)
    assert not torch.allclose(vd.score(vd.qge.QGE("faithfulness_correlation"), small, e, seed=3).values, gap)
    inverse = vd.explainers.transforms.Inverted(vd.explainers.as_explainer("saliency"), negated=True)
    assert torch.equal(inverse(small, key).values, -vd.explain("saliency", small).values)


@pytest.mark.parametrize(
    "metric",
    [
        vd.qge.QGE("pixel_flipping"),
        vd.qge.QGE("faithfulness_correlation", independent_draws=True),
        vd.qge.QRand("insertion", draws=3),
        vd.qge.QGE(vd.qge.QRand("deletion")),
        vd.qge.QRand(vd.qge.QGE(registry.make("pixel_flipping", fill=vd.fills.Zero(), steps=3))),
        vd.qge.QGE("max_sensitivity"),
    ],
)
def test_json_round_trip(metric: vd.Metric) -> None:
    again = vd.qge.metric_from_json(metric.to_json())
    assert again == metric
    assert type(metric).from_json(metric.to_json()) == metric
    assert hash(metric) == hash(again)


CONTRACTS = [(name, kind) for name in ("qge", "qrand") for kind in testing.MODALITIES]


@pytest.mark.parametrize(("prefix", "modality"), CONTRACTS)
def test_contract(prefix: str, modality: str) -> None:
    testing.check_metric(registry.make(f"{prefix}:pixel_flipping"), modality)


@pytest.mark.parametrize(
    ("name", "modality"),
    [
        ("qge:monotonicity", "series"),
        ("qge:qrand:insertion", "text"),
        ("qge:sparseness", "table"),
        ("qrand:relevance_mass_accuracy", "text"),
    ],
)
def test_contract_of_others(name: str, modality: str) -> None:
    testing.check_metric(registry.make(name), modality)


@pytest.mark.slow
def test_contract_of_methods() -> None:
    testing.check_metric(registry.make("qge:max_sensitivity"), "table")


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="QGE takes a metric"):
        vd.qge.QGE(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="draws is a whole number from 1"):
        vd.qge.QRand("pixel_flipping", draws=0)
    for asked in (lambda: vd.qge.QRand("mprt"), lambda: vd.qge.standing(table(4), "mprt", "gradient")):
        with pytest.raises(InputError, match="'mprt' judges methods"):
            asked()
