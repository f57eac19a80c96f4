"""Class activation maps: captum, slow rewrites, the layer found by itself, models written in many ways."""

from __future__ import annotations

import os
from typing import Any

import captum.attr as captum
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veridical as vd
from tests.reference import explainers as slow
from tests.reference.architectures import made
from tests.reference.explainers import enlarged
from tests.reference.small_nets import conv_net, draw, hook_count, image_task, noisy_copy, seeded, series_task
from veridical.errors import NotApplicableError
from veridical.explainers import GradCam, GradCamPlusPlus, LayerCam, ScoreCam, registry
from veridical.explainers.cam import Cam
from veridical.models.predictor import Plan

ALL = (GradCam, GradCamPlusPlus, LayerCam, ScoreCam)
LAST = 5  # behind the last convolution of conv_net and its activation


def rewritten(kind: type[Cam], task: vd.Task, cut: int | None = None) -> Tensor:
    maps = []
    if cut is None:
        cut = LAST
    for x, target in zip(task.inputs, task.targets.tolist(), strict=True):
        a, g = slow.activations(task.model, cut, x, target)
        if kind is ScoreCam:
            small = slow.scorecam(task.model, x, target, a)
        else:
            rule = {GradCam: "gradcam", GradCamPlusPlus: "gradcam_plus_plus", LayerCam: "layercam"}[kind]
            small = getattr(slow, rule)(a, g)
        maps.append(slow.enlarged(small, tuple(x.shape[1:])))
    return torch.stack(maps)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("inplace", [False, True])
def test_agrees_with_a_slow_rewrite(kind: type[Cam], inplace: bool) -> None:
    task = image_task(conv_net(inplace))
    found = kind()(task).values
    expected = rewritten(kind, image_task()).flatten(1)
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)
    # an earlier layer and the other methods are other maps
    others = [rewritten(other, image_task()).flatten(1) for other in ALL if other is not kind]
    assert not any(torch.allclose(found, other, atol=1e-6) for other in others)
    assert not torch.allclose(found, rewritten(kind, image_task(), 0).flatten(1), atol=1e-6)


def test_gradcam_agrees_with_captum() -> None:
    task = image_task()
    peer = captum.LayerGradCam(task.model, task.model[LAST])
    small = peer.attribute(task.inputs, target=task.targets, relu_attributions=True)
    large = F.interpolate(small, size=(8, 8), mode="bilinear", align_corners=False)
    torch.testing.assert_close(GradCam()(task).values, large.detach().flatten(1), rtol=0, atol=1e-9)


def test_by_hand() -> None:
    # two channels of one by two positions; y = 1 * a0 + 2 * a1 - 1 * b0 + 0 * b1
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Flatten(), nn.Linear(4, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([2.0, 1.0]).reshape(2, 1, 1, 1))
        net[2].weight.copy_(torch.tensor([[1.0, 2.0, -1.0, 0.0], [0.0] * 4]))
    task = vd.Task(net, torch.tensor([[[[1.0, 3.0]]]], dtype=torch.float64), targets=0, plan=Plan(rows=8))
    # channel means of the gradient: 1.5 and -0.5; activations (2, 6) and (1, 3)
    torch.testing.assert_close(GradCam()(task).values, torch.tensor([[2.5, 7.5]], dtype=torch.float64))
    torch.testing.assert_close(LayerCam()(task).values, torch.tensor([[2.0, 12.0]], dtype=torch.float64))
    # alpha of the first channel: 1/(2 + 8) and 4/(8 + 8*8); weight 0.1 * 1 + 4/72 * 2
    weight = 0.1 + 8 / 72
    expected = torch.tensor([[2 * weight, 6 * weight]], dtype=torch.float64)
    torch.testing.assert_close(GradCamPlusPlus()(task).values, expected)
    # both channels give the same mask (0, 1), so both weights are a half
    torch.testing.assert_close(ScoreCam()(task).values, torch.tensor([[1.5, 4.5]], dtype=torch.float64))


