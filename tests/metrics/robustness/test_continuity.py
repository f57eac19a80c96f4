"""Continuity: translations pixel by pixel, rewrites, counts."""

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference import metrics as robustness
from tests.reference.metric_cases import image_task, mlp_task, one_gradient
from veridical.core.space import Space
from veridical.explainers import Gradient
from veridical.metrics import Continuity
from veridical.metrics.robustness.continuity import translated
from veridical.models.predictor import Plan


def test_translation_moves_pixels_and_shows_the_background() -> None:
    images = torch.arange(2 * 2 * 3 * 4).reshape(2, 2, 3, 4).double()
    moved = translated(images, torch.full((1, 2, 3, 4), -1.0, dtype=torch.float64), 2)
    for i in range(2):
        np.testing.assert_array_equal(moved[i], robustness.move_right(images[i].numpy(), 2, -1.0))


def by_hand(task: vd.Task, steps: int, power: int = 1) -> torch.Tensor:
    out = []
    for i, target in enumerate(task.targets.tolist()):
        x = task.inputs[i]
        clean = robustness.rms(one_gradient(task, x, target).sum(0).flatten())
        ratios = []
        for step in range(1, steps + 1):
            near = robustness.move_right(x.numpy(), 2 * step)
            moved = robustness.rms(one_gradient(task, torch.tensor(near), target).sum(0).flatten())
            change = (np.abs(clean - moved) ** power).sum() ** (1 / power)
            ratios.append(change / robustness.norm(x.numpy() - near))
        out.append(max(ratios))
    return torch.tensor(out, dtype=torch.float64)


def assert_by_hand(power: int) -> None:
    task = image_task()
    got = Continuity(steps=3, pixels=2)(task, Gradient()).values
    torch.testing.assert_close(got, by_hand(task, 3, power), rtol=1e-9, atol=1e-12)


def test_agrees_with_the_definition_by_hand() -> None:
    assert_by_hand(1)


def test_another_norm_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_by_hand(2)


def test_counts_plan_curve_and_constant_images() -> None:
    task = image_task(rows=11)
    scores = vd.score("continuity", task, "gradient", steps=3)
    assert (scores.cost.forward, scores.cost.backward) == (4 * 11, 4 * 11)
    assert scores.curve is not None
    assert torch.equal(scores.curve.y.amax(-1), scores.values)
    other = vd.score("continuity", task.with_plan(Plan(rows=64)), "gradient", steps=3)
    torch.testing.assert_close(other.values, scores.values, rtol=1e-9, atol=1e-9)
    blank = vd.score("continuity", task.with_inputs(torch.zeros(11, 2, 8, 8)), "gradient", steps=3)
    assert blank.values.isnan().all()
    assert blank.flags["no translation changes the image"].all()


def test_a_constant_map_is_perfectly_continuous_and_patches_work_too() -> None:
    def even(model, inputs, targets):
        return torch.ones_like(inputs)

    assert vd.score("continuity", image_task(), even).values.tolist() == [0.0] * 4
    patched = image_task(space=Space.patches((2, 8, 8), 2))
    assert (vd.score("continuity", patched, "gradient").values > 0).all()


def test_where_it_does_not_apply() -> None:
    with pytest.raises(vd.errors.NotApplicableError, match="image"):
        vd.score("continuity", mlp_task(), "gradient")
    with pytest.raises(vd.errors.NotApplicableError, match="wide"):
        vd.score("continuity", image_task(), "gradient", steps=8)
