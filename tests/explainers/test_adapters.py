"""Other packages' methods and objects: equal to calling them directly, counted, under noise too."""

from __future__ import annotations

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from captum import attr
from captum.attr import IntegratedGradients
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn

import veridical as vd
from tests.reference.composite_double import EpsilonPlus
from tests.reference.explainers import relevance
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, VeridicalError
from veridical.explainers import Lrp, from_captum, from_shap, from_zennit
from veridical.models.predictor import Plan
from veridical.perturb.fills import Constant
from veridical.values.task import Task


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def image_task() -> Task:
    torch.manual_seed(1)
    return Task(network(), torch.rand(5, 1, 8, 8).double(), space=Space.elements((1, 8, 8)))


@pytest.mark.parametrize(
    ("method", "kwargs"),
    [
        (attr.IntegratedGradients, {"n_steps": 8}),
        (attr.Saliency, {"abs": False}),
        (attr.DeepLift, {}),
        (attr.GuidedBackprop, {}),
        (attr.FeatureAblation, {}),
        (attr.Occlusion, {"sliding_window_shapes": (1, 3, 3)}),
    ],
)
def test_captum_classes_and_objects_equal_the_direct_call(method, kwargs):
    task = image_task()
    direct = (
        method(task.predictor.model).attribute(task.inputs, target=task.targets, **kwargs).detach().flatten(1)
    )
    elsewhere = method(copy.deepcopy(network()))
    for given in (method, elsewhere):
        found = from_captum(given, **kwargs)(task.with_plan(Plan(rows=16)), Key(0))
        assert torch.allclose(found.values, direct, atol=1e-9)
        assert found.cost.forward > 0
    assert json.dumps(dict(found.provenance))


def test_captum_objects_see_noisy_weights():
    task = image_task()
    noisy = task.with_noise(0.3, Key(1))
    twin = copy.deepcopy(task.predictor.model)
    twin.load_state_dict({**twin.state_dict(), **dict(noisy.predictor.unwrapped.named_parameters())})
    bound = attr.IntegratedGradients(task.predictor.model)
    truth = attr.IntegratedGradients(twin).attribute(task.inputs, target=task.targets, n_steps=8).flatten(1)
    assert torch.allclose(from_captum(bound, n_steps=8)(noisy).values, truth, atol=1e-9)
    assert bound.forward_func is task.predictor.model


def test_captum_layer_methods_and_noise_tunnels():
    task = image_task()
    cam = from_captum(lambda model: attr.LayerGradCam(model, model[2]))(task)
    assert cam.values.shape == (5, 64)
    tunnel = attr.NoiseTunnel(attr.Saliency(task.predictor.model))
    smooth = from_captum(tunnel, nt_samples=4, stdevs=0.1)
    assert smooth.stochastic
    assert from_captum(attr.FeaturePermutation).stochastic
    assert torch.equal(smooth(task, Key(0)).values, smooth(task, Key(0)).values)
    assert not torch.equal(smooth(task, Key(0)).values, smooth(task, Key(1)).values)


@pytest.mark.parametrize("kind", [attr.LayerGradCam, attr.GuidedGradCam])
def test_a_captum_object_of_a_layer_is_bound_to_that_layer_of_the_model(kind):
    task = image_task()
    noisy = task.with_noise(0.3, Key(1))
    for each in (task, noisy):
        made = from_captum(lambda model: kind(model, model[2]))(each)
        torch.testing.assert_close(vd.explain(kind(task.model, task.model[2]), each).values, made.values)


def test_captum_methods_that_need_baselines_take_the_reference_rows():
    task = image_task().changed(train=torch.rand(7, 1, 8, 8).double())
    own = vd.explain(attr.DeepLiftShap(task.model), task)
    given = from_captum(attr.DeepLiftShap, baselines=task.train)(task)
    torch.testing.assert_close(own.values, given.values)
    with pytest.raises(NotApplicableError, match="baselines"):
        vd.explain(attr.DeepLiftShap, image_task())


def test_captum_with_named_side_inputs_on_text():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids, mask):
            return self.head((self.embed(ids) * mask[..., None]).sum(1))

    torch.manual_seed(2)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    task = Task(Bag().double(), torch.randint(0, 9, (2, 5)), side={"mask": mask}, space=Space.tokens(5, mask))
    found = from_captum(attr.InputXGradient)(task).values
    weight = task.predictor.model.head.weight[task.targets]
    truth = (task.predictor.model.embed(task.inputs) * weight[:, None]).sum(-1) * mask
    assert torch.allclose(found, truth, atol=1e-9)


