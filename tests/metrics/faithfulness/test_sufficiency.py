"""Sufficiency against its slow rewrite, and what it does without neighbours."""

import numpy as np
import pytest
import torch

from tests.metrics.faithfulness.cases import Crooked, crooked_task, text_task
from tests.reference import faithfulness as slow
from veridical.errors import InputError, NotApplicableError
from veridical.explainers.adapters import FunctionExplainer
from veridical.explainers.gradients import InputXGradient
from veridical.metrics import Sufficiency
from veridical.metrics.base import CONSTANT
from veridical.values.task import Task


def task_with_references(samples=12):
    train = torch.randn(30, 12, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return Task(Crooked(12), crooked_task(samples).inputs, fill=0.0, train=train)


def test_it_equals_its_reference():
    task = task_with_references()
    explainer = InputXGradient()
    got = Sufficiency(neighbours=3)(task, explainer).values.numpy()
    others = Task(task.predictor.model, task.train, fill=0.0)
    maps, theirs = (explainer(t).values.numpy() for t in (task, others))
    predictions = task.predictions.tolist(), others.predictions.tolist()
    args = (maps, predictions[0], theirs, predictions[1])
    np.testing.assert_allclose(got, slow.sufficiency(*args, 3))
    assert not np.allclose(got, slow.sufficiency(*args, 4))
    assert not np.allclose(got, slow.sufficiency(-maps, *args[1:], 3))


def test_samples_pay_for_the_references():
    task = task_with_references()
    assert Sufficiency()(task, InputXGradient()).cost.forward == 12 + 30 + 30
    assert Sufficiency(reference_rows=10)(task, InputXGradient()).cost.forward == 12 + 10 + 10


def test_no_neighbour_is_nan_not_perfect():
    task = task_with_references()
    scores = Sufficiency(radius=0.0)(task, InputXGradient())
    assert scores.values.isnan().all()
    assert scores.flagged == {"no neighbour": 12}
    nothing = FunctionExplainer(lambda model, x, targets: torch.zeros_like(x))
    assert Sufficiency()(task, nothing).flagged == {CONSTANT: 12, "map is zero": 12}
    everyone = Sufficiency(radius=2.0)(task, InputXGradient()).values
    share = torch.bincount(Task(task.predictor.model, task.train).predictions, minlength=3) / 30
    torch.testing.assert_close(everyone, share[task.predictions].double(), atol=1e-7, rtol=0)


def test_refusals():
    with pytest.raises(NotApplicableError, match="reference rows"):
        Sufficiency()(crooked_task(), InputXGradient())
    with pytest.raises(NotApplicableError):
        Sufficiency()(text_task(), InputXGradient())
    with pytest.raises(InputError):
        Sufficiency(neighbours=0)
    with pytest.raises(InputError):
        Sufficiency(radius=3.0)
