"""Passes played again: the same answers and counts, and never where a recording would not tell all."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical import constants, replays
from veridical.constants import counting
from veridical.deferred import look_later
from veridical.places import parts_and_places
from veridical.recorded import recorded
from veridical.recording import UnrecordableError, recording
from veridical.replays import AFTER, Recording, Replays, no_further
from veridical.rng import Key
from veridical.testing import MODALITIES, tiny_task
from veridical.weights import Layout, WeightView, parameters

ANSWER = tuple[Tensor, ...]


class Tape:
    """Records on a CPU: what is played is the very function, on the tensors it was recorded with."""

    played = 0
    made = 0
    waits = fails = False
    size = 0
    off = 0.0
    meter: Any = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def weighed(self, run: Callable[[], ANSWER]) -> tuple[ANSWER, int | None]:
        return run(), None if Tape.waits else Tape.size

    def record(self, run: Callable[[], ANSWER]) -> tuple[ANSWER, Callable[[], None]]:
        if Tape.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        Tape.made += 1
        answer, meter = tuple(part.detach().clone() for part in run()), Tape.meter

        def again() -> None:
            Tape.played += 1
            asked = meter.cost
            with recording():
                for own, part in zip(answer, run(), strict=True):
                    own.copy_(part.detach() + Tape.off)
            meter.reset(asked)  # a GPU plays without calling anything that counts

        return answer, again


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Tape]]:
    """On a CPU, too, passes are recorded."""
    Tape.played = Tape.made = Tape.size = 0
    Tape.waits = Tape.fails = False
    Tape.off = 0.0
    monkeypatch.setitem(replays.RECORDERS, "cpu", Tape)
    recorded = Replays._recorded

    def noted(self: Replays, *args: Any) -> Any:
        Tape.meter = self.meter
        return recorded(self, *args)

    monkeypatch.setattr(Replays, "_recorded", noted)
    return Tape


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    ).eval()


def digits(model: nn.Module | None = None, **settings: Any) -> vd.Task:
    rows = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return vd.Task(model or network(), rows, train=rows.flip(0), **settings)


def known(task: vd.Task) -> list[Any]:
    return list(task.predictor.replays._known.values())


@pytest.mark.parametrize("kind", MODALITIES)
def test_maps_are_those_of_the_pass(kind: str, tape: type[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    from veridical.explainers import registry

    task = tiny_task(kind)
    worked_on = 0
    for name in registry:
        explainer = registry.make(name)
        if not type(explainer).__dict__.get("recordable", False) or explainer.why_not(task) is not None:
            continue
        worlds = [task, task.with_targets((task.targets + 1) % task.n_outputs)] * (AFTER + 2)
        if task.inputs.is_floating_point():
            worlds = [each.with_inputs(each.inputs * (1 + 0.01 * i)) for i, each in enumerate(worlds)]
        before = Tape.played
        ours = [vd.explain(explainer, each) for each in worlds]
        assert Tape.played > before, name
        with monkeypatch.context() as plain:
            plain.delitem(replays.RECORDERS, "cpu")
            theirs = [vd.explain(explainer, each) for each in worlds]
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.values, other.values), name
            assert one.cost == other.cost, name
        worked_on += 1
    assert worked_on >= 3


@pytest.mark.parametrize("name", ["completeness", "pixel_flipping", "road", "gef", "mprt", "sufficiency"])
def test_scores_are_those_of_the_pass(name: str, tape: type[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    task, ours = digits(), []
    for _ in range(AFTER + 2):
        ours.append(vd.score(name, task, "saliency"))
    assert Tape.played > 0
    monkeypatch.delitem(replays.RECORDERS, "cpu")
    plain = vd.score(name, digits(), "saliency")
    for each in ours:
        assert torch.equal(each.values, plain.values)
        assert each.cost == plain.cost


def test_a_pass_is_recorded_when_it_has_come_often_enough(tape: type[Tape]) -> None:
    task = digits()
    counts = []
    for _ in range(AFTER + 3):
        vd.explain("gradient", task)
        counts.append((Tape.made, Tape.played))
    # the last of making one is to play it and compare
    assert counts == [(0, 0)] * AFTER + [(1, 1), (1, 2), (1, 3)]


def test_weights_that_moved_in_their_place_are_read(tape: type[Tape]) -> None:
    task = digits()
    for _ in range(AFTER + 1):
        vd.explain("gradient", task)
    played = Tape.played
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(1.5)
    moved = vd.explain("gradient", task)
    assert Tape.played == played + 1
    assert torch.equal(
        moved.values, vd.explain("gradient", digits(copy.deepcopy(task.model), targets=task.targets)).values
    )


def test_weights_in_another_place_are_another_pass(tape: type[Tape]) -> None:
    model = network()
    task = digits(model)
    for _ in range(AFTER + 1):
        vd.explain("gradient", task)
    played = Tape.played
    last: Any = model[4]
    last.weight = nn.Parameter(-last.weight.detach())
    ours = vd.explain("gradient", task)
    assert Tape.played == played
    assert torch.equal(ours.values, vd.explain("gradient", digits(model, targets=task.targets)).values)


def test_a_view_under_other_weights_is_known_by_them(tape: type[Tape]) -> None:
    task = digits()
    layout = Layout.of(task.model)
    moving = layout.moved(layout.noise(Key(0)), 0.1)
    maps = []
    for turn in range(AFTER + 3):
        layout.moved(layout.noise(Key(turn)), 0.1, moving)
        # another view each time, of weights that lie where the last ones lay
        maps.append(vd.explain("gradient", task.with_module(moving.view())).values)
    assert Tape.made == 1
    assert Tape.played == 3
    for turn, ours in enumerate(maps):
        noisy = layout.moved(layout.noise(Key(turn)), 0.1).tensors()
        alone = task.with_module(WeightView(task.model, noisy))
        assert torch.equal(ours, vd.explain("gradient", alone).values)


class Scaled(nn.Module):
    """A wrapper whose answers depend on a number of its own."""

    def __init__(self, module: nn.Module, scale: float) -> None:
        super().__init__()
        self.module, self.scale = module, scale

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.module(x) * self.scale
        return answer


def test_two_wrappers_of_one_model_are_two_models(tape: type[Tape]) -> None:
    inner = network()
    task = digits(inner)
    one, other = (task.with_module(Scaled(inner, scale)) for scale in (1.0, 3.0))
    for _ in range(AFTER + 2):
        a, b = (vd.explain("gradient", each).values for each in (one, other))
        assert torch.allclose(3 * a, b)
    assert Tape.made == 2


class Holding(nn.Module):
    """A model with a tensor that torch does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.loose = network(), torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.module(x) * self.loose
        return answer


