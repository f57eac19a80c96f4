"""Relevance propagation: closed forms, slow loops, conservation, captum, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.explainers import relevance_two_layers as relevance
from tests.reference.small_nets import draw, seeded
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import InputXGradient, Lrp, LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus, registry
from veridical.explainers.trace.relevance_rules import RULES
from veridical.values.task import Task

CONSERVING = [Lrp(), Lrp(first="w_square", convolution="gamma"), Lrp(first="z_box", low=-4.0, high=4.0),
              LrpEpsilon(1e-9), LrpGamma(), LrpZPlus()]  # fmt: skip


def explained(task: Task) -> torch.Tensor:
    return task.outputs.gather(1, task.targets[:, None])[:, 0]


def two_layers(bias: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7, bias=bias), nn.ReLU(), nn.Linear(7, 3, bias=bias)).double()


class Residual(nn.Module):
    """Batch norm, an in-place activation used twice, functional relu, pooling, a residual sum, a join."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=bias)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 3, bias=bias)
        self.norm.running_var.uniform_(0.5, 2.0)
        self.norm.weight.data.uniform_(0.5, 2.0)
        if bias:
            self.norm.running_mean.normal_()
            self.norm.bias.data.normal_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(self.act(self.norm(self.first(x))), 2)
        g = self.second(h)
        g += h
        g = F.relu(g)
        both = torch.cat([self.act(self.second(g)), g], 1)
        return self.head(self.drop(F.adaptive_avg_pool2d(both, 1).view(x.size(0), -1)))


def residual_task(bias: bool, seed: int = 1) -> Task:
    torch.manual_seed(seed)
    return Task(
        Residual(bias).double().eval(), torch.randn(3, 2, 8, 8).double(), space=Space.elements((2, 8, 8))
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_slow_loops_over_neurons(rule, bias):
    model = two_layers(bias)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3)).double()
    task = Task(model, x)
    found = Lrp(rule, rule, rule, epsilon=1e-12, low=-4.0, high=4.0)(task, Key(0)).values.numpy()
    layers = [
        (m.weight.detach().numpy(), None if m.bias is None else m.bias.detach().numpy())
        for m in (model[0], model[2])
    ]
    slow = [relevance(rule, x[i].numpy(), layers, int(task.targets[i]), low=-4.0, high=4.0) for i in range(4)]
    assert np.allclose(found, np.stack(slow), atol=1e-6)
    others = [r for r in RULES if r != rule]
    for other in others:
        wrong = [
            relevance(other, x[i].numpy(), layers, int(task.targets[i]), low=-4.0, high=4.0) for i in range(4)
        ]
        assert not np.allclose(found, np.stack(wrong), atol=1e-3), f"{rule} and {other} cannot be told apart"


def equals_input_times_gradient(values: torch.Tensor, task: Task) -> bool:
    return torch.allclose(values, InputXGradient()(task).values, atol=1e-5)


def test_epsilon_on_a_network_without_biases_is_input_times_gradient():
    task = residual_task(bias=False)
    assert equals_input_times_gradient(LrpEpsilon(1e-10)(task).values, task)
    assert not equals_input_times_gradient(LrpEpsilon(0.1)(task).values, task)
    assert not equals_input_times_gradient(LrpGamma()(task).values, task)


@pytest.mark.parametrize("explainer", CONSERVING, ids=str)
def test_relevance_is_conserved_without_biases(explainer):
    for seed in range(3):
        task = residual_task(bias=False, seed=seed)
        assert torch.allclose(explainer(task).values.sum(-1), explained(task), atol=1e-4)


def test_biases_keep_their_share():
    task = residual_task(bias=True)
    assert not torch.allclose(LrpEpsilon()(task).values.sum(-1), explained(task), atol=1e-3)


def test_alpha_beta_conserves_where_every_neuron_is_pulled_both_ways():
    task = Task(
        nn.Linear(6, 2, bias=False).double(), torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    )
    values = LrpAlphaBeta()(task).values
    c = task.inputs * task.predictor.model.weight[task.targets].detach()
    assert ((c > 0).any(-1) & (c < 0).any(-1)).all()
    assert torch.allclose(values.sum(-1), explained(task), atol=1e-6)


