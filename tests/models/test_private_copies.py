"""Nothing is ever written to the caller's model, in any thread, whatever an explainer does to its copy."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import of_form
from tests.reference.small_models import Convolution, Recurrent, mlp
from veridical.errors import NotApplicableError

PATH = (0.1, 0.4, 0.8, 1.6)
GEF = vd.gef.FastGEF(path=PATH, draws=2)


def seeded(make: Any, *shape: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return make().eval(), torch.randn(shape)


def held(model: nn.Module) -> list[Any]:
    """Everything of a module that somebody could write to."""
    out: list[Any] = []
    for module in model.modules():
        tables = (module._parameters, module._buffers)
        out += [(id(v), v._version, v.detach().clone().tolist()) for t in tables for v in t.values()]
        out += [module.training, *(len(module.__dict__[h]) for h in module.__dict__ if h.endswith("_hooks"))]
    return [*out, [p.requires_grad for p in model.parameters()], [p.grad for p in model.parameters()]]


# --- threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: seeded(Convolution, 12, 1, 8, 8), lambda: seeded(Recurrent, 12, 6, 4)]
)
def test_threads_share_a_model_without_meeting(make: Any) -> None:
    model, x = make()
    task, before = vd.Task(model, x), held(model)
    names = ["gradient", "saliency", "integrated_gradients"]
    alone = {name: vd.score(GEF, task, name) for name in names}
    clean, wrong, done = task.outputs, [], threading.Event()

    def watch() -> int:
        looks = 0
        while not done.is_set():
            looks += 1
            if not torch.equal(task.predictor.outputs(x), clean) or not torch.equal(model(x), direct):
                wrong.append(looks)
        return looks

    with torch.no_grad():
        direct = model(x)
    with ThreadPoolExecutor(4) as pool:
        watching = pool.submit(torch.no_grad()(watch))
        together = dict(zip(names, pool.map(lambda name: vd.score(GEF, task, name), names), strict=True))
        done.set()
        assert watching.result() > 0
    assert wrong == []
    for name in names:
        assert torch.equal(together[name].values, alone[name].values)
        assert together[name].cost == alone[name].cost
    assert held(model) == before


# --- explainers that read or write weights ----------------------------------------------------------------


def weights_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    first = next(p for name, p in model.named_parameters() if name.endswith("weight"))
    return first.detach()[targets]


def test_an_explainer_that_reads_weights_scores_as_the_gradient_does() -> None:
    torch.manual_seed(0)
    task = vd.Task(nn.Linear(6, 3), torch.randn(8, 6))
    for form in ("fast", "arc", "reference", "jacobian"):
        metric = of_form(form, path=PATH, draws=2, steps=2, normalise=False)
        read, slope = (vd.score(metric, task, method) for method in (weights_of, "gradient"))
        torch.testing.assert_close(read.values, slope.values)
        assert float(read.mean()) > 0.3


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_explainers_get_a_real_module_with_its_attributes() -> None:
    model = Named()
    task = vd.Task(model, torch.randn(4, 6))
    seen = []

    def through_attribute(given: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(given)
        assert type(given) is Named
        assert given(inputs).shape == (len(inputs), 3)
        return given.linear.weight.detach()[targets]  # type: ignore[union-attr]

    explained = vd.explain(through_attribute, task)
    assert explained.cost == vd.models.Cost(4, 0)
    assert seen[0] is not model
    assert torch.equal(explained.values, model.linear.weight.detach()[task.targets])


def test_one_logit_and_named_answers_arrive_as_rows_of_outputs() -> None:
    class Answer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.linear(x)}

    def slope(given: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs.requires_grad_(True)
        outputs = given(inputs)
        assert outputs.shape == (len(inputs), 2)
        return torch.autograd.grad(outputs.gather(1, targets[:, None]).sum(), inputs)[0]

    task = vd.Task(Answer(), torch.randn(4, 6), head="binary")
    assert torch.equal(vd.explain(slope, task).values, vd.explain("gradient", task).values)
    assert vd.explain(slope, task).cost == vd.models.Cost(4, 4)


# --- how a model computes ---------------------------------------------------------------------------------


class Drifting(nn.Module):
    """Counts its calls in a buffer, and answers by it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) + self.calls


def test_buffers_that_a_forward_pass_writes_do_not_drift() -> None:
    model = Drifting()
    task = vd.Task(model, torch.rand(5, 4))
    answers = [task.predictor.outputs(task.inputs) for _ in range(3)]
    assert torch.equal(answers[0], answers[2])
    assert float(model.calls) == 0


