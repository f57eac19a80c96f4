"""Gradients, their means along paths, from baselines, under noise: closed forms, captum, slow rewrites."""

from __future__ import annotations

import captum.attr as captum
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference import explainers as slow
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.core import key as keyed
from veridical.errors import InputError, NotApplicableError, VeridicalError
from veridical.explainers import (
    ExpectedGradients,
    Gradient,
    GradientShap,
    InputXGradient,
    IntegratedGradients,
    Saliency,
    SmoothGrad,
    SmoothGradSquared,
    VarGrad,
    registry,
)
from veridical.models.predictor import Plan

RULES = {
    "gauss_legendre": "gausslegendre",
    "midpoint": "riemann_middle",
    "left": "riemann_left",
    "right": "riemann_right",
    "trapezoid": "riemann_trapezoid",
}


def test_linear_model_has_closed_forms() -> None:
    task, weights = linear_task()
    for explainer, expected in (
        (Gradient(), weights),
        (Saliency(), weights.abs()),
        (InputXGradient(), task.inputs * weights),
        (IntegratedGradients(steps=3), task.inputs * weights),
        (IntegratedGradients(steps=3, baseline=0.5), (task.inputs - 0.5) * weights),
        (IntegratedGradients(steps=3, baseline="mean"), (task.inputs - task.train.mean(0)) * weights),
    ):
        torch.testing.assert_close(explainer(task).values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("explainer", "peer"),
    [
        (Gradient(), lambda net: captum.Saliency(net)),
        (Saliency(), lambda net: captum.Saliency(net)),
        (InputXGradient(), lambda net: captum.InputXGradient(net)),
    ],
)
def test_agrees_with_captum(explainer: vd.Explainer, peer: object) -> None:
    task = image_task()
    keep = {"abs": isinstance(explainer, Saliency)} if not isinstance(explainer, InputXGradient) else {}
    maps = peer(task.model).attribute(task.inputs.clone().requires_grad_(), target=task.targets, **keep)
    torch.testing.assert_close(explainer(task).values, task.values(maps.detach()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients_agree_with_captum(rule: str) -> None:
    task = image_task()
    steps = 7
    ours = IntegratedGradients(steps=steps, rule=rule)(task).values
    maps = captum.IntegratedGradients(task.model).attribute(
        task.inputs, target=task.targets, n_steps=steps, method=RULES[rule]
    )
    if rule == "trapezoid":
        # captum's weights sum to 1 - 1/steps there, so it misses completeness even on a linear model
        maps = maps * steps / (steps - 1)
    # captum keeps its path points in single precision
    torch.testing.assert_close(ours, task.values(maps), rtol=0, atol=1e-6)


def test_integrated_gradients_are_complete_on_a_smooth_model() -> None:
    net = seeded(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    task = vd.Task(net, draw(6, 5), plan=Plan(rows=64))
    start = net(torch.full_like(task.inputs, 0.3)).detach().gather(1, task.targets[:, None])[:, 0]
    change = task.outputs.gather(1, task.targets[:, None])[:, 0] - start

    def gap(maps: torch.Tensor) -> float:
        return float((maps.sum(-1) - change).abs().max())

    maps = IntegratedGradients(steps=24, baseline=0.3)(task).values
    assert gap(maps) < 1e-9
    # the check can fail: another sign, another baseline, too coarse a rule
    assert gap(-maps) > 1e-2
    assert gap(IntegratedGradients(steps=24)(task).values) > 1e-2
    assert gap(IntegratedGradients(steps=4, baseline=0.3, rule="left")(task).values) > 1e-3


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"rule": "simpson"}, {"baseline": "median"}, {"rule": "trapezoid", "steps": 1}]
)
def test_wrong_settings_are_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        IntegratedGradients(**wrong)


def test_mean_baseline_needs_reference_rows() -> None:
    task, _ = linear_task(train=0)
    with pytest.raises(NotApplicableError, match="reference rows"):
        IntegratedGradients(baseline="mean")(task)