def waves(*shape: int, pace: float) -> torch.Tensor:
    """Weights anyone can write down again."""
    return torch.sin(pace * torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float64)).reshape(shape)


def fixed_network() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    ).double()
    with torch.no_grad():
        for pace, value in zip((1.7, 0.9, 2.3, 1.1, 0.7, 1.9), model.parameters(), strict=True):
            value.copy_(waves(*value.shape, pace=pace) / (4 if value.dim() == 1 else 2))
    return model


def by_loops(task: Task, model: nn.Sequential) -> torch.Tensor:
    first, second, head = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (model[0], model[2], model[5])
    )
    pairs = zip(task.inputs.numpy(), task.targets.tolist(), strict=True)
    slow = [relevance(x, [first, second], head, target) for x, target in pairs]
    return torch.from_numpy(np.stack(slow)).flatten(1)


# the first sample's relevance by zennit's arithmetic for EpsilonPlus, worked out by the loops of
# tests/reference/explainers.py
RECORDED = [
    [0.001074365, 0.008555317, 0.012843594, 0.0],
    [0.014755426, 0.014071201, -0.020874807, 0.002786381],
    [0.002716079, 0.010214245, -0.048072137, -0.002527102],
    [0.020316904, -0.021598497, -0.006361838, 0.0],
]


def test_zennit_composites_by_their_interface():
    model = fixed_network()
    task = Task(model, waves(3, 1, 4, 4, pace=0.37), space=Space.elements((1, 4, 4)))
    kept, values = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    theirs = from_zennit(EpsilonPlus())
    found = theirs(task)
    assert torch.allclose(found.values, by_loops(task, model), atol=1e-10)
    assert torch.allclose(found.values[0], torch.tensor(RECORDED, dtype=torch.float64).flatten(), atol=1e-8)
    assert found.cost == vd.models.Cost(3, 3)
    # the rules exchange parameters: the caller's own objects are there again, and no hook is left
    assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, model.parameters(), strict=True))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    assert theirs.name == "zennit EpsilonPlus"
    # ours by the same rules starts at the output's value
    ours = Lrp(first="z_plus")(task).values
    y = task.outputs.gather(1, task.targets[:, None])
    assert torch.allclose(found.values * y, ours, atol=1e-4)
    with pytest.raises(InputError, match="context"):
        from_zennit(object())


def test_zennit_composites_see_noisy_weights_in_the_backward_pass():
    task = Task(fixed_network(), waves(3, 1, 4, 4, pace=0.37), space=Space.elements((1, 4, 4)))
    noisy = task.with_noise(0.3, Key(1))
    copied = copy.deepcopy(task.model)
    with torch.no_grad():
        for name, value in noisy.predictor.unwrapped.named_parameters():
            copied.get_parameter(name).copy_(value)
    found = from_zennit(EpsilonPlus())(noisy).values
    assert torch.allclose(found, by_loops(noisy, copied), atol=1e-10)
    assert not torch.allclose(found, by_loops(task, task.model), atol=1e-3)


class LinearShap:
    """A stand-in for a shap explainer with the older interface: exact for linear models."""

    def __init__(self, predict, background) -> None:
        self.predict, self.background = predict, background

    def shap_values(self, rows):
        base = self.background.mean(0)
        each = [self.predict(np.where(np.arange(len(base)) == i, rows, base)) for i in range(len(base))]
        return list(np.moveaxis(np.stack(each, 1) - self.predict(base[None])[:, None], -1, 0))


def test_shap_explainers_by_their_interface():
    torch.manual_seed(4)
    model, x, train = nn.Linear(5, 3).double(), torch.randn(4, 5).double(), torch.randn(20, 5).double()
    task = Task(model, x, train=train)
    found = from_shap(LinearShap)(task)
    assert torch.allclose(found.values, (x - train.mean(0)) * model.weight[task.targets].detach(), atol=1e-9)
    assert found.explainer == "shap LinearShap"
    assert found.cost.forward == 4 * 5 + 1