def test_a_loose_tensor_that_is_replaced_is_noticed(tape: type[Tape]) -> None:
    model = Holding().eval()
    task = digits(model)
    for _ in range(AFTER + 1):
        before = vd.explain("gradient", task).values
    model.loose = torch.full((4,), 2.0)
    assert torch.allclose(vd.explain("gradient", task).values, 2 * before)


def test_a_model_that_is_watched_or_hidden_runs_itself(tape: type[Tape]) -> None:
    model = network()
    assert parts_and_places(model) is not None
    seen: list[int] = []
    handle = model[1].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr,operator]
    assert parts_and_places(model) is None
    task = digits(model, targets=0)
    seen.clear()
    for _ in range(AFTER + 3):
        vd.explain("gradient", task)
    assert len(seen) == AFTER + 3
    assert not Tape.made
    handle.remove()
    assert parts_and_places(model) is not None
    assert parts_and_places(torch.jit.trace(model, torch.rand(2, 1, 8, 8))) is None
    hidden = digits(lambda x: model(x))  # type: ignore[arg-type]
    for _ in range(AFTER + 3):
        vd.explain("gradient", hidden)
    assert not Tape.made


def test_what_waits_is_large_or_answers_otherwise_is_not_recorded(tape: type[Tape]) -> None:
    plain = vd.explain("gradient", digits()).values
    for change in ({"waits": True}, {"size": replays.LARGEST + 1}, {"off": 1e-3}):
        for name, value in change.items():
            setattr(Tape, name, value)
        task = digits()
        for _ in range(AFTER + 3):
            made = vd.explain("gradient", task)
            assert torch.equal(made.values, plain)
            assert made.cost == vd.Cost(5, 5)
        assert None in known(task)
        assert not any(isinstance(each, Recording) for each in known(task))
        Tape.waits, Tape.size, Tape.off = False, 0, 0.0


