"""Guided backprop and deconvolution: captum, hand-built models, refusals, and no trace left behind."""

import captum.attr as captum
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import (
    FunctionalRelu,
    Residual,
    ReusedRelu,
    conv_net,
    draw,
    hook_count,
    image_task,
    noisy_copy,
    seeded,
    series_task,
)
from veridical.errors import NotApplicableError
from veridical.explainers import Deconvolution, DeepLift, Gradient, GuidedBackprop, LrpEpsilon
from veridical.models.predictor import Plan

BOTH = (GuidedBackprop, Deconvolution)
PEERS = {GuidedBackprop: captum.GuidedBackprop, Deconvolution: captum.Deconvolution}


def table_task(net: nn.Module, width: int = 6) -> vd.Task:
    return vd.Task(seeded(net), draw(5, width), plan=Plan(rows=64))


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("pool", [nn.AvgPool2d, nn.MaxPool2d])
def test_agrees_with_captum(kind: type[vd.Explainer], pool: type[nn.Module]) -> None:
    task = image_task(conv_net(pool=pool))
    peer = PEERS[kind](task.model).attribute(task.inputs.clone().requires_grad_(), target=task.targets)
    found = kind()(task).values
    torch.testing.assert_close(found, task.values(peer), rtol=0, atol=1e-9)
    # the comparison can fail: the other rule and the plain gradient are other maps
    other = (BOTH[1] if kind is BOTH[0] else BOTH[0])()
    assert not torch.allclose(found, other(task).values)
    assert not torch.allclose(found, Gradient()(task).values)


def test_one_rectifier_by_hand() -> None:
    # y = -relu(a) + relu(b): what comes from above is -1 for a, +1 for b
    net = nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    task = vd.Task(net.double(), x, targets=0)
    assert GuidedBackprop()(task).values.tolist() == [[0, 1], [0, 0]]
    assert Deconvolution()(task).values.tolist() == [[0, 1], [0, 1]]


def test_second_reader_of_a_rectifiers_input_keeps_its_gradient() -> None:
    task = table_task(Residual())
    net = task.model
    with torch.no_grad():
        hidden = net.first(task.inputs)
        above = net.head.weight[task.targets]
        guided = (above.clamp(min=0) * (hidden > 0) + above) @ net.first.weight
        deconvolved = (above.clamp(min=0) + above) @ net.first.weight
    torch.testing.assert_close(GuidedBackprop()(task).values, guided)
    torch.testing.assert_close(Deconvolution()(task).values, deconvolved)


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
def test_layers_in_place_give_the_same(kind: type[vd.Explainer]) -> None:
    plain, inplace = (kind()(image_task(conv_net(inplace=way))).values for way in (False, True))
    torch.testing.assert_close(plain, inplace, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_rectifier_with_a_ceiling(kind: type[vd.Explainer]) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU6(), nn.Linear(8, 3))
    task = table_task(net)
    with torch.no_grad():
        net[0].weight.mul_(10)
        task = task.refreshed()
        hidden = net[0](task.inputs)
        above = net[2].weight[task.targets].clamp(min=0)
    assert bool((hidden > 6).any())
    passed = above * ((hidden > 0) & (hidden < 6)) if kind is GuidedBackprop else above
    torch.testing.assert_close(kind()(task).values, (passed @ net[0].weight).detach())


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
def test_under_weight_noise_equals_a_noisy_copy(kind: type[vd.Explainer]) -> None:
    noisy, twin = noisy_copy(image_task(conv_net(pool=nn.MaxPool2d)), 0.3, vd.core.Key(4))
    values = kind()(noisy).values
    torch.testing.assert_close(values, kind()(twin).values, rtol=0, atol=1e-12)
    assert not torch.allclose(values, kind()(image_task(conv_net(pool=nn.MaxPool2d))).values)


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
def test_chunks_do_not_matter(kind: type[vd.Explainer]) -> None:
    task = image_task(samples=11)
    few, many = (kind()(task.with_plan(Plan(rows=rows))) for rows in (8, 64))
    torch.testing.assert_close(few.values, many.values, rtol=0, atol=1e-9)
    assert few.cost == many.cost


# --- rectifiers however they are written ------------------------------------------------------------------


class Written(ReusedRelu):
    """The net of `ReusedRelu`, whose second rectifier is written in some other way."""

    def rectified(self, h: Tensor) -> Tensor:
        return F.relu(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rectified(self.second(self.act(self.first(x)))))


