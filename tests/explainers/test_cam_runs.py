"""Class activation maps of models written in many ways: the maps made by hand, or a refusal in words."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.explainers import enlarged
from tests.reference.small_nets import conv_net, draw, image_task, noisy_copy, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import registry
from veridical.models.predictor import Plan

METHODS = ["gradcam", "gradcam_plus_plus", "layercam", "guided_gradcam"]


class Cut(nn.Module):
    """A model whose answer is `head(body(x))`, and whose last maps are what its body answers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.other = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3, 3), nn.Linear(3, 3)

    def body(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))

    def head(self, a: Tensor) -> Tensor:
        out: Tensor = self.linear(a.mean((2, 3)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class SameObject(Cut):
    """A dropout at rest answers the very tensor that it was given, which the answer reads before it, too."""

    def head(self, a: Tensor) -> Tensor:
        early = self.other(a.amax((2, 3)))
        late = F.dropout(a, training=False)
        assert late is a
        return early + super().head(late)


class OfTwo(Cut):
    """The last maps are one of two values of an operation."""

    def body(self, x: Tensor) -> Tensor:
        values, _ = super().body(x).max(1, keepdim=True)
        return values

    def head(self, a: Tensor) -> Tensor:
        return a.flatten(1)[:, :3].square()


class APart(Cut):
    """The last maps are a part that is a view of what both parts lie in."""

    def body(self, x: Tensor) -> Tensor:
        return torch.cat([self.conv(x), self.conv(x).tanh()], 1).chunk(2, 1)[1]


class PastThem(Cut):
    """What was computed before the last maps reaches the answer past them."""

    def forward(self, x: Tensor) -> Tensor:
        a = self.body(x)
        return self.head(a) + self.other(x.amax((2, 3)).repeat(1, 2)[:, :3])

    def body(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x), inplace=True)


class Partly(Cut):
    """A part of what comes behind the last maps is cut off by the model itself."""

    def head(self, a: Tensor) -> Tensor:
        return super().head(a) * self.other(a.detach().amax((2, 3)))


class Ungraded(Cut):
    """A part of what comes behind the last maps is computed without gradients."""

    def head(self, a: Tensor) -> Tensor:
        with torch.no_grad():
            gate = self.other(a.amax((2, 3)))
        return super().head(a) * gate


class InPlace(Cut):
    """Its maps are written over, again and again, until they are the last ones."""

    def body(self, x: Tensor) -> Tensor:
        a = self.conv(x)
        a += 1
        a[:, 0] *= 2
        return a.clamp_(min=0)


class InHalf(Cut):
    """It computes in half precision on its way."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).to(x.dtype)


class ByValue(Cut):
    """It takes another way where its values are large, on which the last maps are others."""

    def body(self, x: Tensor) -> Tensor:
        a = super().body(x)
        return a.sigmoid() if bool(x.amax() > 3) else a.tanh()


class OwnFunction(Cut):
    """Its head goes through an autograd function of its own."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return 2 * a

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * g

    def head(self, a: Tensor) -> Tensor:
        return super().head(self.Twice.apply(a.mean((2, 3), keepdim=True)))


class Scripted(Cut):
    """Its head is a script."""

    def __init__(self) -> None:
        super().__init__()
        self.script = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3)))

    def head(self, a: Tensor) -> Tensor:
        out: Tensor = self.script(a)
        return out


class ByName(Cut):
    """Its convolution is given its weights by name."""

    def body(self, x: Tensor) -> Tensor:
        return F.relu(F.conv2d(input=x, weight=self.conv.weight, bias=self.conv.bias, padding=1))


