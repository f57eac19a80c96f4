"""What foreign code does to the copy it is given harms no later answer, and no copy by others can do harm."""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.errors import NotApplicableError

X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


class Reaching(nn.Module):
    """Answers by things that torch does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.hidden = [nn.Sequential(nn.Linear(4, 4))]
        self.factors, self.config = [1.0], types.SimpleNamespace(scale=1.0)
        self.table: dict[str, dict[str, float]] = {"a": {"b": 1.0}}
        self.array, self.plain = torch.ones(1).numpy(), torch.ones(1)
        self.off: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factors[0] * self.config.scale * self.table["a"]["b"] * float(self.array[0])
        out: Tensor = self.head(self.hidden[0](x)) * factor * self.plain * (0.0 if self.off else 1.0)
        return out


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another precision": lambda m: m.double(),
    "other data": lambda m: setattr(m.head.weight, "data", torch.zeros(3, 4)),
    "a list": lambda m: m.factors.__setitem__(0, 2.0),
    "a configuration": lambda m: setattr(m.config, "scale", 2.0),
    "deep in a dictionary": lambda m: m.table["a"].update(b=2.0),
    "an array": lambda m: m.array.fill(2.0),
    "a tensor": lambda m: m.plain.mul_(2),
    "a set": lambda m: m.off.add(1),
    "a hidden weight": lambda m: m.hidden[0][0].weight.data.mul_(2),
    "a hidden hook": lambda m: m.hidden[0][0].register_forward_hook(lambda _m, _i, out: out * 2),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_copy_reaches_is_left_as_it_was(change: str, raises: bool) -> None:
    task = vd.Task(Reaching(), X)
    world = task.with_noise(0.3, vd.core.Key(1))
    before, noisy = task.outputs, world.outputs

    def meddling(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        CHANGES[change](model)
        if raises:
            raise RuntimeError("broken")
        return inputs

    for each in (task, world):
        if raises:
            with pytest.raises(RuntimeError):
                vd.explain(meddling, each)
        else:
            vd.explain(meddling, each)
        assert torch.equal(task.predictor.outputs(X), before)
        assert torch.equal(world.predictor.outputs(X), noisy)


def test_another_world_asked_by_an_explainer_leaves_it_in_its_own() -> None:
    task = vd.Task(mlp(), X)
    world = task.with_noise(0.5, vd.core.Key(1))

    def curious(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        task.predictor.outputs(X)
        vd.explain(lambda model, inputs, targets: inputs, task)
        inputs = inputs.clone().requires_grad_()
        return torch.autograd.grad(model(inputs).gather(1, targets[:, None]).sum(), inputs)[0]

    assert torch.allclose(vd.explain(curious, world).values, vd.explain("gradient", world).values)


def test_a_module_that_somebody_kept_and_writes_to_later_changes_no_answer() -> None:
    task = vd.Task(mlp(), X)
    world, kept = task.with_noise(0.5, vd.core.Key(0)), []
    vd.explain(lambda model, inputs, targets: (kept.append(model), inputs)[1], world)
    expected = world.outputs
    for module in (kept[0], world.model):
        with torch.no_grad():
            next(module.parameters()).zero_()
        assert torch.equal(world.predictor.outputs(X), expected)


@pytest.mark.parametrize("how", ["detach", "data", "out", "buffer", "view"])
def test_answers_do_not_lie_in_the_memory_of_the_copy(how: str) -> None:
    class Alias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 3))
            self.register_buffer("room", torch.zeros(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 8:
                return x[:, :3] * self.weight[:1]
            if how == "buffer":
                self.room.copy_(x[:, :3] * self.weight)
                return self.room
            if how == "out":
                return torch.mul(x[:, :3], self.weight.detach(), out=self.room)
            return {"detach": self.weight.detach(), "data": self.weight.data, "view": self.weight[:]}[how]

    task = vd.Task(Alias(), X)
    outputs = task.with_noise(0.5, vd.core.Key(1)).outputs
    before = outputs.clone()
    task.predictor.outputs(2 * X)
    _ = task.with_noise(0.3, vd.core.Key(2)).outputs
    assert torch.equal(outputs, before)


class TwoLayers(nn.Module):
    def __init__(self, first: str = "a", second: str = "b") -> None:
        super().__init__()
        for name in (first, second):
            setattr(self, name, nn.Linear(4, 4))
            getattr(self, name).register_buffer("shift", torch.rand(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.a(x) + self.a.shift)
        out: Tensor = self.head(torch.tanh(self.b(hidden) * self.b.shift))
        return out


@pytest.mark.parametrize("loads", [True, False])
def test_a_copy_with_its_layers_in_another_order_answers_alike(loads: bool) -> None:
    model = TwoLayers()

    def flipped(given: nn.Module) -> nn.Module:
        made = TwoLayers("b", "a")
        if loads:
            made.load_state_dict(given.state_dict())
        return made

    task, plain = vd.Task(model, X, copy=flipped), vd.Task(model, X)
    key = vd.core.Key(0)
    assert torch.equal(task.with_noise(0.5, key).outputs, plain.with_noise(0.5, key).outputs)
    assert torch.equal(task.predictor.outputs(X), plain.outputs)


def same_numbers(given: nn.Module) -> nn.Module:
    made = nn.Linear(4, 3)
    made.weight, made.bias = (nn.Parameter(p.data) for p in given.parameters())
    return made


def same_buffer(given: Any) -> nn.Module:
    made = copy.deepcopy(given)
    made.a.shift = given.a.shift
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "copier", "why"),
    [
        (nn.Linear(4, 3), same_numbers, "shares parameters or buffers"),
        (TwoLayers(), same_buffer, "shares parameters or buffers"),
        (mlp(), lambda _: nn.Linear(4, 3), "other parameters than the original"),
    ],
)
def test_a_copy_that_cannot_be_used_is_refused(model: nn.Module, copier: Any, why: str) -> None:
    with pytest.raises(NotApplicableError, match=why):
        vd.Task(model, X, copy=copier)


def test_what_a_score_costs_does_not_depend_on_threads_that_ended() -> None:
    def cost(task: vd.Task, out: list[vd.models.Cost]) -> None:
        out.append(vd.score("pixel_flipping", task, "gradient").cost)

    model, costs = mlp(), []
    task = vd.Task(model, X)
    for _ in range(6):
        thread = threading.Thread(target=cost, args=(task, costs))
        thread.start()
        thread.join()
    cost(vd.Task(model, X), costs)
    assert len(set(costs)) == 1
