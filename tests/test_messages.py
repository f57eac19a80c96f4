"""What newcomers write that does not fit: it is understood, or a sentence says what fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import veridical as vd
from veridical.errors import InputError, ShapeError, VeridicalWarning

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
NET = nn.Linear(4, 3)
TASK = vd.Task(NET, X)
FITTED = LogisticRegression().fit(X.numpy(), Y.numpy())
IMAGES = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))
CNN = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()

MESSAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "setting of an explainer": (
        lambda: vd.explain("integrated_gradients", TASK, step=5),
        r"'integrated_gradients' does not take 'step'; did you mean 'steps'\? It takes: steps, base",
    ),
    "setting of a metric": (
        lambda: vd.score("pixel_flipping", TASK, "saliency", step=5),
        r"metric 'pixel_flipping' does not take 'step'; did you mean 'steps'\?.*per_step",
    ),
    "setting of a class": (
        lambda: vd.explain(vd.explainers.Occlusion, TASK, windw=3),
        r"Occlusion does not take 'windw'; did you mean 'window'\?",
    ),
    "setting of a metric's class": (
        lambda: vd.score(vd.metrics.Deletion, TASK, "saliency", stps=3),
        r"Deletion does not take 'stps'; did you mean 'steps'\?",
    ),
    "keyword of a task": (lambda: vd.Task(NET, X, target=1), r"Task does not take 'target'.*'targets'\?"),
    "keyword of an audit": (
        lambda: vd.audit(TASK, explainer=["saliency"]),
        r"audit does not take 'explainer'; did you mean 'explainers'\?",
    ),
    "keyword of a table": (
        lambda: vd.evaluate(TASK, ["saliency"], metric=["sparseness"]),
        r"evaluate does not take 'metric'; did you mean 'metrics'\?",
    ),
    "no task": (
        lambda: vd.explain("lime", draws=5),
        r"explain cannot be called so: missing.*'task'",
    ),
    "audit of a model": (lambda: vd.audit(NET, X), r"task = vd.Task\(model, inputs\)\), got Linear"),
    "map of a model": (lambda: vd.explain("saliency", NET), r"task = vd.Task\(model, inputs\)"),
    "columns": (lambda: vd.Task(NET, torch.randn(5, 6)), "takes 4 columns, inputs have 6"),
    "columns of an estimator": (lambda: vd.Task(FITTED, torch.randn(5, 6)), "takes 4 columns, inputs have 6"),
    "channels last": (
        lambda: vd.Task(CNN, IMAGES.permute(0, 2, 3, 1)),
        r"takes 3 channels, which come last here: pass inputs.permute\(0, 3, 1, 2\)",
    ),
    "bytes": (lambda: vd.Task(CNN, (IMAGES * 255).byte()), "inputs / 255 if it was trained on 0 to 1"),
    "names of classes": (lambda: vd.Task(NET, X, labels=np.array(["a", "b"] * 20)), r"are names \('a'\)"),
    "one-hot labels": (lambda: vd.Task(NET, X, labels=nn.functional.one_hot(Y)), r"labels.argmax\(1\)"),
    "loader of dicts": (
        lambda: vd.Task(NET, DataLoader([{"x": row} for row in X])),
        r"inputs is a DataLoader whose batches are not a tensor of rows",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", MESSAGES)
def test_the_message_says_what_fits(mistake: str) -> None:
    call, words = MESSAGES[mistake]
    with pytest.raises(InputError, match=words):
        call()


class Stream(torch.utils.data.IterableDataset):
    """Rows one by one, without a length."""

    def __iter__(self) -> Any:
        return iter(X)


class Pairs(Dataset):
    """Rows with labels that are plain numbers."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index], int(Y[index])


@pytest.mark.parametrize(
    ("given", "labelled"),
    [
        (DataLoader(TensorDataset(X, Y), batch_size=7), True),
        (TensorDataset(X, Y), True),
        (Pairs(), True),
        (TensorDataset(X), False),
        (Stream(), False),
        (DataLoader(X, batch_size=7), False),
    ],
)
def test_loaders_and_datasets_are_inputs(given: Any, labelled: bool) -> None:
    task = vd.Task(NET, given, train=given)
    assert torch.equal(task.inputs, X)
    assert torch.equal(task.train, X)
    for labels in (task.labels, task.train_labels):
        assert (labels is not None and torch.equal(labels, Y)) if labelled else labels is None
    assert torch.equal(vd.Task(NET, given, labels=Y.flip(0)).labels, Y.flip(0))


def test_of_a_large_loader_the_first_samples_are_taken() -> None:
    rows = torch.randn(1100, 4)
    with pytest.warns(VeridicalWarning, match="inputs are the first 1,024 samples of the TensorDataset"):
        task = vd.Task(NET, TensorDataset(rows))
    assert torch.equal(task.inputs, rows[:1024])


def test_multi_hot_labels_make_a_multilabel_task() -> None:
    labels = (torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) > 0.5).long()
    with pytest.warns(VeridicalWarning, match="several outputs may hold: head='multilabel'"):
        task = vd.Task(NET, X, labels=labels)
    assert task.head == "multilabel"
    assert vd.Task(NET, X, labels=labels, head="multilabel").head == "multilabel"


def test_pixels_up_to_255_are_said_and_stay() -> None:
    with pytest.warns(VeridicalWarning, match=r"run up to 2\d\d .* inputs / 255"):
        task = vd.Task(CNN, IMAGES * 255)
    assert torch.equal(task.inputs, IMAGES * 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vd.Task(CNN, IMAGES)


def test_a_call_that_does_not_fit_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match="does not take"):
        vd.Task(NET, X, target=1)
    with pytest.raises(ShapeError):
        vd.Task(NET, X[:, :2])