def test_one_recording_that_fails_is_the_last(tape: type[Tape], caplog: pytest.LogCaptureFixture) -> None:
    Tape.fails = True
    task, other = digits(), digits()
    maps = [vd.explain("gradient", task) for _ in range(AFTER + 2)]
    assert all(each.cost == vd.Cost(5, 5) and torch.equal(each.values, maps[0].values) for each in maps)
    assert "could not be recorded, and no other will be" in caplog.text
    Tape.fails = False
    for _ in range(AFTER + 2):
        vd.explain("gradient", other)
    assert not Tape.made


def test_a_recording_may_stray_as_far_as_the_pass_itself() -> None:
    made = torch.tensor([1.0, torch.nan, torch.inf, -2.0])
    assert no_further(made.clone(), made, made.clone())
    off = made + torch.tensor([1e-6, 0.0, 0.0, 0.0])
    assert not no_further(off, made, made.clone())
    assert no_further(off, made, made + torch.tensor([0.0, 0.0, 0.0, 1e-6]))
    for wrong in (
        made.nan_to_num(0.0),
        made.masked_fill(made == 1, torch.nan),
        -made,
        made.double(),
        made[:3],
    ):
        assert not no_further(wrong, made, off)
    counts = torch.tensor([1, 2])
    assert no_further(counts.clone(), counts, counts)
    assert not no_further(counts + 1, counts, counts + 1)


def test_a_plan_can_forbid_it(tape: type[Tape]) -> None:
    task = digits(plan=vd.Plan(replay=False))
    for _ in range(AFTER + 3):
        vd.score("completeness", task, "gradient")
    assert not Tape.made
    assert not known(task)


def test_whoever_does_not_say_so_is_not_recorded(tape: type[Tape]) -> None:
    from veridical.explainers.gradients import Gradient

    class Counted(Gradient):
        calls = 0

        def attribute(self, task: vd.Task, key: Key) -> Tensor:
            Counted.calls += 1
            return super().attribute(task, key)

    task = digits()
    for _ in range(AFTER + 3):
        Counted()(task)
    assert Counted.calls == AFTER + 3


def test_nothing_outlives_a_recording(tape: type[Tape]) -> None:
    task = digits()
    with recording():
        with pytest.raises(UnrecordableError, match="a constant"):
            counting(12345, torch.device("cpu"))
        with pytest.raises(UnrecordableError, match="a look"):
            look_later(torch.device("cpu"), lambda: None)
        for keep in (task.cached, task.calibrated, task.from_train):
            with pytest.raises(UnrecordableError, match="something new"):
                keep("something new", lambda: 1)
    constants._counting.cache_clear()
    assert counting(3, torch.device("cpu")).tolist() == [0, 1, 2]


def test_what_is_known_of_a_task_goes_in(tape: type[Tape]) -> None:
    task = digits()

    def run(of: vd.Task) -> tuple[Tensor, Tensor]:
        assert "shift" in vars(of)["_cache"]
        return of.cached("shift", lambda: torch.zeros(())) + of.inputs.sum(), of.targets

    for turn in range(AFTER + 3):
        world = task.with_inputs(task.inputs + turn)
        shift = world.cached("shift", lambda turn=turn: torch.tensor(float(turn)))
        total, targets = recorded(world, "sum", run, lambda shift=shift: {"shift": shift})
        assert float(total) == pytest.approx(float(world.inputs.sum()) + turn)
        assert torch.equal(targets, task.targets)
    assert Tape.played == 3


