"""Layers written in other words: LRP gives what it gives to the same layer as a module, by every rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import registry

NAMES = ["lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"]
Written = Callable[[Tensor, Tensor, Tensor], Tensor]


class Dense(nn.Module):
    """Two layers, the first with a bias, as `written` has them; its inputs have either sign."""

    def __init__(self, written: Written) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)
        self.written = written

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = F.relu(self.written(x, layer.weight, layer.bias))
        return self.last(x)


LAYERS: dict[str, Written] = {
    "matmul and sum": lambda x, w, b: x @ w.t() + b,
    "matmul and sum, turned": lambda x, w, b: b + torch.matmul(x, w.T),
    "weights first": lambda x, w, b: (w @ x.t()).t() + b,
    "einsum": lambda x, w, b: torch.einsum("ni,oi->no", x, w) + b,
    "einsum, weights first": lambda x, w, b: torch.einsum("oi,ni->no", w, x) + b,
    "mm in place": lambda x, w, b: torch.mm(x, w.t()).add_(b),
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "bmm": lambda x, w, b: torch.bmm(x[:, None], w.t().expand(len(x), -1, -1))[:, 0] + b,
    "sum and less": lambda x, w, b: F.linear(x, w) + b,
}


APART = ["bmm", "weights first"]
"""What is added to these comes behind a move, and is a sum of its own."""


def task_of(net: nn.Module, x: Tensor) -> vd.Task:
    return vd.Task(seeded(net).eval(), x, targets=torch.zeros(len(x), dtype=torch.int64))


def same(name: str, one: vd.Task, other: vd.Task, rtol: float = 1e-9) -> None:
    """Both give the same map, clean and under noise."""
    explainer = registry.make(name)
    torch.testing.assert_close(one.outputs, other.outputs)
    torch.testing.assert_close(explainer(one).values, explainer(other).values, rtol=rtol, atol=1e-9)
    noisy = [
        explainer.maps(task.with_noise(0.2, vd.core.Key(0)), vd.models.Context()) for task in (one, other)
    ]
    torch.testing.assert_close(*noisy, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in APART])
def test_a_dense_layer_in_other_words(kind: str, name: str) -> None:
    x = draw(5, 6)
    same(name, task_of(Dense(LAYERS[kind]), x), task_of(Dense(F.linear), x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", APART)
def test_a_product_follows_the_rule_of_dense_layers(kind: str, name: str) -> None:
    x = draw(5, 6)
    no_bias = task_of(Dense(lambda x, w, b: LAYERS[kind](x, w, torch.zeros_like(b))), x)
    same(name, no_bias, task_of(Dense(lambda x, w, b: F.linear(x, w)), x), 1e-5)


def test_what_a_product_multiplies_is_counted() -> None:
    x = draw(10, 6)
    expected = registry.make("lrp_z_plus")(task_of(Dense(F.linear), x)).cost
    for kind, written in LAYERS.items():
        assert registry.make("lrp_z_plus")(task_of(Dense(written), x)).cost == expected, kind


class Gated(nn.Module):
    """Channels weighed by a gate of their means (squeeze and excitation), and an activation with a gate."""

    def __init__(self, gate: Callable[[Tensor], Tensor], act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.c, self.down, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 2), nn.Linear(2, 4)
        self.last, self.gate, self.act = nn.Linear(4 * 36, 3), gate, act

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.c(x))
        weights = self.gate(self.up(F.relu(self.down(h.mean((2, 3))))))
        return self.last((h * weights[:, :, None, None]).flatten(1))


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": lambda z: F.relu6(z + 3) / 6,
    "clamp": lambda z: (z / 6 + 0.5).clamp(0, 1),
    "hardtanh": lambda z: F.hardtanh(z + 3, 0.0, 6.0) * (1 / 6),
}


def test_a_gate_by_a_sigmoid_comes_before_one_by_bounds() -> None:
    x = draw(4, 2, 6, 6)
    one = task_of(Gated(torch.sigmoid, F.relu6), x)
    same("lrp_epsilon", one, task_of(Gated(torch.sigmoid, lambda h: h.clamp(0, 6)), x))
    detached = task_of(Gated(lambda z: torch.sigmoid(z).detach(), lambda h: h * ((h > 0) & (h < 6))), x)
    torch.testing.assert_close(
        registry.make("lrp_epsilon", epsilon=0.0)(one).values,
        registry.make("input_x_gradient")(detached).values,
        rtol=1e-4,
        atol=1e-9,
    )


def test_two_that_are_bounded_are_refused() -> None:
    task = task_of(Gated(GATES["relu6"], F.relu6), draw(4, 2, 6, 6))
    assert "product of two activations" in str(registry.make("lrp").why_not(task))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", GATES)
def test_a_gate_by_hand_is_a_gate(kind: str, name: str) -> None:
    x, gate = draw(4, 2, 6, 6), GATES[kind]
    by_hand = task_of(Gated(gate, lambda h: h * gate(h)), x)
    same(name, by_hand, task_of(Gated(F.hardsigmoid, lambda h: h * F.hardsigmoid(h)), x), 1e-6)
    same(name, by_hand, task_of(Gated(F.hardsigmoid, F.hardswish), x), 1e-4)


class Normed(nn.Module):
    """A convolution and a dense layer with norms behind them, the norm as `norm` has it."""

    def __init__(self, norm: Callable[[Tensor, nn.Module], Tensor], twice: bool = False) -> None:
        super().__init__()
        self.c, self.n, self.m = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm1d(5)
        self.a, self.last = nn.Linear(4 * 36, 5), nn.Linear(5, 3)
        self.norm, self.twice = norm, twice

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.c(x), self.n)
        h = F.relu(self.n(h) if self.twice else h)
        return self.last(F.relu(self.norm(self.a(h.flatten(1)), self.m)))


def normed_task(norm: Callable[[Tensor, nn.Module], Tensor], twice: bool = False) -> vd.Task:
    net = seeded(Normed(norm, twice)).eval()
    with torch.no_grad():
        for at, each in enumerate((net.n, net.m)):
            size = each.num_features
            each.running_mean.copy_(draw(size, seed=20 + at))
            each.running_var.copy_(draw(size, seed=22 + at).abs() + 0.5)
            each.weight.copy_(draw(size, seed=24 + at))  # of either sign
            each.bias.copy_(draw(size, seed=26 + at))
    return vd.Task(net, draw(4, 2, 6, 6), targets=torch.zeros(4, dtype=torch.int64))


def as_module(h: Tensor, norm: nn.Module) -> Tensor:
    return norm(h)


def laid(norm: nn.Module, h: Tensor) -> list[Tensor]:
    shape = (1, -1, *[1] * (h.dim() - 2))
    return [v.view(shape) for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias)]


def step_by_step(h: Tensor, norm: nn.Module) -> Tensor:
    mean, var, weight, bias = laid(norm, h)
    return (h - mean) / torch.sqrt(var + norm.eps) * weight + bias


def frozen(h: Tensor, norm: nn.Module) -> Tensor:
    """As detection networks write a batch norm that is never trained."""
    mean, var, weight, bias = laid(norm, h)
    scale = weight * (var + norm.eps).rsqrt()
    return h * scale + (bias - mean * scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", [step_by_step, frozen])
def test_a_norm_by_hand_is_folded_as_a_batch_norm_is(norm: Any, name: str) -> None:
    same(name, normed_task(norm), normed_task(as_module))


@pytest.mark.parametrize("name", NAMES)
def test_one_norm_behind_another_is_folded_as_both(name: str) -> None:
    same(name, normed_task(frozen, True), normed_task(as_module, True))
    both = normed_task(as_module, True)
    folded = torch.nn.utils.fusion.fuse_conv_bn_eval
    net = seeded(Normed(as_module)).eval()
    net.load_state_dict(both.model.state_dict())
    net.c, net.n = folded(folded(net.c, net.n), net.n), nn.Identity()
    single = vd.Task(net, both.inputs, targets=both.targets)
    torch.testing.assert_close(both.outputs, single.outputs)
    found, expected = (registry.make(name)(task).values for task in (both, single))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
