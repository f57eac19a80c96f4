"""Explainers whose maps are gradients of a traced model: what they refuse, and how they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from veridical.errors import NotApplicableError, ShapeError, VeridicalError
from veridical.explainers.base import Explainer, hand_along, selected
from veridical.explainers.gradients import input_gradient
from veridical.explainers.prompts import at_logits
from veridical.explainers.trace.tracer import Tracer
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.predictor import Output, call, out_of_memory, plain_output
from veridical.values.task import Task


class TracedModel(nn.Module):
    """A model, read by its output rule, that is traced where a tracer is set; else it runs as it is."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self.model = model
        self._output = output
        self._tracer: Tracer | None = None
        self.shared: Any = None
        """What a method computes once for all parts of one call."""

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        """The model's outputs for x, as (rows, outputs)."""
        if self._tracer is None:
            return self._output(self.model(x, *side, **named))
        return self._tracer.run(lambda: self._output(self.model(x, *side, **named)))

    @contextmanager
    def traced_by(self, tracer: Tracer) -> Iterator[None]:
        """While this is open, the model is traced."""
        before, self._tracer = self._tracer, tracer
        try:
            yield
        finally:
            self._tracer = before


def traced_model(task: Task) -> TracedModel:
    """The model of a task that a tracing explainer has prepared."""
    model = task.predictor.model
    assert isinstance(model, TracedModel)
    return model


def traced_outputs(task: Task, tracer: Tracer) -> Tensor:
    """The outputs of the tracer's rows beside the task's side inputs; inside a session of the task."""
    with traced_model(task).traced_by(tracer):
        return call(task.predictor.view, tracer.x, task.side)


@dataclass(frozen=True)
class TracingExplainer(Explainer):
    """Base of the methods that change what is passed back through a model: a subclass gives the tracer."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def tracer(self, task: Task, x: Tensor) -> Tracer:
        """The rules of this method, for one run on x."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it traces a model")

    def traced_task(self, task: Task) -> Task:
        """The task whose model is traced: of prompts one that gives logits."""
        return at_logits(task)

    def check_run(self, tracer: Tracer) -> None:
        """Look at a first run, and raise if the method has nothing to do here."""

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        at = self.traced_task(task.at_embeddings())
        # once for a model and its inputs: under noise both are built alike
        refusals: dict[nn.Module, str | None] = task.reference.cached(f"refusals of {self}", dict)
        module = _innermost(at.predictor.model)
        if module not in refusals:
            refusals[module] = self._refusal(at)
        return refusals[module]

    def _prepared(self, task: Task) -> Task:
        task = self.traced_task(task.at_embeddings())
        _ = task.targets  # of the model itself, before it is traced
        inner = task.predictor
        traced = TracedModel(inner.model, inner.output)
        return task.changed(predictor=inner.with_model(traced, plain_output), outputs=task.known("outputs"))

    def pass_back(self, task: Task) -> tuple[Tracer, Tensor]:
        """Trace the model on the task's inputs, and pass the explained outputs back to them."""
        with task.session(grad=True):
            tracer = self.tracer(task, task.inputs.detach().requires_grad_(True))
            outputs = traced_outputs(task, tracer)
            hand_along(task, outputs)
            return tracer, input_gradient(selected(outputs, task.targets).sum(), tracer.x)

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
        except ShapeError as error:
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
