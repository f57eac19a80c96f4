"""Whether a model does with prompts what is said of it: padding is nothing, off is off, answers unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.models.predictor import take_side
from veridical.models.prompted import PromptModel, near

if TYPE_CHECKING:
    from veridical.data.generation import Generation

_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size")
_APART = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.1}
"""By how much answers may differ that should be the same, by precision."""


def check_exact(task: Generation) -> None:
    """Refuse a model that is not causal, or to which a unit that is off is not what it is said to be.

    A prompt that is padded is asked without padding; one whose first unit is off with the token in its place,
    or shortened in fact. Where units are dropped so is the longest with its first unit alone: layers that
    look back so many slots, hidden ones too, would not find it.
    """
    side = task.side
    assert isinstance(side, dict)
    _check_causal(task, side)
    padding = (~side["attended"]).sum(1)
    if int(padding.max()):
        place = int(padding.argmax())
        _same(task, place, task.inputs[place], "padding in front of it")
    alone = [(0, slice(0, 1))]
    if task.off == "drop":
        longest = int(side["attended"].sum(1).argmax())
        _check_window(task, len(task.prompts[longest].ids))
        alone.append((longest, slice(min(1, len(task.prompts[longest].units) - 1), None)))
    for place, units in alone if task.off != "zero" else ():
        gates = task.inputs[place].clone()
        gates[units] = 0
        _same(task, place, gates, "units that are off")


def check_left(task: Generation, dropped: int | None = None) -> None:
    """Refuse prompts of which nothing is left when all units, or so many, are dropped."""
    for number, prompt in enumerate(task.prompts):
        if min(prompt.unit) >= 0 and len(prompt.units) <= (dropped or len(prompt.units)):
            raise InputError(
                f"with all units dropped nothing is left of prompt {number} for an answer to follow: put "
                "what is asked behind the units (questions=...), or say off='fill'"
            )


def _check_window(task: Generation, tokens: int) -> None:
    """In half precision answers cannot tell whether a window lost some tokens; what the model states can."""
    model = task.predictor.source.module
    assert isinstance(model, PromptModel)
    config = getattr(model.model, "config", None)
    stated = [getattr(config, name, None) for name in _WINDOWS]
    if getattr(config, "use_sliding_window", True) is False:
        return
    window = min((each for each in stated if isinstance(each, int)), default=tokens)
    if window < tokens and model.precision == torch.float16:
        raise InputError(
            f"layers of this model look back {window} tokens, those that are dropped included, and a prompt "
            f"has {tokens}: say off='fill', or give the model in float32, where the difference is measured"
        )


def _check_causal(task: Generation, side: dict[str, Tensor]) -> None:
    """Refuse a model whose answer at one token depends on the next: it would read the answer beforehand."""
    seen = side["attended"][0]
    tokens = side["tokens"][:1, seen]
    before, last, there = tokens[:, :-1], tokens[:, -1:], torch.ones_like(tokens[:, :-1], dtype=torch.bool)
    if not before.numel():
        return
    with task.session():
        model = task.predictor.model
        assert isinstance(model, PromptModel)
        on = there.to(task.inputs.dtype)
        alone, followed = (
            model.logits(before, there, on, last.expand(1, n), torch.ones_like(last.expand(1, n)).bool())
            for n in (1, 2)
        )
    if not near(followed[:, :1], alone, _APART[model.precision]):
        raise InputError(
            "what the model answers at the last token but one of prompt 0 changes with the last one, so it "
            "is no causal language model (...ForCausalLM): it would know the answer it is asked for"
        )


def _same(task: Generation, place: int, gates: Tensor, what: str) -> None:
    row = take_side(task.side, slice(place, place + 1))
    assert isinstance(row, dict)
    unit = row["unit"][0]
    on, read = (unit < 0) | (gates[unit.clamp(min=0)] > 0), row["attended"][0]
    with task.session():
        model = task.predictor.model
        assert isinstance(model, PromptModel)
        if model.off.token is None:
            read = read & on
        tokens = torch.where(on, row["tokens"], model.off.token or 0)
        plain = {
            "tokens": tokens[:, read],
            "attended": row["attended"][:, read],
            "unit": row["unit"][:, read],
        }
        one = model.answers(gates[None], row)[0]
        # nothing is left to switch, so that all that is there is on
        two = model.answers(torch.ones_like(gates[None]), {**row, **plain})[0]
    if not near(one, two, _APART[model.precision]):
        raise InputError(
            f"to this model prompt {place} with {what} is another prompt: the response is {float(one):.4g} "
            f"with, {float(two):.4g} without. Its forward has to take attention_mask and position_ids and to "
            "follow both, with no window shorter than the prompt; or give prompts of equally many tokens and "
            "off='fill'"
        )
