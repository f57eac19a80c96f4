"""LRP through layers written in other ways, pools and recurrence: the same as a module's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import LrpEpsilon, registry

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
    "mm in place": lambda x, w, b: torch.mm(x, w.t()).add_(b),
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "sum and less": lambda x, w, b: F.linear(x, w) + b,
}
OTHER: dict[str, Written] = {
    "matmul": lambda x, w, b: (w @ x.t()).t() + b,
    "einsum": lambda x, w, b: torch.einsum("ni,oi->no", x, w) + b,
    "bmm": lambda x, w, b: torch.bmm(x[:, None], w.t().expand(len(x), -1, -1))[:, 0] + b,
}


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
@pytest.mark.parametrize("kind", LAYERS)
def test_a_dense_layer_in_other_words(kind: str, name: str) -> None:
    x = draw(5, 6)
    same(name, task_of(Dense(LAYERS[kind]), x), task_of(Dense(F.linear), x))


@pytest.mark.parametrize("kind", OTHER)
def test_weights_in_another_order_are_refused_by_name(kind: str) -> None:
    task = task_of(Dense(OTHER[kind]), draw(5, 6))
    reason = str(registry.make("lrp_epsilon").inapplicable_reason(task))
    assert f"'{kind}'" in reason
    assert "x @ w" in reason


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


POOLS = {
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "named": lambda x: F.max_pool2d(x, kernel_size=(3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
    "mean": nn.AdaptiveAvgPool2d(1),
    "one axis": lambda x: F.adaptive_avg_pool2d(x, (1, None)),
}


class Pooled(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(2, 4, 3, padding=1, bias=False), pool
        self.last = nn.Linear(pool(torch.rand(1, 4, 7, 7)).numel(), 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(torch.relu(self.first(x))).flatten(1))


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_hands_back_the_same_as_a_gradient(name: str) -> None:
    # without biases nothing takes a share: it tends to input times gradient
    task = vd.Task(seeded(Pooled(POOLS[name])), draw(3, 2, 7, 7), targets=[0, 1, 2])
    found, expected = LrpEpsilon(epsilon=1e-9)(task).values, vd.explain("input_x_gradient", task).values
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


STEPS, SIZE, HIDDEN = 5, 3, 4


def as_it_is(f: Any, z: Tensor) -> Tensor:
    """f(z) as a constant times z: all relevance goes to z."""
    return z * (f(z) / z).detach()


def gru_step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
    (h,) = state
    (r, z, n), (hr, hz, hn) = (x @ w[0].T + w[2]).chunk(3, -1), (h @ w[1].T + w[3]).chunk(3, -1)
    reset, keep = torch.sigmoid(r + hr).detach(), torch.sigmoid(z + hz).detach()
    return ((1 - keep) * as_it_is(torch.tanh, n + reset * hn) + keep * h,)


def lstm_step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
    h, c = state
    i, f, g, o = (x @ w[0].T + w[2] + h @ w[1].T + w[3]).chunk(4, -1)
    c = torch.sigmoid(f).detach() * c + torch.sigmoid(i).detach() * as_it_is(torch.tanh, g)
    return torch.sigmoid(o).detach() * as_it_is(torch.tanh, c), c


class Recurrent(nn.Module):
    """A recurrent layer whose last steps are read; it may start from a state of its own."""

    def __init__(self, kind: type[nn.RNNBase], both_ways: bool, started: bool) -> None:
        super().__init__()
        self.layer = kind(SIZE, HIDDEN, batch_first=True, bidirectional=both_ways)
        self.last = nn.Linear(HIDDEN * (2 if both_ways else 1), 3)
        self.start = nn.Parameter(torch.ones(2 if both_ways else 1, 1, HIDDEN)) if started else None

    def states(self, rows: int) -> Any:
        if self.start is None:
            return None
        first = self.start.expand(-1, rows, -1).contiguous()
        return (first, first) if isinstance(self.layer, nn.LSTM) else first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x, self.states(len(x)))[0].mean(1))


def slowly(net: Recurrent, x: Tensor, step: Any) -> Tensor:
    """Input times gradient of output 0, one step after the other, gates detached."""
    x = x.clone().requires_grad_(True)
    ways, given = [], net.states(len(x))
    for at, end in enumerate(["", "_reverse"][: 2 if net.layer.bidirectional else 1]):
        w = [getattr(net.layer, f"{name}_l0{end}").detach()
             for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]  # fmt: skip
        count = 2 if isinstance(net.layer, nn.LSTM) else 1
        parts = given if isinstance(given, tuple) else (given,)
        state = tuple(x.new_zeros(len(x), HIDDEN) if p is None else p[at].detach() for p in parts)
        state, answers = (state * count)[:count], []
        for t in reversed(range(STEPS)) if end else range(STEPS):
            state = step(x[:, t], state, w)
            answers.append(state[0])
        ways.append(torch.stack(answers, 1).mean(1))
    answer = net.last(torch.cat(ways, -1))
    torch.testing.assert_close(answer, net(x))
    (slope,) = torch.autograd.grad(answer[:, 0].sum(), x)
    return (x * slope).detach()


@pytest.mark.parametrize("started", [False, True], ids=["from zeros", "from a state"])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("kind", "step"), [(nn.GRU, gru_step), (nn.LSTM, lstm_step)])
def test_gates_take_nothing_at_any_step(
    kind: type[nn.RNNBase], step: Any, both_ways: bool, started: bool
) -> None:
    net = seeded(Recurrent(kind, both_ways, started)).eval()
    x = draw(4, STEPS, SIZE)
    task = vd.Task(net, x, targets=torch.zeros(4, dtype=torch.int64))
    expected = task.space.pool(slowly(net, x, step))
    torch.testing.assert_close(LrpEpsilon(epsilon=0.0)(task).values, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_numbers_give_finite_relevance_near_that_of_long_ones(dtype: torch.dtype) -> None:
    # in float16 a stabiliser of 1e-9 would be 0, and what is normed differs in the third digit
    net = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 4, 2, 2, groups=4),
                        nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))  # fmt: skip
    net, x, targets = seeded(net).eval(), draw(5, 2, 8, 8), torch.zeros(5, dtype=torch.int64)
    for name in ("lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"):
        known = vd.explain(name, vd.Task(net.double(), x, targets=targets)).values
        task = vd.Task(net.to(dtype), x.to(dtype), targets=targets)
        found = vd.explain(name, task).values.double()
        assert bool(found.isfinite().all())
        both = torch.stack([found.flatten(), known.flatten()])
        assert float(torch.corrcoef(both)[0, 1]) > 0.98, name