def test_values_of_the_second_class_alone_speak_against_the_first():
    task = vd.Task(MODEL, X[:6], train=X, targets=[0, 1, 0, 1, 0, 1], head="binary")
    both = from_shap(LinearShap)(task).values
    second = from_shap(lambda predict, rows: LinearShap(lambda x: predict(x)[:, 1:], rows))(task).values
    torch.testing.assert_close(second, both)


def test_a_function_of_another_signature_is_refused_in_a_sentence():
    with pytest.raises(InputError, match=r"\(predict, background\) -> explainer"):
        from_shap(lambda model_, inputs, targets: None)(table())


@pytest.mark.extras
def test_shap_itself():
    shap = pytest.importorskip("shap")
    torch.manual_seed(5)
    model, x, train = nn.Linear(5, 3), torch.randn(3, 5), torch.randn(12, 5)
    task = Task(model, x, train=train, fill=Constant(0.0))
    truth = (x - train.mean(0)) * model.weight[task.targets].detach()

    def kernel(predict, background):
        return shap.KernelExplainer(predict, background)

    def expected_gradients(model, background):
        return shap.GradientExplainer(model, background)

    assert torch.allclose(from_shap(kernel, silent=True)(task).values.float(), truth, atol=1e-4)
    drawn = from_shap(expected_gradients, nsamples=2000)(task, Key(0)).values
    assert torch.allclose(drawn, truth, atol=0.2)
    assert torch.equal(drawn, from_shap(expected_gradients, nsamples=2000)(task, Key(0)).values)


RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(40, 3)), columns=["a", "b", "c"])
MODEL = LogisticRegression().fit(X, X["a"] > X["b"])
NET = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def table() -> vd.Task:
    return vd.Task(MODEL, X[:6], train=X)


def other_packages_network() -> vd.Task:
    return vd.Task(NET, torch.tensor(X.to_numpy()[:6]).float(), train=torch.tensor(X.to_numpy()).float())


def test_a_captum_object_goes_straight_in() -> None:
    direct = vd.explain(IntegratedGradients(NET), other_packages_network())
    by_adapter = vd.explain(vd.explainers.from_captum(IntegratedGradients), other_packages_network())
    assert torch.equal(direct.values, by_adapter.values)


def test_a_captum_class_is_set_up_on_the_model_and_other_classes_are_told_from_objects() -> None:
    by_class = vd.explain(IntegratedGradients, other_packages_network())
    assert torch.equal(by_class.values, vd.explain(IntegratedGradients(NET), other_packages_network()).values)

    class Mine:
        def __call__(self, model, inputs, targets):
            return inputs

    assert vd.explain(Mine(), other_packages_network()).values.shape == (6, 3)
    with pytest.raises(InputError, match=r"Mine is a class, and an explainer is an object of one: Mine\("):
        vd.explain(Mine, other_packages_network())


@pytest.mark.parametrize("train", [None, X])
def test_columns_that_are_not_those_of_the_fit_are_named(train) -> None:
    few = X[:6]
    for given, said in [
        (few[["b", "a", "c"]], r"in another order; pass df\[\['a', 'b', 'c'\]\]"),
        (few.assign(d=0.0), r"fitted on other columns.*pass df\[\['a', 'b', 'c'\]\]"),
        (few[["a", "b"]], r"fitted on columns \['c'\], which are not there; the table has \['a', 'b'\]"),
    ]:
        rows = None if train is None else train.assign(d=0.0)[list(given.columns)]
        with pytest.raises(VeridicalError, match=said):
            vd.Task(MODEL, given, train=rows)


def test_a_data_frame_of_attributions_is_read_by_its_columns() -> None:
    values = pd.DataFrame(RNG.normal(size=(6, 3)), columns=["a", "b", "c"])
    task = table()
    plain = vd.score("pixel_flipping", task, values.to_numpy())
    for given in (values, values[["c", "a", "b"]]):
        assert torch.equal(vd.score("pixel_flipping", task, given).values, plain.values)
    with pytest.raises(InputError, match=r"same columns: \['c', 'd'\]"):
        vd.score("pixel_flipping", task, values.rename(columns={"c": "d"}))
    with pytest.raises(NotApplicableError, match="are not the task's features"):
        vd.score("pixel_flipping", task, values.rename(columns=str.upper))


def test_finished_maps_can_be_explained_too() -> None:
    assert vd.explain(np.ones((6, 3)), table()).values.shape == (6, 3)
    with pytest.raises(InputError, match="explains again under noise"):
        vd.score("fast_gef", other_packages_network(), np.ones((6, 3)))