def test_where_nothing_is_played_a_task_keeps_what_it_knows(tape: type[Tape]) -> None:
    task, made = digits(), []

    def run(of: vd.Task) -> tuple[Tensor]:
        return (of.cached("costly", lambda: made.append(1) or of.inputs.sum()),)

    Tape.waits = True
    for _ in range(AFTER + 4):
        recorded(task, "sum", run)
    # once for the task, and once for the pass that was looked at
    assert len(made) == 2


def test_side_inputs_go_in_by_place_and_by_name(tape: type[Tape]) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            answer: Tensor = self.inner(x) * shift
            return answer

    rows, shift = torch.rand(5, 1, 8, 8), torch.rand(5, 1) + 1
    for side in ((shift,), {"shift": shift}):
        task = vd.Task(Shifted().eval(), rows, side=side, targets=0)
        outputs = [task.predictor.outputs(rows, side) for _ in range(AFTER + 2)]
        maps = [vd.explain("gradient", task).values for _ in range(AFTER + 2)]
        assert all(torch.equal(each, outputs[0]) for each in outputs)
        assert all(torch.equal(each, maps[0]) for each in maps)
    assert Tape.made == 4


def test_only_so_many_are_kept(tape: type[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "NAMES", 3)
    task = digits()
    for count in range(1, 6):
        for _ in range(AFTER + 1):
            vd.explain("gradient", task[:count])
    assert len(known(task)) == 3
    monkeypatch.setattr(replays, "KEPT", 1)
    for _ in range(AFTER + 1):
        vd.explain("saliency", task)
    assert not any(isinstance(each, Recording) for each in known(task))


def test_a_task_travels_without_its_recordings(tape: type[Tape]) -> None:
    task = digits()
    for _ in range(AFTER + 2):
        vd.explain("gradient", task)
    assert any(isinstance(each, Recording) for each in known(task))
    for twin in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):
        assert not known(twin)
        assert torch.equal(vd.explain("gradient", twin).values, vd.explain("gradient", task).values)
        assert twin.predictor.replays.meter is twin.predictor.meter


def test_an_error_of_the_model_stays_its_own(tape: type[Tape]) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.broken = network(), False

        def forward(self, x: Tensor) -> Tensor:
            if self.broken:
                raise ValueError("not today")
            answer: Tensor = self.inner(x)
            return answer

    model = Moody().eval()
    task = digits(model)
    for _ in range(AFTER):
        vd.explain("gradient", task)
    model.broken = True
    with pytest.raises(ValueError, match="not today"):
        vd.explain("gradient", task)
    assert parameters(model)


def test_no_recording_where_weights_are_converted_on_the_way(tape: type[Tape]) -> None:
    task = digits(plan=vd.Plan(autocast="bfloat16"))
    for _ in range(AFTER + 3):
        vd.explain("gradient", task)
    assert not Tape.made


def test_a_recording_of_a_model_that_is_gone_is_not_that_of_another_in_its_place(tape: type[Tape]) -> None:
    task = digits()
    for _ in range(AFTER + 1):
        vd.explain("gradient", task)
    (made,) = (each for each in known(task) if isinstance(each, Recording))
    played = Tape.played
    object.__setattr__(made, "parts", (lambda: None, *made.parts[1:]))
    vd.explain("gradient", task)
    assert Tape.played == played


def test_a_model_in_training_is_another_one() -> None:
    model = network()
    resting = parts_and_places(model)
    model.train()
    assert resting is not None
    assert parts_and_places(model) != resting
    assert parts_and_places(model.eval()) == resting
