"""A score belongs to the model in hand: a model that changed after its task was made is noticed."""

from __future__ import annotations

import pickle
import types
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.errors import ModelChangedError, VeridicalWarning

SCALE = 1.0


class Configured(nn.Module):
    """Its answers depend on things that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = 1.0
        self.config = types.SimpleNamespace(scale=1.0, inner={"heads": [1, 2]})
        self.factors = [1.0]
        self.table = {"scale": 1.0}
        self.numpy = np.float64(1.0)
        self.array = np.ones(1)
        self.plain = torch.ones(1)
        self.ablated: set[int] = set()
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        factor = self.scale * self.config.scale * self.factors[0] * self.table["scale"] * SCALE
        factor = factor * float(self.numpy) * float(self.array[0]) * float(self.plain)
        out = self.linear(x) * factor * (0.5 if self.ablated else 1.0) + self.offset
        return out * len(self.config.inner["heads"])


def replace_layer(model: Configured) -> None:
    model.linear = nn.Linear(4, 3)


CHANGES = {
    "a parameter in place": lambda m: m.linear.weight.data.mul_(2),
    "a parameter under no_grad": lambda m: torch.no_grad()(m.linear.weight.mul_)(2.0),
    "signs through .data": lambda m: m.linear.weight.data.neg_(),
    "a loaded state": lambda m: m.load_state_dict({n: v + 1 for n, v in m.state_dict().items()}),
    "a new parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(3, 4))),
    "a layer": replace_layer,
    "a buffer": lambda m: m.offset.add_(1),
    "a plain attribute": lambda m: setattr(m, "scale", 2.0),
    "a configuration object": lambda m: setattr(m.config, "scale", 2.0),
    "deep in a configuration": lambda m: m.config.inner["heads"].append(3),
    "a list": lambda m: m.factors.__setitem__(0, 2.0),
    "a dictionary": lambda m: m.table.update(scale=2.0),
    "a numpy scalar": lambda m: setattr(m, "numpy", np.float64(2.0)),
    "a numpy array in place": lambda m: m.array.fill(2.0),
    "a tensor attribute": lambda m: m.plain.mul_(2),
    "ablated heads": lambda m: m.ablated.add(3),
    "a hook": lambda m: m.linear.register_forward_hook(lambda _m, _i, out: out * 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_noticed_at_the_next_question(change: str) -> None:
    model = Configured()
    task = vd.Task(model, torch.rand(6, 4))
    maps = vd.explain("gradient", task)
    CHANGES[change](model)
    with pytest.raises(ModelChangedError, match=r"has changed since this task was made.*task\.refreshed"):
        vd.score("pixel_flipping", task, maps)
    with pytest.raises(ModelChangedError):
        vd.explain("gradient", task)
    with pytest.raises(ModelChangedError):
        vd.score(vd.gef.FastGEF(path=(0.1, 0.5, 1.0), draws=1), task, "gradient")
    fresh, again = vd.Task(model, task.inputs), task.refreshed()
    assert torch.equal(again.outputs, fresh.outputs)
    assert torch.equal(again.targets, fresh.targets)
    assert torch.equal(
        vd.score("pixel_flipping", again, "gradient").values,
        vd.score("pixel_flipping", fresh, "gradient").values,
    )


def test_a_global_that_forward_reads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = vd.Task(Configured(), torch.rand(6, 4))
    monkeypatch.setattr("tests.certainty.test_changed_models.SCALE", 2.0)
    globals()["SCALE"] = 2.0
    try:
        with pytest.raises(ModelChangedError, match="forward"):
            _ = task.outputs
    finally:
        globals()["SCALE"] = 1.0


def test_a_network_behind_a_function_is_noticed() -> None:
    net = nn.Linear(4, 3)
    task = vd.Task(lambda x: net(x), torch.rand(6, 4))
    _ = task.outputs
    with torch.no_grad():
        net.weight.zero_()
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_an_estimator_that_is_fitted_again_is_noticed() -> None:
    from sklearn.linear_model import LogisticRegression

    rows, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    model = LogisticRegression().fit(rows, labels)
    task = vd.Task(model, torch.as_tensor(rows[:6]))
    _ = task.outputs
    model.fit(rows, (rows[:, 0] > 0).astype(int))
    with pytest.raises(ModelChangedError):
        _ = task.outputs


def test_scores_while_training_are_those_of_a_fresh_task() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.rand(64, 4), torch.arange(64) % 3
    task = vd.Task(model, x[:8])
    before = vd.score("pixel_flipping", task, "gradient").mean()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    with pytest.raises(ModelChangedError):
        vd.score("pixel_flipping", task, "gradient")
    after = vd.score("pixel_flipping", task.refreshed(), "gradient").mean()
    assert after == vd.score("pixel_flipping", vd.Task(model, x[:8]), "gradient").mean()
    assert after != before


def test_given_targets_stay_when_a_task_is_refreshed() -> None:
    model = nn.Linear(4, 3)
    task = vd.Task(model, torch.rand(6, 4), targets=[2] * 6)
    with torch.no_grad():
        model.weight.mul_(-1)
    assert task.refreshed().targets.tolist() == [2] * 6
    chosen = vd.Task(model, torch.rand(6, 4)).with_targets([1] * 6)
    assert chosen.refreshed().targets.tolist() == [1] * 6


def test_training_mode_changes_no_answer_and_is_said_once() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    task = vd.Task(model, torch.rand(6, 4))
    before = vd.score("pixel_flipping", task, "gradient").values
    model.train()
    with pytest.warns(VeridicalWarning, match="training mode after the task was made"):
        assert torch.equal(vd.score("pixel_flipping", task, "gradient").values, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vd.score("pixel_flipping", task, "gradient")
    assert model.training


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
    task = vd.Task(model, torch.rand(6, 4))
    model(torch.rand(3, 4))
    model(torch.rand(3, 4))
    vd.score("pixel_flipping", task, "gradient")
    assert model.calls == 3
    model.linear.weight_g.data.mul_(2)
    with pytest.raises(ModelChangedError):
        vd.score("pixel_flipping", task, "gradient")


def test_a_task_that_travels_watches_the_model_it_arrives_with() -> None:
    task = pickle.loads(pickle.dumps(vd.Task(nn.Linear(4, 3), torch.rand(6, 4))))
    vd.score("pixel_flipping", task, "gradient")
    with torch.no_grad():
        task.model.weight.mul_(2)
    with pytest.raises(ModelChangedError):
        vd.score("pixel_flipping", task, "gradient")
