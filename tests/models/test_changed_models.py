"""A score belongs to the model as it was: the snapshot answers, a stale task refuses."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.errors import ModelChangedError, NotApplicableError

X = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))


class Configured(nn.Module):
    """Its answers depend on things that are no tensors, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.config = types.SimpleNamespace(scale=1.0)
        self.factors = [1.0]
        self.array = np.ones(1)
        self.plain = torch.ones(1)
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        factor = self.config.scale * self.factors[0] * float(self.array[0]) * float(self.plain)
        out: Tensor = self.linear(x) * factor + self.offset
        return out


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a parameter under no_grad": lambda m: torch.no_grad()(m.linear.weight.mul_)(2.0),
    "a loaded state": lambda m: m.load_state_dict({n: v + 1 for n, v in m.state_dict().items()}),
    "a new parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(3, 4))),
    "another parameter": lambda m: m.register_parameter("more", nn.Parameter(torch.ones(1))),
    "a layer": lambda m: setattr(m, "linear", nn.Linear(4, 3)),
    "a layer taken away": lambda m: setattr(m, "linear", nn.Identity()),
    "a buffer": lambda m: m.offset.add_(1),
    "a buffer replaced": lambda m: setattr(m, "offset", m.offset + 1),
}
HARMLESS: dict[str, Callable[[Any], Any]] = {
    "a write through .data": lambda m: m.linear.weight.data.neg_(),
    "a configuration": lambda m: setattr(m.config, "scale", 2.0),
    "a list": lambda m: m.factors.__setitem__(0, 2.0),
    "an array": lambda m: m.array.fill(2.0),
    "a tensor that torch does not list": lambda m: m.plain.mul_(2),
    "a hook": lambda m: m.linear.register_forward_hook(lambda _m, _i, out: out * 2),
    "training mode": lambda m: m.train(),
    "flags": lambda m: m.requires_grad_(False),
    "a backward pass": lambda m: m(X).sum().backward(),
    "a compiled call": lambda m: m.compile(backend="eager"),
    "a buffer made by a first call": lambda m: m.register_buffer("table", torch.ones(3), persistent=False),
}


@pytest.mark.parametrize("change", REFUSED)
def test_changed_parameters_and_buffers_are_refused_at_the_next_question(change: str) -> None:
    model = Configured()
    task = vd.Task(model, X)
    maps = vd.explain("gradient", task)
    REFUSED[change](model)
    with pytest.raises(ModelChangedError, match=r"has changed since this task was made.*task\.refreshed"):
        vd.score("pixel_flipping", task, maps)
    for late in (lambda: vd.explain("gradient", task), lambda: task.outputs):
        with pytest.raises(ModelChangedError):
            late()
    with pytest.raises(ModelChangedError):
        vd.score("fast_gef", task, "gradient", path=(0.1, 0.5, 1.0), draws=1)
    if change == "a layer taken away":
        return
    fresh, again = vd.Task(model, X), task.refreshed()
    assert torch.equal(again.outputs, fresh.outputs)
    assert torch.equal(again.targets, fresh.targets)
    scores = [vd.score("pixel_flipping", each, "gradient").values for each in (again, fresh)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("change", HARMLESS)
def test_a_change_that_torch_does_not_show_changes_no_answer(change: str) -> None:
    model = Configured().eval()
    task = vd.Task(model, X)
    before, outputs = vd.score("pixel_flipping", task, "gradient").values, task.outputs
    HARMLESS[change](model)
    assert torch.equal(vd.score("pixel_flipping", task, "gradient").values, before)
    assert torch.equal(task.predictor.outputs(X), outputs)
    assert torch.equal(task.refreshed().outputs, vd.Task(model, X).outputs)


KINDS: dict[str, Callable[[], Any]] = {
    "a script": lambda: torch.jit.trace(mlp(), X),
    "a frozen script": lambda: torch.jit.freeze(torch.jit.trace(mlp().eval(), X)),
    "a graph": lambda: torch.fx.symbolic_trace(mlp()),
    "data parallelism": lambda: nn.DataParallel(mlp()),
    "compiled": lambda: torch.compile(mlp(), backend="eager"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("what", KINDS)
def test_mere_use_is_no_change(what: str) -> None:
    model = KINDS[what]()
    task = vd.Task(model, X)
    before = vd.score("pixel_flipping", task, "gradient").values
    model(X)
    assert torch.equal(vd.score("pixel_flipping", task, "gradient").values, before)


def test_an_estimator_is_copied_and_fitting_it_again_waits_for_a_refreshed_task() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(0).normal(size=(40, 4))
    for last in (LogisticRegression(), RandomForestClassifier(5, random_state=0)):
        model = make_pipeline(StandardScaler(), last).fit(rows, rows[:, 0] > 0)
        task = vd.Task(model, rows[:6], train=rows)
        before = task.outputs
        model.fit(rows, rows[:, 1] > 0)
        assert torch.equal(task.predictor.outputs(task.inputs), before)
        assert torch.equal(task.refreshed().outputs, vd.Task(model, rows[:6], train=rows).outputs)
        assert not torch.equal(task.refreshed().outputs, before)


def test_a_plain_function_runs_as_it_is() -> None:
    net = nn.Linear(4, 3)
    task = vd.Task(lambda x: net(x), X)
    with torch.no_grad():
        net.weight.mul_(2)
    assert torch.equal(task.predictor.outputs(X), net(X))


def test_given_targets_stay_when_a_task_is_refreshed() -> None:
    model = nn.Linear(4, 3)
    task = vd.Task(model, X, targets=[2] * 6)
    with torch.no_grad():
        model.weight.mul_(-1)
    assert task.refreshed().targets.tolist() == [2] * 6
    chosen = vd.Task(model, X).with_targets([1] * 6)
    assert chosen.refreshed().targets.tolist() == [1] * 6


class Remembering(nn.Module):
    """Leaves things behind whenever it runs, none of which it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(4, 3))
        self.calls, self.last = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(x)
        return self.last


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_a_forward_pass_leaves_behind_is_no_change() -> None:
    model = Remembering()
    model(torch.rand(2, 4))
    task = vd.Task(model, X)
    model(torch.rand(3, 4))
    vd.score("pixel_flipping", task, "gradient")
    assert model.calls == 2
    with torch.no_grad():
        model.linear.weight_g.mul_(2)
    with pytest.raises(ModelChangedError):
        vd.score("pixel_flipping", task, "gradient")


def test_a_task_that_travels_watches_the_model_it_arrives_with() -> None:
    task = pickle.loads(pickle.dumps(vd.Task(nn.Linear(4, 3), X)))
    vd.score("pixel_flipping", task, "gradient")
    with torch.no_grad():
        task.model.weight.mul_(2)
    with pytest.raises(ModelChangedError):
        vd.score("pixel_flipping", task, "gradient")


def test_parameters_without_a_shape_are_refused_with_the_way_out() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(NotApplicableError, match="call the model on a few rows"):
        vd.Task(model, X)
    model(torch.rand(2, 4))
    assert vd.Task(model, X).outputs.shape == (6, 3)
