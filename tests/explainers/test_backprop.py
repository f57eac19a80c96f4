"""Guided backprop and deconvolution: captum, hand-built models, refusals, and no trace left behind."""

from collections.abc import Callable

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
    image_task,
    seeded,
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


# --- rectifiers however they are written ------------------------------------------------------------------


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


def assigned(h: Tensor) -> Tensor:
    h = h + 0.0
    h[h < 0] = 0
    return h


def answer_unused(h: Tensor) -> Tensor:
    h.relu_()
    return h


def winners(h: Tensor) -> Tensor:
    """Only the two largest pass."""
    return h * (h >= h.topk(2).values[:, -1:])


def without_gradients(h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h.exp().sum(-1, keepdim=True)
    return h / scale


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "function": F.relu,
    "clamp": lambda h: h.clamp(min=0),
    "in place, answer unused": answer_unused,
    "in place on a view": lambda h: F.relu(h.view(-1, 3), inplace=True),
}
BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda h: torch.where(h > 0, h, torch.zeros_like(h)),
    "mul": lambda h: h * (h > 0),
    "mul|mul": lambda h: (~(h <= 0)).to(h.dtype) * h,
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "setitem": assigned,
    "maximum": lambda h: torch.maximum(h, h.new_zeros(())),
}


class Written(ReusedRelu):
    """The net of `ReusedRelu`, whose second rectifier is written in some other way."""

    def __init__(self, rectified: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rectified = rectified

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rectified(self.second(self.act(self.first(x)))))


@pytest.mark.parametrize("kind", [*BOTH, DeepLift, LrpEpsilon])
@pytest.mark.parametrize("how", ["module", "reused", *WRITTEN])
def test_a_rectifier_is_one_however_it_is_written(kind: type[vd.Explainer], how: str) -> None:
    plain = FunctionalRelu()
    layers = nn.Sequential(plain.first, nn.ReLU(), plain.second, nn.ReLU(), plain.head)
    expected = kind()(table_task(layers)).values
    net = {"module": FunctionalRelu, "reused": ReusedRelu}.get(how, lambda: Written(WRITTEN[how]))()
    written = table_task(net)
    torch.testing.assert_close(kind()(written).values, expected, rtol=0, atol=1e-7)
    noisy = written.with_noise(0.1, vd.core.Key(0))
    assert not torch.allclose(kind()(noisy).values, expected)


@pytest.mark.parametrize("kind", [*BOTH, DeepLift])
@pytest.mark.parametrize("says", BY_HAND)
def test_a_rectifier_written_by_hand_is_refused_by_name(kind: type[vd.Explainer], says: str) -> None:
    with pytest.raises(NotApplicableError, match=says):
        kind()(table_task(Written(BY_HAND[says])))


OWN = "own autograd function"
UNTRACED: dict[str, tuple[Callable[[Tensor], Tensor], dict[type[vd.Explainer], str]]] = {
    "own function": (Own.apply, dict.fromkeys((*BOTH, DeepLift, LrpEpsilon), OWN)),
    "winners": (winners, dict.fromkeys((*BOTH, DeepLift), "'mul'|'topk'")),
    "winners of many": (
        lambda h: winners(h) if len(h) > 1 else F.relu(h), dict.fromkeys((*BOTH, DeepLift), "'mul'|'topk'")
    ),
    "sizes": (lambda h: (h + h.abs()) / 2, dict.fromkeys(BOTH, "'abs'.*written by hand")),
    "rounded, gradient straight through": (
        lambda h: h + (h.round() - h).detach(), {DeepLift: "'round'", LrpEpsilon: "'round'"}
    ),
    "divided by what is detached": (
        lambda h: h / h.norm(dim=-1, keepdim=True).detach(),
        {DeepLift: "carries no difference: it is cut off"},
    ),
    "without gradients": (
        without_gradients,
        {DeepLift: "carries no difference: it is computed without gradients",
         LrpEpsilon: "computed without gradients"},
    ),
}  # fmt: skip
HIDDEN = [(kind, Written(how), says) for how, refused in UNTRACED.values() for kind, says in refused.items()]


@pytest.mark.parametrize(("kind", "net", "says"), HIDDEN)
def test_what_cannot_be_traced_is_refused(kind: type[vd.Explainer], net: nn.Module, says: str) -> None:
    task = table_task(net)
    with pytest.raises(NotApplicableError, match=says) as error:
        kind()(task)
    assert "These do: " in str(error.value)
    assert "gradient" in str(error.value)
    assert kind.name not in vd.explainers.applicable(task)
    # a view of other weights is refused for the same reason
    with pytest.raises(NotApplicableError, match=says):
        kind()(task.with_noise(0.1, vd.core.Key(0)))


@pytest.mark.parametrize("kind", BOTH)
def test_models_without_rectifiers_and_scripted_ones_are_refused(kind: type[vd.Explainer]) -> None:
    with pytest.raises(NotApplicableError, match="plain gradient"):
        kind()(table_task(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))))
    net = seeded(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    scripted = torch.jit.trace(net, draw(2, 6))
    with pytest.raises(NotApplicableError, match="compiled or scripted"):
        kind()(vd.Task(scripted, draw(5, 6), plan=Plan(rows=64)))
