"""Exact and sampled Shapley values, Sobol, HSIC, permutation importance, TreeSHAP: closed forms, peers."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.shapley import exact_shapley, slow_hsic, slow_sobol
from tests.reference.small_models import mlp
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import (
    GradCam,
    GuidedBackprop,
    GuidedGradCam,
    Hsic,
    PermutationImportance,
    ShapleySampling,
    Sobol,
    TreeShap,
)
from veridical.models.predictor import Plan
from veridical.perturb.fills import Constant
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given


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


class Pairs(nn.Module):
    """Terms of one feature and of two, none of three."""

    def forward(self, x: Tensor) -> Tensor:
        y = x @ torch.arange(1.0, 5.0, dtype=x.dtype) + 2 * x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3]
        return torch.stack([y, -y], 1)


def small_task(net: nn.Module, features: int = 4, samples: int = 3, **more: object) -> vd.Task:
    return vd.Task(net, draw(samples, features), fill=Constant(0.5), targets=0, plan=Plan(rows=64), **more)


def deep() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))


# --- Shapley sampling -------------------------------------------------------------------------------------


def test_an_order_and_its_reverse_are_exact_without_interactions_of_three() -> None:
    task = small_task(Pairs())
    exact = exact_shapley(task, 0.5)
    for orders in (2, 4):
        torch.testing.assert_close(ShapleySampling(orders)(task).values, exact, rtol=0, atol=1e-7)
    assert not torch.allclose(ShapleySampling(1)(task).values, exact, atol=1e-3)


def test_many_orders_come_near_the_exact_values() -> None:
    task = small_task(deep())
    exact = exact_shapley(task, 0.5)
    errors = [(ShapleySampling(n)(task).values - exact).abs().mean().item() for n in (2, 400)]
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("features", [1, 2, 4])
def test_losses_sum_to_the_change_and_rows_are_as_declared(features: int) -> None:
    net = seeded(nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, 2)))
    task = small_task(net, features)
    found = ShapleySampling(3)(task)
    with torch.no_grad():
        change = (net(task.inputs) - net(torch.full_like(task.inputs, 0.5)))[:, 0]
    torch.testing.assert_close(found.values.sum(-1), change, rtol=0, atol=1e-5)
    # of few features no mask is asked twice
    assert 0 < found.cost.forward <= 3 * ShapleySampling(3).rows_per_sample(task)
    assert found.provenance["completeness"]["broken"] == 0
    assert found.provenance["completeness"]["largest_residual"] < 1e-6
    with pytest.raises(InputError):
        ShapleySampling(0)


def test_features_that_a_sample_does_not_have_get_nothing() -> None:
    valid = torch.tensor([[True, True, True, True], [True, True, False, False]])
    net = seeded(nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2)))
    space = vd.Space.tokens(4, valid)
    task = vd.Task(net, torch.randint(1, 9, (2, 4)), space=space, targets=0, plan=Plan(rows=8))
    values = ShapleySampling(4)(task).values
    assert values[1, 2:].tolist() == [0.0, 0.0]
    whole = probe(task, Given(torch.ones(1, 4, dtype=torch.bool)), response="logit")
    change = task.outputs[:, 0].double() - whole[:, 0]
    torch.testing.assert_close(values.sum(-1), change, rtol=0, atol=1e-5)


# --- Sobol and HSIC ---------------------------------------------------------------------------------------


def test_total_indices_of_a_linear_model_are_shares_of_squares() -> None:
    net = nn.Linear(4, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 2.0, -3.0, 0.0], [0.0] * 4]))
    task = vd.Task(net, torch.ones(2, 4, dtype=torch.float64), fill=Constant(0.0), targets=0)
    found = Sobol(draws=4000)(task).values
    expected = torch.tensor([1.0, 4.0, 9.0, 0.0], dtype=torch.float64) / 14
    torch.testing.assert_close(found, expected.expand(2, 4), rtol=0, atol=0.04)
    assert found[:, 3].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kind", "slow"), [(Sobol(draws=6), slow_sobol), (Hsic(draws=20), slow_hsic)])
def test_indices_equal_slow_loops(kind: vd.Explainer, slow: object) -> None:
    task = small_task(deep())
    found = kind(task, vd.core.Key(3))
    torch.testing.assert_close(found.values, slow(task, kind, vd.core.Key(3), 0.5), rtol=1e-4, atol=1e-6)
    assert 0 < found.cost.forward <= len(task) * kind.rows_per_sample(task)
    assert bool((found.values >= -1e-9).all())


@pytest.mark.parametrize("kind", [Sobol(draws=4, grid=2), Hsic(draws=16, grid=2)])
def test_cells_of_an_image_share_their_value(kind: vd.Explainer) -> None:
    task = image_task(samples=2)
    found = kind(task)
    maps = found.values.view(2, 8, 8)
    for rows in (slice(0, 4), slice(4, 8)):
        for columns in (slice(0, 4), slice(4, 8)):
            block = maps[:, rows, columns].flatten(1)
            assert torch.equal(block, block[:, :1].expand_as(block))
    assert len(maps[0].unique()) == 4
    assert 0 < found.cost.forward <= 2 * kind.rows_per_sample(task)  # four cells: no mask is asked twice
    other = kind(task.with_space(vd.Space.patches((2, 8, 8), 4)))
    assert other.values.shape == (2, 4)


@pytest.mark.parametrize("kind", [Sobol(draws=4), Hsic(draws=16)])
def test_a_constant_model_has_no_indices(kind: vd.Explainer) -> None:
    net = seeded(nn.Linear(4, 2))
    with torch.no_grad():
        net.weight.zero_()
    assert bool((kind(small_task(net)).values == 0).all())


def test_hsic_ranks_what_the_output_depends_on_first() -> None:
    task = vd.Task(Pairs(), torch.tensor([[1.0, 0.0, 0.0, 0.1]]), fill=Constant(0.0), targets=0)
    values = Hsic(draws=400)(task).values[0]
    assert values.argmax() == 0
    assert values[0] > 20 * values[1:3].abs().max()
    for wrong in ({"draws": 1}, {"grid": 0}):
        with pytest.raises(InputError):
            Hsic(**wrong)
        with pytest.raises(InputError):
            Sobol(**wrong)


# --- permutation importance ---------------------------------------------------------------------------------


def test_permutation_importance_of_a_linear_model() -> None:
    task, weights = linear_task(train=1)
    found = PermutationImportance(rows=3)(task)
    torch.testing.assert_close(found.values, (task.inputs - task.train) * weights, rtol=0, atol=1e-6)
    assert 0 < found.cost.forward <= len(task) * PermutationImportance(rows=3).rows_per_sample(task)
    many, weights = linear_task(train=50)
    near = PermutationImportance(rows=400)(many).values
    torch.testing.assert_close(near, (many.inputs - many.train.mean(0)) * weights, rtol=0, atol=0.1)
    with pytest.raises(NotApplicableError, match="reference rows"):
        PermutationImportance()(linear_task(train=0)[0])


# --- guided Grad-CAM ----------------------------------------------------------------------------------------


def test_guided_gradcam_is_their_product_and_agrees_with_captum() -> None:
    import captum.attr as captum

    task = image_task()
    found = GuidedGradCam()(task)
    fine, coarse = GuidedBackprop()(task.with_space(vd.Space.elements((2, 8, 8)))), GradCam()(task)
    both = fine.values.view(-1, 2, 64) * coarse.values[:, None]
    torch.testing.assert_close(found.values, both.sum(1), rtol=0, atol=1e-9)
    assert found.cost == vd.models.Cost(12, 12)
    assert found.provenance["layer"] == "relu, 5 x 4 x 4"
    peer = captum.GuidedGradCam(task.model, task.model[5])
    theirs = peer.attribute(task.inputs.clone().requires_grad_(), task.targets, interpolate_mode="bilinear")
    torch.testing.assert_close(found.values, task.values(theirs.detach()), rtol=0, atol=1e-9)


# --- TreeSHAP -----------------------------------------------------------------------------------------------


def more_shapley_table(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int) + (classes > 2) * (x[:, 3] > 1)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [("boosted", 2), *((kind, n) for kind in ("forest", "tree", "regression") for n in (2, 3))],
)
def test_trees_agree_with_exact_shapley_values_over_the_background(kind: str, classes: int) -> None:
    from sklearn import ensemble, tree

    x, y = more_shapley_table(classes)
    made = {
        "boosted": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, max_depth=3, random_state=0),
        "tree": tree.DecisionTreeClassifier(max_depth=3, random_state=0),
        "regression": ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
    }
    model = made[kind].fit(x, y if kind != "regression" else x[:, 0] * x[:, 1])
    rows, background = (
        x[:3].astype(np.float32).astype(np.float64),
        x[10:16].astype(np.float32).astype(np.float64),
    )
    task = vd.Task(model, rows, train=background)
    found = TreeShap()(task)
    raw = {
        "boosted": lambda z: np.stack([-model.decision_function(z), model.decision_function(z)], 1),
        "regression": lambda z: model.predict(z)[:, None],
    }.get(kind, lambda z: model.predict_proba(z))
    for i in range(3):
        target = int(task.targets[i])

        def game(kept: tuple[int, ...], i: int = i, target: int = target) -> float:
            mixed = background.copy()
            mixed[:, list(kept)] = rows[i, list(kept)]
            return float(raw(mixed)[:, target].mean())

        expected = exact_shapley(game, 4)
        np.testing.assert_allclose(found.values[i].numpy(), expected, atol=1e-5)
    assert found.provenance["completeness"]["largest_residual"] < 1e-4
    assert found.cost.forward == 0
    assert found.provenance["scale"]


def test_what_is_no_tree_is_refused() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = more_shapley_table(2)
    with pytest.raises(NotApplicableError, match="no trees"):
        TreeShap()(vd.Task(LogisticRegression().fit(x, y), x[:3], train=x))
    with pytest.raises(NotApplicableError, match="CatBoost model, and this is none"):
        TreeShap()(linear_task()[0])


def test_a_wrapped_model_without_trees_is_refused_in_a_sentence() -> None:
    from sklearn.ensemble import RandomForestClassifier

    x, y = more_shapley_table(2)
    task = vd.Task(RandomForestClassifier(4, random_state=0).fit(x, y), x[:3], train=x)
    with pytest.raises(NotApplicableError, match="reads the trees of"):
        vd.score("input_invariance", task, "tree_shap")
