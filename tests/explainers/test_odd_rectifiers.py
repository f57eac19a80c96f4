"""Rectifiers in disguise beside an ordinary one: followed as the ReLU they are, or refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import registry

Act = Callable[[Tensor], Tensor]


class Mixed(nn.Module):
    """One rectifier as it is given, one as everybody writes it."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.second(self.act(self.first(x)))))


def by_no_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        mask = (h > 0).to(h.dtype)
    return h * mask


def into_a_tensor(h: Tensor) -> Tensor:
    return torch.add(F.relu(h), 0, out=torch.empty_like(h))


def in_place(h: Tensor) -> Tensor:
    part = F.relu(-h)
    h += part
    return h


def by_a_view(h: Tensor) -> Tensor:
    h = h.clone()
    h.view(-1).relu_()
    return h


REFUSED: dict[str, Act] = {
    "a detached mask": lambda h: h * (h.detach() > 0).to(h.dtype),
    "where by a detached mask": lambda h: torch.where(h.detach() > 0, h, 0.0),
    "data": lambda h: h * (h.data > 0).to(h.dtype),
    "no_grad": by_no_grad,
    "tolist": lambda h: h * torch.tensor((h > 0).tolist()).to(h.dtype),
    "tolist of numbers": lambda h: h * (torch.tensor(h.tolist()) > 0).to(h.dtype),
    "numpy": lambda h: h * torch.from_numpy((h.detach().numpy() > 0).astype("float64")),
    "less its negative part": lambda h: h - h.clamp(max=0),
    "less its negative part, again": lambda h: h - h.clamp_max(0),
    "less its negative part, by name": lambda h: h - torch.clip(h, None, 0.0),
    "and its negative part": lambda h: h + F.relu(-h),
    "its negative part and it": lambda h: torch.add(torch.clamp(-1.0 * h, min=0), h),
    "and its negative part in place": in_place,
    "less its turned negative part": lambda h: h - -torch.relu(h.neg()),
    "twice, halved": lambda h: (h + (F.relu(h) + F.relu(-h))) / 2,
    "less a part of a leak": lambda h: (F.leaky_relu(h, 0.2) - 0.2 * h) / 0.8,
    "less its positive part, turned": lambda h: -(-h - F.relu(-h)),
    "with a factor": lambda h: torch.add(h, F.relu(-2 * h), alpha=0.5),
    "two leaks": lambda h: (F.leaky_relu(h, 0.5) + 0.5 * F.leaky_relu(-h, 0.5)) / 0.75,
    "a root of a square": lambda h: (h + (h * h).sqrt()) / 2,
    "a root of a power": lambda h: (h + (h**2) ** 0.5) / 2,
    "the larger of a stack": lambda h: torch.stack([h, torch.zeros_like(h)]).amax(0),
    "a sum of a stack": lambda h: torch.stack([h, F.relu(-h)]).sum(0),
    "a step by a division": lambda h: h * (F.relu(h) / h),
    "an absolute value by its other name": lambda h: (h + torch.absolute(h)) / 2,
    "a length": lambda h: (h + torch.hypot(h, torch.zeros_like(h))) / 2,
    "another sign": lambda h: (h + torch.copysign(h, torch.ones_like(h))) / 2,
    "the larger of two, sorted": lambda h: torch.stack([h, torch.zeros_like(h)]).sort(0).values[1],
    "the largest of two": lambda h: torch.stack([h, torch.zeros_like(h)]).topk(1, 0).values[0],
    "the larger so far": lambda h: torch.stack([torch.zeros_like(h), h]).cummax(0).values[1],
    "a step, rounded": lambda h: h * torch.sigmoid(1e6 * h).round(),
    "chosen by a sign": lambda h: torch.stack([torch.zeros_like(h), h])[
        (h > 0).long(), torch.arange(len(h))[:, None], torch.arange(8)
    ],
    "a learnt leak of nothing": lambda h: F.prelu(h, torch.zeros(1, dtype=h.dtype)),
    "a recurrent cell": lambda h: torch.rnn_relu_cell(
        h, torch.zeros_like(h), *(torch.eye(8, dtype=h.dtype) * k for k in (1, 0)), *[h.new_zeros(8)] * 2
    ),
    "a view written to": by_a_view,
    "out": into_a_tensor,
}
FOLLOWED: dict[str, Act] = {
    "aten": torch.ops.aten.relu.default,
    "a leak of nothing": lambda h: F.leaky_relu(h, 0.0),
    "a leak of nothing by name": lambda h: F.leaky_relu(h, negative_slope=0),
    "an exponential of nothing": lambda h: F.elu(h, 0.0),
    "an exponential of nothing by name": lambda h: F.elu(h, alpha=0),
    "a random leak of nothing": lambda h: F.rrelu(h, 0.0, 0.0),
    "the larger, by name": lambda h: torch.max(h, other=torch.zeros_like(h)),
    "whole numbers": lambda h: h * (h > 0).int(),
    "in place": F.relu_,
    "in place, twice": lambda h: h.relu_().clamp_(min=0),
    "aten in place": torch.ops.aten.relu_.default,
    "halves": lambda h: torch.cat([F.relu(part) for part in h.chunk(2, 1)], 1),
}
BOTH = ["guided_backprop", "deconvolution"]