class Clamped(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return h.clamp(min=0)


class Selected(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return torch.where(h > 0, h, torch.zeros_like(h))


class Masked(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return h * (h > 0)


class MaskedByFloats(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return (~(h <= 0)).to(h.dtype) * h


class Filled(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return h.masked_fill(h < 0, 0.0)


class Assigned(Written):
    def rectified(self, h: Tensor) -> Tensor:
        h = h + 0.0
        h[h < 0] = 0
        return h


class Larger(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return torch.maximum(h, h.new_zeros(()))


class ThrownAway(Written):
    """Works in place, and the answer is not used."""

    def rectified(self, h: Tensor) -> Tensor:
        h.relu_()
        return h


class OnView(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return F.relu(h.view(-1, 3), inplace=True)


WRITTEN = [Written, Clamped, ThrownAway, OnView]
BY_HAND = {Selected: "where", Masked: "mul", MaskedByFloats: "mul", Filled: "masked_fill",
           Assigned: "setitem", Larger: "maximum"}  # fmt: skip


@pytest.mark.parametrize("kind", [*BOTH, DeepLift, LrpEpsilon])
@pytest.mark.parametrize("net", [FunctionalRelu, ReusedRelu, *WRITTEN])
def test_a_rectifier_is_one_however_it_is_written(kind: type[vd.Explainer], net: type[nn.Module]) -> None:
    plain = FunctionalRelu()
    layers = nn.Sequential(plain.first, nn.ReLU(), plain.second, nn.ReLU(), plain.head)
    expected = kind()(table_task(layers)).values
    written = table_task(net())
    torch.testing.assert_close(kind()(written).values, expected, rtol=0, atol=1e-7)
    assert hook_count(written.model) == 0
    noisy = written.with_noise(0.1, vd.core.Key(0))
    assert not torch.allclose(kind()(noisy).values, expected)


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
@pytest.mark.parametrize("net", BY_HAND)
def test_a_rectifier_written_by_hand_is_refused_by_name(
    kind: type[vd.Explainer], net: type[nn.Module]
) -> None:
    with pytest.raises(NotApplicableError, match=BY_HAND[net]):
        kind()(table_task(net()))


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class OwnFunction(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return Own.apply(h)


class Winners(Written):
    """Only the two largest pass."""

    def rectified(self, h: Tensor) -> Tensor:
        return h * (h >= h.topk(2).values[:, -1:])


class WinnersOfMany(Winners):
    """The same, but not for a single row."""

    def rectified(self, h: Tensor) -> Tensor:
        return super().rectified(h) if len(h) > 1 else F.relu(h)


class Sizes(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return (h + h.abs()) / 2


class Rounded(Written):
    """Rounds, and lets the gradient pass straight through."""

    def rectified(self, h: Tensor) -> Tensor:
        return h + (h.round() - h).detach()


class Divided(Written):
    def rectified(self, h: Tensor) -> Tensor:
        return h / h.norm(dim=-1, keepdim=True).detach()


class Quietly(Written):
    def rectified(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.exp().sum(-1, keepdim=True)
        return h / scale


HIDDEN = [
    *((kind, net, says) for kind in (*BOTH, DeepLift)
      for net, says in ((OwnFunction, "own autograd function"), (Winners, "'mul'|'topk'"),
                        (WinnersOfMany, "'mul'|'topk'"))),
    *((kind, Sizes, "'abs'.*written by hand") for kind in BOTH),
    (DeepLift, Rounded, "'round'"),
    (DeepLift, Divided, "carries no difference: it is cut off"),
    (DeepLift, Quietly, "carries no difference: it is computed without gradients"),
    (LrpEpsilon, Rounded, "'round'"),
    (LrpEpsilon, Quietly, "computed without gradients"),
    (LrpEpsilon, OwnFunction, "own autograd function"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "net", "says"), HIDDEN)
def test_what_cannot_be_traced_is_refused(kind: type[vd.Explainer], net: type[nn.Module], says: str) -> None:
    task = table_task(net())
    with pytest.raises(NotApplicableError, match=says) as error:
        kind()(task)
    assert "These do: " in str(error.value)
    assert "gradient" in str(error.value)
    assert kind.name not in vd.explainers.applicable(task)
    assert hook_count(task.model) == 0
    # a view of other weights is refused for the same reason
    with pytest.raises(NotApplicableError, match=says):
        kind()(task.with_noise(0.1, vd.core.Key(0)))


def test_refusal_is_not_counted() -> None:
    task = table_task(OwnFunction())
    before = task.predictor.meter.cost
    assert GuidedBackprop().why_not(task) is not None
    assert task.predictor.meter.cost == before


@pytest.mark.parametrize("kind", BOTH)
def test_models_without_rectifiers_and_scripted_ones_are_refused(kind: type[vd.Explainer]) -> None:
    with pytest.raises(NotApplicableError, match="plain gradient"):
        kind()(table_task(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))))
    net = seeded(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    scripted = torch.jit.trace(net, draw(2, 6))
    with pytest.raises(NotApplicableError, match="compiled or scripted"):
        kind()(vd.Task(scripted, draw(5, 6), plan=Plan(rows=64)))


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
def test_no_hook_stays_after_an_exception(kind: type[vd.Explainer]) -> None:
    class Fails(nn.Module):
        """Fails when asked for a gradient on more than two rows, which the first look does not do."""

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and len(x) > 2:
                raise RuntimeError("on purpose")
            return x

    net = seeded(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), Fails(), nn.Linear(4, 3)))
    task = vd.Task(net, draw(5, 6), plan=Plan(rows=64))
    with pytest.raises(RuntimeError, match="on purpose"):
        kind()(task)
    assert hook_count(net) == 0
    assert not any(hasattr(layer, "input") or hasattr(layer, "output") for layer in net.modules())


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
def test_no_hook_stays_after_success(kind: type[vd.Explainer]) -> None:
    for task in (image_task(), series_task()):
        kind()(task)
        assert hook_count(task.model) == 0
