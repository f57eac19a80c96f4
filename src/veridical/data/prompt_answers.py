"""Answers to prompts: their tokens, which of them are judged, and what the model itself would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from veridical.data.prompt_texts import Prompt
from veridical.data.prompt_tokens import continued, tokenized
from veridical.errors import InputError
from veridical.models.predictor import Side, check_finite, plain_output, take_side
from veridical.models.private_copy import private_copy
from veridical.models.prompted import PromptModel

if TYPE_CHECKING:
    from veridical.data.generation import Generation


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt, and the foil it is compared with."""

    text: str
    """The answer."""
    tokens: tuple[int, ...]
    """Its tokens, as they follow the prompt."""
    judged: tuple[int, ...]
    """Which of its tokens are judged: all, unless parts were chosen."""
    foil: str | None = None
    """What might have been answered instead."""
    foil_tokens: tuple[int, ...] | None = None
    """The tokens of the foil."""


def answer_of(
    tokenizer: Any, prompt: Prompt, said: str | tuple[int, ...], foil: str | None, part: Any, number: int
) -> Answer:
    """An answer and its foil as tokens behind a prompt; `part` is a text in the answer, or token numbers.

    What was generated are tokens, and stays: its text might be cut into others.
    """
    special = not prompt.chat
    if isinstance(said, tuple):
        text, tokens = str(tokenizer.decode(list(said))), said
    else:
        text, tokens = said, continued(tokenizer, prompt.tokens, said, number, special)
    against = None if foil is None else continued(tokenizer, prompt.tokens, foil, number, special)
    if against == tokens:
        raise InputError(f"answer and foil of prompt {number} are the same text {text!r:.40}")
    return Answer(text, tokens, _judged(tokenizer, text, tokens, part, number), foil, against)


def _judged(tokenizer: Any, text: str, tokens: tuple[int, ...], part: Any, number: int) -> tuple[int, ...]:
    if part is None:
        return tuple(range(len(tokens)))
    if isinstance(part, str):
        at = text.find(part)
        made = tokenized(tokenizer, text, number, special=False)
        if at < 0 or not part or made.ids != tokens:
            why = (
                "is not in it"
                if at < 0 or not part
                else "cannot be found among its tokens; give their numbers"
            )
            raise InputError(f"the part {part!r:.40} of the answer to prompt {number} {why}")
        return tuple(i for i, (a, b) in enumerate(made.offsets) if a < at + len(part) and at < b)
    chosen = tuple(sorted({int(place) for place in part}))
    if not chosen or chosen[0] < 0 or chosen[-1] >= len(tokens):
        raise InputError(
            f"parts {chosen} of an answer of {len(tokens)} tokens to prompt {number} are not there"
        )
    return chosen


def generated(
    model: nn.Module, tokenizer: Any, prompts: Sequence[Prompt], new_tokens: int, most: int | None = None
) -> list[tuple[int, ...]]:
    """What the model answers, the most probable token at a time.

    Until an end token of its own or of the tokenizer, so many tokens, or the `most` that it can read.
    """
    own = private_copy(model).eval()
    home = next((p.device for p in model.parameters()), torch.device("cpu"))
    ends = _ends(own, tokenizer)
    answers = []
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt.ids], device=home)
        with torch.no_grad():
            room = new_tokens if most is None else min(new_tokens, most - len(prompt.ids))
            found = _greedy(own, ids, room, ends)
        found = list(takewhile(lambda token: token not in ends, found))
        if not found:
            raise InputError(f"the model answers nothing to prompt {number}; give answers=...")
        answers.append(tuple(found))
    return answers


def _ends(model: nn.Module, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: a model that was taught to chat may have others than its tokenizer."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    given = [getattr(tokenizer, "eos_token_id", None), *(own if isinstance(own, list | tuple) else [own])]
    return [int(token) for token in dict.fromkeys(given) if token is not None]


def _greedy(model: nn.Module, ids: Tensor, new_tokens: int, ends: list[int]) -> list[int]:
    length = ids.shape[1]
    make = getattr(model, "generate", None)
    if make is not None and hasattr(model, "generation_config"):
        made = make(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=new_tokens,
            eos_token_id=ends or None,
            pad_token_id=(*ends, 0)[0],
        )
        return [int(token) for token in made[0, length:].tolist()]
    for _ in range(new_tokens):
        token = plain_output(model(ids))[:, -1].argmax(-1, keepdim=True)
        if int(token) in ends:
            break
        ids = torch.cat([ids, token], 1)
    return [int(token) for token in ids[0, length:].tolist()]


def asked(task: Generation, gates: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Responses, the most probable tokens, and log-probabilities of the answers to rows, not counted."""
    found = []
    with task.session():
        model = task.predictor.model
        assert isinstance(model, PromptModel)
        for at in range(0, len(gates), task.predictor.rows):
            some = slice(at, at + task.predictor.rows)
            found.append(model.answers(gates[some], take_side(side, some)))  # type: ignore[arg-type]
    response, said, own = (torch.cat(part) for part in zip(*found, strict=True))
    return response, said, own


def learn_predictions(task: Generation) -> None:
    """Ask once what the model itself would say at each place of the answers; its outputs are then known."""
    total, said, _ = asked(task, task.inputs, task.side)
    task.__dict__["side"] = {**task.side, "predicted": said}  # type: ignore[dict-item]
    check_finite(total[:, None])
    task.keep("outputs", torch.stack([total, torch.ones_like(total)], 1))