def task_of(act: Act) -> vd.Task:
    return vd.Task(seeded(Mixed(act)).eval(), draw(5, 6), targets=torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_rectifier_that_cannot_be_seen_is_refused(kind: str, name: str) -> None:
    task = task_of(REFUSED[kind])
    with pytest.raises(NotApplicableError) as error:
        registry.make(name)(task)
    assert len(str(error.value)) > 60


@pytest.mark.parametrize("name", [*BOTH, "deeplift", "lrp", "lrp_epsilon", "lrp_z_plus"])
@pytest.mark.parametrize("kind", [*FOLLOWED, *REFUSED])
def test_whoever_gives_a_map_gives_that_of_the_plain_network(kind: str, name: str) -> None:
    task, plain = task_of((FOLLOWED | REFUSED)[kind]), task_of(F.relu)
    explainer = registry.make(name)
    if explainer.why_not(task) is not None:
        assert kind not in FOLLOWED
        return
    torch.testing.assert_close(task.outputs, plain.outputs)
    expected = explainer(plain).values
    for _ in range(3):
        torch.testing.assert_close(explainer(task).values, expected, rtol=1e-5, atol=1e-9)


ALLOWED: dict[str, Act] = {
    "both signs": lambda h: torch.cat([F.relu(h), F.relu(-h)], 1)[:, :8],
    "a residual sum": lambda h: h + F.relu(h @ torch.eye(8, dtype=h.dtype)),
    "both signs added": lambda h: F.relu(h) - 0.5 * F.relu(-h),
    "beside its negative part": lambda h: torch.cat([h, F.relu(-h)], 1)[:, 4:12],
    "around a rectifier": lambda h: h + F.relu(h),
    "less its positive half": lambda h: h - 0.5 * F.relu(h),
    "scaled": lambda h: 2 * h + 3 * h,
    "a root of a mean square": lambda h: h / (h * h).mean(-1, keepdim=True).sqrt(),
    "a fourth power": lambda h: 0.1 * (h**2) ** 2,
    "an exponential": F.elu,
    "a learnt leak": lambda h: F.prelu(h, torch.full((8,), 0.1, dtype=h.dtype)),
    "a random leak": lambda h: F.rrelu(h, 0.0, 0.2),
    "the best half": lambda h: h.gather(1, h.topk(4, 1).indices).repeat(1, 2),
    "hard swish": lambda h: h * F.relu6(h + 3) / 6,
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", ALLOWED)
def test_what_is_no_rectifier_in_disguise_is_not_refused(kind: str, name: str) -> None:
    task = task_of(ALLOWED[kind])
    assert registry.make(name).why_not(task) is None
    assert bool(registry.make(name)(task).values.isfinite().all())
