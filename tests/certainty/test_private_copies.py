"""Nothing is ever written to the caller's model, in any thread, whatever an explainer does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import veridical as vd
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
        metric = vd.gef.GEF(form=form, path=PATH, draws=2, steps=2, normalise=False)  # type: ignore[arg-type]
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


def vandal(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Does whatever can be done to a module, and leaves it so."""
    maps = inputs.clone()
    model.train()
    for parameter in model.parameters():
        parameter.data.normal_()
        parameter.requires_grad_(False)
    for buffer in model.buffers():
        buffer.zero_()
    for module in model.modules():
        module.register_forward_hook(lambda *_: None)
        module.scratch = 3  # type: ignore[assignment]
    name, _ = next(model.named_children())
    setattr(model, name, nn.Identity())
    return maps


def test_a_vandal_harms_neither_the_caller_nor_the_next_question() -> None:
    model, x = seeded(Convolution, 6, 1, 8, 8)
    task, before = vd.Task(model, x), held(model)
    expected = vd.explain("gradient", task.with_noise(0.3, vd.core.Key(0))).values
    for world in (task, task.with_noise(0.3, vd.core.Key(0))):
        vd.explain(vandal, world)
        assert held(model) == before
        assert torch.equal(task.predictor.outputs(x), task.outputs)
        assert torch.equal(vd.explain("gradient", task.with_noise(0.3, vd.core.Key(0))).values, expected)
    vd.score(GEF, task, vandal)
    assert held(model) == before


# --- how a model computes ---------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, saves: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.saves = nn.Linear(6, 16), nn.Linear(16, 3), saves

    def forward(self, x: Tensor) -> Tensor:
        inner = lambda h: torch.tanh(self.first(h))  # noqa: E731
        return self.second(checkpoint(inner, x, use_reentrant=False) if self.saves else inner(x))


@pytest.mark.parametrize("metric", [GEF, vd.gef.GEF(form="arc", path=PATH, draws=2, steps=2), "mprt"])
def test_gradient_checkpointing_changes_nothing(metric: Any) -> None:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    plain, saving = (vd.Task(Checkpointed(saves), x) for saves in (False, True))
    assert torch.equal(
        vd.score(metric, plain, "gradient").values, vd.score(metric, saving, "gradient").values
    )


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


def test_one_copy_serves_any_number_of_worlds() -> None:
    task = vd.Task(mlp(), torch.rand(5, 4))
    worlds = [task.with_noise(0.1 * i, vd.core.Key(i)) for i in range(1, 6)]
    expected = [world.outputs for world in worlds]
    assert len({id(world.predictor.model) for world in [task, *worlds]}) == 1
    for world, outputs in zip(reversed(worlds), reversed(expected), strict=True):
        assert torch.equal(world.predictor.outputs(task.inputs), outputs)


# --- one pass ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["fast", "arc", "jacobian"])
def test_a_world_is_asked_once_by_gradient_methods(form: str) -> None:
    task = vd.Task(mlp(), torch.rand(5, 4))
    metric = vd.gef.GEF(form=form, path=PATH, draws=2, steps=2)  # type: ignore[arg-type]
    cost = vd.score(metric, task, "gradient").cost
    assert cost.forward == cost.backward
    worlds = {"fast": 8, "arc": 16, "jacobian": 16 * 7}[form]
    assert cost.backward == 5 * (1 + worlds)
