"""Models that are traced: routes nobody sees, ways back that torch does not have, rows apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import veridical as vd
from tests.reference.small_nets import conv_net, draw, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import registry

WAYS_BACK = ["gradient", "smoothgrad", "gradcam", "layercam", "guided_backprop", "deeplift", "lrp"]


class Checkpointed(nn.Module):
    """Activations are computed again on the way back."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = conv_net(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.net, x, use_reentrant=self.reentrant)


class Mixed(nn.Module):
    """Computes in bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net().float()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x).float()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS_BACK)
@pytest.mark.parametrize("net", [Checkpointed(True), Checkpointed(False), Mixed()])
def test_a_map_or_a_reason(net: nn.Module, name: str) -> None:
    task = vd.Task(net.eval(), draw(3, 2, 8, 8))
    explainer = registry.make(name)
    try:
        found = explainer(task).values
    except NotApplicableError:
        assert not (name in ("gradient", "smoothgrad") and isinstance(net, Mixed))
    else:
        plain = explainer(vd.Task(net.net.eval(), draw(3, 2, 8, 8).to(task.inputs))).values
        alike = torch.corrcoef(torch.stack([found.double().flatten(), plain.double().flatten()]))[0, 1]
        assert float(alike) > (0.9 if isinstance(net, Mixed) else 1 - 1e-9)


class Pooled(nn.Module):
    """Subtracts what is read of the whole batch."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.a, self.last, self.by = nn.Linear(6, 7), nn.Linear(7, 3), by

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.last(h - getattr(h, self.by)())


@pytest.mark.filterwarnings("ignore:the model gives a row other outputs")
@pytest.mark.parametrize("name", ["lrp", "lrp_z_plus", "deeplift"])
@pytest.mark.parametrize("by", ["mean", "sum", "amax", "max"])
def test_what_mixes_the_samples_of_a_batch_is_refused(by: str, name: str) -> None:
    task = vd.Task(seeded(Pooled(by)).eval(), draw(4, 6))
    with pytest.raises(NotApplicableError, match="mixes samples"):
        registry.make(name)(task)


LRP = ["lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"]


class Beside(nn.Module):
    """A side input with a layer of its own, added to that of the explained one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 7), nn.Linear(4, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.last(torch.relu(self.a(x) + self.b(z)))


class Scaled(Beside):
    """The same, multiplied."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.last(torch.relu(self.a(x) * self.b(z)))


class Recurring(nn.Module):
    """A recurrent network by hand, whose first state is as `start` says."""

    def __init__(self, start: str) -> None:
        super().__init__()
        self.i, self.h, self.z, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(7, 4), nn.Linear(4, 3)
        self.first, self.start = nn.Parameter(torch.zeros(4)), start

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        h = {
            "zeros": lambda: torch.zeros(rows, 4, dtype=x.dtype),
            "like the input": lambda: x.new_full((rows, 4), 0.3),
            "learnt": lambda: self.first.expand(rows, -1),
        }[self.start]()
        for t in range(x.shape[1]):
            keep = torch.sigmoid(self.z(torch.cat([x[:, t], h], 1)))
            h = (1 - keep) * torch.tanh(self.i(x[:, t]) + self.h(h)) + keep * h
        return self.last(h)


class Opened(nn.Module):
    """A gate on one learnt value for every unit, kept as a row, and an activation that is its own gate."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.value = nn.Parameter(torch.zeros(1, 7))

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.sigmoid(self.a(x)) * self.value)
        return self.last(h * torch.sigmoid(h))


def task_of(net: nn.Module, *shape: int, side: bool = False) -> vd.Task:
    # side inputs first, so that they differ from what is explained
    beside = (draw(4, 4, seed=3),) if side else ()
    return vd.Task(seeded(net).eval(), draw(4, *shape), side=beside, plan=vd.Plan(rows=8))


TASKS = {
    "side, added": lambda: task_of(Beside(), 6, side=True),
    "side, multiplied": lambda: task_of(Scaled(), 6, side=True),
    "first state zeros": lambda: task_of(Recurring("zeros"), 5, 3),
    "first state like the input": lambda: task_of(Recurring("like the input"), 5, 3),
    "first state learnt": lambda: task_of(Recurring("learnt"), 5, 3),
    "gates": lambda: task_of(Opened(), 6),
}


@pytest.mark.parametrize("name", [*LRP, "deeplift"])
@pytest.mark.parametrize("kind", TASKS)
def test_a_row_alone_has_the_map_that_it_has_beside_others(kind: str, name: str) -> None:
    task, explainer = TASKS[kind](), registry.make(name)
    together = explainer(task).values
    alone = torch.cat([explainer(task[at : at + 1]).values for at in range(len(task))])
    torch.testing.assert_close(alone, together, rtol=1e-9, atol=1e-12)


class TimeFirst(nn.Module):
    """Lays all steps of all rows along one axis, time first or rows first."""

    def __init__(self, rows_first: bool) -> None:
        super().__init__()
        self.a, self.last, self.rows_first = nn.Linear(3, 4), nn.Linear(4, 3), rows_first

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.rows_first else x.transpose(0, 1)
        flat = torch.relu(self.a(h.reshape(-1, 3))).reshape(*h.shape[:2], 4)
        steps = flat.transpose(0, 1) if self.rows_first else flat
        return self.last(steps[0] + 2 * steps[1:].mean(0))


@pytest.mark.parametrize("name", ["deeplift", "deeplift_shap"])
def test_rows_behind_time_on_one_axis_are_refused(name: str) -> None:
    rows, reference = draw(4, 5, 3), draw(3, 5, 3, seed=4)
    explainer = registry.make(name)
    task = vd.Task(seeded(TimeFirst(True)).eval(), rows, train=reference)
    assert explainer(task).provenance["completeness"]["largest_residual"] < 1e-9
    behind = vd.Task(seeded(TimeFirst(False)).eval(), rows, train=reference)
    torch.testing.assert_close(behind.outputs, task.outputs)
    assert "lay rows first" in str(explainer.inapplicable_reason(behind))


class MaskedMean(nn.Module):
    """The sum over the steps that a mask lets through; the mask is laid out as `like` says."""

    def __init__(self, like: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.last, self.like = nn.Linear(3, 6), nn.Linear(6, 3), like

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.last((h * self.like(mask[..., None], h)).sum(1))


LAID: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "to": lambda mask, h: mask.to(h),
    "type_as": lambda mask, h: mask.type_as(h),
    "expand_as": lambda mask, h: mask.double().expand_as(h),
    "view_as": lambda mask, h: mask.double().repeat(1, 1, 6).view_as(h),
    "reshape_as": lambda mask, h: mask.double().repeat(1, 1, 6).reshape_as(h),
}


@pytest.mark.parametrize("name", [*LRP, "deeplift", "guided_backprop"])
@pytest.mark.parametrize("kind", LAID)
def test_a_mask_laid_out_as_an_activation_is_takes_no_part_of_it(kind: str, name: str) -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1, 3:] = False
    maps = []
    for like in (LAID[kind], lambda mask, h: mask.double()):
        task = vd.Task(seeded(MaskedMean(like)), draw(4, 5, 3), side=(mask,), targets=[0, 1, 2, 0])
        maps.append(registry.make(name)(task).values)
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-9, atol=1e-12)
