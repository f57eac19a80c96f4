"""Worlds that are the same for every method are made once, and what they hold is explained in one call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.metrics import registry
from veridical.metrics.axiomatic import input_invariance
from veridical.metrics.robustness import continuity

METHODS = ("gradient", "saliency", "input_x_gradient", "occlusion")


def images(count: int = 6) -> vd.Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 4))
    x = torch.randn(count, 1, 8, 8)
    return vd.Task(model, x, train=torch.randn(5, 1, 8, 8))


class Weighed(nn.Module):
    """A model with a side input of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, x, weight):
        return self.inner(x) * weight


def rows() -> vd.Task:
    torch.manual_seed(1)
    return vd.Task(Weighed(), torch.randn(9, 5), side=(torch.rand(9, 1) + 0.5,))


def asked(task: vd.Task, run) -> list[int]:
    """Rows of every call of the model."""
    seen: list[int] = []
    hook = task.predictor.model.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    try:
        run()
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("make", [images, rows])
@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize("method", METHODS[:3])
def test_shifted_twins_in_one_call_score_as_apart(make, compensate, method, monkeypatch) -> None:
    metric = registry.make("input_invariance", compensate=compensate, shift=0.7)
    together = vd.score(metric, make(), method)
    monkeypatch.setattr(input_invariance, "_in_one_call", lambda *_: False)
    apart = vd.score(metric, make(), method)
    torch.testing.assert_close(together.values, apart.values, rtol=1e-5, atol=1e-6)
    assert together.cost == apart.cost
    assert together.flags.keys() == apart.flags.keys()


def test_a_wrong_shift_would_show(monkeypatch) -> None:
    """The comparison above can fail: twins that are not compensated are told apart."""
    right = vd.score("input_invariance", images(), "gradient").values
    monkeypatch.setattr(
        input_invariance.CompensatedRows, "forward", lambda self, x, shift, *side: self.module(x, *side)
    )
    wrong = vd.score("input_invariance", images(), "gradient").values
    assert not torch.allclose(right, wrong, atol=1e-3)


def test_what_reads_reference_rows_is_explained_apart() -> None:
    task = images()
    _ = task.outputs
    assert asked(task, lambda: vd.score("input_invariance", task, "gradient")) == [12]
    assert len(asked(task, lambda: vd.score("input_invariance", task, "occlusion"))) > 1


def test_continuity_explains_all_translations_in_one_call() -> None:
    task = images()
    _ = task.outputs
    assert asked(task, lambda: vd.score("continuity", task, "gradient")) == [30]


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_continuity_does_not_depend_on_how_calls_are_cut(times, monkeypatch) -> None:
    whole = vd.score("continuity", images(), "gradient")
    monkeypatch.setattr(continuity, "at_once", lambda *_: times)
    cut = vd.score("continuity", images(), "gradient")
    torch.testing.assert_close(whole.values, cut.values, rtol=1e-6, atol=1e-7)
    assert whole.curve is not None
    assert cut.curve is not None
    torch.testing.assert_close(whole.curve.y, cut.curve.y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "name",
    ["random_logit", "input_invariance", "continuity", "sufficiency", "consistency", "max_sensitivity"],
)
def test_what_is_kept_changes_no_score(name) -> None:
    """Scores on a task that has seen other settings, seeds and methods are those on a fresh one."""
    other = {
        "random_logit": {"draws": 2},
        "input_invariance": {"shift": 2.0},
        "continuity": {"pixels": 2, "steps": 2},
        "sufficiency": {"reference_rows": 3},
        "consistency": {"reference_rows": 3, "top": 1},
        "max_sensitivity": {"draws": 3, "radius": 0.3},
    }[name]
    used = images()
    for settings in (other, {}, other):
        for seed in (0, 1, 0):
            for method in METHODS[:2]:
                here = vd.score(name, used, method, seed=seed, **settings)
                fresh = vd.score(name, images(), method, seed=seed, **settings)
                torch.testing.assert_close(here.values, fresh.values, rtol=0, atol=0, equal_nan=True)
                assert here.cost == fresh.cost
                for what, value in here.details.items():
                    torch.testing.assert_close(value, fresh.details[what], rtol=0, atol=0, equal_nan=True)


def test_writing_into_a_result_changes_no_later_one() -> None:
    task = images()
    first = vd.score("random_logit", task, "gradient")
    kept = first.details["other outputs"].clone()
    first.details["other outputs"].zero_()
    assert torch.equal(vd.score("random_logit", task, "gradient").details["other outputs"], kept)


def test_the_last_is_kept_and_no_other() -> None:
    task, made = images(), []

    def make() -> int:
        made.append(1)
        return len(made)

    asked_for = [task.latest("x", about, make) for about in ("a", "a", "b", "b", "a")]
    assert asked_for == [1, 1, 2, 2, 3]
    assert task[:2].latest("x", "a", make) == 4
