"""How much LRP asks of a device: about as many operations as a gradient, and what is kept is never stale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from benchmarks.host_time import bare, mapped, operations, thin_task
from tests.reference.small_nets import draw, seeded
from veridical.explainers import registry
from veridical.explainers.graph.products import Product, added, dense
from veridical.explainers.graph.weight_parts import MOST, Parts, parts_of
from veridical.models.sessions import Question, Session

MOST_OPERATIONS = {"lrp_epsilon": 1.05, "lrp": 1.2, "lrp_z_plus": 1.2}
"""Times those of one gradient of the plain model; the rules of the last two go through layers once more."""


@pytest.mark.parametrize("name", MOST_OPERATIONS)
def test_a_map_takes_about_the_operations_of_a_gradient(name: str) -> None:
    task = thin_task()
    # inside a question, which leaves looks at answers to the reader, as every explanation on a GPU does
    with Question(task.predictor), Session(task.predictor, grad=True):
        ours, theirs = operations(mapped(registry.make(name), task)), operations(bare(task))
    assert ours <= MOST_OPERATIONS[name] * theirs
    assert ours > 100  # it did run


class Twice(nn.Module):
    """A convolution whose answer is normed and also read as it is, and one layer norm in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        h = z + self.second(F.relu(self.norm(z)))
        left, right = h.chunk(2, 1)
        top, _ = torch.cat([right, left], 1).flatten(2).max(-1, keepdim=True)
        return self.last(F.dropout(h, 0.5, self.training).flatten(1)) + top.squeeze(-1)[:, :3]


def twice() -> nn.Module:
    net = seeded(Twice()).eval()
    with torch.no_grad():
        net.norm.running_mean.copy_(draw(4, seed=5))
        net.norm.running_var.copy_(draw(4, seed=6).abs() + 0.5)
        net.norm.weight.copy_(draw(4, seed=7))
    return net


NAMES = ["lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_that_is_read_twice_is_run_and_counted_once(name: str) -> None:
    task, explainer = vd.Task(twice(), draw(5, 2, 8, 8)), registry.make(name)
    made = [explainer(task) for _ in range(4)]
    for each in made[1:]:
        assert torch.equal(each.values, made[0].values)
        assert each.cost == made[0].cost
    assert explainer.declared(task) == made[0].cost


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_weights_are_those_of_each_world(name: str) -> None:
    task, explainer = vd.Task(twice(), draw(5, 2, 8, 8)), registry.make(name)
    for _ in range(3):
        clean = explainer(task).values
    worlds = [task.with_noise(0.3, vd.core.Key(seed)) for seed in range(2)]
    found = [explainer.maps(world, vd.core.Key(0)) for world in (*worlds, worlds[0], task)]
    for seed in range(2):
        fresh = vd.Task(twice(), draw(5, 2, 8, 8)).with_noise(0.3, vd.core.Key(seed))
        assert torch.equal(found[seed], explainer.maps(fresh, vd.core.Key(0)))
    assert torch.equal(found[2], found[0])
    assert torch.equal(found[3], clean)


@pytest.mark.parametrize("place", ["first.weight", "norm.weight", "norm.bias", "norm.running_var"])
def test_whatever_a_layer_is_folded_from_is_watched(place: str) -> None:
    net, explainer, x = twice(), registry.make("lrp_z_plus"), draw(5, 2, 8, 8)
    task = vd.Task(net, x, targets=[0, 1, 2, 0, 1])  # whose own outputs nobody asks for
    for _ in range(3):
        before = explainer.maps(task, vd.core.Key(0))
    own = explainer.prepared(task).predictor.unwrapped
    state = dict(own.named_parameters()) | dict(own.named_buffers())
    with Session(explainer.prepared(task).predictor, grad=True), torch.no_grad():
        state[place].mul_(1.5)
        after = explainer.maps(task, vd.core.Key(0))
    changed = twice()
    with torch.no_grad():
        (dict(changed.named_parameters()) | dict(changed.named_buffers()))[place].mul_(1.5)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, explainer(vd.Task(changed, x, targets=task.targets)).values)


def test_parts_are_made_anew_when_a_tensor_is_written_to_or_replaced() -> None:
    w, made = nn.Parameter(torch.ones(3)), []
    parts = parts_of(w, ())
    assert parts is parts_of(w, (None,))
    assert isinstance(parts, Parts)

    def look() -> Tensor:
        return parts.get("twice", (w, None), lambda: made.append(1) or w.detach() * 2)

    assert look() is look()
    with torch.no_grad():
        w.mul_(3)
    assert look().tolist() == [6.0] * 3
    w.data = torch.full((3,), 5.0)
    assert look().tolist() == [10.0] * 3
    assert len(made) == 3


def test_parts_of_what_is_large_or_has_no_version_are_not_kept() -> None:
    assert parts_of(None, ()) is None
    assert parts_of(torch.empty(MOST + 1, device="meta"), ()) is None
    with torch.inference_mode():
        unversioned = torch.ones(3)
    assert parts_of(unversioned, ()) is None
    assert parts_of(torch.ones(3), (unversioned,)) is None


def test_products_add_up_however_they_come() -> None:
    a, b, c, d = (draw(4, 3, seed=i) for i in range(4))
    for one, other in ((Product(a, b), Product(c, d)), (Product(a, b), c * d), (c * d, Product(a, b))):
        assert torch.equal(added(one, other), a * b + c * d)
    assert dense(a) is a


POOLS = {
    "plain": lambda x: F.max_pool2d(x, 2),
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "named": lambda x: F.max_pool2d(x, kernel_size=(3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 2, None, 0, 2),
    "layer": nn.MaxPool2d(3, 2, 1),
    "all by place": lambda x: F.max_pool2d(x, 3, 2, 1, 1, True, False),
    "mean": nn.AdaptiveAvgPool2d(1),
    "mean of each": nn.AdaptiveAvgPool2d((1, 1)),
    "means": nn.AdaptiveAvgPool2d(2),
    "one axis": lambda x: F.adaptive_avg_pool2d(x, (1, None)),
}


class Pooled(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(2, 4, 3, padding=1, bias=bias), pool
        places = pool(torch.rand(1, 4, 7, 7)).numel()
        self.last = nn.Linear(places, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(torch.relu(self.first(x))).flatten(1))


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_hands_back_the_same_by_a_plan_as_followed_step_by_step(name: str) -> None:
    for bias in (True, False):
        task = vd.Task(seeded(Pooled(POOLS[name], bias)), draw(3, 2, 7, 7), targets=[0, 1, 2])
        first, *later = (vd.explain("lrp_epsilon", task, epsilon=1e-9).values for _ in range(4))
        for again in later:
            torch.testing.assert_close(again, first, rtol=1e-12, atol=1e-14)
        if not bias:  # nothing takes a share: it tends to input times gradient
            torch.testing.assert_close(
                first, vd.explain("input_x_gradient", task).values, rtol=1e-4, atol=1e-6
            )
