"""A task refuses when its model changed, whatever holds the change, and only then."""

from __future__ import annotations

import functools
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.errors import ModelChangedError, NotApplicableError


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Holding(nn.Module):
    """A layer, a buffer, a tensor that torch does not list, and whatever else is given."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("offset", torch.zeros(3))
        self.plain = torch.ones(1)
        self.__dict__.update(held)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.plain + self.offset


def grow(model: Any, name: str) -> None:
    """Replace a tensor again and again: the memory of one that is gone is soon that of another."""
    for _ in range(8):
        setattr(model, name, getattr(model, name) + 1)


REAL: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a buffer replaced often": (Holding, lambda m: grow(m, "offset")),
    "a tensor replaced often": (Holding, lambda m: grow(m, "plain")),
    "a deque": (lambda: Holding(held=deque([1.0])), lambda m: m.held.append(2.0)),
    "an object with slots": (lambda: Holding(held=Slotted()), lambda m: setattr(m.held, "scale", 2.0)),
    "a partial's keyword": (
        lambda: Holding(held=functools.partial(print, end=[1.0])),
        lambda m: m.held.keywords["end"].append(2.0),
    ),
    "only one plain attribute": (lambda: nn.Softshrink(), lambda m: setattr(m, "lambd", 0.1)),
}


@pytest.mark.parametrize("what", REAL)
def test_a_change_is_noticed_wherever_it_is(what: str) -> None:
    make, change = REAL[what]
    model = make()
    task = vd.Task(model, torch.rand(6, 4))
    _ = task.outputs
    change(model)
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_a_network_inside_a_partial_function_is_noticed() -> None:
    net = mlp()
    task = vd.Task(functools.partial(lambda inner, x: inner(x), net), torch.rand(6, 4))
    _ = task.outputs
    with torch.no_grad():
        next(net.parameters()).mul_(2)
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_the_last_step_of_a_pipeline_fitted_again_is_noticed() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(0).normal(size=(40, 4))
    labels = (rows[:, 0] > 0).astype(int)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    task = vd.Task(model, rows[:6])
    model.predict(rows)
    _ = task.outputs
    model[-1].fit(rows, 1 - labels)
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_a_forest_in_a_pipeline_is_the_same_as_long_as_it_is() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    rows = np.random.default_rng(0).normal(size=(40, 4))
    model = make_pipeline(RandomForestClassifier(5)).fit(rows, (rows[:, 0] > 0).astype(int))
    task = vd.Task(model, rows[:6])
    vd.score("pixel_flipping", task, "kernel_shap")
    model.fit(rows, (rows[:, 1] > 0).astype(int))
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_a_data_frame_that_a_function_reads_is_known_by_its_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    task = vd.Task(lambda x: x * float(frame["a"].sum()), torch.rand(6, 4))
    frame.describe()
    _ = frame["b"], frame.to_numpy(), task.outputs
    frame.loc[0, "a"] = 5.0
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def log_more(model: Any) -> None:
    logging.getLogger("veridical.tests.made.later")
    model.held.isEnabledFor(10)


HARMLESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a logger, when others log": (lambda: Holding(held=logging.getLogger("here")), log_more),
    "random numbers": (lambda: Holding(held=random.Random(0)), lambda m: m.held.gauss(0, 1)),
    "a compiled call": (Holding, lambda m: m.compile(backend="eager")),
    "a backward pass": (Holding, lambda m: m(torch.rand(2, 4)).sum().backward()),
    "flags": (Holding, lambda m: m.requires_grad_(False)),
    "a script": (lambda: torch.jit.trace(mlp(), torch.rand(6, 4)), lambda m: m(torch.rand(2, 4))),
    "a frozen script": (
        lambda: torch.jit.freeze(torch.jit.trace(mlp().eval(), torch.rand(6, 4))),
        lambda m: m(torch.rand(2, 4)),
    ),
    "a graph": (lambda: torch.fx.symbolic_trace(mlp()), lambda m: m(torch.rand(2, 4))),
    "data parallelism": (lambda: nn.DataParallel(mlp()), lambda m: m(torch.rand(2, 4))),
    "compiled": (lambda: torch.compile(mlp(), backend="eager"), lambda m: m(torch.rand(2, 4))),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("what", HARMLESS)
def test_mere_use_is_no_change(what: str) -> None:
    make, use = HARMLESS[what]
    model = make()
    task = vd.Task(model, torch.rand(6, 4))
    before = vd.score("pixel_flipping", task, "gradient").values
    use(model)
    assert torch.equal(vd.score("pixel_flipping", task, "gradient").values, before)


class Lazy(nn.Module):
    """Makes a buffer when it runs for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(3), persistent=False)
        scaled: Tensor = self.linear(x) * self.table
        return scaled


def test_a_buffer_made_by_the_first_call_is_no_change() -> None:
    model = Lazy()
    task = vd.Task(model, torch.rand(6, 4))
    model(torch.rand(2, 4))
    vd.score("pixel_flipping", task, "gradient")
    again = task.refreshed()
    vd.score("pixel_flipping", again, "gradient")
    model.table.mul_(2)
    with pytest.raises(ModelChangedError):
        _ = again.outputs


def test_parameters_without_a_shape_are_refused_with_the_way_out() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(NotApplicableError, match="call the model on a few rows"):
        vd.Task(model, torch.rand(6, 4))
    model(torch.rand(2, 4))
    assert vd.Task(model, torch.rand(6, 4)).outputs.shape == (6, 3)