class Cut(nn.Module):
    """A network whose head lets no gradient through where it is `cut`."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.conv, self.act, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.act(self.conv(x)).mean((2, 3))
        return self.head(pooled.detach() if self.cut else pooled)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["detached", "quantised"])
def test_where_no_gradient_comes_back_it_is_said(kind: str) -> None:
    net: nn.Module = Cut(kind == "detached").eval()
    if kind == "quantised":
        net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    x = torch.randn(2, 1, 6, 6)
    task = vd.Task(net, x, train=torch.randn(5, 1, 6, 6))
    for name in registry:
        explainer = registry.make(name)
        if "gradient" in explainer.needs:
            with pytest.raises(VeridicalError, match=r"gradient|does not apply"):
                vd.explain(explainer, task)
    assert vd.explain("occlusion", task).values.shape == (2, 36)


KEY = vd.core.Key(5)
ALL = (SmoothGrad, SmoothGradSquared, VarGrad)


def test_linear_model_has_closed_forms_of_smoothing() -> None:
    task, weights = linear_task()
    for explainer, expected in (
        (SmoothGrad(samples=6), weights),
        (SmoothGradSquared(samples=6), weights**2),
        (VarGrad(samples=6), torch.zeros_like(weights)),
    ):
        torch.testing.assert_close(explainer(task, KEY).values, expected, rtol=1e-12, atol=1e-12)


def test_quadratic_model_has_the_spread_of_its_noise() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.square().sum(1), -x.square().sum(1)], 1) / 2

    x = draw(4, 5)
    task = vd.Task(Square(), x, targets=0, plan=Plan(rows=64))
    # the gradient is x + noise, whose deviation is a tenth of the range
    spread = 0.1 * (x.amax(1) - x.amin(1))
    found = VarGrad(samples=4000, noise=0.1)(task, KEY).values.mean(1).sqrt()
    torch.testing.assert_close(found, spread, rtol=0.03, atol=0)
    mean = SmoothGrad(samples=4000, noise=0.1)(task, KEY).values
    assert float((mean - x).abs().max()) < 0.02


EXPECTED = {
    SmoothGrad: lambda maps: maps.mean(1),
    SmoothGradSquared: lambda maps: maps.square().mean(1),
    VarGrad: lambda maps: maps.var(1, unbiased=False),
}


@pytest.mark.parametrize("kind", ALL)
def test_agrees_with_a_slow_rewrite_and_not_with_a_mutant(kind: type[vd.Explainer]) -> None:
    task = image_task(samples=3)
    found = kind(samples=5, noise=0.2)(task, KEY).values

    def agrees(maps: Tensor) -> bool:
        return torch.allclose(found, task.values(EXPECTED[kind](maps)), rtol=0, atol=1e-9)

    maps = slow.under_noise(task, KEY / kind.name, 5, 0.2)
    assert agrees(maps)
    # one draw fewer, more noise, or another key is caught
    assert not agrees(maps[:, :-1])
    assert not agrees(slow.under_noise(task, KEY / kind.name, 5, 0.25))
    assert not agrees(slow.under_noise(task, KEY, 5, 0.2))


def test_of_integrated_gradients() -> None:
    net = seeded(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    task = vd.Task(net, draw(3, 4), plan=Plan(rows=64))
    explainer = SmoothGradSquared(samples=4, noise=0.2, base="integrated_gradients", steps=20)
    maps = slow.under_noise(
        task, KEY / explainer.name, 4, 0.2, lambda sample, x: slow.integrated(task, sample, x, 400)
    )
    torch.testing.assert_close(explainer(task, KEY).values, maps.square().mean(1), rtol=1e-4, atol=1e-6)
    assert explainer(task, KEY).cost.backward == 3 * 4 * 20


def test_no_noise_is_the_gradient_and_padding_gets_none() -> None:
    task = image_task()
    quiet = SmoothGrad(samples=3, noise=0.0)(task, KEY).values
    torch.testing.assert_close(quiet, Gradient()(task).values, rtol=0, atol=1e-12)
    x = draw(2, 1, 6)
    x[0, 0, 4:] = 1e6  # padding far away would blow the range up
    space = vd.Space.steps((1, 6), lengths=torch.tensor([4, 6]))
    net = seeded(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    task = vd.Task(net, x, space=space, targets=0, plan=Plan(rows=8))
    seen: list[Tensor] = []
    task.predictor.model[0].register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))
    SmoothGrad(samples=4)(task, KEY)
    rows = torch.cat(seen)
    assert bool((rows[:4, 4:] == 1e6).all())
    assert float(rows[:4, :4].abs().max()) < 20


BOTH = (GradientShap, ExpectedGradients)


@pytest.mark.parametrize("kind", BOTH)
def test_linear_model_has_a_closed_form(kind: type[vd.Explainer]) -> None:
    task, weights = linear_task()
    rows = keyed.integers(KEY / kind.name / "baseline", task.draw_ids, torch.arange(6), 1, len(task.train))[
        ..., 0
    ]
    expected = (task.inputs - task.train[rows].mean(1)) * weights
    found = kind(samples=6)(task, KEY).values

    def right(maps: Tensor) -> bool:
        return torch.allclose(maps, expected, rtol=0, atol=1e-12)

    assert right(found)
    # the mean of all reference rows, or no baseline at all, is another answer
    assert not right((task.inputs - task.train.mean(0)) * weights)
    assert not right(task.inputs * weights)


def test_without_reference_rows_the_baseline_is_zero() -> None:
    task, weights = linear_task(train=0)
    found = GradientShap(samples=3)(task, KEY).values
    torch.testing.assert_close(found, task.inputs * weights, rtol=0, atol=1e-12)
    with pytest.raises(NotApplicableError, match="reference rows"):
        ExpectedGradients()(task)


@pytest.mark.parametrize(
    ("explainer", "share"),
    [(GradientShap(samples=5), 0.0), (GradientShap(samples=5, noise=0.1), 0.1), (ExpectedGradients(5), 0.0)],
)
def test_agrees_with_a_slow_rewrite(explainer: vd.Explainer, share: float) -> None:
    task = image_task(samples=3)
    expected = task.values(slow.from_baselines(task, KEY / explainer.name, 5, share))
    torch.testing.assert_close(explainer(task, KEY).values, expected, rtol=0, atol=1e-9)
    fewer = task.values(slow.from_baselines(task, KEY / explainer.name, 4, share))
    assert not torch.allclose(explainer(task, KEY).values, fewer)
