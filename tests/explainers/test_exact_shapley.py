"""Exact Shapley values: brute force, the laws they obey, and KernelSHAP over the same reference rows."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.errors import NotApplicableError
from veridical.explainers.shapley import shapley_values


def over_orders(task: vd.Task, sample: int) -> Tensor:
    """Shapley values as the mean rise over all orders in which columns may come, over all reference rows."""
    n, target = task.space.n_features, task.targets[sample]

    def value(kept: tuple[int, ...]) -> float:
        rows = task.train.clone()
        rows[:, list(kept)] = task.inputs[sample, list(kept)]
        with torch.no_grad():
            return float(task.model(rows)[:, target].mean())

    total = torch.zeros(n).double()
    orders = list(permutations(range(n)))
    for order in orders:
        for at, feature in enumerate(order):
            total[feature] += value(order[: at + 1]) - value(order[:at])
    return total / len(orders)


def table(n: int, rows: int = 9) -> vd.Task:
    generator = torch.Generator().manual_seed(n)
    x, train = (torch.randn(k, n, generator=generator).double() for k in (3, rows))
    return vd.Task(mlp(n, 3).double(), x, train=train)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_values_are_the_mean_rise_over_all_orders(n: int) -> None:
    task = table(n)
    e = vd.explain("exact_shapley", task)
    for i in range(3):
        torch.testing.assert_close(e.values[i], over_orders(task, i), atol=1e-7, rtol=1e-7)


def test_kernel_shap_of_all_coalitions_equals_them() -> None:
    task = table(8, 400)  # of which 100 are drawn, the same for both
    exact, kernel = (vd.explain(name, task, seed=3).values for name in ("exact_shapley", "kernel_shap"))
    assert float((exact - kernel).norm() / exact.norm()) < 1e-6
    other = vd.explain("exact_shapley", task, seed=4).values
    assert not torch.allclose(exact, other)  # other rows: the fill's noise shows between seeds


def test_they_sum_to_what_there_is_to_explain_and_give_nothing_to_a_dummy() -> None:
    n = 6
    net = mlp(n, 3).double()
    with torch.no_grad():
        net[0].weight[:, 2] = 0.0
    task = vd.Task(net, torch.randn(4, n).double(), fill=0.0)
    e = vd.explain("exact_shapley", task)
    with torch.no_grad():
        whole = (net(task.inputs) - net(torch.zeros(1, n).double())).gather(1, task.targets[:, None])[:, 0]
    torch.testing.assert_close(e.values.sum(-1), whole, atol=1e-7, rtol=1e-7)
    assert bool((e.values[:, 2] == 0).all())


def test_a_linear_model_gives_its_own_terms() -> None:
    net = nn.Linear(12, 2).double()
    task = vd.Task(net, torch.randn(3, 12).double(), fill=0.0)
    e = vd.explain("exact_shapley", task)
    want = net.weight.detach()[task.targets] * task.inputs
    torch.testing.assert_close(e.values, want, atol=1e-7, rtol=1e-7)


def test_lengths_may_differ() -> None:
    from tests.perturb.test_subset_table import tokens

    task = tokens(3)[torch.tensor([0, 1])]
    both = vd.explain("exact_shapley", task)
    alone = vd.explain("exact_shapley", task[1])
    torch.testing.assert_close(both.values[1:], alone.values)
    assert bool((both.values[~task.space.valid] == 0).all())


def test_many_features_are_refused_with_what_does_apply() -> None:
    task = vd.Task(nn.Linear(13, 2), torch.randn(2, 13), fill=0.0)
    with pytest.raises(NotApplicableError, match="use kernel_shap"):
        vd.explain("exact_shapley", task)


def test_a_sign_turned_round_would_be_noticed() -> None:
    answers = torch.tensor([[3.0, 1.0]]).double()  # whole, and without its only feature
    assert shapley_values(answers, 1).tolist() == [[2.0]]
