"""A model whose gradient with respect to its input is what a follower makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import NotApplicableError
from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.operations import tensors
from veridical.explainers.graph.plan import Plan, fits
from veridical.models.predictor import Output


class Plans(dict[Any, Plan | None]):
    """Plans by what they hold for; None until it is seen again. A copy has none: its model is another."""

    def __reduce__(self) -> Any:
        return Plans, ()


MOST_PLANS = 16


class Followed(nn.Module):
    """A model, read by its output rule, whose gradient with respect to its input is what a follower makes."""

    def __init__(self, model: nn.Module, output: Output, follower: Callable[..., Follower]) -> None:
        super().__init__()
        self.model = model
        self._output = output
        self._follower = follower
        self.plans = Plans()
        self.kept: dict[Any, Any] = {}
        """What a method keeps between the runs of one call."""

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        """What the model answers to x, as (rows, outputs)."""
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self._output(self.model(x, *side, **named))
        return self.followed(self._follower(self, x, side, named), x, side, named)

    def confirm(self, outputs: Tensor, known: Tensor | None) -> None:
        """Refuse answers that are not the model's own: then a run was repeated that takes another way now.

        No other look is as sure: a plan is stopped where a model is seen to read values, and code can read
        them unseen.
        """
        if known is None or not any(plan is not None and plan.finished for plan in self.plans.values()):
            return
        plans, ours = list(self.plans.values()), outputs.detach()
        if alike(ours, known, 1e-2):
            return
        for plan in plans:
            if plan is not None:
                plan.stop("the model took another way")
        raise NotApplicableError(
            "the model answers these samples otherwise than before: its way depends on values that it "
            "reads unseen, or on more than its inputs. Asked again, it is followed step by step"
        )

    def followed(self, follower: Follower, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """The model's answer to x under a follower: by its plan where there is one."""
        given = [x, *tensors((side, named))]
        about = (
            self.model,
            type(follower),
            *follower.decides,
            torch.is_grad_enabled(),
            follower.cast,
            fits((x, side, named)),
        )
        plan = self.plans.get(about)
        if plan is not None and plan.holds:
            return follower.finish(plan(follower, given))
        if about in self.plans and (plan is None or plan.finished):
            # what was seen before will be seen again
            follower.plan = self.plans[about] = Plan(follower, given, self.model)
        elif plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.pop(next(iter(self.plans)))
            self.plans[about] = None
        try:
            with follower:
                answer = self._output(self.model(x, *side, **named))
        except Exception:
            if follower.plan is not None:
                follower.plan.stop("the run came to no end")  # else it would hold all that was computed
            # Python's operators make a TypeError of their own of what is raised inside them
            if follower.refusal is not None:
                raise follower.refusal from None
            raise
        return follower.answered(answer)


def alike(ours: Tensor, theirs: Tensor, near: float = 1e-3) -> bool:
    """Whether a followed model answers as the model itself does."""
    near = max(near, 8 * torch.finfo(theirs.dtype).eps)
    with torch.no_grad():
        size, apart = torch.linalg.vector_norm(theirs, torch.inf), torch.dist(ours, theirs, torch.inf)
    return float(apart) <= near * max(float(size), 1e-6)
