"""Relevance propagation: closed forms, slow loops, conservation, captum, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.reference.explainers import relevance_two_layers as relevance
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import InputXGradient, Lrp, LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus
from veridical.explainers.trace.relevance_rules import RULES
from veridical.values.space import Space
from veridical.values.task import Task

EVERY = [Lrp(), LrpEpsilon(), LrpGamma(), LrpZPlus(), LrpAlphaBeta()]
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


def test_functional_and_reused_layers_equal_modules_written_out():
    torch.manual_seed(4)

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x):
            h = self.inner(x).relu()
            return F.linear(torch.relu_(self.inner(h)), self.outer.weight, self.outer.bias)

    model = Reused().double()
    plain = nn.Sequential(model.inner, nn.ReLU(), copy.deepcopy(model.inner), nn.ReLU(), model.outer)
    x = torch.randn(4, 5).double()
    for explainer in EVERY:
        a, b = (explainer(Task(m, x)).values for m in (model, plain))
        assert torch.allclose(a, b, atol=1e-12)


def test_batch_norm_without_a_layer_before_it_and_gates():
    torch.manual_seed(5)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b, self.c = (
                nn.BatchNorm1d(4),
                nn.Linear(4, 6),
                nn.Linear(4, 6),
                nn.Linear(6, 2),
            )
            self.norm.running_var.uniform_(0.5, 2.0)

        def forward(self, x):
            h = self.norm(x) * 3.0 - 0.0
            return self.c(torch.sigmoid(self.a(h)) * self.b(h))

    model = Gated().double().eval()
    for layer in (model.a, model.b, model.c):
        layer.bias.data.zero_()
    task = Task(model, torch.randn(3, 4).double())
    assert torch.allclose(LrpEpsilon(1e-10)(task).values.sum(-1), explained(task), atol=1e-6)


def test_attention_written_out_carries_relevance_through_its_values():
    torch.manual_seed(8)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
            self.head = nn.Linear(4, 2, bias=False)

        def forward(self, x):
            scores = self.q(x) @ self.k(x).transpose(1, 2) / 2.0
            return self.head((torch.softmax(scores, -1) @ self.v(x)).mean(1))

    model = Attention().double()
    task = Task(model, torch.randn(3, 5, 4).double(), space=Space.elements((5, 4)))
    values = LrpEpsilon(1e-10)(task).values
    assert torch.allclose(values.sum(-1), explained(task), atol=1e-6)
    weights = (model.q(task.inputs) @ model.k(task.inputs).mT / 2).softmax(-1).detach()
    x = task.inputs.clone().requires_grad_(True)
    y = model.head((weights @ model.v(x)).mean(1)).gather(1, task.targets[:, None]).sum()
    assert torch.allclose(values, (x * torch.autograd.grad(y, x)[0]).flatten(1).detach(), atol=1e-6)


def test_plain_functions_and_models_without_gradients_are_refused():
    for model in (lambda x: x[:, :2] * 2, lambda x: np.asarray(x)[:, :2]):
        assert LrpEpsilon().why_not(Task(model, torch.rand(2, 4))) is not None


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
    cost = Lrp()(task).cost  # two of its convolutions follow z_plus, which goes through them once more
    assert (cost.forward, cost.backward) == (4, 3)
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
