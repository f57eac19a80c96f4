"""Checks of finished maps: completeness, repeatability, and what is left in memory."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.errors import VeridicalWarning
from veridical.explainers import DeepLift, Hsic, KernelShap, Lime, Rise, ShapleySampling, Sobol, applicable
from veridical.explainers.base import Explainer
from veridical.explainers.diagnostics import (
    check_completeness,
    completeness_sentence,
    expected_agreement,
    notes,
    repeatability_sentence,
)


def told(promised: list[float], values: list[list[float]], exact: bool = True) -> dict[str, object]:
    out: dict[str, object] = {}
    out |= check_completeness(
        "it", "values sum to y", exact, torch.tensor(promised).double(), torch.tensor(values)
    )
    return out


def test_a_map_without_numbers_misses_completeness() -> None:
    nan = float("nan")
    with pytest.warns(VeridicalWarning, match=r"1 of 2 maps .* are no numbers"):
        some = told([3.0, 3.0], [[1.0, 2.0], [nan, nan]])
    assert some["completeness"]["broken"] == 1
    assert some["completeness"]["largest_residual"] == 0
    with pytest.warns(VeridicalWarning, match="no map of 1 is a number"):
        none = told([3.0], [[nan, nan]])
    assert none["completeness"]["broken"] == 1
    assert "do not read" in str(completeness_sentence(none))
    assert "do not read" in str(completeness_sentence(told([3.0], [[nan, nan]], exact=False)))
    assert (
        completeness_sentence(told([3.0], [[1.0, 2.0]])) == "values sum to y; they miss it by 0 of it at most"
    )


class Steep(nn.Module):
    """A root of a rectifier: its slope is infinite where input and baseline are both 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.last = nn.Linear(6, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.a(x)).sqrt())


def test_deeplift_says_where_a_slope_is_infinite() -> None:
    task = vd.Task(seeded(Steep()), draw(5, 6))
    with pytest.warns(VeridicalWarning, match=r"no numbers|is a number"):
        found = DeepLift()(task)
    complete = found.provenance["completeness"]
    assert complete["broken"] == int((~found.values.isfinite()).any(1).sum()) > 0
    assert any("do not read" in note for note in notes({"deeplift": found}))


DRAWING = [Lime(), KernelShap(), Rise(), Hsic(), Sobol(), ShapleySampling()]
NAMES = [explainer.name for explainer in DRAWING]


