"""Binarised, degraded, inverted and shuffled explanations, as functions and as explainers."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.core import key as keyed
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import (
    Degraded,
    Gradient,
    Inverted,
    Random,
    Saliency,
    Shuffled,
    SmoothGrad,
    TopK,
    degrade,
    registry,
    top_k,
)
from veridical.explainers.transforms import explainer_from_json
from veridical.models.predictor import Plan

KEY = vd.core.Key(9)


def explanation_of(values: Tensor, valid: Tensor | None = None) -> vd.Explanation:
    n, count = values.shape
    space = vd.Space.tokens(count, valid)
    return vd.Explanation(values, space, torch.zeros(n, dtype=torch.int64), torch.arange(n) + 40)


def test_top_k_by_hand() -> None:
    maps = explanation_of(torch.tensor([[3.0, -5.0, 1.0, 2.0]]))
    assert top_k(maps, 2).values.tolist() == [[1, 0, 0, 1]]
    assert top_k(maps, 2, absolute=True).values.tolist() == [[1, 1, 0, 0]]
    assert top_k(maps, 9).values.tolist() == [[1, 1, 1, 1]]
    valid = torch.tensor([[True, True, False, False]])
    short = explanation_of(torch.tensor([[1.0, 2.0, 0.0, 0.0]]), valid)
    assert top_k(short, 3).values.tolist() == [[1, 1, 0, 0]]
    missing = explanation_of(torch.tensor([[torch.nan] * 3, [1.0, 2.0, 3.0]]))
    assert bool(top_k(missing, 1).values[0].isnan().all())
    assert top_k(missing, 1).values[1].tolist() == [0, 0, 1]
    with pytest.raises(InputError, match="at least 1"):
        top_k(maps, 0)


def nested(maps: vd.Explanation, degraded: dict[float, vd.Explanation], order: Tensor) -> bool:
    """The rule: ratio r touches only the first round(r n) places, and permutes their scores."""
    for ratio, found in degraded.items():
        for i in range(len(maps)):
            n = int(maps.space.counts(len(maps))[i])
            first = order[i, : int(ratio * n + 0.5)]
            rest = torch.ones(maps.space.n_features, dtype=torch.bool)
            rest[first] = False
            same = torch.equal(found.values[i, rest], maps.values[i, rest])
            kept = torch.equal(found.values[i, first].sort().values, maps.values[i, first].sort().values)
            if not (same and kept):
                return False
    return True


RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@given(st.integers(2, 30), st.integers(0, 5), st.booleans())
def test_degrade_follows_the_nested_rule(size: int, repeat: int, padded: bool) -> None:
    valid = torch.arange(size)[None] < torch.tensor([[size], [size // 2 + 1]]) if padded else None
    values = draw(2, size)
    maps = explanation_of(values if valid is None else values * valid, valid)
    degraded = {ratio: degrade(maps, ratio, KEY, repeat) for ratio in RATIOS}
    order = keyed.permutation(KEY / "positions", maps.draw_ids, repeat, size, valid)
    assert nested(maps, degraded, order)
    assert torch.equal(degraded[0.0].order, maps.order)


def test_degrade_really_mixes_and_repeats_differ() -> None:
    maps = explanation_of(torch.arange(40.0).expand(50, -1).clone())
    full = degrade(maps, 1.0, KEY)
    moved = (full.values != maps.values).double().mean()
    assert 0.9 < float(moved) <= 1
    # each feature gets each score alike: the mean score of a place is that of all
    assert float((full.values.mean(0) - 19.5).abs().max()) < 6
    assert not torch.equal(full.values, degrade(maps, 1.0, KEY, 1).values)
    assert torch.equal(degrade(maps.take(slice(7, 9)), 0.6, KEY).values, degrade(maps, 0.6, KEY).values[7:9])
    with pytest.raises(InputError, match="between 0 and 1"):
        degrade(maps, 1.5, KEY)


def test_noise_is_mixed_in_by_the_ratio() -> None:
    maps = explanation_of(torch.arange(40.0).expand(200, -1).clone())
    mixed = {ratio: degrade(maps, ratio, KEY, how="noise") for ratio in RATIOS}
    assert torch.equal(mixed[0.0].values, maps.values)
    unit = maps.values.double() / maps.values.double().square().mean(-1, keepdim=True).sqrt()
    for ratio in RATIOS[1:]:
        wanted = (1 - ratio) * unit + ratio * mixed[1.0].values
        assert torch.allclose(mixed[ratio].values.double(), wanted, atol=1e-6)
    assert abs(float(mixed[1.0].values.mean())) < 0.05
    assert abs(float(mixed[1.0].values.std()) - 1) < 0.05
    again = degrade(maps.take(slice(7, 9)), 0.4, KEY, how="noise")
    assert torch.equal(again.values, mixed[0.4].values[7:9])


def test_ties_move_with_their_places_in_the_ranking() -> None:
    maps = explanation_of(torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0]])).inverted()
    found = degrade(maps, 1.0, KEY)
    assert bool((found.values.gather(1, found.order).diff(dim=1) >= 0).all())
    back = found.inverted().inverted()
    assert torch.equal(back.values, found.values)
    assert torch.equal(back.order, found.order)


def test_explainers_say_what_the_functions_do() -> None:
    task = image_task()
    maps = Gradient()(task, KEY)
    largest = top_k(maps, 7, absolute=True)
    assert torch.equal(TopK(Gradient(), 7, absolute=True)(task, KEY).values, largest.values)
    assert torch.equal(Inverted(Gradient())(task, KEY).values, maps.inverted().values)
    assert torch.equal(Inverted(Gradient())(task, KEY).order, maps.inverted().order)
    shuffled = Shuffled(Gradient())(task, KEY)
    assert torch.equal(shuffled.values.sort().values, maps.values.sort().values)
    assert not torch.equal(shuffled.values, maps.values)
    parts = {r: Degraded(Gradient(), r, repeat=2)(task, KEY) for r in RATIOS}
    order = keyed.permutation(KEY / "degraded" / "positions", task.draw_ids, 2, 64)
    assert nested(maps, parts, order)
    assert parts[0.4].cost == maps.cost


def test_wrapped_stochastic_explainer_is_asked_with_its_own_key() -> None:
    task = image_task()
    alone = SmoothGrad(samples=3)(task, KEY)
    assert torch.equal(Degraded(SmoothGrad(samples=3), 0.0)(task, KEY).values, alone.values)


def test_facts_are_those_of_the_wrapped_explainer() -> None:
    for wrapped in (Gradient(), SmoothGrad(), Random(), registry.make("occlusion")):
        for wrapper in (TopK(wrapped), Inverted(wrapped), Degraded(wrapped, 0.0)):
            for fact in ("needs", "modalities", "stochastic", "control"):
                assert getattr(wrapper, fact) == getattr(wrapped, fact)
    assert Degraded(Gradient(), 0.5).stochastic
    assert Shuffled(Gradient()).stochastic
    task = vd.Task(seeded(nn.Sequential(nn.Linear(4, 3))), draw(3, 4), plan=Plan(rows=8))
    with pytest.raises(NotApplicableError, match="reference rows"):
        Inverted("expected_gradients")(task)


@pytest.mark.parametrize(
    "wrapper",
    [
        TopK(Saliency(), 3, True),
        Degraded(SmoothGrad(samples=4), 0.4, 2),
        Inverted(Shuffled("gradient")),
        Inverted(TopK("gradient", 2)),
    ],
)
def test_settings_survive_json_and_pickle(wrapper: vd.Explainer) -> None:
    assert type(wrapper).from_json(wrapper.to_json()) == wrapper
    assert explainer_from_json(wrapper.to_json()) == wrapper
    assert pickle.loads(pickle.dumps(wrapper)) == wrapper
    task, _ = linear_task()
    explanation = wrapper(task, KEY)
    assert explanation.explainer == wrapper.name
    assert explanation.provenance["explainer"] == wrapper.to_json()


def test_prefixes_and_functions() -> None:
    task, weights = linear_task()
    assert vd.explain("inverse:gradient", task).explainer == "inverse of gradient"
    assert vd.explain("shuffled:gradient", task).explainer == "shuffled gradient"

    def own(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return weights

    assert TopK(own, 1)(task).values.sum(1).tolist() == [1] * 5