class Layered(Cut):
    """Its last maps are the output of a layer, a rectifier in place that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.second = nn.ReLU(inplace=True), nn.Conv2d(3, 3, 3, padding=1)
        self.block = nn.Sequential(self.second, self.act)

    def body(self, x: Tensor) -> Tensor:
        return self.block(self.act(self.conv(x)))


def expected(net: Any, x: Tensor, target: int) -> Tensor:
    """Grad-CAM by hand: the model cut in two by its author."""
    with torch.enable_grad():
        a = net.body(x).detach().requires_grad_(True)
        (slopes,) = torch.autograd.grad(net.head(a)[:, target].sum(), a)
    small = (slopes.mean((2, 3), keepdim=True) * a).sum(1).clamp(min=0).detach()
    return torch.stack([enlarged(each, (8, 8)) for each in small]).flatten(1)


KINDS = [Cut, SameObject, OfTwo, APart, PastThem, Partly, InPlace, Ungraded, ByValue, OwnFunction, Scripted,
         ByName, Layered]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_gives_the_maps_by_hand(kind: type[Cut]) -> None:
    net = seeded(kind())
    calm, wild = draw(5, 2, 8, 8).tanh(), 2 * draw(5, 2, 8, 8, seed=3)
    task = vd.Task(net, calm, targets=1, plan=Plan(rows=64))
    assert bool((expected(net, calm, 1) > 0).any())
    found = vd.explain("gradcam", task)
    torch.testing.assert_close(found.values, expected(net, calm, 1), rtol=0, atol=1e-9)
    assert found.cost == vd.models.Cost(5, 5)
    # other inputs, other targets
    other = task.with_inputs(wild).with_targets(2)
    torch.testing.assert_close(vd.explain("gradcam", other).values, expected(net, wild, 2), rtol=0, atol=1e-9)
    # other weights
    noisy, twin = noisy_copy(task, 0.3, vd.core.Key(4))
    torch.testing.assert_close(
        vd.explain("gradcam", noisy).values, expected(twin.model, calm, 1), rtol=0, atol=1e-9
    )


class CutOff(Cut):
    """No gradient comes back to its last maps."""

    def head(self, a: Tensor) -> Tensor:
        with torch.no_grad():
            gate = F.conv2d(a, torch.ones_like(self.conv.weight[:, :1]).repeat(1, 3, 1, 1)).sigmoid()
        return super().head(a) * gate.mean((2, 3))


@pytest.mark.parametrize("name", METHODS)
def test_maps_that_no_gradient_comes_back_to_are_refused(name: str) -> None:
    task = image_task(seeded(CutOff()))
    with pytest.raises(NotApplicableError, match=r"depend on|no gradient|no rule"):
        vd.explain(name, task)


@pytest.mark.parametrize("name", ["gradcam", "guided_backprop", "lrp_epsilon"])
def test_a_model_that_switches_autocast_is_explained(name: str) -> None:
    torch.manual_seed(1)
    net = InHalf().eval()
    task = vd.Task(net, draw(4, 2, 8, 8).float(), targets=1, plan=Plan(rows=64))
    first, again = (vd.explain(name, task).values for _ in range(2))
    assert bool(first.any())
    assert torch.equal(first, again)


class WritesAPart(Cut):
    """It rectifies its maps through a view of them."""

    def body(self, x: Tensor) -> Tensor:
        a = self.conv(x)
        a.view(len(a), -1).relu_()
        return a


@pytest.mark.parametrize("name", [*METHODS, "scorecam"])
def test_a_model_that_cannot_be_traced_is_refused(name: str) -> None:
    net = seeded(WritesAPart())
    task = image_task(net)
    with pytest.raises(NotApplicableError, match="in place"):
        vd.explain(name, task)
    if name != "guided_gradcam":
        assert bool(vd.explain(registry.make(name, layer="conv"), task).values.isfinite().all())


def test_a_random_model_is_not_taken_for_one_that_cannot_be_traced() -> None:
    class Random(Cut):
        def head(self, a: Tensor) -> Tensor:
            return super().head(F.dropout(a, 0.5, training=True))

    assert registry.make("gradcam").why_not(image_task(seeded(Random()))) is None


@pytest.mark.parametrize("name", METHODS)
def test_threads_share_a_task(name: str) -> None:
    task, explainer = image_task(), registry.make(name)
    own = explainer(image_task()).values
    worlds = [task, task.with_noise(0.3, vd.core.Key(1))]
    there = explainer(image_task().with_noise(0.3, vd.core.Key(1))).values
    wrong: list[Any] = []

    def work() -> None:
        try:
            for _ in range(6):
                for world, right in zip(worlds, (own, there), strict=True):
                    if not torch.equal(explainer.maps(world, vd.models.Context()), right):
                        wrong.append("another map")
        except Exception as error:  # a thread cannot raise
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", [*METHODS, "gradient", "lrp_epsilon"])
def test_inputs_made_in_inference_mode_are_explained(name: str) -> None:
    with torch.inference_mode():
        x = draw(6, 2, 8, 8)
    task = image_task()
    found = vd.explain(name, vd.Task(task.model, x, plan=Plan(rows=64), train=task.train))
    assert torch.equal(found.values, vd.explain(name, task).values)


def test_a_script_with_buffers_is_explained() -> None:
    net = conv_net()
    script = image_task(torch.jit.script(net))
    torch.testing.assert_close(
        vd.explain("gradient", script).values, vd.explain("gradient", image_task(net)).values
    )
    with pytest.raises(NotApplicableError, match="no convolution layer"):
        vd.explain("gradcam", script)


@pytest.mark.parametrize("name", [*METHODS, "guided_backprop", "deconvolution"])
@pytest.mark.parametrize("rows", [8, 64])
def test_a_world_of_noise_is_told_its_outputs(name: str, rows: int) -> None:
    task, explainer = image_task(samples=18).with_plan(Plan(rows=rows)), registry.make(name)
    for seed in range(3):
        world = task.with_noise(0.3, vd.core.Key(seed))
        explainer.maps(world, vd.models.Context())
        told = world.known("outputs")
        own = task.with_noise(0.3, vd.core.Key(seed)).outputs
        torch.testing.assert_close(told, own, rtol=0, atol=1e-12)
        assert not torch.allclose(own, task.outputs)
    metric = vd.gef.FastGEF(draws=2, path=(0.05, 0.1, 0.2))
    cost = vd.score(metric, task, explainer).cost
    assert cost == vd.models.Cost(
        7 * explainer._declared(task).forward, 7 * explainer._declared(task).backward
    )


def test_a_world_of_sentences_is_told_its_outputs() -> None:
    net = seeded(
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3))
    )
    ids = torch.arange(24).reshape(4, 6) % 9
    world, again = (vd.Task(net, ids, plan=Plan(rows=8)).with_noise(0.3, vd.core.Key(1)) for _ in range(2))
    registry.make("guided_backprop").maps(world, vd.models.Context())
    torch.testing.assert_close(world.known("outputs"), again.outputs, rtol=0, atol=1e-12)


def test_a_transposed_convolution_of_a_volume_is_one() -> None:
    layers = nn.Conv3d(1, 2, 2, 2), nn.ReLU(), nn.ConvTranspose3d(2, 3, 2, 2), nn.ReLU(), nn.Flatten()
    net = seeded(nn.Sequential(*layers, nn.Linear(3 * 64, 2)))
    task = vd.Task(net, draw(2, 1, 4, 4, 4), targets=0, plan=Plan(rows=8))
    assert vd.explain("gradcam", task).provenance["layer"] == "relu, 3 x 4 x 4 x 4"


def test_a_way_without_maps_is_refused() -> None:
    class Sometimes(Cut):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.amax() > 3):
                return self.linear(x.amax((2, 3)).repeat(1, 2)[:, :3])
            return super().forward(x)

    task = vd.Task(seeded(Sometimes()), draw(5, 2, 8, 8).tanh(), targets=1, plan=Plan(rows=64))
    assert bool(vd.explain("gradcam", task).values.any())
    wild = task.with_inputs(9 * task.inputs)
    for name in ("gradcam", "layercam", "scorecam"):
        with pytest.raises(NotApplicableError, match="maps"):
            vd.explain(name, wild)
