"""A model followed while it runs: each torch operation on what depends on the input is done by a rule.

Nothing is traced beforehand, so the way that was really taken is followed: reused layers, functions, branches
chosen by shapes, operations in place. A value that depends on the input is either *carried* (what goes back
through it is the rule's) or *held* (masks, detached values, what no rule covers). What reaches the answer
otherwise than by carried values is refused by name, since a wrong rule gives a map that looks right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from veridical.errors import NotApplicableError
from veridical.explainers.graph.handwritten import Signs
from veridical.explainers.graph.operations import (
    FACTS,
    LIKE,
    NEW,
    mapped,
    overwritten,
    plain_name,
    tensors,
    unsteady,
)
from veridical.explainers.graph.plan import Plan
from veridical.explainers.graph.routes import Routed, ungraded

_UNSEEN = (
    "the model runs something whose inside cannot be followed (its own autograd function, or a compiled or "
    "scripted part)"
)


@dataclass(frozen=True)
class Held:
    """A value that depends on the input and carries nothing back."""

    why: str
    choice: bool = False
    """Whether it chooses (a mask, an index) instead of being a number that was computed."""
    role: str = ""
    """"gate" if it weighs a signal, "spread" if it is the size of one."""


class Marks:
    """A set of tensors by identity, which it does not keep alive."""

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.add(values)

    def add(self, values: Iterable[Tensor]) -> None:
        for value in values:
            self._known[value] = True

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._known


class Follower(TorchFunctionMode):
    """Asks `rule` for every operation on what depends on x. A subclass states the rules of one method."""

    method = "this method"
    taped = False
    """Whether a repeated run goes back by the rules' own ways alone, without autograd."""
    again = False
    """Whether this run is gone back once more, so that nothing may be left behind on the way."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x
        self.refusal: NotApplicableError | None = None
        self.carried, self.free = Marks([x]), Marks()
        self.held: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.instead: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what took the place of an overwritten one
        self.signs = Signs()
        self.plan: Plan | None = None
        """Where the steps of this run are written down, to be repeated."""
        self._with_gradients, self.cast = torch.is_grad_enabled(), _cast_by(x)

    @property
    def decides(self) -> tuple[Any, ...]:
        """What the choice of rules follows besides the model and the shapes."""
        return ()

    def do(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take a step of a rule, and write it down if a plan is made."""
        made = step(*args, **kwargs)
        routed = type(made) is Routed
        value = made.joined() if routed else made
        if self.plan is not None:
            self.plan.note(step, args, kwargs, value, made.inputs if routed else None)
        return value

    def finish(self, answer: Tensor) -> Tensor:
        """What is done to the answer at last."""
        return answer

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What an operation answers, joined to what it was given as the method wants it."""
        raise NotImplementedError

    def answered(self, answer: Tensor) -> Tensor:
        """The model's answer, once it is known that everything in it was followed."""
        answer = self._current(answer)
        if answer in self.held:
            raise self.refused("the model's answer", self.held[answer].why)
        if answer not in self.carried:
            raise NotApplicableError(
                _UNSEEN
                if answer.requires_grad
                else "the model's outputs do not depend on its inputs through "
                "torch operations that carry anything back; if it answers a softmax, let it answer logits"
            )
        if self.plan is not None:
            self.plan.finish(answer)
        return self.finish(answer)

    # --- one operation --------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = plain_name(func)
        if name in FACTS:
            return func(*args, **(kwargs or {}))
        if self.plan is not None and unsteady(name, func, args, kwargs or {}):
            self.plan.stop(f"the model calls '{name}'")
        if name in NEW:
            value = self.do(_new, func, tuple(args), dict(kwargs or {}))
            self.note_constant(name, [], value)
            return value
        if self.plan is not None and _cast_by(self.x) != self.cast:
            self.plan.stop("the model switches autocast")
        args, kwargs = mapped(self._current, tuple(args)), mapped(self._current, dict(kwargs or {}))
        given = list(tensors((args, kwargs)))
        if name in LIKE:
            given = given[:1]
        carrying = any(v in self.carried for v in given)
        if not carrying and not any(v in self.held for v in given):
            self._look_for_unseen(given)
            value = self.do(func, *args, **kwargs)
            self.note_constant(name, given, value)
            return value
        self._look_for_unseen(given)
        target = overwritten(func, args, kwargs)
        if target is not None:
            func = _on_a_copy(func)
        value = self._follow(name, func, args, kwargs, carrying)
        if target is not None:
            self.instead[target] = value
        return value

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, carrying: bool) -> Any:
        if self._with_gradients and not torch.is_grad_enabled():
            if self.plan is not None:
                self.plan.stop("the model switches gradients off")
            value = func(*args, **kwargs)
            choice = any(held.choice for held in self.holds(args, kwargs))
            return self._held_by(value, Held("it is computed without gradients (torch.no_grad)", choice))
        if name in ("detach", "data"):
            value = self.do(func, *args, **kwargs)
            self.hold(value, self.held.get(args[0]) or Held("it is cut off by detach()"))
            return value
        signal = self.signs.rectified(name, args, kwargs)
        if signal is not None:
            # a ReLU by hand, such as h * (h > 0)
            if self.plan is not None and self.signs.read_values:
                self.plan.stop("a tensor was found to be 0 everywhere")
            name, func, args, kwargs, carrying = "relu", torch.relu, (signal,), {}, True
        value = (
            self.rule(name, func, args, kwargs) if carrying else self.rule_of_held(name, func, args, kwargs)
        )
        self.signs.note(name, args, kwargs, value)
        for made in tensors(value):
            if made in self.held or made in self.free:
                continue
            if made.is_floating_point():
                self.carried.add([made])
            else:
                self.held[made] = Held(f"it is chosen by '{name}' of an activation", choice=True, role="gate")
        return value

    def note_constant(self, name: str, given: list[Tensor], value: Any) -> None:
        """Remember what an operation answers that was given nothing of what depends on the input."""
        if any(v in self.free for v in given):
            self.free.add(tensors(value))

    def rule_of_held(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An operation on held values alone: its answer is held for the same reason."""
        return self._held_by(self.do(ungraded, func, args, kwargs), self.worst(args, kwargs))

    def _held_by(self, value: Any, held: Held) -> Any:
        """Hold what an operation answers for a reason; what is no number, such as a mask, chooses."""
        for made in tensors(value):
            self.held[made] = held if made.is_floating_point() else replace(held, choice=True)
        return value

    def worst(self, *given: Any) -> Held:
        """What is held among what an operation was given; a choice before a number."""
        found = [self.held[v] for v in tensors(given) if v in self.held]
        return next((h for h in found if h.choice), found[0])

    def holds(self, *given: Any) -> list[Held]:
        """What is held among these."""
        return [self.held[v] for v in tensors(given) if v in self.held]

    def hold(self, value: Any, held: Held) -> Any:
        """Mark all that a value consists of as held."""
        for made in tensors(value):
            self.held[made] = held
        return value

    def carries(self, value: Any) -> bool:
        """Whether what comes from above goes through this value to the input."""
        return value in self.carried

    def refused(self, what: str, why: str) -> NotApplicableError:
        """The error that says which operation stands in the way."""
        self.refusal = NotApplicableError(f"{self.method} has no rule for {what}: {why}")
        return self.refusal

    def _current(self, value: Tensor) -> Tensor:
        while value in self.instead:
            value = self.instead[value]
        if not (value.requires_grad and value.is_leaf and value is not self.x):
            return value
        # weights are constants here, whatever they require
        return value.detach() if self.plan is None else self.plan.alias(value.detach(), value)

    def _look_for_unseen(self, given: list[Tensor]) -> None:
        for v in given:
            if v.requires_grad and not v.is_leaf and v not in self.carried and v not in self.free:
                self.refusal = NotApplicableError(_UNSEEN)
                raise self.refusal


def _on_a_copy(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function on a copy of its first argument, which it would overwrite."""

    def run(first: Tensor, *rest: Any, **named: Any) -> Any:
        own = first.clone()
        value = func(own, *rest, **named)
        return own if value is None else value

    return run


def _cast_by(x: Tensor) -> torch.dtype | None:
    """What autocast makes of numbers where x lies; None where it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _new(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*mapped(Tensor.detach, args), **kwargs)
