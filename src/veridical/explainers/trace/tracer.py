"""A model traced while it runs: each torch operation on what depends on the input is done by a rule.

Nothing is recorded beforehand, so the way that was really taken is traced: reused layers, functions, branches
chosen by shapes or values, operations in place. A value that depends on the input is either *attributed*
(what is passed back through it is the rule's) or *detached* (masks, detached values, what no rule covers).
What reaches the output otherwise than by attributed values is refused by name, since a wrong rule gives a map
that looks right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.overrides import TorchFunctionMode

from veridical.core.facts import fact
from veridical.errors import NotApplicableError, ShapeError, VeridicalError
from veridical.explainers.base import keep_outputs, selected
from veridical.explainers.gradients import ByGradients, input_gradient
from veridical.explainers.layout import at_logits
from veridical.explainers.trace.operations import FACTS, LIKE, NEW, mapped, overwritten, plain_name, tensors
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.context import Context
from veridical.models.predictor import RaisedError, call, out_of_memory
from veridical.values.task import Task

_UNSEEN = (
    "the model runs something whose inside cannot be traced (its own autograd function, or a compiled or "
    "scripted part)"
)

Back = Callable[[Tensor], Sequence[Tensor | None]]
"""From what arrives at a value to what goes to each of its inputs."""

Pull = Callable[[Tensor], Tensor]
"""From something over the outputs to its sum over the inputs, each by its weight."""


class _Route(torch.autograd.Function):
    """A value whose backward pass follows a rule instead of the chain rule."""

    @staticmethod
    def forward(ctx: Any, given: tuple[Tensor, Back], *inputs: Tensor) -> Tensor:
        value, ctx.back = given
        # another tensor of the same numbers: what `back` holds must not hold its own graph
        return value.detach()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.back(arriving))


def route(value: Tensor, back: Back, *inputs: Tensor) -> Tensor:
    """Let what arrives at `value` in the backward pass go to `inputs` as `back` says."""
    routed: Tensor = _Route.apply((value, back), *inputs)  # type: ignore[no-untyped-call]
    return routed


def without_graph(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What an operation gives, through which no gradient goes."""
    with torch.no_grad():
        return func(*args, **kwargs)


def pulled(function: Callable[[Tensor], Tensor], a: Tensor) -> tuple[Tensor, Pull]:
    """What a differentiable function gives, in a small graph of its own, and the way back through it."""
    leaf = a.detach().requires_grad_(True)
    with torch.enable_grad():
        z = function(leaf)

    def pull(g: Tensor) -> Tensor:
        return torch.autograd.grad(z, leaf, g, retain_graph=True)[0]

    return z.detach(), pull


@dataclass(frozen=True)
class Detached:
    """Why a value that depends on the input passes nothing back."""

    why: str
    choice: bool = False
    """Whether it chooses (a mask, an index) instead of being a number that was computed."""
    role: str = ""
    """"gate" if it weighs a signal, "spread" if it is the size of one."""