def correlation(a: Tensor, b: Tensor) -> Tensor:
    a, b = (v.double() - v.double().mean(1, keepdim=True) for v in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def test_halves_tell_how_two_whole_maps_agree() -> None:
    signal, noise = draw(1, 400, seed=1), draw(4000, 4, 400, seed=2)
    quarters = signal + 1.5 * noise  # one half of a map, its other half, and the two of another seed
    expected = expected_agreement(quarters[:, 0], quarters[:, 1]).mean()
    whole = correlation(quarters[:, :2].mean(1), quarters[:, 2:].mean(1)).mean()
    assert abs(expected - whole) < 0.005
    assert correlation(quarters[:, 0], quarters[:, 1]).mean() < whole - 0.1


def test_what_is_no_number_is_said_and_padding_does_not_count() -> None:
    first = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    second = torch.tensor([[2.0, 4.0, 6.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert expected_agreement(first, second).tolist()[:2] == pytest.approx([1.0, -1.0])
    assert bool(expected_agreement(first, second)[2].isnan())
    padded = torch.cat([first, torch.tensor([[9.0], [-9.0], [0.0]])], 1)
    other = torch.cat([second, torch.tensor([[-7.0], [7.0], [3.0]])], 1)
    valid = torch.tensor([True, True, True, False]).expand(3, 4)
    assert expected_agreement(padded, other, valid).tolist()[:2] == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("explainer", DRAWING, ids=NAMES)
def test_on_digits_it_says_what_two_seeds_show_and_maps_repeat(explainer: Explainer) -> None:
    task = vd.tasks.load("digits")[:6]
    maps = [explainer(task, vd.core.Key(seed)) for seed in (0, 1)]
    seen = float(correlation(maps[0].values, maps[1].values).mean())
    said = maps[0].provenance["repeatability"]
    assert seen > 0.75
    assert abs(said["mean"] - seen) < 0.06
    assert said["of"] == 6
    assert said["low"] == 0
    assert f"correlate by {said['mean']:.2f}" in notes({"a": maps[0]})[-1]


class Photo(nn.Module):
    """A random network over 56 x 56 pixels that pools by maxima, as far from additive as photos are."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("explainer", DRAWING[:5], ids=NAMES[:5])
def test_196_patches_are_joined_so_that_two_seeds_agree_in_bounded_rows(explainer: Explainer) -> None:
    net = seeded(Photo()).float()
    images = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    task = vd.Task(net, images, space=vd.Space.patches((3, 56, 56), 4), fill=0.0)
    first, second = (explainer(task, vd.core.Key(seed)) for seed in (0, 1))
    assert first.cost == explainer._declared(task)
    assert first.cost.forward <= (32 * 26 if explainer.name == "sobol" else 512) * len(task)
    assert correlation(first.values, second.values).min() > 0.7
    assert first.provenance["cells"].startswith("196 features were joined into")


def chaos(x: Tensor) -> Tensor:
    """Answers that no feature has a part in."""
    y = torch.sin(1e4 * (x.flatten(1) @ torch.arange(1, 65).double().sqrt()))
    return torch.stack([y, -y], 1)


@pytest.mark.parametrize("explainer", DRAWING[:4], ids=NAMES[:4])
def test_noise_is_called_noise(explainer: Explainer) -> None:
    task = vd.Task(chaos, torch.rand(8, 1, 8, 8).double(), targets=[0] * 8, fill=0.0)
    with pytest.warns(VeridicalWarning, match="mostly noise; evaluate more rows"):
        found = explainer(task).provenance["repeatability"]
    assert found["mean"] < 0.5
    assert found["low"] >= 4
    assert "of 8 by less than 0.5" in str(repeatability_sentence({"repeatability": found}))


def test_what_draws_nothing_says_nothing() -> None:
    table = vd.Task(seeded(nn.Linear(5, 2)), draw(3, 5), fill=0.0)
    for name in ("kernel_shap", "exact_shapley", "feature_ablation", "gradient"):
        assert "repeatability" not in vd.explain(name, table).provenance
    assert repeatability_sentence({}) is None
    few = KernelShap(budget=8)(vd.Task(seeded(nn.Linear(7, 2)), draw(3, 7), fill=0.0))
    assert "repeatability" not in few.provenance  # three pairs have no halves


def test_a_constant_model_has_nothing_to_repeat() -> None:
    task = vd.Task(lambda x: x.flatten(1)[:, :2] * 0 + 3.0, torch.rand(2, 1, 8, 8).double(), fill=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", VeridicalWarning)
        for explainer in DRAWING:
            assert "repeatability" not in explainer(task).provenance


@pytest.fixture(scope="module")
def task() -> vd.Task:
    return vd.tasks.load("digits")[:8]


MEMORY_NAMES = applicable(vd.tasks.load("digits"))


def alive() -> int:
    """Bytes of all tensors that Python knows of."""
    tensors = [held for held in gc.get_objects() if issubclass(type(held), torch.Tensor)]
    return sum(held.numel() * held.element_size() for held in tensors)


def left_behind(work) -> int:
    """Bytes that are still held after work was done three times without a collection."""
    # twice: a second run is written down as a plan, whose names for the weights stay
    work()
    work()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(3):
            work()
        return alive() - before
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MEMORY_NAMES)
def test_nothing_is_left_behind(name: str, task: vd.Task) -> None:
    assert left_behind(lambda: vd.explain(name, task)) < 20_000