class Plain(nn.Module):
    """Layers that captum has rules for; it knows no nn.Flatten."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        first, second = nn.Conv2d(1, 3, 3, bias=bias), nn.Conv2d(3, 4, 2, bias=bias)
        self.body = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.AvgPool2d(2))
        self.head = nn.Linear(4, 3, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.body(x), 1))


@pytest.mark.parametrize(
    ("ours", "rule"),
    [(LrpEpsilon(1e-9), "EpsilonRule"), (LrpGamma(0.25), "GammaRule"), (LrpZPlus(), "Alpha1_Beta0_Rule")],
)
def test_agrees_with_captum_where_that_applies(ours, rule):
    from captum.attr import LRP
    from captum.attr._utils import lrp_rules

    torch.manual_seed(2)
    # captum leaves the bias as it is where it changes the weights; ours changes both alike
    model = Plain(bias=rule == "EpsilonRule").double()
    x = torch.rand(4, 1, 8, 8).double()
    outputs = model(x)
    # captum's rules for inputs at least 0 and, for gamma, an output above 0 agree with ours
    targets = outputs.argmax(-1)
    keep = outputs.gather(1, targets[:, None])[:, 0] > 0
    task = Task(model, x[keep], space=Space.elements((1, 8, 8)))
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.rule = getattr(lrp_rules, rule)()
    theirs = LRP(twin).attribute(x[keep], target=task.targets).detach()
    assert keep.any()
    assert torch.allclose(ours(task).values, theirs.flatten(1), atol=1e-6)


def test_binary_heads_explain_the_side_that_was_asked_for():
    torch.manual_seed(7)
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(3, 4).double()
    for side, sign in ((0, -1), (1, 1)):
        values = LrpEpsilon(1e-12)(Task(model, x, head="binary", targets=[side] * 3)).values
        assert torch.allclose(values, sign * x * model.weight.detach(), atol=1e-9)


def test_counts_and_settings():
    task = residual_task(bias=True)
    cost = LrpEpsilon()(task).cost
    assert (cost.forward, cost.backward) == (3, 3)
    assert Lrp()(task).cost == cost  # a layer that runs again with other weights is no row
    for wrong in ({"first": "zeta"}, {"epsilon": -1.0}, {"alpha": 0.5}, {"low": 2.0, "high": 1.0}):
        with pytest.raises(InputError):
            Lrp(**wrong)
    assert Lrp.from_json(Lrp(first="z_box").to_json()) == Lrp(first="z_box")


def test_a_product_with_an_activation_is_shared_in_halves():
    class SwiGlu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(9)
            self.gate, self.up = nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False)
            self.down = nn.Linear(5, 2, bias=False)

        def forward(self, x):
            return self.down(F.silu(self.gate(x)) * self.up(x))

    model = SwiGlu().double()
    task = Task(model, torch.randn(3, 4).double())
    values = LrpEpsilon(1e-12)(task).values
    assert torch.allclose(values.sum(-1), explained(task), atol=1e-9)
    # by hand: half of each hidden unit's share goes by the way of the gate, half by the other
    x, rows = task.inputs, model.down.weight[task.targets]
    shared = (rows * (F.silu(model.gate(x)) * model.up(x)) / 2).detach()
    expected = sum(x * ((shared / layer(x)) @ layer.weight) for layer in (model.gate, model.up)).detach()
    assert torch.allclose(values, expected, atol=1e-9)


class Turning(nn.Module):
    """Turns its answer round or not, by what the input says: no graph holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        h = self.dense(x)
        return h if x.sum() > 0 else -h


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_branch_that_was_taken_is_followed(sign):
    torch.manual_seed(0)
    model, x = Turning(), sign * torch.rand(4, 3)
    task = Task(model, x, targets=torch.tensor([0, 1, 0, 1]))
    expected = sign * x * model.dense.weight.detach()[task.targets]
    torch.testing.assert_close(LrpEpsilon(epsilon=1e-9)(task).values, expected, rtol=1e-4, atol=1e-6)


class Refused(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(4, 4)

    def forward(self, x):
        h = self.lin(x)
        if bool(h.isnan().any()):
            raise ValueError("NaN")
        if self.how == "leak":
            return self.lin((h * self.lin(h)).clone())
        if self.how == "answer":
            return h * self.lin(h)
        if self.how == "exp":
            return torch.exp(h)
        if self.how == "softmax":
            return h.softmax(-1)
        if self.how == "divide":
            return 1.0 / h
        if self.how == "batch":
            return F.batch_norm(h[..., None].expand(-1, -1, 2), None, None, training=True)[..., 0]
        h[:, :2].mul_(2.0)
        return h


@pytest.mark.parametrize(
    ("how", "named"),
    [("leak", "two activations"), ("answer", "two activations"), ("exp", "'exp'"), ("softmax", "logits"),
     ("divide", "'rdiv'|'rtruediv'"), ("batch", "mixes samples"), ("in place", "in place")],
)  # fmt: skip
def test_what_has_no_rule_is_refused_by_name(how, named):
    torch.manual_seed(6)
    task = Task(Refused(how), torch.randn(3, 4))
    with pytest.raises(NotApplicableError, match=named) as refusal:
        LrpEpsilon()(task)
    assert "gradient" in str(refusal.value)  # and it names what applies


# --- Hugging Face -----------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """Convolutions without biases, an average and a residual sum: twice the input, twice the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = (
            nn.Conv2d(2, 4, 3, bias=False),
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.Linear(4, 3, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(torch.relu(self.a(x)), 2)
        return self.last((h + torch.relu(self.b(h))).mean((2, 3)))


@pytest.mark.parametrize("name", ["lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relevance_is_kept_however_small_the_activations_are(dtype: torch.dtype, name: str) -> None:
    net, rows = seeded(Pooled()).to(dtype), draw(3, 2, 10, 10).abs().to(dtype)
    explainer, first = registry.make(name), None
    for scale in (1.0, 1e-4, 1e-8):
        found = explainer(vd.Task(net, rows * scale, targets=[0, 1, 2]))
        assert found.provenance["completeness"]["largest_residual"] < (
            1e-12 if dtype == torch.float64 else 1e-4
        )
        first = found.values if first is None else first
        torch.testing.assert_close(
            found.values / scale, first, rtol=1e-3, atol=1e-4 * float(first.abs().max())
        )
