"""Metrics that ferret, Xplique, pytorch-grad-cam, OpenXAI and AXE have, against their formulas."""

import numpy as np
import pandas as pd
import pytest
import torch

import veridical as vd
from tests.reference import everyday as theirs
from tests.reference.metric_cases import image_task, linear_task, numbers

V = 12
MASKS = numbers("masks", 6, V) > 0.4
MAPS = numbers("maps", 6, V)


def agree(got, want):
    np.testing.assert_allclose(got.values.numpy(), want, atol=1e-5)


@pytest.mark.parametrize("k", [None, 5])
@pytest.mark.parametrize(("name", "formula"), [("iou", theirs.token_iou), ("token_f1", theirs.token_f1)])
def test_overlap_with_a_rationale_is_ferrets(name, formula, k):
    got = vd.score(name, linear_task(6, V, masks=MASKS), MAPS, k=k)
    rows = zip(MAPS.numpy(), MASKS.numpy(), strict=True)
    agree(got, [formula(e, mask, k or mask.sum()) for e, mask in rows])


def test_auprc_is_ferrets_and_ties_come_together():
    task, maps = linear_task(6, V, masks=MASKS), MAPS.clone()
    maps[1] = maps[1].round()
    want = [theirs.auprc(e, mask) for e, mask in zip(maps.numpy(), MASKS.numpy(), strict=True)]
    agree(vd.score("auprc", task, maps), want)
    flat = vd.score("auprc", task, torch.ones(6, V))
    agree(flat, (1 + MASKS.double().mean(1)).numpy() / 2)  # a line from (0, 1) to (1, share marked)
    assert sum(flat.flagged.values()) == 6


@pytest.mark.parametrize("name", ["iou", "token_f1", "auprc"])
def test_a_map_on_the_marks_scores_1_and_an_empty_mask_nothing(name):
    masks = MASKS.clone()
    masks[2] = False
    scores = vd.score(name, linear_task(6, V, masks=masks), MASKS + 0.01 * MAPS)
    assert scores.values[2].isnan()
    agree(scores, [1, 1, np.nan, 1, 1, 1])


def confidence(task, masks):
    """Probabilities of the explained class before and after inputs are multiplied by masks."""
    pixels = masks.reshape(len(task), 1, *task.inputs.shape[2:])
    both = [task.model(x).softmax(-1) for x in (task.inputs, task.inputs * pixels)]
    return [p.gather(1, task.targets[:, None])[:, 0].detach().numpy() for p in both]


@pytest.mark.parametrize("name", ["average_drop", "average_increase", "average_gain"])
def test_confidence_under_the_map_is_xpliques(name):
    task = image_task(8)
    maps = numbers("pixels", 8, 64)
    masks = torch.tensor(np.array([theirs.stretched(e) for e in maps.numpy()]))
    want = [getattr(theirs, name)(a, b) for a, b in zip(*confidence(task, masks), strict=True)]
    got = vd.score(name, task, maps)
    agree(got, want)
    assert got.values.max() > 0
    assert got.cost.forward == 8


def test_adcc_is_that_of_its_authors():
    task = image_task(8)
    first = vd.explain("saliency", task).values.numpy()
    masks = torch.tensor(np.array([theirs.stretched(e) for e in first]))
    under = task.inputs * masks.reshape(8, 1, 8, 8)
    again = vd.explain("saliency", vd.Task(task.model, under, targets=task.targets)).values.numpy()
    rows = zip(masks.numpy(), map(theirs.stretched, again), *confidence(task, masks), strict=True)
    agree(vd.score("adcc", task, "saliency"), [theirs.adcc(*row) for row in rows])


def test_confidence_is_not_asked_of_token_ids_and_regressions():
    text = vd.Task(torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Flatten()), torch.tensor([[1, 2]]))
    for task, why in (
        (text, "image, series, table"),
        (linear_task(outputs=1, head="regression"), "probabilities"),
    ):
        with pytest.raises(vd.errors.NotApplicableError, match=why):
            vd.score("average_drop", task, "random")


def test_axe_is_that_of_its_authors():
    train = numbers("train", 80, 5)
    train = (train - train.mean(0)) / train.std(0, correction=0)
    task = linear_task(train=train)
    maps = numbers("maps", 6, 5)
    predicted = task.model(train).argmax(1).numpy()
    want = [
        theirs.axe(maps[i].numpy(), task.inputs[i].numpy(), train.numpy(), predicted, task.predictions[i], 5)
        for i in range(6)
    ]
    got = vd.score("axe", task, maps)
    agree(got, want)
    assert 0 < got.mean() < 1


def test_axe_leaves_the_row_itself_out_and_takes_missing_values_and_categories():
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": pd.Categorical(rng.choice(["a", "b"], 90)), "n": rng.normal(size=90)})
    frame["hole"] = np.where(rng.random(90) < 0.3, np.nan, rng.normal(size=90))
    state = frame["kind"] == "b"
    model = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype").fit(frame, state)
    task = vd.Task(model, frame[:8], train=frame)
    right = torch.tensor([[3.0, 2.0, 1.0]]).repeat(8, 1)
    assert vd.score("axe", task, right).values.min() == 1
    assert vd.score("axe", task, -right + 4).mean() < 1


def test_the_gap_between_groups_is_a_difference_of_means():
    task = image_task(8)
    scores = vd.score("average_drop", task, "saliency")
    found = vd.metrics.group_gap(scores, ["f"] * 5 + ["m"] * 3).set_index("group")
    gap = float(scores.values[:5].mean() - scores.values[5:].mean())
    assert found.loc["f", "gap"] == pytest.approx(gap)
    assert found.loc["m", "gap"] == pytest.approx(-gap)
    assert found.loc["f", "low"] < gap < found.loc["f", "high"]
    with pytest.raises(vd.errors.ShapeError, match="one for each of 8 samples"):
        vd.metrics.group_gap(scores, ["f"])
