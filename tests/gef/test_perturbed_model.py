"""Perturbed models: one draw serves all strengths, and nothing is left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference import gef as weights
from veridical.errors import ModelError, VeridicalWarning

KEY = vd.core.Key(3) / "noise"
PATH = (0.1, 0.5, 1.0)


class OwnWeights(nn.Module):
    """Answers with its very parameter, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer.expand(len(x), -1)


@pytest.mark.parametrize("form", ["fast", "arc", "reference", "jacobian"])
def test_a_perturbed_model_that_moves_on_takes_nothing_back(form: str) -> None:
    """Answers and maps may be the weights themselves: what was read of a model is what it was then."""
    task = vd.Task(OwnWeights(), torch.zeros(5, 3, dtype=torch.float64))
    metric = weights.of_form(form, path=PATH, draws=2, steps=3, normalise=False)
    found = vd.score(metric, task, lambda model, x, targets: model.answer.expand(len(x), -1)).details
    theta = task.model.answer.detach()
    key = vd.core.Key(0) / "gef" / "noise"
    for draw in range(2):
        for z, sigma in enumerate(PATH):
            noisy = weights.noisy(task.model, sigma, key / draw / z)["answer"]
            moved = (noisy - theta)[2].abs().expand(5)
            torch.testing.assert_close(found["model_distortion"][:, draw, z], moved, rtol=1e-5, atol=1e-6)
            if form in ("fast", "arc"):
                # the map is affine in the weights, so its path is as long as the straight line
                length = (noisy - theta).norm().expand(5)
                torch.testing.assert_close(found["explanation_distortion"][:, draw, z], length)


class Bursting(nn.Module):
    """Answers infinity as soon as its weight is not what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        total = (x * self.weight).sum(-1, keepdim=True)
        burst = torch.where((self.weight - 1).abs().max() > 1e-9, torch.inf, 1.0)
        return torch.cat([total, -total], 1) * burst


def test_infinite_answers_under_any_noise_are_no_score_and_no_path() -> None:
    task = vd.Task(Bursting(), torch.rand(5, 4) + 1)
    scores = vd.score(vd.gef.FastGEF(path=PATH, draws=1), task, "random")
    assert scores.flagged == {"answers are not finite": 5}
    with pytest.raises(ModelError, match="NaN or infinity under noise"):
        vd.gef.find_path(task)


def test_weights_that_reach_nothing_are_named() -> None:
    class Deaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :2] * 2

    task = vd.Task(Deaf(), torch.rand(5, 4))
    with pytest.warns(VeridicalWarning, match="weight noise changes no output"):
        scores = vd.score(vd.gef.FastGEF(path=PATH), task, "gradient")
    assert bool(scores.flags["the model does not move"].all())
