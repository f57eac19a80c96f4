"""Explainers whose maps are gradients of a followed model: what they refuse, and how they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.jit import ScriptModule

from veridical.errors import NotApplicableError, ShapeError, VeridicalError
from veridical.explainers.base import Explainer
from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.followed import Followed, Plans, alike
from veridical.explainers.prompts import at_logits
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.predictor import call, out_of_memory, plain_output, take_side
from veridical.values.task import Task


@dataclass(frozen=True)
class FollowingExplainer(Explainer):
    """Base of the methods that change what goes back through a model: a subclass gives the follower."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def follower(
        self, task: Task, model: Followed, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]
    ) -> Follower:
        """The rules of this method, for one run on x."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it follows a model")

    def asked(self, task: Task) -> Task:
        """The task whose model is followed: of prompts one that answers by logits."""
        return at_logits(task)

    def tried(self, model: Followed) -> None:
        """Look at what a first run has kept, and raise if the method has nothing to do here."""

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        at = self.asked(task.at_embeddings())
        # once for a model and its inputs: under noise both are built alike
        refusals: dict[nn.Module, str | None] = task.reference.cached(f"refusals of {self}", dict)
        module = _innermost(at.predictor.model)
        if module not in refusals:
            refusals[module] = self._refusal(at)
        return refusals[module]

    def prepared(self, task: Task) -> Task:
        task = self.asked(task.at_embeddings())
        _ = task.targets  # by which the model's own outputs are known, where they are asked for
        inner = task.predictor

        def follower(model: Followed, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]) -> Follower:
            return self.follower(task, model, x, side, named)

        followed = Followed(inner.model, inner.output, follower)
        followed.plans = task.reference.cached(f"plans of {self}", Plans)
        return task.changed(predictor=inner.with_model(followed, plain_output), outputs=task.known("outputs"))

    def _refusal(self, task: Task) -> str | None:
        own = _innermost(task.predictor.model)
        if isinstance(own, ArrayModel | FunctionModel):
            return "it reads the operations of a torch module, and this model is a plain function"
        if any(isinstance(m, ScriptModule) or type(m).__name__ == "OptimizedModule" for m in own.modules()):
            return "the model is compiled or scripted, so it cannot be followed; give the plain module"
        try:
            self._tried(task)
        except NotApplicableError as error:
            return str(error)
        return None

    def _tried(self, task: Task) -> None:
        """Run two rows, which a model may treat otherwise than one, and compare with its own answers."""
        ours_by, few = self.prepared(task).predictor, slice(0, 2)
        rows, side = task.inputs[few].detach().requires_grad_(True), take_side(task.side, few)

        def ask() -> tuple[Tensor, Tensor]:
            with task.session(grad=True):
                return call(ours_by.view, rows, side), call(task.predictor.view, rows, side)

        try:
            ours, theirs = task.uncounted(ask)
        except ShapeError as error:
            raise NotApplicableError(f"the followed model does not run: {error}") from error
        except Exception as error:
            if isinstance(error, VeridicalError) or out_of_memory(error):
                raise
            raise NotApplicableError(
                f"the model does not run with gradients, or not when it is followed "
                f"({type(error).__name__}: {error})"
            ) from error
        model = ours_by.model
        assert isinstance(model, Followed)
        self.tried(model)
        if not alike(ours, theirs):
            raise NotApplicableError(
                "the model answers otherwise when its operations are followed one by one: its forward pass "
                "depends on more than its inputs, or changes a part of a tensor in place"
            )


def _innermost(model: nn.Module) -> nn.Module:
    """The user's own module under the views that we put around it."""
    while type(model).__module__.startswith("veridical.") and isinstance(
        getattr(model, "module", None), nn.Module
    ):
        model = model.module  # type: ignore[assignment]
    return model