class Lonely(nn.Module):
    """Cannot be copied: a lock is nobody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lock = nn.Linear(4, 3), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.linear(x)


def test_a_model_that_cannot_be_copied_is_refused_with_the_way_out() -> None:
    model = Lonely()

    def another(given: nn.Module) -> nn.Module:
        made = Lonely()
        made.load_state_dict(given.state_dict())
        return made

    with pytest.raises(NotApplicableError, match=r"cannot be copied.*copy="):
        vd.Task(model, torch.rand(5, 4))
    task = vd.Task(model, torch.rand(5, 4), copy=another)
    scores = vd.score(GEF, task, "gradient")
    assert not bool(scores.values.isnan().any())
    with pytest.raises(NotApplicableError, match="shares parameters"):
        vd.Task(model, torch.rand(5, 4), copy=lambda given: given)


# --- one pass ---------------------------------------------------------------------------------------------


X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


class Reaching(nn.Module):
    """Answers by things that torch does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.hidden = [nn.Sequential(nn.Linear(4, 4))]
        self.factors, self.config = [1.0], types.SimpleNamespace(scale=1.0)
        self.table: dict[str, dict[str, float]] = {"a": {"b": 1.0}}
        self.array, self.plain = torch.ones(1).numpy(), torch.ones(1)
        self.off: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factors[0] * self.config.scale * self.table["a"]["b"] * float(self.array[0])
        out: Tensor = self.head(self.hidden[0](x)) * factor * self.plain * (0.0 if self.off else 1.0)
        return out


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another precision": lambda m: m.double(),
    "other data": lambda m: setattr(m.head.weight, "data", torch.zeros(3, 4)),
    "a list": lambda m: m.factors.__setitem__(0, 2.0),
    "a configuration": lambda m: setattr(m.config, "scale", 2.0),
    "deep in a dictionary": lambda m: m.table["a"].update(b=2.0),
    "an array": lambda m: m.array.fill(2.0),
    "a tensor": lambda m: m.plain.mul_(2),
    "a set": lambda m: m.off.add(1),
    "a hidden weight": lambda m: m.hidden[0][0].weight.data.mul_(2),
    "a hidden hook": lambda m: m.hidden[0][0].register_forward_hook(lambda _m, _i, out: out * 2),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_copy_reaches_is_left_as_it_was(change: str, raises: bool) -> None:
    task = vd.Task(Reaching(), X)
    world = task.with_noise(0.3, vd.core.Key(1))
    before, noisy = task.outputs, world.outputs

    def meddling(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        CHANGES[change](model)
        if raises:
            raise RuntimeError("broken")
        return inputs

    for each in (task, world):
        if raises:
            with pytest.raises(RuntimeError):
                vd.explain(meddling, each)
        else:
            vd.explain(meddling, each)
        assert torch.equal(task.predictor.outputs(X), before)
        assert torch.equal(world.predictor.outputs(X), noisy)


def test_another_world_asked_by_an_explainer_leaves_it_in_its_own() -> None:
    task = vd.Task(mlp(), X)
    world = task.with_noise(0.5, vd.core.Key(1))

    def curious(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        task.predictor.outputs(X)
        vd.explain(lambda model, inputs, targets: inputs, task)
        inputs = inputs.clone().requires_grad_()
        return torch.autograd.grad(model(inputs).gather(1, targets[:, None]).sum(), inputs)[0]

    assert torch.allclose(vd.explain(curious, world).values, vd.explain("gradient", world).values)


def test_a_module_that_somebody_kept_and_writes_to_later_changes_no_answer() -> None:
    task = vd.Task(mlp(), X)
    world, kept = task.with_noise(0.5, vd.core.Key(0)), []
    vd.explain(lambda model, inputs, targets: (kept.append(model), inputs)[1], world)
    expected = world.outputs
    for module in (kept[0], world.model):
        with torch.no_grad():
            next(module.parameters()).zero_()
        assert torch.equal(world.predictor.outputs(X), expected)


@pytest.mark.parametrize("how", ["detach", "data", "out", "buffer", "view"])
def test_answers_do_not_lie_in_the_memory_of_the_copy(how: str) -> None:
    class Alias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 3))
            self.register_buffer("room", torch.zeros(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 8:
                return x[:, :3] * self.weight[:1]
            if how == "buffer":
                self.room.copy_(x[:, :3] * self.weight)
                return self.room
            if how == "out":
                return torch.mul(x[:, :3], self.weight.detach(), out=self.room)
            return {"detach": self.weight.detach(), "data": self.weight.data, "view": self.weight[:]}[how]

    task = vd.Task(Alias(), X)
    outputs = task.with_noise(0.5, vd.core.Key(1)).outputs
    before = outputs.clone()
    task.predictor.outputs(2 * X)
    _ = task.with_noise(0.3, vd.core.Key(2)).outputs
    assert torch.equal(outputs, before)


def same_numbers(given: nn.Module) -> nn.Module:
    made = nn.Linear(4, 3)
    made.weight, made.bias = (nn.Parameter(p.data) for p in given.parameters())
    return made


@pytest.mark.parametrize(
    ("model", "copier", "why"),
    [
        (nn.Linear(4, 3), same_numbers, "shares parameters or buffers"),
        (mlp(), lambda _: nn.Linear(4, 3), "other parameters than the original"),
    ],
)
def test_a_copy_that_cannot_be_used_is_refused(model: nn.Module, copier: Any, why: str) -> None:
    with pytest.raises(NotApplicableError, match=why):
        vd.Task(model, X, copy=copier)


class Seeing(nn.Module):
    """Remembers under which circumstances it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 2), nn.Dropout(0.5)
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.drop.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        out: Tensor = self.drop(self.linear(x))
        return out


@pytest.fixture
def task() -> vd.Task:
    return vd.Task(Seeing().eval(), torch.rand(3, 4))


def seen_by(task: vd.Task) -> list[tuple[bool, bool, bool]]:
    """Under which circumstances this thread's copy was run, from now on."""
    seen: list[tuple[bool, bool, bool]] = task.predictor.model.seen  # type: ignore[assignment]
    seen.clear()
    return seen


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_session_inside_another_has_its_own_gradients(task: vd.Task, outer: bool, inner: bool) -> None:
    seen = seen_by(task)
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer) as model:
        model(task.inputs)
        with task.session(grad=inner) as same:
            assert same is model
            model(task.inputs)
        model(task.inputs)
        assert torch.is_grad_enabled() is outer
    assert seen == [(False, outer, False), (False, inner, False), (False, outer, False)]
    assert task.model.seen == []  # the caller's own was never run


def test_sessions_are_over_when_the_inner_one_raises(task: vd.Task) -> None:
    with pytest.raises(RuntimeError, match="stop"), task.session(), task.session(grad=True):
        raise RuntimeError("stop")
    assert torch.is_grad_enabled()
    assert task.predictor.source.working.sessions == 0


@pytest.mark.parametrize("outer", [None, False, True])
def test_worlds_share_a_session_and_keep_their_own_weights(task: vd.Task, outer: bool | None) -> None:
    noisy = task.with_noise(0.1, vd.core.Key(0))
    expected = [task.outputs, noisy.outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer) as outside:
        seen = seen_by(task)
        for inner in (False, True):
            for world, outputs in zip((task, noisy), expected, strict=True):
                with world.session(grad=inner) as model:
                    assert torch.is_grad_enabled() is inner
                    assert torch.equal(model(task.inputs), outputs)
                    # the outer one answers with its own weights, whatever was written meanwhile
                    assert torch.equal(outside(task.inputs), expected[0])
                    assert torch.equal(model(task.inputs), outputs)
            assert torch.is_grad_enabled() is (outer is not False)
    assert {drop for drop, _, _ in seen} == {False}


def test_each_thread_has_sessions_of_its_own(task: vd.Task) -> None:
    copies = []

    def ask() -> None:
        with task.session() as model:
            model(task.inputs)
            copies.append(model.module)

    with task.session(grad=True) as here:
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        assert torch.is_grad_enabled()
        assert copies[0] is not here.module
    assert task.predictor.source.working.sessions == 0


def test_backward_rows_are_counted_without_marks_on_the_input() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    for model in (nn.Linear(2, 2), nn.Identity()):
        task = vd.Task(model, x.detach())
        before = task.predictor.meter.cost.backward
        with task.session(grad=True) as run:
            torch.autograd.grad(run(x).sum(), x)
        assert task.predictor.meter.cost.backward - before == 3
    torch.autograd.grad(x.sum(), x)
    assert task.predictor.meter.cost.backward - before == 3