class Tracer(TorchFunctionMode):
    """Applies `rule` to every operation on what depends on x. A subclass states the rules of one method."""

    method = "this method"

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x
        self.refusal: NotApplicableError | None = None
        # a tensor's hash is its identity, so that these never compare values
        self.attributed, self.constants = {x}, set[Tensor]()
        self.detached: dict[Tensor, Detached] = {}
        self.replaced: dict[Tensor, Tensor] = {}  # what took the place of an overwritten tensor
        self._with_gradients = torch.is_grad_enabled()

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What an operation gives, joined to what it was given as the method wants it."""
        raise NotImplementedError

    def run(self, model: Callable[[], Tensor]) -> Tensor:
        """The model's output, once it is known that everything in it was traced."""
        try:
            with self:
                output = model()
        except Exception:
            # Python's operators make a TypeError of their own of what is raised inside them
            if self.refusal is not None:
                raise self.refusal from None
            raise
        else:
            return self._checked(output)
        finally:
            self.forget()

    def forget(self) -> None:
        """Let go of the tensors of a run: their graphs may lead back here, and would outlive it."""
        for known in vars(self).values():
            if isinstance(known, set | dict) and isinstance(next(iter(known), None), Tensor):
                known.clear()

    def _checked(self, output: Tensor) -> Tensor:
        output = self._current(output)
        if output in self.detached:
            raise self.refused("the model's output", self.detached[output].why)
        if output not in self.attributed:
            raise NotApplicableError(
                _UNSEEN
                if output.requires_grad
                else "the model's outputs do not depend on its inputs through torch operations that pass "
                "anything back; if it gives a softmax, let it give logits"
            )
        return output

    # --- one operation --------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = plain_name(func)
        if name in FACTS:
            return func(*args, **(kwargs or {}))
        if name in NEW:
            value = func(*mapped(Tensor.detach, tuple(args)), **(kwargs or {}))
            self.note_constant(name, [], value)
            return value
        args, kwargs = mapped(self._current, tuple(args)), mapped(self._current, dict(kwargs or {}))
        given = list(tensors((args, kwargs)))
        if name in LIKE:
            given = given[:1]
        self._refuse_untraced(given)
        attributed = any(v in self.attributed for v in given)
        if not attributed and not any(v in self.detached for v in given):
            value = func(*args, **kwargs)
            self.note_constant(name, given, value)
            return value
        target = overwritten(func, args, kwargs)
        if target is not None:
            func = _on_a_copy(func)
        value = self._trace(name, func, args, kwargs, attributed)
        if target is not None:
            self.replaced[target] = value
        return value

    def _trace(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, attributed: bool) -> Any:
        if self._with_gradients and not torch.is_grad_enabled():
            choice = any(held.choice for held in self.all_detached(args, kwargs))
            why = Detached("it is computed without gradients (torch.no_grad)", choice)
            return self._detach_result(func(*args, **kwargs), why)
        if name in ("detach", "data"):
            why = self.detached.get(args[0]) or Detached("it is cut off by detach()")
            return self.detach(func(*args, **kwargs), why)
        if not attributed:
            value = self.rule_of_detached(name, func, args, kwargs)
        else:
            value = self.rule(name, func, args, kwargs)
        for made in tensors(value):
            if made in self.detached or made in self.constants:
                continue
            if made.is_floating_point():
                self.attributed.add(made)
            else:
                chosen = f"it is chosen by '{name}' of an activation"
                self.detached[made] = Detached(chosen, choice=True, role="gate")
        return value

    def note_constant(self, name: str, given: list[Tensor], value: Any) -> None:
        """Remember what an operation gives that was given nothing of what depends on the input."""
        if any(v in self.constants for v in given):
            self.constants.update(tensors(value))

    def rule_of_detached(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An operation on detached values alone: its result is detached for the same reason."""
        return self._detach_result(without_graph(func, args, kwargs), self.first_detached(args, kwargs))

    def _detach_result(self, value: Any, why: Detached) -> Any:
        """Detach what an operation gives for a reason; what is no number, such as a mask, chooses."""
        for made in tensors(value):
            self.detached[made] = why if made.is_floating_point() else replace(why, choice=True)
        return value

    def all_detached(self, *given: Any) -> list[Detached]:
        """What is detached among these."""
        return [self.detached[v] for v in tensors(given) if v in self.detached]

    def first_detached(self, *given: Any) -> Detached:
        """What is detached among what an operation was given; a choice before a number."""
        found = self.all_detached(*given)
        return next((each for each in found if each.choice), found[0])

    def detach(self, value: Any, why: Detached) -> Any:
        """Mark all that a value consists of as detached."""
        for made in tensors(value):
            self.detached[made] = why
        return value

    def is_attributed(self, value: Any) -> bool:
        """Whether what comes from above goes through this value to the input."""
        return isinstance(value, Tensor) and value in self.attributed

    def refused(self, what: str, why: str) -> NotApplicableError:
        """The error that says which operation stands in the way."""
        self.refusal = NotApplicableError(f"{self.method} has no rule for {what}: {why}")
        return self.refusal

    def _current(self, value: Tensor) -> Tensor:
        while value in self.replaced:
            value = self.replaced[value]
        # weights are constants here, whatever they require
        is_weight = value.requires_grad and value.is_leaf and value is not self.x
        return value.detach() if is_weight else value

    def _refuse_untraced(self, given: list[Tensor]) -> None:
        for v in given:
            if v.requires_grad and not v.is_leaf and v not in self.attributed and v not in self.constants:
                self.refusal = NotApplicableError(_UNSEEN)
                raise self.refusal


def _on_a_copy(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function on a copy of its first argument, which it would overwrite."""

    def run(first: Tensor, *rest: Any, **named: Any) -> Any:
        own = first.clone()
        value = func(own, *rest, **named)
        return own if value is None else value

    return run


def traced_outputs(task: Task, tracer: Tracer) -> Tensor:
    """The outputs of the tracer's rows beside the task's side inputs; inside a session of the task."""
    after = task.predictor.after
    # what is done to the outputs at last is no part of the model
    view = task.predictor.view if after is None else replace(task.predictor, after=None).view
    outputs = tracer.run(lambda: call(view, tracer.x, task.side))
    return outputs if after is None else after(tracer.x, outputs)


@dataclass(frozen=True)
class TracingExplainer(ByGradients):
    """Base of the methods that change what is passed back through a model: a subclass gives the tracer."""

    def tracer(self, task: Task, x: Tensor) -> Tracer:
        """The rules of this method, for one run on x."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it traces a model")

    def traced_task(self, task: Task) -> Task:
        """The task whose model is traced: of prompts one that gives logits."""
        return at_logits(task)

    def check_run(self, tracer: Tracer) -> None:
        """Look at a first run, and raise if the method has nothing to do here."""

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        try:
            at = self.traced_task(task.at_embeddings())
        except NotApplicableError as error:
            return str(error)
        # once for a model and its inputs: under noise both are built alike
        refusals, name = _refusals(task.reference), (str(self), _innermost(at.predictor.model))
        if name not in refusals:
            refusals[name] = self._refusal(at)
        return refusals[name]

    def _prepared(self, task: Task) -> Task:
        return self.traced_task(task.at_embeddings())

    def attribute(self, task: Task, context: Context) -> Tensor:
        with task.session(grad=True):
            tracer = self.tracer(task, task.inputs.detach().requires_grad_(True))
            outputs = traced_outputs(task, tracer)
            keep_outputs(context, task, outputs)
            return input_gradient(selected(outputs, task.targets).sum(), tracer.x)

    def _refusal(self, task: Task) -> str | None:
        own = _innermost(task.predictor.model)
        if isinstance(own, ArrayModel | FunctionModel):
            return "it reads the operations of a torch module, and this model is a plain function"
        if any(isinstance(m, ScriptModule) or type(m).__name__ == "OptimizedModule" for m in own.modules()):
            return "the model is compiled or scripted, so it cannot be traced; give the plain module"
        try:
            self._try(task)
        except NotApplicableError as error:
            return str(error)
        return None

    def _try(self, task: Task) -> None:
        """Run two rows, which a model may treat otherwise than one, and compare with its own outputs."""
        few = self._prepared(task)[:2]
        rows = few.inputs.detach().requires_grad_(True)

        def evaluate() -> tuple[Tracer, Tensor, Tensor]:
            with task.session(grad=True):
                tracer = self.tracer(few, rows)
                return tracer, traced_outputs(few, tracer), call(task.predictor.view, rows, few.side)

        try:
            tracer, ours, theirs = task.uncounted(evaluate)
        except (ShapeError, RaisedError) as error:
            raise NotApplicableError(f"the traced model does not run: {error}") from error
        except Exception as error:
            if isinstance(error, VeridicalError) or out_of_memory(error):
                raise
            raise NotApplicableError(
                f"the model does not run with gradients, or not when it is traced "
                f"({type(error).__name__}: {error})"
            ) from error
        self.check_run(tracer)
        if not agree(ours, theirs):
            raise NotApplicableError(
                "the model gives other outputs when its operations are traced one by one: its forward pass "
                "depends on more than its inputs, or changes a part of a tensor in place"
            )


@fact
def _refusals(task: Task) -> dict[tuple[str, nn.Module], str | None]:
    """Why tracing methods do not work on the modules tried so far; begins empty."""
    return {}


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """Whether a traced model gives the outputs of the model itself."""
    near = max(1e-3, 8 * torch.finfo(theirs.dtype).eps)
    with torch.no_grad():
        size, apart = torch.linalg.vector_norm(theirs, torch.inf), torch.dist(ours, theirs, torch.inf)
    return float(apart) <= near * max(float(size), 1e-6)


def _innermost(model: nn.Module) -> nn.Module:
    """The user's own module under the views that we put around it."""
    while type(model).__module__.startswith("veridical.") and isinstance(
        getattr(model, "module", None), nn.Module
    ):
        model = model.module  # type: ignore[assignment]
    return model
