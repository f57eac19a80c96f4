"""Class activation maps: captum, slow rewrites, the layer found by itself, every image space, series."""

import os

import captum.attr as captum
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veridical as vd
from tests.reference import explainers as slow
from tests.reference.architectures import made
from tests.reference.small_nets import conv_net, draw, hook_count, image_task, seeded, series_task
from veridical.errors import NotApplicableError
from veridical.explainers import GradCam, GradCamPlusPlus, LayerCam, ScoreCam
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


@pytest.mark.parametrize("kind", ALL)
def test_chunks_do_not_matter_and_rows_are_counted(kind: type[Cam]) -> None:
    task = image_task(samples=11)
    assert task.targets.shape == (11,)  # asked beforehand, so that only the explainer is watched
    sizes: list[int] = []
    handle = task.predictor.model[0].register_forward_pre_hook(lambda _m, x: sizes.append(len(x[0])))
    few = kind()(task.with_plan(Plan(rows=8)))
    handle.remove()
    many = kind()(task)
    assert max(sizes) <= 8
    torch.testing.assert_close(few.values, many.values, rtol=0, atol=1e-9)
    # Score-CAM asks once for the channels and once through each of the five
    assert few.cost == many.cost == (vd.models.Cost(66, 0) if kind is ScoreCam else vd.models.Cost(11, 11))


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
    with pytest.raises(NotApplicableError, match="layer '7' answers shape"):
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ALL)
def test_a_gpu_gives_the_maps_of_a_cpu(kind: type[Cam]) -> None:
    task = image_task()
    there, own = task.to("cuda"), kind()(task).values
    torch.testing.assert_close(kind()(there).values.cpu(), own, rtol=0, atol=1e-9)
