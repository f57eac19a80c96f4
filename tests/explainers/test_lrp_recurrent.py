"""LRP through recurrent layers, against a slow rewrite whose gates are detached (Arras et al. 2017)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import LrpEpsilon

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
