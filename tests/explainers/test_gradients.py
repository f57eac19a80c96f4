"""Gradient, saliency, input x gradient and integrated gradients: closed forms, captum, completeness."""

import captum.attr as captum
import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.errors import InputError, NotApplicableError, VeridicalError
from veridical.explainers import Gradient, InputXGradient, IntegratedGradients, Saliency, registry
from veridical.explainers.gradients import quadrature
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


@pytest.mark.parametrize("rule", RULES)
def test_weights_integrate_a_polynomial(rule: str) -> None:
    points, weights = quadrature(rule, 64, torch.zeros((), dtype=torch.float64))
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    error = abs(float((weights * points**3).sum()) - 0.25)
    assert error < {"gauss_legendre": 1e-14, "midpoint": 1e-4, "trapezoid": 1e-4}.get(rule, 1e-2)


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


def test_long_paths_keep_to_the_plan() -> None:
    task = image_task()
    seen: list[int] = []
    handle = task.predictor.model[0].register_forward_pre_hook(lambda _m, x: seen.append(len(x[0])))
    values = [IntegratedGradients(steps=20)(task.with_plan(Plan(rows=rows))) for rows in (8, 64)]
    handle.remove()
    torch.testing.assert_close(values[0].values, values[1].values, rtol=0, atol=1e-9)
    assert values[0].cost == values[1].cost == vd.models.Cost(120, 120)
    assert max(seen) <= 60
    assert seen.count(8) >= 12


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
