"""What a recording reads by its address: none of it is given back, moved or changed without notice."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import veridical as vd
from tests.address_tape import AddressTape
from veridical import constants, deferred, replays
from veridical.constants import counting
from veridical.explainers import registry
from veridical.places import parts_and_places
from veridical.recorded import recorded
from veridical.replays import AFTER, Recording
from veridical.testing import MODALITIES, tiny_task
from veridical.weights import WeightView

RECORDABLE = [n for n in registry if type(registry.make(n)).__dict__.get("recordable", False)]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[AddressTape]]:
    """A CPU of which passes are recorded, and at which nobody looks, as if it were a GPU."""
    AddressTape.made, AddressTape.played = [], 0
    monkeypatch.setitem(replays.RECORDERS, "cpu", AddressTape)
    kinds = set(deferred.AT_ONCE)
    deferred.AT_ONCE.clear()
    yield AddressTape
    deferred.AT_ONCE.update(kinds)


class Net(nn.Module):
    """Two layers of one size, and a few things by which a model may be changed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.last = (nn.Linear(16, out, bias=False) for out in (16, 16, 3))
        self.drop = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.drop(self.b(self.a(x).relu()).relu())) * self.scale
        return answer


def table(model: nn.Module | None = None, **settings: Any) -> vd.Task:
    rows = torch.randn(6, 16, generator=torch.Generator().manual_seed(1))
    return vd.Task(model or Net().eval(), rows, targets=0, **settings)


def recordings(task: vd.Task) -> list[Recording]:
    return [each for each in task.predictor.replays._known.values() if isinstance(each, Recording)]


def asked_often(task: vd.Task) -> Tensor:
    for _ in range(AFTER + 2):
        answer = task.predictor.outputs(task.inputs)
    return answer


@pytest.mark.parametrize("kind", MODALITIES)
def test_shared_constants_stay_for_as_long_as_they_are_read(kind: str, tape: type[AddressTape]) -> None:
    task = tiny_task(kind)
    plain = task.with_plan(vd.Plan(replay=False))
    for name in RECORDABLE:
        if registry.make(name).why_not(task) is not None:
            continue
        wanted = vd.explain(name, plain)
        for _ in range(AFTER + 1):
            vd.explain(name, task)
        assert tape.made, name
        # as when others have asked for sixty-four more
        constants._constant.cache_clear()
        constants._counting.cache_clear()
        others = [torch.full((size,), 7.0) for size in range(1, 40) for _ in range(10)]
        assert all(not place.storage.expired() for made in tape.made for place in made.places), name
        again = vd.explain(name, task)
        assert torch.equal(again.values, wanted.values), name
        assert again.cost == wanted.cost
        assert others
        tape.made.clear()


def test_a_counted_constant_is_the_recordings_too(tape: type[AddressTape]) -> None:
    task = table()
    for turn in range(AFTER + 3):
        (found,) = recorded(task, "counted", lambda of: (of.inputs * counting(16, of.device),))
        assert torch.equal(found, task.inputs * torch.arange(16))
        if turn > AFTER:
            constants._counting.cache_clear()
    assert tape.played == 3


def test_a_place_that_stands_for_another_weight_is_another_pass(tape: type[AddressTape]) -> None:
    task = table()
    weights = torch.randn(16, 16)
    for name in (*["a.weight"] * (AFTER + 2), "b.weight"):
        world = task.with_module(WeightView(task.model, {name: weights}, copied=False))
        wanted = functional_call(task.model, {name: weights}, (task.inputs,))
        assert torch.equal(world.predictor.outputs(task.inputs), wanted), name
    assert tape.played == 2


def transposed(model: Net) -> None:
    model.a.weight.data = model.a.weight.data.t()


def rescaled(model: Net) -> None:
    model.scale = 2.0


def rewritten(model: Net) -> None:
    model.forward = lambda x: x[:, :3]  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [transposed, rescaled, rewritten])
def test_a_model_that_was_changed_is_noticed(change: Callable[[Net], None], tape: type[AddressTape]) -> None:
    model = Net().eval()
    task = table(model)
    before = asked_often(task)
    assert recordings(task)
    change(model)
    with torch.no_grad():
        now = model(task.inputs)
    assert not torch.equal(now, before)
    assert torch.equal(task.predictor.outputs(task.inputs), now)


def test_training_mode_within_a_session_is_noticed(tape: type[AddressTape]) -> None:
    task = table()
    with task.session():
        before = asked_often(task)
        task.model.train()
        assert not torch.equal(task.predictor.outputs(task.inputs), before)


