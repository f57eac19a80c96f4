"""Prompts as the caller gives them: texts, texts with a question, or the messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from veridical.data.prompt_tokens import Tokens, tokenized
from veridical.data.prompt_units import Span, UnitKind, check_spans, parts, unit_of_tokens
from veridical.errors import InputError

Units = UnitKind | Sequence[Sequence[Span]]
"""A kind of unit, or the caller's own spans, one list per prompt."""


@dataclass(frozen=True)
class Prompt:
    """One prompt as the model reads it: its text, tokens and units."""

    text: str
    """The whole text, chat markers included."""
    ids: tuple[int, ...]
    """Its tokens."""
    unit: tuple[int, ...]
    """The unit of each token, -1 for those that are always on."""
    units: tuple[str, ...]
    """The text of each unit."""
    places: tuple[Span, ...]
    """Where in the text each unit begins and ends."""
    chat: bool
    """Whether a chat template made the text, special tokens and all."""

    @property
    def tokens(self) -> Tokens:
        """The text and its tokens, for an answer to follow."""
        return Tokens(self.text, self.ids, ())


def read_prompts(
    tokenizer: Any, prompts: Any, questions: Any, units: Units, spans: Literal["character", "token"]
) -> tuple[Prompt, ...]:
    """Every prompt with its units."""
    if prompts is None or isinstance(prompts, int | float | Mapping):
        raise InputError(f"prompts are a list of texts or of chats; got {type(prompts).__name__}")
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise InputError("there is no prompt; give a list of texts or of chats")
    if given and isinstance(given[0], Mapping):
        given = [given]
    behind = [""] * len(given) if questions is None else list(questions)
    own = None if isinstance(units, str) else list(units)
    for what, values in (("questions", behind), ("lists of units", own)):
        if values is not None and len(values) != len(given):
            raise InputError(f"{len(values)} {what} for {len(given)} prompts; give one for each")
    if isinstance(units, str) and units not in get_args(UnitKind):
        raise InputError(f"units are {', '.join(get_args(UnitKind))}, or spans; got {units!r}")
    return tuple(
        _read(tokenizer, prompt, behind[i], units if own is None else own[i], spans, i)  # type: ignore[arg-type]
        for i, prompt in enumerate(given)
    )


def _read(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]],
    question: str,
    units: str | Sequence[Span],
    spans: str,
    number: int,
) -> Prompt:
    chat = not isinstance(prompt, str)
    if isinstance(prompt, str):
        text, contents = prompt + question, [(0, len(prompt))]
    else:
        text, contents = _chat(tokenizer, prompt, question, number)
    if not text.strip():
        raise InputError(f"prompt {number} is empty")
    made = tokenized(tokenizer, text, number, special=not chat)
    if not chat and made.ids[-1] in getattr(tokenizer, "all_special_ids", ()) and made.offsets[-1][1] == 0:
        raise InputError(
            f"the tokenizer ends prompt {number} with {tokenizer.decode(made.ids[-1:])!r}, behind which an "
            "answer would follow the end of a text; load it with add_eos_token=False"
        )
    if units == "example" and question:
        units = "passage"  # what is asked stands apart, so all passages are examples
    exact = not isinstance(units, str)
    if exact and spans == "token":
        chosen = check_spans(units, len(made.ids), "token", number)  # type: ignore[arg-type]
        unit = [next((i for i, (a, b) in enumerate(chosen) if a <= t < b), -1) for t in range(len(made.ids))]
        places = [(made.offsets[a][0], made.offsets[b - 1][1]) for a, b in chosen]
    elif units == "token":
        inside = [t for t, (a, b) in enumerate(made.offsets) if b > a and _within(a, b, contents)]
        unit = [inside.index(t) if t in inside else -1 for t in range(len(made.ids))]
        places = [made.offsets[t] for t in inside]
    else:
        places = _places(text, contents, units, chat, number)
        unit = unit_of_tokens(text, made.offsets, places, exact, number)
    if not places:
        raise InputError(
            f"prompt {number} has no {units if isinstance(units, str) else 'unit'} to switch off"
        )
    names = tuple(text[a:b].strip() or text[a:b] for a, b in places)
    return Prompt(text, made.ids, tuple(unit), names, tuple(places), chat)


def _within(start: int, stop: int, contents: list[Span]) -> bool:
    return any(a < stop and start < b for a, b in contents)


def _places(
    text: str, contents: list[Span], units: str | Sequence[Span], chat: bool, number: int
) -> list[Span]:
    if not isinstance(units, str):
        return check_spans(units, len(text), "character", number)
    if units == "turn":
        if not chat:
            raise InputError(f"units='turn' are the messages of a chat, and prompt {number} is a text")
        return [span for span in contents if span[1] > span[0]]
    return [span for a, b in contents for span in parts(text, units, a, b)]


def _chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], question: str, number: int
) -> tuple[str, list[Span]]:
    """The text that the chat template makes, and where the contents of the messages lie in it."""
    try:
        whole = all(isinstance(m, Mapping) for m in messages)
        said = [{"role": str(m["role"]), "content": m["content"]} for m in (messages if whole else ())]
        whole = whole and all(isinstance(m["content"], str) for m in said)
    except (TypeError, KeyError):
        whole = False
    if not whole:
        raise InputError(
            f"prompt {number} is neither a text nor a list of messages {{'role': ..., 'content': ...}} "
            "of texts"
        )
    if not said:
        raise InputError(f"prompt {number} is a chat of no messages")
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"prompt {number} is a chat and the tokenizer has no chat template; give a text")
    sizes = [len(m["content"].strip()) for m in said]
    said[-1]["content"] += question
    marked = [{**m, "content": f"veridical{i}message"} for i, m in enumerate(said)]
    try:
        text, frame = (
            str(tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True))
            for each in (said, marked)
        )
    except Exception as error:  # a template is a program of its own
        raise InputError(f"the chat template refuses prompt {number}: {error}") from error
    # by what stands around the messages: what they say may stand in the template, too
    around = re.split("|".join(m["content"] for m in marked), frame)
    for contents in ([m["content"] for m in said], [m["content"].strip() for m in said]):
        pieces = [part for pair in zip(around, [*contents, ""], strict=False) for part in pair]
        if len(around) == len(said) + 1 and "".join(pieces) == text:
            break
    else:
        raise InputError(f"the chat template changes a message of prompt {number}, so its units are lost")
    spans, at = [], 0
    for before, content, size in zip(around, contents, sizes, strict=False):
        start = at + len(before) + len(content) - len(content.lstrip())
        spans.append((start, start + size))
        at += len(before) + len(content)
    return text, spans
