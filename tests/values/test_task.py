"""Tasks: every keyword, every derived task, and what each keeps of the one it came from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Convolution, Text, mlp
from veridical.core import key as keyed
from veridical.core.facts import fact, train_fact
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, ShapeError, VeridicalWarning
from veridical.explainers.adapters import FunctionExplainer
from veridical.models.predictor import Plan
from veridical.perturb import fills

KEY = Key(2)
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def image_task(**keywords: object) -> vd.Task:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return vd.Task(Convolution(3).eval(), x, **keywords)


def text_task(named: bool = False, **keywords: object) -> vd.Task:
    torch.manual_seed(0)
    tokens = torch.randint(1, 20, (4, 5))
    kept = torch.arange(5)[None] < torch.tensor([5, 3, 2, 4])[:, None]
    side = {"mask": kept} if named else (kept,)
    return vd.Task(Text(), tokens, side=side, space=Space.tokens(5, kept), **keywords)


# --- keywords -------------------------------------------------------------------------------------------


def test_targets_default_to_the_prediction() -> None:
    model = mlp()
    task = vd.Task(model, X)
    assert torch.equal(task.targets, model(X).argmax(-1))
    assert torch.equal(task.predictions, task.targets)


def test_inputs_may_be_arrays_lists_and_arrays_that_run_backwards() -> None:
    rows = X.numpy()
    for given in (rows, rows.tolist(), rows[::-1][::-1], pd.DataFrame(rows).to_numpy()):
        torch.testing.assert_close(vd.Task(mlp(), given).inputs, X)
    assert torch.equal(vd.Task(mlp(), rows[::-1]).inputs, X.flip(0))


@pytest.mark.parametrize("given", [torch.Tensor.clone, lambda rows: rows.numpy().copy()])
def test_a_task_owns_its_data(given: Callable[[Tensor], Any]) -> None:
    rows, train, scale = given(X), given(X), given(X[:, 0])
    targets, labels, masks = (given(torch.ones(6, dtype=torch.int64)) for _ in range(3))

    def model(x: Tensor, scale: Tensor) -> Tensor:
        return x[:, :3] * scale[:, None]

    masks = given(torch.ones(6, 4, dtype=torch.bool))
    task = vd.Task(model, rows, targets=targets, labels=labels, masks=masks, train=train, side=(scale,))
    held = ("inputs", "targets", "labels", "masks", "train")
    before = [getattr(task, name).clone() for name in held] + [task.side[0].clone(), task.outputs]
    for each in (rows, targets, labels, masks, train, scale):
        each[:] = 0
    after = [getattr(task, name) for name in held] + [
        task.side[0],
        task.predictor.outputs(task.inputs, task.side),
    ]
    assert all(map(torch.equal, before, after))
    other = given(X)
    moved = task.with_inputs(torch.as_tensor(other))
    other[:] = 0
    assert torch.equal(moved.inputs, X)


def test_features_and_given_maps_are_copied_too() -> None:
    groups, valid, maps = torch.tensor([0, 0, 1, 1]), torch.ones(6, 4, dtype=torch.bool), X.abs().clone()
    tasks = [
        vd.Task(mlp(), X, space=Space.column_groups(groups)),
        vd.Task(mlp(), X, space=Space("column", (4,), 4, torch.arange(4), valid=valid)),
        vd.Task(mlp(), X).with_space(Space("column", (4,), 4, torch.arange(4), valid=valid)),
    ]
    found = vd.evaluate(vd.Task(mlp(), X), {"mine": maps}, "sparseness", progress=False).explanations["mine"]
    for each in (groups, valid, maps):
        each[:] = 0
    assert tasks[0].space.labels.tolist() == [0, 0, 1, 1]
    assert all(bool(task.space.valid.all()) for task in tasks[1:])
    assert torch.equal(found.values, X.abs())


def test_a_task_is_made_in_inference_mode() -> None:
    with torch.inference_mode():
        task = vd.Task(mlp(), X + 0)
    assert torch.equal(vd.explain("gradient", task).values, vd.explain("gradient", vd.Task(mlp(), X)).values)


def test_inputs_take_the_models_precision() -> None:
    assert vd.Task(mlp().double(), X).inputs.dtype == torch.float64
    assert vd.Task(mlp(), X.double(), train=X.double()).train.dtype == torch.float32


def test_train_comes_alone_or_with_labels() -> None:
    assert vd.Task(mlp(), X, train=X).train_labels is None
    task = vd.Task(mlp(), X, train=(X, pd.Series([0, 1, 2, 0, 1, 2])))
    assert task.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert task.fill == fills.Marginal()
    with pytest.raises(ShapeError, match="5 labels for 6"):
        vd.Task(mlp(), X, train=(X, [0] * 5))
    with pytest.raises(ShapeError, match=r"train rows have shape \(3,\), inputs have \(4,\)"):
        vd.Task(mlp(), X, train=X[:, :3])


def test_labels_are_kept_beside_targets() -> None:
    task = vd.Task(mlp(), X, labels=[0, 1, 2, 0, 1, 2])
    assert task.labels.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ShapeError, match="2 labels for 6 samples"):
        vd.Task(mlp(), X, labels=[0, 1])


def test_fill_and_space_are_read() -> None:
    assert vd.Task(mlp(), X, fill=0.5).fill == fills.Constant(0.5)
    assert vd.Task(mlp(), X, fill="uniform_noise").fill == fills.UniformNoise()
    assert vd.Task(mlp(), X, space=Space.column_groups([0, 0, 1, 1])).space.n_features == 2
    with pytest.raises(ShapeError, match=r"space lies over \(3,\), inputs are \(4,\)"):
        vd.Task(mlp(), X, space=Space.columns(3))
    with pytest.raises(ShapeError, match="valid for 2 samples, the task has 6"):
        vd.Task(mlp(), X, space=Space("column", (4,), 4, torch.arange(4), valid=torch.ones(2, 4)))
    with pytest.raises(InputError, match="no valid feature at all"):
        vd.Task(mlp(), X, space=Space("column", (4,), 4, torch.arange(4), valid=torch.zeros(6, 4)))


def test_ids_are_numbers_or_names_and_key_the_draws() -> None:
    assert vd.Task(mlp(), X).ids.tolist() == [0, 1, 2, 3, 4, 5]
    named = vd.Task(mlp(), X, ids=list("abcdef"))
    assert named.ids.tolist() == [keyed.name_id(c) for c in "abcdef"]
    for ids in (range(6), np.arange(6), list(np.arange(6)), torch.arange(6), pd.Index(range(6))):
        assert vd.Task(mlp(), X, ids=ids).ids.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="ids must differ"):
        vd.Task(mlp(), X, ids=[0] * 6)
    with pytest.raises(ShapeError, match="2 ids for 6 samples"):
        vd.Task(mlp(), X, ids=[0, 1])


@pytest.mark.parametrize("named", [True, False])
def test_side_inputs_go_along_by_name_or_position(named: bool) -> None:
    task = text_task(named)
    kept = task.side["mask"] if named else task.side[0]
    torch.testing.assert_close(task.outputs, task.model(task.inputs, kept).detach())
    part = task[1:3]
    torch.testing.assert_close(part.outputs, task.outputs[1:3])
    with pytest.raises(ShapeError, match="side input has 2 rows, inputs have 4"):
        vd.Task(Text(), task.inputs, side=kept[:2])
    single = vd.Task(Text(), task.inputs, side=kept)
    assert isinstance(single.side, tuple)


def test_masks_are_read_as_one_truth_a_feature() -> None:
    image = torch.zeros(4, 8, 8)
    image[:, 2:5, 2:5] = 1
    pixels = image_task(masks=image)
    assert torch.equal(pixels.masks, image.bool().reshape(4, 64))
    for shape in ((4, 1, 8, 8), (4, 64)):
        assert torch.equal(image_task(masks=image.reshape(shape)).masks, pixels.masks)
    assert torch.equal(image_task(masks=image[:, None].expand(4, 3, 8, 8).numpy()).masks, pixels.masks)
    patches = image_task(masks=image, space=Space.patches((3, 8, 8), 2))
    # the box covers patch (1, 1) whole, halves of (1, 2) and (2, 1), a quarter of (2, 2)
    assert patches.masks[0].nonzero().flatten().tolist() == [5]
    with pytest.raises(ShapeError, match="2 masks for 4"):
        image_task(masks=image[:2])
    with pytest.raises(ShapeError, match=r"masks have shape \(5, 5\)"):
        image_task(masks=torch.ones(4, 5, 5))


def test_a_task_cannot_be_changed_in_place() -> None:
    task = vd.Task(mlp(), X)
    with pytest.raises(AttributeError, match=r"use task.with_"):
        task.inputs = X  # type: ignore[misc]
    assert task != vd.Task(task.model, X)


def test_facts_are_computed_once_and_a_derived_task_begins_without() -> None:
    made = []

    @fact
    def total(task: vd.Task, times: int) -> float:
        made.append(times)
        return times * float(task.inputs.sum())

    @train_fact
    def mean(task: vd.Task) -> Tensor:
        made.append("train")
        return task.train.mean(0)

    task = vd.Task(mlp(), X, train=X)
    assert total(task, 2) == total(task, 2)
    assert total(task, 3) != total(task.with_inputs(X + 1), 3)
    assert mean(task) is mean(task.with_noise(0.1, KEY)) is mean(task[:2])
    torch.testing.assert_close(mean(task.changed(train=X + 1)), X.mean(0) + 1)
    assert made == [2, 3, 3, "train", "train"]


# --- heads ----------------------------------------------------------------------------------------------


def test_one_logit_is_read_as_two_classes() -> None:
    model = mlp(4, 1)
    with pytest.warns(VeridicalWarning, match=r"one output; it is read as the logit.*head='binary'"):
        task = vd.Task(model, X)
    z = model(X).detach()
    torch.testing.assert_close(task.outputs, torch.cat([-z, z], 1))
    torch.testing.assert_close(task.probabilities(task.outputs), torch.cat([1 - z.sigmoid(), z.sigmoid()], 1))
    assert torch.equal(task.targets, (z[:, 0] > 0).long())
    slopes = vd.explain("gradient", task.with_targets(0)).values
    torch.testing.assert_close(slopes, -vd.explain("gradient", task.with_targets(1)).values)


def test_multilabel_outputs_are_independent() -> None:
    task = vd.Task(mlp(), X, head="multilabel")
    torch.testing.assert_close(task.probabilities(task.outputs), task.outputs.sigmoid())
    assert torch.equal(task.predictions, task.outputs.argmax(-1))


def test_regression_has_no_probabilities() -> None:
    task = vd.Task(mlp(4, 1), X, head="regression")
    assert task.targets.tolist() == [0] * 6
    assert task.respond(task.outputs, "probability") is task.outputs
    assert vd.Task(mlp(4, 3), X, head="regression").n_outputs == 3


@pytest.mark.parametrize(
    ("head", "outputs", "message"),
    [
        ("multiclass", 1, "at least two outputs"),
        ("binary", 3, "one or two outputs, this model has 3"),
        (
            "softmax",
            3,
            "head is one of 'multiclass', 'binary', 'multilabel', 'regression', 'generation' or None, got",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused(head: str, outputs: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        vd.Task(mlp(4, outputs), X, head=head)


# --- subsets and changes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index", [slice(1, 4), [1, 2, 3], torch.tensor([1, 2, 3]), np.array([False, True, True, True])]
)
def test_subsets_keep_ids_targets_and_draws(index: object) -> None:
    names = [["a"] * 5, ["b"] * 5, ["c"] * 5, ["d"] * 5]
    whole = text_task(labels=[0, 1, 2, 3], masks=torch.eye(4, 5))
    whole = whole.with_space(Space.tokens(5, whole.space.valid, names))
    part = whole[index]
    assert part.ids.tolist() == [1, 2, 3]
    assert part.labels.tolist() == [1, 2, 3]
    assert torch.equal(part.targets, whole.targets[1:4])
    assert torch.equal(part.masks, whole.masks[1:4])
    assert torch.equal(part.space.valid, whole.space.valid[1:4])
    assert part.space.names == (("b",) * 5, ("c",) * 5, ("d",) * 5)
    random = vd.explain("random", whole).values
    assert torch.equal(vd.explain("random", part).values, random[1:4])
    alone = text_task()[index]
    assert alone.reference is alone


def test_one_sample_and_no_sample() -> None:
    task = vd.Task(mlp(), X)
    assert task[2].ids.tolist() == [2]
    assert task[-1].ids.tolist() == [5]
    for empty in ([], slice(3, 3), torch.zeros(6, dtype=torch.bool)):
        with pytest.raises(InputError, match="selection is empty"):
            task[empty]


def test_chunks_cover_the_samples_in_order() -> None:
    task = vd.Task(mlp(), X, plan=Plan(rows=8))
    assert [len(c) for c in task.chunks()] == [6]
    assert [len(c) for c in task.chunks(4)] == [2, 2, 2]
    assert [len(c) for c in task.chunks(100)] == [1] * 6
    assert torch.cat([c.ids for c in task.chunks(3)]).tolist() == list(range(6))


def test_targets_stay_those_of_the_unperturbed_task() -> None:
    task = vd.Task(mlp(), X)
    for changed in (
        task.with_noise(3.0, KEY),
        task.with_inputs(-5 * X),
        task.with_weights({"2.bias": torch.tensor([0.0, 0.0, 99.0])}),
    ):
        assert torch.equal(changed.targets, task.targets)
        assert not torch.equal(changed.outputs, task.outputs)
        assert changed.reference is task
        assert changed[:2].reference.ids.tolist() == [0, 1]
        assert torch.equal(changed[:2].reference.outputs, task.outputs[:2])
    assert not torch.equal(task.with_inputs(-5 * X).predictions, task.targets)


def test_with_targets_explains_another_output() -> None:
    task = vd.Task(mlp(), X)
    other = task.with_targets((task.targets + 1) % 3)
    slopes = torch.autograd.functional.jacobian(lambda x: mlp()(x).sum(0), X)
    expected = slopes[other.targets, torch.arange(6)]
    torch.testing.assert_close(vd.explain("gradient", other).values, expected)
    with pytest.raises(InputError, match="target 3 is out of range"):
        task.with_targets(3)


def test_with_space_takes_fill_and_masks_along() -> None:
    image = torch.zeros(4, 8, 8)
    image[:, :4, :4] = 1
    task = image_task(masks=image, fill=0.25)
    patches = task.with_space(Space.patches((3, 8, 8), 4))
    assert patches.masks.tolist() == [[True, False, False, False]] * 4
    assert patches.fill == fills.Constant(0.25)
    assert task.space.kind == "pixel"
    assert patches.with_fill("zero").fill == fills.Zero()


def test_with_plan_keeps_the_rows_unless_given() -> None:
    task = vd.Task(mlp(), X, plan=Plan(rows=16))
    assert task.with_plan(Plan(precision="tf32")).predictor.plan == Plan(rows=16, precision="tf32")
    assert task.with_plan(Plan(rows=8)).predictor.rows == 8
    assert task.with_plan(Plan(rows=8)).predictor.meter is task.predictor.meter


# --- embeddings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_at_embeddings_the_model_answers_as_it_does_to_tokens(named: bool, noise: float) -> None:
    task = text_task(named)
    if noise:
        task = task.with_noise(noise, KEY)
    at = task.at_embeddings()
    assert at.inputs.shape == (4, 5, 4)
    torch.testing.assert_close(at.outputs, task.outputs)
    assert torch.equal(at.targets, task.targets)
    assert at.space.n_features == 5
    assert at.at_embeddings() is at
    assert vd.explain("gradient", task).values.shape == (4, 5)
    assert bool((vd.explain("gradient", task).values[~task.space.valid] == 0).all())


def test_gradients_at_embeddings_are_those_of_the_embeddings() -> None:
    task = text_task()
    model, kept = task.model, task.side[0]
    rows = model.words(task.inputs).detach().requires_grad_(True)
    states = model.lstm(rows)[0] * kept[..., None]
    logits = model.head(states.sum(1) / kept.sum(-1, keepdim=True))
    (slope,) = torch.autograd.grad(logits.gather(1, task.targets[:, None]).sum(), rows)
    torch.testing.assert_close(vd.explain("gradient", task).values, slope.sum(-1))


def test_fill_states_of_noisy_embeddings_are_their_own() -> None:
    task = text_task(train=torch.randint(1, 20, (30, 5), generator=torch.Generator().manual_seed(3)))
    clean = task.at_embeddings()
    for other in (
        clean,
        task.with_noise(0.5, KEY).at_embeddings(),
        task.with_noise(0.5, KEY / 1).at_embeddings(),
    ):
        filled = vd.score("pixel_flipping", other, torch.rand(4, 5), fill=fills.Mean(), response="logit")
        mean = other.train.mean(0)
        last = other.with_inputs(torch.where(other.space.valid[..., None], mean, other.inputs)).outputs
        expected = last.gather(1, other.targets[:, None])[:, 0].double()
        torch.testing.assert_close(filled.curve.y[:, -1], expected, atol=1e-5, rtol=1e-4)


def test_models_without_embeddings_say_so() -> None:
    class Bag(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return nn.functional.one_hot(tokens, 5).float().sum(1)

    task = vd.Task(Bag(), torch.randint(0, 5, (3, 4)))
    with pytest.raises(NotApplicableError, match=r"no nn.Embedding layer"):
        task.at_embeddings()
    with pytest.raises(NotApplicableError, match=r"no embedding layer.*inputs.float\(\)"):
        vd.explain("saliency", task)


# --- maps -----------------------------------------------------------------------------------------------


def test_maps_of_every_natural_shape_are_read() -> None:
    task = image_task()
    full = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(task.values(full), full.sum(1).flatten(1))
    shared = torch.randn(4, 8, 8)
    for maps in (shared, shared[:, None], shared.flatten(1), shared.double().numpy().astype(np.float32)):
        torch.testing.assert_close(task.values(maps), shared.flatten(1))
    patches = task.with_space(Space.patches((3, 8, 8), 4))
    expected = nn.functional.avg_pool2d(shared[:, None], 4).flatten(1) * 16
    torch.testing.assert_close(patches.values(shared), expected)
    torch.testing.assert_close(patches.values(full), nn.functional.avg_pool2d(full.sum(1), 4).flatten(1) * 16)
    assert torch.equal(patches.values(torch.ones(4, 4)), torch.ones(4, 4))
    groups = vd.Task(mlp(), X, space=Space.column_groups([1, 0, 1, 1]))
    assert groups.values(torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 6))[0].tolist() == [2.0, 8.0]
    assert groups.values(torch.tensor([[1, 2]] * 6)).dtype == torch.float64  # large integers must not tie
    assert groups.values(torch.tensor([[1, 2]] * 6, dtype=torch.int8)).dtype == torch.float32


def test_maps_that_are_no_plain_tensor_are_refused_by_whoever_made_them() -> None:
    task = vd.Task(nn.Linear(4, 3), torch.rand(2, 4))
    maps = {
        "sparse": torch.eye(4)[:2].to_sparse(),
        "nested": torch.nested.nested_tensor([torch.rand(4), torch.rand(4)]),
        "None": None,
        "complex": torch.rand(2, 4) * 1j,
    }
    for kind, made in maps.items():
        with pytest.raises(InputError, match=kind):
            task.values(made)
        with pytest.raises(InputError, match=rf"the map of 'mine'.*{kind}"):
            vd.explain(FunctionExplainer(lambda *_, made=made: made, "mine"), task)


def test_maps_that_do_not_fit_say_which_pooling_would() -> None:
    task = image_task(space=Space.patches((3, 8, 8), 2))
    with pytest.raises(
        ShapeError,
        match=r"explanation has 64 features of shape \(64,\), the task's space has 16 patch features over "
        r"\(3, 8, 8\); aggregate it with `space.pool\(map\)`",
    ):
        task.values(torch.randn(4, 64))
    with pytest.raises(ShapeError, match=r"give maps .*\(N, 3, 8, 8\) or \(N, 16\)"):
        task.values(torch.randn(4, 5))
    with pytest.raises(ShapeError, match=r"the map has shape \(3, 16\), the task has 4 samples"):
        task.values(torch.randn(3, 16))
    with pytest.raises(ShapeError, match=r"the map has shape \(\)"):
        task.values(torch.tensor(1.0))


# --- content --------------------------------------------------------------------------------------------


def other_hashes() -> dict[str, vd.Task]:
    torch.manual_seed(0)
    model = mlp()
    slope = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 3))
    slope.load_state_dict(model.state_dict())
    base = vd.Task(model, X, targets=0, train=X)
    return {
        "inputs": vd.Task(model, X + 1e-3, targets=0, train=X),
        "targets": base.with_targets(1),
        "ids": vd.Task(model, X, targets=0, train=X, ids=range(1, 7)),
        "train": vd.Task(model, X, targets=0, train=X + 1),
        "masks": vd.Task(model, X, targets=0, train=X, masks=torch.eye(6, 4)),
        "fill": base.with_fill("mean"),
        "space": base.with_space(Space.column_groups([0, 0, 1, 1])),
        "kind": base.with_space(Space.concepts(4)),
        "valid": base.with_space(Space("column", (4,), 4, torch.arange(4), valid=torch.ones(6, 4))),
        "weights": base.with_noise(0.1, KEY),
        "other noise": base.with_noise(0.1, KEY / 1),
        "another model": vd.Task(mlp(seed=1), X, targets=0, train=X),
        "a setting of a layer": vd.Task(slope, X, targets=0, train=X),
        "head": vd.Task(model, X, targets=0, train=X, head="multilabel"),
        "subset": base[:3],
    }


def test_the_content_hash_follows_everything_that_matters() -> None:
    base = vd.Task(mlp(), X, targets=0, train=X).content_hash()
    assert base == vd.Task(mlp(), X.clone(), targets=[0] * 6, train=X, name="other").content_hash()
    assert base == vd.Task(mlp(), X, targets=0, train=X, plan=Plan(rows=64)).content_hash()
    hashes = {name: task.content_hash() for name, task in other_hashes().items()}
    assert base not in hashes.values()
    assert len(set(hashes.values())) == len(hashes)


def test_the_content_hash_sees_noise_below_an_embedding_view() -> None:
    task = text_task()
    noisy = [task.with_noise(0.3, KEY / i, layer="head").at_embeddings().content_hash() for i in range(2)]
    assert len({task.at_embeddings().content_hash(), *noisy}) == 3


def test_the_content_hash_sees_an_estimators_fit() -> None:
    from sklearn.tree import DecisionTreeClassifier

    y = (X[:, 0] > 0).long().numpy()
    trees = [
        DecisionTreeClassifier(max_depth=d, random_state=0).fit(X.numpy(), y ^ (d == 2)) for d in (1, 1, 2)
    ]
    first, again, other = (vd.Task(tree, X.numpy(), targets=0).content_hash() for tree in trees)
    assert first == again != other


def test_samples_are_selected_backwards_and_by_narrow_numbers() -> None:
    task = vd.Task(torch.nn.Linear(4, 3), torch.randn(200, 4))
    assert task[::-2].ids.equal(task.ids.flip(0)[::2])
    assert task[torch.tensor([-1, 3], dtype=torch.int8)].ids.equal(task.ids[[-1, 3]])
    with pytest.raises(InputError, match=r"\.bool\(\)"):
        task[torch.ones(200, dtype=torch.uint8)]


class Steps(nn.Module):
    """Reads a series of 3 channels by one kind of layer, time first or last."""

    def __init__(self, layer: nn.Module, turned: bool = False) -> None:
        super().__init__()
        self.layer, self.turned = layer, turned

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2) if self.turned else x
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x, x, x)[0].mean(1)
        out = self.layer(x)
        return out[0].mean(1) if isinstance(out, tuple) else out.mean(-1)


@pytest.mark.parametrize(
    "net",
    [
        Steps(nn.LSTM(4, 4, batch_first=True)),
        Steps(nn.GRU(4, 4, batch_first=True)),
        Steps(nn.MultiheadAttention(4, 2, batch_first=True)),
        Steps(nn.Conv1d(4, 4, 3), turned=True),
    ],
)
def test_a_series_with_time_first_is_noticed(net: nn.Module) -> None:
    rows = torch.rand(2, 9, 4)
    with pytest.warns(VeridicalWarning, match=r"space=vd.Space.steps\(\(9, 4\), time_axis=0\)"):
        vd.Task(net.eval(), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = vd.Task(net.eval(), rows, space=Space.steps((9, 4), time_axis=0))
    assert task.space.n_features == 9


def test_photos_get_patches_and_say_so() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)).eval()
    photos, shape = torch.rand(2, 3, 70, 112), (3, 70, 112)
    with pytest.warns(VeridicalWarning, match=r"70 x 112 pixels.* by 196 patches.*space=vd.Space") as said:
        task = vd.Task(net, photos)
    assert "196 patch features" in repr(task)
    assert [note.filename for note in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vd.Task(net, photos, space=Space.pixels(shape)).space.n_features == 70 * 112
        vd.Task(net, photos, space=Space.patches(shape, 8))
        vd.Task(net, photos[..., :32, :32])
        task[:1].with_inputs(photos[:1])


@pytest.mark.parametrize("rows", [torch.rand(2, 4, 9), torch.rand(2, 4, 4)])
def test_a_series_with_time_last_is_not_doubted(rows: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vd.Task(Steps(nn.Conv1d(4, 4, 3)).eval(), rows)
        vd.Task(nn.Sequential(nn.Flatten(), nn.Linear(rows[0].numel(), 3)).eval(), rows)


def test_tasks_made_apart_have_draws_of_their_own_and_slices_keep_theirs() -> None:
    model, rows = nn.Linear(5, 3), torch.rand(6, 5)
    one, other = (vd.explain("random", vd.Task(model, row[None])).values for row in rows[:2])
    assert not torch.equal(one, other)
    whole = vd.explain("random", vd.Task(model, rows)).values
    assert torch.equal(whole[:1], one)
    assert torch.equal(vd.explain("random", vd.Task(model, rows)[1:2]).values, other)


def test_precision_and_padding_leave_draws_as_they_are() -> None:
    rows = torch.rand(3, 5)
    single, double = (vd.Task(nn.Linear(5, 3).to(d), rows.to(d)) for d in (torch.float32, torch.float64))
    assert torch.equal(single.draw_ids, double.draw_ids)
    tokens, model = torch.randint(1, 9, (2, 4)), nn.Sequential(nn.Embedding(9, 3), nn.Flatten())
    there = torch.ones(2, 4, dtype=torch.bool)
    short = vd.Task(lambda x: model(x).sum(-1), tokens, space=vd.Space.tokens(4, there), fill=0)
    padded = torch.cat([tokens, torch.zeros(2, 3, dtype=torch.int64)], 1)
    more = torch.cat([there, torch.zeros(2, 3, dtype=torch.bool)], 1)
    long = vd.Task(lambda x: model(x).sum(-1), padded, space=vd.Space.tokens(7, more), fill=0)
    assert torch.equal(short.draw_ids, long.draw_ids)