@pytest.mark.parametrize("kind", ALL)
def test_layer_by_name(kind: type[Cam]) -> None:
    task = image_task()
    expected = rewritten(kind, task, 2).flatten(1)
    torch.testing.assert_close(kind(layer="2")(task).values, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(kind(layer="5")(task).values, kind()(task).values)


@pytest.mark.parametrize("kind", ALL)
def test_every_image_space(kind: type[Cam]) -> None:
    task = image_task()
    pixels = kind()(task).maps()
    full = pixels.expand(-1, 2, -1, -1)
    segments = torch.arange(64).reshape(8, 8) // 10
    for space in (vd.Space.patches((2, 8, 8), 4), vd.Space.superpixels((2, 8, 8), segments)):
        found = kind()(task.with_space(space)).values
        torch.testing.assert_close(found, space.pool(full) / 2)
    own = torch.stack([(segments + i) % 7 for i in range(6)])
    space = vd.Space.superpixels((2, 8, 8), own)
    torch.testing.assert_close(kind()(task.with_space(space)).values, space.pool(full) / 2)
    elements = kind()(task.with_space(vd.Space.elements((2, 8, 8)))).values
    torch.testing.assert_close(elements, full.flatten(1))


@pytest.mark.parametrize("kind", ALL)
def test_series(kind: type[Cam]) -> None:
    task = series_task()
    expected = rewritten(kind, task, 4)
    torch.testing.assert_close(kind()(task).values, expected, rtol=0, atol=1e-9)

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = task.model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(1, 2))

    space = vd.Space.steps((12, 2), time_axis=0)
    turned = vd.Task(TimeFirst(), task.inputs.transpose(1, 2), space=space, plan=Plan(rows=64))
    torch.testing.assert_close(kind()(turned).values, expected, rtol=0, atol=1e-9)


def test_flat_channels_get_no_weight() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1))
        net[0].bias.copy_(torch.tensor([0.0, 5.0]))
    x = draw(3, 1, 2, 2).abs()
    task = vd.Task(net, x, plan=Plan(rows=8))
    torch.testing.assert_close(ScoreCam()(task).values, x.flatten(1))
    blank = vd.Task(net, torch.ones_like(x), plan=Plan(rows=8))
    assert bool((ScoreCam()(blank).values == 0).all())


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 8)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.squeeze(self.conv(self.conv(x))).flatten(1))


@pytest.mark.parametrize("kind", ALL)
def test_refusals_say_why(kind: type[Cam]) -> None:
    flat = image_task(seeded(nn.Sequential(nn.Flatten(), nn.Linear(128, 3))))
    with pytest.raises(NotApplicableError, match="no convolution layer"):
        kind()(flat)
    assert kind.name not in vd.explainers.applicable(flat)
    # what has a single position is no use; a layer that runs twice is, by its last run
    reused = image_task(seeded(Reused()))
    assert kind()(reused).provenance["layer"] == "conv2d, 2 x 8 x 8"
    with pytest.raises(NotApplicableError, match="'conv' runs 2 times"):
        kind(layer="conv")(reused)
    with pytest.raises(NotApplicableError, match="did you mean"):
        kind(layer="44")(image_task())
    with pytest.raises(NotApplicableError, match="layer '7' gives shape"):
        kind(layer="7")(image_task())
    table = vd.Task(seeded(nn.Sequential(nn.Linear(4, 3))), draw(3, 4), plan=Plan(rows=8))
    with pytest.raises(NotApplicableError, match="image, series"):
        kind()(table)


