"""A followed run that is repeated by its plan gives the very bits of one that is followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.architectures import CONVOLUTIONAL, HUGGING_FACE, OTHERS, made
from tests.reference.small_nets import conv_net, image_task
from veridical.explainers import registry
from veridical.explainers.graph.followed import Followed

METHODS = ["guided_backprop", "deconvolution", "deeplift", "lrp", "lrp_epsilon", "lrp_gamma"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "architecture",
    [*CONVOLUTIONAL, *OTHERS, *(pytest.param(name, marks=pytest.mark.extras) for name in HUGGING_FACE)],
)
def test_a_repeated_run_is_bit_equal_to_a_followed_one(architecture: str, runs: list[str]) -> None:
    task = made(architecture)
    for name in METHODS:
        explainer = registry.make(name)
        if explainer.why_not(task) is not None:
            continue
        first, second = (explainer(task).values for _ in range(2))  # the second run is written down
        runs.clear()
        third = explainer(task).values
        # the embeddings of a text are put before its model anew at every call
        assert "followed" not in runs or task.modality == "text" or architecture == "hf_vit", name
        assert torch.equal(first, second)
        assert torch.equal(first, third)


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_reads_the_weights_of_each_world(name: str, runs: list[str]) -> None:
    task, explainer = image_task(conv_net()), registry.make(name)
    for _ in range(2):
        explainer(task)
    runs.clear()
    worlds = [task.with_noise(0.3, vd.core.Key(seed)) for seed in range(3)]
    found = [explainer.maps(world, vd.core.Key(0)) for world in worlds]
    assert "followed" not in runs
    assert not torch.equal(found[0], found[1])
    again = image_task(conv_net()).with_noise(0.3, vd.core.Key(1))
    assert torch.equal(found[1], explainer.maps(again, vd.core.Key(0)))


class ByValue(nn.Module):
    """It chooses its way by what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            up = bool(x.sum() > 0)
        return F.relu((self.one if up else self.two)(x)) @ torch.eye(3)


class Numbers(nn.Module):
    """It reads a number of its own weights on its way, which is another one in every world."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x)) * float(self.layer.weight.abs().max())


class Loose(nn.Module):
    """It uses a tensor that is neither a parameter nor a buffer, and another one each time it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.__dict__["scale"] = [torch.tensor([1.0, 2.0, 3.0])]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x)) * self.__dict__["scale"][0]


@pytest.mark.parametrize("kind", [ByValue, Numbers, Loose])
def test_there_is_no_plan_for_what_may_be_otherwise_the_next_time(kind: Any, runs: list[str]) -> None:
    torch.manual_seed(0)
    net = kind()
    x = torch.randn(4, 4)
    task = vd.Task(net, x, targets=torch.zeros(4, dtype=torch.int64))
    explainer = registry.make("guided_backprop")
    for _ in range(3):
        explainer(task)
    runs.clear()
    found = explainer(task).values
    assert runs == ["followed"]
    rows = x.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(net(rows)[:, 0].sum(), rows)
    torch.testing.assert_close(found, expected)


@torch.library.custom_op("veridical_tests::large", mutates_args=())
def large(x: Tensor) -> Tensor:
    """What is above one; nobody says how much that is."""
    return x[x > 1].clone()


