"""What LRP costs: the meter's rows are the multiplications it did, however the rows are cut into chunks."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import veridical as vd
from tests.reference.small_nets import conv_net, draw, image_task, seeded
from veridical.explainers import Lrp, LrpEpsilon
from veridical.explainers.trace.relevance_rules import FURTHER, FURTHER_SIGNED, RULES, Further, Work
from veridical.models.cost import Meter
from veridical.models.predictor import Plan

ROWS = 6


def dense_task(signed: bool) -> vd.Task:
    """Both layers see inputs of any sign, or both see none below 0."""
    between = nn.Tanh() if signed else nn.ReLU()
    net = seeded(nn.Sequential(nn.Linear(5, 7), between, nn.Linear(7, 3)))
    x = draw(ROWS, 5)
    return vd.Task(net, x if signed else x.abs(), plan=Plan(rows=8))


class Multiplications(TorchDispatchMode):
    """Adds up the multiplications of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        left, right = {"mm": (0, 1), "addmm": (1, 2)}.get(func.overloadpacket.__name__, (None, None))
        if left is not None:
            self.done += args[left].numel() * args[right].shape[1]
        return func(*args, **(kwargs or {}))


def multiplied(explainer: Lrp, task: vd.Task) -> float:
    """Rows of the whole model, counted by the multiplications that torch did."""
    explainer(task)  # what is looked up once, such as whether it applies, is not part of this
    with Multiplications() as counter:
        explainer(task)
    return counter.done / (5 * 7 + 7 * 3)


@pytest.mark.parametrize("signed", [False, True], ids=["at least 0", "any sign"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "flat"])
def test_counted_rows_are_the_multiplications_done(rule: str, signed: bool) -> None:
    task = dense_task(signed)
    explainer = Lrp(rule, rule, rule, low=-4.0, high=4.0)
    cost = explainer(task).cost
    assert cost.forward + cost.backward == multiplied(explainer, task)
    forward, backward = (FURTHER | FURTHER_SIGNED if signed else FURTHER)[rule]
    assert cost == vd.models.Cost(ROWS * (1 + forward), ROWS * (1 + backward))


def test_flat_takes_no_more_than_a_gradient() -> None:
    task = dense_task(True)
    flat = Lrp("flat", "flat", "flat")
    assert flat(task).cost == vd.models.Cost(ROWS, ROWS)
    assert multiplied(flat, task) < 2 * ROWS  # all inputs get alike: one stands for all


def test_alpha_of_one_is_z_plus() -> None:
    task = dense_task(False)
    assert Lrp(dense="alpha_beta", alpha=1.0)(task).cost == Lrp(dense="z_plus")(task).cost


def test_a_rule_of_some_layers_counts_by_their_weight() -> None:
    # convolutions of 2 x 3 and 3 x 4 channels on 8 x 8 pixels and one of their layers behind
    task = image_task(conv_net())
    every, some = Lrp("z_plus", "z_plus", "z_plus")(task).cost, Lrp("epsilon", "z_plus", "epsilon")(task).cost
    assert task.inputs.shape[0] < some.forward < every.forward
    assert some.backward == task.inputs.shape[0]


@pytest.mark.parametrize("rows", [8, 16, 64])
def test_counts_do_not_depend_on_chunks(rows: int) -> None:
    net = conv_net()
    x = draw(20, 2, 8, 8)
    assert (
        Lrp()(vd.Task(net, x, plan=Plan(rows=rows))).cost == Lrp()(vd.Task(net, x, plan=Plan(rows=32))).cost
    )


def test_shares_of_a_row_are_rounded_once() -> None:
    meter, further = Meter(), Further()
    for _ in range(10):
        further.count(1, Work(plain=10, forward=3, backward=14), meter)
    assert (meter.forward, meter.backward) == (3, 14)
    further.count(5, Work(), meter)  # a model without layers
    assert (meter.forward, meter.backward) == (3, 14)


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_norm_is_folded_the_same_way_for_few_rows_and_many(rule: str) -> None:
    # one row is smaller than the weights, forty are larger: the norm is laid on the output or on the weights
    wide = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    )
    net = nn.Sequential(*wide, nn.Linear(8 * 16, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    net = seeded(net)
    with torch.no_grad():
        for norm in (net[1], net[5]):
            size = norm.num_features
            norm.running_mean.copy_(draw(size, seed=5))
            norm.running_var.copy_(draw(size, seed=6).abs() + 0.5)
            norm.weight.copy_(draw(size, seed=7))  # of either sign
            norm.bias.copy_(draw(size, seed=8))
    x = draw(40, 3, 4, 4)
    explainer = Lrp(rule, rule, rule, low=-4.0, high=4.0)
    whole = explainer(vd.Task(net, x, plan=Plan(rows=64))).values
    single = torch.cat([explainer(vd.Task(net, x[[i]], plan=Plan(rows=8))).values for i in range(3)])
    torch.testing.assert_close(single, whole[:3], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(LrpEpsilon()(vd.Task(nn.Sequential(*net[:1], *net[2:]), x)).values, whole)
