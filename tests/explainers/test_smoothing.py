"""SmoothGrad, SmoothGrad-squared and VarGrad: closed forms, a slow rewrite, keyed draws."""

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference import explainers as slow
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.errors import InputError
from veridical.explainers import Gradient, SmoothGrad, SmoothGradSquared, VarGrad
from veridical.models.predictor import Plan

KEY = vd.core.Key(5)
ALL = (SmoothGrad, SmoothGradSquared, VarGrad)


def test_linear_model_has_closed_forms() -> None:
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


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"noise": -0.1}, {"base": "occlusion"}, {"steps": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SmoothGrad(**wrong)