READS: dict[str, Any] = {
    "a mask": lambda x: x[x > 1].numel(),
    "a mask among indices": lambda x: x[:, (x > 1).any(0)].shape[1],
    "where": lambda x: len(torch.where(x > 1)[0]),
    "aten's own name": lambda x: len(torch.ops.aten.nonzero.default(x > 1)),
    "one_hot": lambda x: F.one_hot((x > 1).any().long()).shape[-1] - 1,
    "repeats": lambda x: len(torch.arange(len(x)).repeat_interleave((x > 1).any(1).long())),
    "repeats alone": lambda x: len(torch.repeat_interleave((x > 1).any(1).long())),
    "arange": lambda x: len(torch.arange((x > 1).sum())),
    "split": lambda x: len(x.flatten().tensor_split((x > 1).sum()[None])[0]),
    "an operation of their own": lambda x: len(large(x)),
}


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", ["guided_backprop", "lrp_epsilon"])
def test_shapes_that_follow_values_are_values(reads: str, name: str) -> None:
    class ByShape(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu((self.one if READS[reads](x.detach()) else self.two)(x) + 5)

    torch.manual_seed(0)
    net, x = ByShape(), torch.rand(4, 4)
    task = vd.Task(net, x, targets=torch.zeros(4, dtype=torch.int64))
    for _ in range(3):
        vd.explain(name, task)
    found = vd.explain(name, task.with_inputs(3 * x)).values
    alone = vd.Task(net, 3 * x, targets=torch.zeros(4, dtype=torch.int64))
    assert torch.equal(found, vd.explain(name, alone).values)
    assert not torch.equal(found, 3 * vd.explain(name, task).values)


def test_a_plan_holds_for_one_precision() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x) + 5) * (-1 if torch.is_autocast_enabled("cpu") else 1)

    net, x, half = Asks(), torch.rand(4, 4), vd.Plan(rows=8, autocast="bfloat16")
    task, other = (vd.Task(net, x, targets=torch.zeros(4, dtype=torch.int64)) for _ in range(2))
    for name in ("guided_backprop", "lrp_epsilon"):
        for _ in range(3):
            vd.explain(name, task)
        found = vd.explain(name, task.with_plan(half)).values
        assert torch.equal(found, vd.explain(name, other.with_plan(half)).values)


@pytest.mark.parametrize("name", ["guided_backprop", "lrp_epsilon", "gradcam"])
def test_a_hook_on_the_private_copy_is_heeded(name: str) -> None:
    # the caller's own module is watched by its task; under other weights a task lends its copy
    task, explainer = image_task(conv_net()), registry.make(name)
    world, again = (each.with_noise(0.1, vd.core.Key(3)) for each in (task, image_task(conv_net())))
    plain = [explainer.maps(world, vd.core.Key(0)) for _ in range(3)]
    found = []
    for each in (world, again):
        each._cache.pop("outputs", None)  # by which other answers than before would be refused
        hook = each.model[4].register_forward_hook(lambda _module, _given, made: 1 - made)
        found.append(explainer.maps(each, vd.core.Key(0)))
        hook.remove()
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], plain[0])
    world._cache.pop("outputs", None)
    assert torch.equal(explainer.maps(world, vd.core.Key(0)), plain[0])


def test_what_a_model_is_given_beside_its_input_is_read_anew(runs: list[str]) -> None:
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return F.relu(self.layer(x)) * weight[:, None]

    torch.manual_seed(0)
    net, x = Weighed(), torch.rand(4, 4)
    explainer = registry.make("lrp_epsilon")
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    task = vd.Task(net, x, side=(weights,), targets=torch.zeros(4, dtype=torch.int64))
    for _ in range(2):
        one = explainer(task).values
    other = task[torch.arange(3, -1, -1)]
    assert torch.equal(explainer(task).values, one)
    torch.testing.assert_close(explainer(other).values, one.flip(0))
    followed = explainer.prepared(task).predictor.model
    assert isinstance(followed, Followed)
    assert any(plan is not None and plan.holds for plan in followed.plans.values())


def test_a_plan_is_left_when_a_weight_lies_elsewhere() -> None:
    task, explainer = image_task(conv_net()), registry.make("guided_backprop")
    for _ in range(2):
        before = explainer(task).values
    model = explainer.prepared(task).predictor.model
    assert isinstance(model, Followed)
    (plan,) = [plan for plan in model.plans.values() if plan is not None]
    assert plan.holds
    weight = next(model.parameters())
    weight.data = weight.data.clone()
    assert not plan.holds
    assert torch.equal(explainer(task).values, before)