# --- where they look by default ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "place"),
    [("resnet", "relu, 8 x 4 x 4"), ("densenet", "relu, 8 x 8 x 8"), ("googlenet", "cat, 8 x 8 x 8"),
     ("efficientnet", "silu, 8 x 8 x 8"), ("convnext", "add, 6 x 8 x 8")],
)  # fmt: skip
def test_the_last_maps_lie_behind_activation_and_residual_sum(architecture: str, place: str) -> None:
    task = made(architecture)
    found = GradCam()(task)
    assert found.provenance["layer"] == place
    # by hand: what the mean over places is given
    seen: list[Tensor] = []
    pool = next((m for m in task.model.modules() if isinstance(m, nn.AdaptiveAvgPool2d)), None)
    if pool is None:
        return
    handle = pool.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    x = task.inputs.clone().requires_grad_()
    total = task.model(x).gather(1, task.targets[:, None]).sum()
    handle.remove()
    (slopes,) = torch.autograd.grad(total, seen[0])
    small = (slopes.mean((2, 3), keepdim=True) * seen[0]).sum(1).clamp(min=0)
    large = F.interpolate(small[:, None], size=(16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(found.values, large.detach().flatten(1), rtol=0, atol=1e-9)


def test_a_vision_transformer_is_looked_at_before_its_last_block() -> None:
    task = made("vit")
    found = GradCam()(task)
    assert "residual sum of tokens" in found.provenance["layer"]
    net = task.model
    x = task.inputs.clone().requires_grad_()
    h = net.patch(x).flatten(2).transpose(1, 2)
    h = torch.cat([net.token.expand(2, -1, -1), h], 1) + net.place
    n = net.norms[0](h)
    h = h + net.attention[0](n, n, n)[0]
    kept = h + net.mlp[0](net.norms[1](h))
    n = net.norms[2](kept)
    h = kept + net.attention[1](n, n, n)[0]
    h = h + net.mlp[1](net.norms[3](h))
    total = net.head(net.norms[4](h)[:, 0]).gather(1, task.targets[:, None]).sum()
    (slopes,) = torch.autograd.grad(total, kept)
    tokens, slopes = (v[:, 1:].transpose(1, 2).unflatten(2, (4, 4)) for v in (kept.detach(), slopes))
    small = (slopes.mean((2, 3), keepdim=True) * tokens).sum(1).clamp(min=0)
    large = F.interpolate(small[:, None], size=(16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(found.values, large.flatten(1), rtol=0, atol=1e-9)
    with pytest.raises(NotApplicableError, match="tokens"):
        ScoreCam()(task)


@pytest.mark.parametrize("kind", ALL)
def test_no_hook_stays_after_an_exception(kind: type[Cam], monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 1 and "LOUD" in os.environ:  # not seen as a change of the model
                raise RuntimeError("on purpose")
            return x

    net = nn.Sequential(nn.Conv2d(2, 3, 3), Fails(), nn.Flatten(), nn.Linear(108, 3))
    task = image_task(seeded(net))
    assert task.targets.shape == (6,)
    hooks = hook_count(task.predictor.model)
    monkeypatch.setenv("LOUD", "1")
    with pytest.raises(RuntimeError, match="on purpose"):
        kind()(task)
    assert hook_count(net) == 0
    assert hook_count(task.predictor.model) == hooks


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


class InPlace(Cut):
    """Its maps are written over, again and again, until they are the last ones."""

    def body(self, x: Tensor) -> Tensor:
        a = self.conv(x)
        a += 1
        a[:, 0] *= 2
        return a.clamp_(min=0)


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


KINDS = [Cut, InPlace, OwnFunction, Layered]


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


def test_a_transposed_convolution_of_a_volume_is_one() -> None:
    layers = nn.Conv3d(1, 2, 2, 2), nn.ReLU(), nn.ConvTranspose3d(2, 3, 2, 2), nn.ReLU(), nn.Flatten()
    net = seeded(nn.Sequential(*layers, nn.Linear(3 * 64, 2)))
    task = vd.Task(net, draw(2, 1, 4, 4, 4), targets=0, plan=Plan(rows=8))
    assert vd.explain("gradcam", task).provenance["layer"] == "relu, 3 x 4 x 4 x 4"


READERS = ["gradcam", "layercam", "attention_rollout", "gradient_x_attention"]


class Tokens(nn.Module):
    """Two blocks of attention over 2 x 3 patches, and tokens of its own before and behind them."""

    def __init__(self, before: int, behind: int = 0, late: int = 0, rows_first: bool = True) -> None:
        super().__init__()
        self.cut, self.last = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.before, self.behind, self.late = (
            nn.Parameter(torch.zeros(1, n, 8)) for n in (before, behind, late)
        )
        self.places = nn.Parameter(torch.zeros(1, before + 6 + behind, 8))
        self.mix = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=rows_first) for _ in range(2))
        self.rows_first, self.read = rows_first, -1 if behind else 0

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        own = [v.expand(len(x), -1, -1) for v in (self.before, self.behind, self.late)]
        h = torch.cat([part for part in (own[0], patches, own[1]) if part.shape[1]], 1) + self.places
        if self.late.shape[1]:
            h = torch.cat([h[:, :1], own[2], h[:, 1:]], 1)
        h = h if self.rows_first else h.transpose(0, 1)
        for mix in self.mix:
            h = h + mix(h, h, h, need_weights=False)[0]
        h = h if self.rows_first else h.transpose(0, 1)
        return self.last(h[:, self.read])


def task_of(*how: int, **more: bool) -> vd.Task:
    return vd.Task(seeded(Tokens(*how, **more)), draw(4, 3, 8, 12).abs())


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("how", [(1, 0), (2, 0)])
def test_tokens_before_the_patches_are_left_out(how: tuple[int, int], name: str) -> None:
    explainer, task = registry.make(name), task_of(*how)
    found = explainer(task)
    assert found.cost == explainer._declared(task)
    alone = torch.cat([explainer(task[at : at + 1]).values for at in range(4)])
    torch.testing.assert_close(alone, found.values)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("how", [(0, 1), (1, 1), (1, 0, 4)], ids=["behind", "both", "registers"])
def test_tokens_behind_the_patches_or_many_are_refused(how: tuple[int, ...], name: str) -> None:
    assert len(str(registry.make(name).inapplicable_reason(task_of(*how)))) > 60


def test_places_before_rows_are_refused_where_they_cannot_be_told() -> None:
    task, plain = task_of(1, rows_first=False), task_of(1)
    torch.testing.assert_close(task.outputs, plain.outputs)
    assert "places before rows" in str(registry.make("gradcam").inapplicable_reason(task))
    rollout = registry.make("attention_rollout")
    torch.testing.assert_close(rollout(task).values, rollout(plain).values)