class Told:
    def __init__(self, row):
        self.row = row

    def as_map(self):
        return {n: [(2, 0.5), (0, float(self.row[0]))] for n in (0, 1)}


Lime = type(
    "LimeTabularExplainer",
    (),
    {
        "__module__": "lime.lime_tabular",
        "explain_instance": lambda self, row, predict, labels, num_features: (predict(row[None]), Told(row))[
            1
        ],
    },
)


def test_a_lime_explainer_gives_its_weights_by_feature() -> None:
    found = vd.explain(Lime(), table()).values
    assert torch.allclose(found[:, 0], torch.tensor(X["a"].to_numpy()[:6]))
    assert found[:, 1].tolist() == [0.0] * 6
    assert found[:, 2].tolist() == [0.5] * 6


def test_a_bound_explainer_is_no_judge_of_moved_weights() -> None:
    with pytest.raises(NotApplicableError, match=r"bound to its own model.*from_shap"):
        vd.explain(Lime(), other_packages_network().with_noise(0.1, vd.core.Key(0)))


@pytest.mark.extras
def test_objects_of_shap() -> None:
    shap = pytest.importorskip("shap")
    task = table()
    linear = shap.LinearExplainer(MODEL, X)
    found = vd.explain(linear, task)
    exact = vd.explain("exact_shapley", task)
    assert torch.allclose(found.values, exact.values, atol=1e-6)
    finished = vd.explain(linear(X[:6]), task)
    assert torch.allclose(finished.values, found.values)
    with pytest.raises(InputError, match="explains other rows"):
        vd.explain(linear(X[6:12]), task)
    gradients = shap.GradientExplainer(NET, other_packages_network().train)
    both = [vd.explain(gradients, other_packages_network(), seed=3).values for _ in range(2)]
    assert torch.equal(*both)


@pytest.mark.extras
def test_an_object_of_shap_over_trees_follows_another_model() -> None:
    shap = pytest.importorskip("shap")
    first, other = (GradientBoostingClassifier(n_estimators=5).fit(X, X[c] > 0) for c in "ab")
    task, there = (vd.Task(model, X[:6], train=X) for model in (first, other))
    bound = vd.api.as_method(shap.TreeExplainer(first, X), task)
    assert not bound.one_model
    moved = bound(task.with_module(there.predictor.source.module).with_targets(there.targets))
    direct = vd.explain(shap.TreeExplainer(other, X), there)
    assert torch.allclose(moved.values, direct.values)
    fixed = vd.api.as_method(shap.LinearExplainer(MODEL, X), table())
    assert "from_shap" in fixed.one_model


def test_an_audit_of_finished_maps_asks_what_can_be_asked() -> None:
    task = vd.tasks.load("known/linear", 32)
    maps = vd.explain("input_x_gradient", task)
    found = vd.audit(task, explainers={"mine": maps.values.numpy()}, effort="glance", progress=False)
    place = found.verdict["mine"]
    assert place.status == "provisional"
    assert "could not be asked: its maps are finished" in " ".join(found.verdict.sentences)


def test_names_of_classes_are_labels_and_targets() -> None:
    named = LogisticRegression().fit(X, np.where(X["a"] > X["b"], "yes", "no"))
    task = vd.Task(named, X[:4], labels=["no", "yes", "yes", "no"], targets=["yes"] * 4)
    assert task.labels.tolist() == [0, 1, 1, 0]
    assert task.targets.tolist() == [1] * 4
    with pytest.raises(InputError, match=r"\['perhaps'\] are not among the model's classes"):
        vd.Task(named, X[:1], labels=["perhaps"])
    with pytest.raises(InputError, match="the model does not name its classes"):
        vd.Task(NET, torch.zeros(1, 3), labels=["no"])


def test_a_sample_that_is_not_there_and_a_single_row() -> None:
    with pytest.raises(IndexError, match="sample 9 of a task of 6 samples"):
        table()[9]
    assert len(list(table())) == 6
    with pytest.raises(InputError, match=r"single row \(a Series\)"):
        vd.Task(MODEL, X.iloc[0])


def test_an_explainer_that_returns_nothing_is_told() -> None:
    def nothing(model, inputs, targets):
        return None

    with pytest.raises(InputError, match="the map of 'nothing' is None"):
        vd.explain(nothing, other_packages_network())