def test_a_layer_that_runs_once_more_is_noticed(tape: type[AddressTape]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()
    task = table(model)
    asked_often(task)
    model.append(model[0])
    with torch.no_grad():
        assert torch.equal(task.predictor.outputs(task.inputs), model(task.inputs))


class Listed(Net):
    """A model with a list of tensors, of which torch knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = [torch.ones(3)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factors[0]


def test_a_list_of_tensors_is_not_recorded(tape: type[AddressTape]) -> None:
    model = Listed().eval()
    task = table(model)
    before = asked_often(task)
    model.factors[0] = torch.full((3,), 3.0)
    assert torch.equal(task.predictor.outputs(task.inputs), 3 * before)
    assert not tape.made


def test_a_model_on_several_devices_is_not_recorded(tape: type[AddressTape]) -> None:
    model = Net().eval()
    model.register_buffer("elsewhere", torch.ones(3, device="meta"))
    asked_often(table(model))
    assert not tape.made
    assert parts_and_places(nn.DataParallel(Net())) is None


class Counting(Net):
    """A model that counts its calls, and answers accordingly."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + self.calls


def test_a_model_that_remembers_runs_itself(tape: type[AddressTape]) -> None:
    task = table(Counting().eval())
    answers = [task.predictor.outputs(task.inputs)[0, 0] for _ in range(AFTER + 4)]
    assert torch.allclose(torch.stack(answers).diff(), torch.ones(AFTER + 3))
    assert not tape.made


class Drawing(Net):
    """A model whose answers are drawn by Python."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + random.random()


def test_what_is_drawn_outside_of_torch_is_not_kept(tape: type[AddressTape]) -> None:
    task = table(Drawing().eval())
    answers = {float(task.predictor.outputs(task.inputs)[0, 0]) for _ in range(AFTER + 6)}
    assert len(answers) == AFTER + 6
    assert not recordings(task)


class Spread(Net):
    """A model with a sparse buffer, as those of graphs have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("near", torch.eye(16).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        near: Any = self.near
        return super().forward((near @ x.T).T)


def test_a_tensor_without_a_place_is_no_error(tape: type[AddressTape]) -> None:
    model = Spread().eval()
    assert parts_and_places(model) is None
    assert torch.isfinite(asked_often(table(model))).all()
    assert not tape.made


def test_recordings_are_outside_of_graphs_of_gradients(tape: type[AddressTape]) -> None:
    task = table()
    followed = task.inputs.clone().requires_grad_()
    for _ in range(AFTER + 4):
        vd.explain("input_x_gradient", task.with_inputs(followed))
    assert recordings(task)
    for made in recordings(task):
        assert not any(each.requires_grad for each in (*made.given, *made.answer))


def test_whoever_counts_operations_sees_them_all(tape: type[AddressTape]) -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    task = table()
    asked_often(task)
    played = tape.played
    with Seen():
        task.predictor.outputs(task.inputs)
    assert tape.played == played > 0


def test_heads_differ(tape: type[AddressTape]) -> None:
    task = table()
    other = task._derive(head="regression")
    for each in (task, other) * (AFTER + 2):
        (found,) = recorded(each, "chances", lambda of: (of.probabilities(of.inputs),))
        assert torch.equal(found, each.probabilities(each.inputs))


def test_models_that_came_and_went_are_not_kept(tape: type[AddressTape]) -> None:
    task, models = table(), []
    for _ in range(4):
        model = Net().eval()
        models.append(weakref.ref(model))
        world = task.with_module(model)
        asked_often(world)
        assert recordings(world)
        # whose place, and those of whose tensors, are those of a model that is no more
        made = recordings(world)[-1]
        del model, world
        gc.collect()
        assert models[-1]() is None
        assert made.parts[0]() is None


def test_many_threads_make_room_at_once(tape: type[AddressTape]) -> None:
    task = table()
    wrong: list[BaseException] = []

    def work(own: int) -> None:
        try:
            for turn in range(300):
                rows = task.inputs[: 1 + turn % 6]
                task.predictor.replays(
                    (own, turn), task.model, (rows,), lambda x: (x,), partial(tuple, [rows])
                )
        except BaseException as error:
            wrong.append(error)

    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(often)
    assert not wrong


def test_a_failure_elsewhere_meets_nobody_who_waits(tape: type[AddressTape]) -> None:
    task = table()
    for _ in range(AFTER):
        task.predictor.outputs(task.inputs)
    own = task.predictor.replays
    del replays.RECORDERS["cpu"]
    answer, made = own._recorded(
        (task.inputs,), lambda x: (2 * x,), lambda: (2 * task.inputs,), "here", [], None
    )
    assert torch.equal(answer[0], 2 * task.inputs)
    assert made is None
    replays.RECORDERS["cpu"] = AddressTape
