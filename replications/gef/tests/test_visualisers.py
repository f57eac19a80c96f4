"""Pictures on pixels and on Fourier coefficients raise their class, and each class is by itself."""

import pytest
import torch

import veridical as vd
from replications.gef.visualisers import METHODS
from veridical.gef import class_task
from veridical.testing import tiny_task


@pytest.mark.parametrize("method", ["deep_viz", "fourier"])
def test_pictures_raise_their_class_one_by_one_as_in_a_batch(method: str) -> None:
    task = vd.tasks.load("digits")
    on = class_task(task)
    found = METHODS[method](steps=50)(on, vd.core.Key(0))
    images, classes = found.maps(), found.targets
    assert float((task.predictor.outputs(images).argmax(-1) == classes).double().mean()) >= 0.9
    assert task.train is not None
    assert float(task.train.min()) - 1e-5 <= float(images.min())
    assert float(images.max()) <= float(task.train.max()) + 1e-5
    small = class_task(tiny_task("image", 40))
    explainer = METHODS[method](steps=6)
    whole = explainer(small, vd.core.Key(2)).values
    alone = explainer(small[:1], vd.core.Key(2)).values
    assert torch.allclose(whole[:1], alone, atol=1e-9)
