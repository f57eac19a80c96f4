"""What methods that look at tokens need to explain the units of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from veridical.models.inner_units import Switched
from veridical.models.prompts import PromptLogits, PromptModel
from veridical.values.task import Task


def asks_prompts(task: Task) -> bool:
    """Whether the units are parts of a prompt, rather than of what is inside a model."""
    return isinstance(task.predictor.model, PromptModel | PromptLogits)


def at_logits(task: Task) -> Task:
    """The same prompts answered by logits: a normaliser carries nothing back. Other tasks stay themselves."""
    return _answered(task, PromptLogits)


def at_response(task: Task) -> Task:
    """The same prompts answered by the response alone, which can be followed. Other tasks stay themselves."""
    return _answered(task, partial(PromptLogits, normalised=True))


def _answered(task: Task, wrap: Callable[[nn.Module], nn.Module]) -> Task:
    model = task.predictor.model
    if isinstance(model, PromptModel):
        return task.changed(predictor=task.predictor.wrapped(wrap))
    if isinstance(model, Switched) and isinstance(model.module, PromptModel):
        return task.changed(predictor=task.predictor.wrapped(partial(_inside, wrap=wrap)))
    return task


def _inside(module: nn.Module, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    assert isinstance(module, Switched)
    return module.around(wrap)


def passes(task: Task) -> int:
    """How often the model reads a prompt for one answer: twice where the foil differs within."""
    model = task.predictor.model
    return 2 if isinstance(model, PromptLogits) and model.two_passes else 1


def places(task: Task) -> int:
    """Tokens that the model reads: those of the prompt, and of the answer but its last."""
    side = _side(task)
    return side["tokens"].shape[1] + side["answer"].shape[1] - 1


def reading_places(task: Task) -> Tensor:
    """The places (n, L) whose next token is judged: the last of the prompt, for the answer's first token."""
    side = _side(task)
    before = side["tokens"].shape[1] - 1
    return torch.nn.functional.pad(side["judged"], (before, 0))


def pooled(tokens: Tensor, task: Task) -> Tensor:
    """Values of tokens (n, L) added up over each unit (n, V); what belongs to no unit is left out."""
    unit = _side(task)["unit"]
    found = tokens.new_zeros(len(tokens), task.space.n_features + 1)
    spare = torch.where(unit < 0, task.space.n_features, unit)
    return found.scatter_add(1, spare, tokens[:, : unit.shape[1]])[:, :-1]


def lengths(task: Task) -> Tensor:
    """How many tokens each unit has (n, V)."""
    return pooled(torch.ones_like(_side(task)["unit"], dtype=torch.float64), task)


def _side(task: Task) -> dict[str, Tensor]:
    assert isinstance(task.side, dict)
    return task.side
