"""Everything a caller can get wrong, and the sentence that says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Convolution, mlp
from veridical.errors import (
    InputError,
    NotApplicableError,
    ShapeError,
    VeridicalWarning,
)

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


# --- NaN and infinity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite(bad: float) -> None:
    rows = X.clone()
    rows[[1, 4], 2] = bad
    with pytest.raises(InputError, match=r"inputs has NaN or infinite values in 2 rows \(first: \[1, 4\]\)"):
        vd.Task(mlp(), rows)
    with pytest.raises(InputError, match="train has NaN or infinite values"):
        vd.Task(mlp(), X, train=rows)


# --- shapes -----------------------------------------------------------------------------------------------


def test_a_single_sample_works_and_a_forgotten_axis_is_explained() -> None:
    task = vd.Task(mlp(), X[:1])
    scores = vd.score("pixel_flipping", task, "saliency")
    assert len(scores) == 1
    assert np.isnan(scores.ci()[0])
    assert "nan" in repr(scores)
    with pytest.raises(ShapeError, match=r"inputs has shape \(4,\); expected \(samples"):
        vd.Task(mlp(), X[0])
    with pytest.raises(ShapeError, match=r"does not run on one row of shape \(1, 8, 8\).*inputs\[None\]"):
        vd.Task(Convolution().eval(), torch.randn(1, 8, 8))


def test_integer_inputs() -> None:
    with pytest.raises(ShapeError, match=r"inputs are torch.uint8.*pass inputs.float\(\)"):
        vd.Task(Convolution().eval(), torch.zeros(3, 1, 8, 8, dtype=torch.uint8))

    class Casting(Convolution):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    task = vd.Task(Casting().eval(), torch.ones(3, 1, 8, 8, dtype=torch.int64))
    with pytest.raises(
        NotApplicableError, match=r"gradient.*inputs are torch.int64; pass inputs.float\(\).*These do:"
    ):
        vd.explain("gradient", task)
    assert vd.explain("occlusion", task).values.shape == (3, 64)


# --- classes ----------------------------------------------------------------------------------------------


def test_targets_of_another_kind() -> None:
    with pytest.raises(InputError, match="targets are class indices"):
        vd.Task(mlp(), X, targets=[0.5] * 6)
    with pytest.raises(ShapeError, match=r"targets have shape \(2,\), expected \(6,\)"):
        vd.Task(mlp(), X, targets=[0, 1])


# --- models -----------------------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_asked_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.9), nn.Linear(8, 3)).train()
    with pytest.warns(VeridicalWarning, match="training mode, where dropout or batch normalisation"):
        task = vd.Task(model, X)
    assert torch.equal(task.predictor.outputs(X), task.predictor.outputs(X))
    assert model.training
    assert model[1].training


def test_a_model_on_another_device() -> None:
    with pytest.raises(
        InputError, match=r"lies on cpu and device=cuda was asked for; move it with model.to\('cuda'\)"
    ):
        vd.Task(mlp(), X, device="cuda")
    with pytest.raises(InputError, match="meta device and has no weights"):
        vd.Task(mlp().to("meta"), X)
    split = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))
    with pytest.raises(InputError, match="lie on several devices"):
        vd.Task(split, X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_works_and_warns(dtype: torch.dtype) -> None:
    with pytest.warns(VeridicalWarning, match=r"about three digits.*model.float\(\)"):
        task = vd.Task(mlp().to(dtype), X)
    assert task.inputs.dtype == dtype
    for fill in ("zero", "uniform_noise"):
        scores = vd.score("pixel_flipping", task.with_fill(fill), "saliency")
        assert bool(torch.isfinite(scores.values).all())


# --- names and forms --------------------------------------------------------------------------------------


def test_several_inputs_explained_jointly() -> None:
    for several in ((X, X), [X, X], {"a": X, "b": X}):
        with pytest.raises(InputError, match=r"of 2 things; a task explains one tensor.*side=.*from_parts"):
            vd.Task(mlp(), several)


def test_a_users_function_cannot_change_the_inputs() -> None:
    given = X.clone()
    task = vd.Task(mlp(), given)

    def rude(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs.requires_grad_(True)
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs)
        inputs.detach().zero_()
        return slope

    vd.explain(rude, task)
    assert torch.equal(given, X)
    assert not task.inputs.requires_grad


class Exploding(vd.Explainer):
    name = "exploding"

    def attribute(self, task, context):
        maps = task.inputs.clone()
        maps[1, 0] = torch.inf
        return maps


def task_of(model: nn.Module | None = None) -> vd.Task:
    torch.manual_seed(0)
    return vd.Task(model or nn.Linear(6, 3), torch.rand(5, 6) + 0.1, train=torch.rand(4, 6), fill=0.0)


@pytest.mark.parametrize("name", ["max_sensitivity", "consistency", "sufficiency", "random_logit", "mprt"])
def test_a_map_that_is_infinite_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"in samples \[1\]"):
        vd.score(name, task_of(), Exploding())
    with pytest.raises(InputError, match="infinite"):
        vd.explain(Exploding(), task_of())
