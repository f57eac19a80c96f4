"""Prompts as tokens and units: what the caller gives, where its parts lie, and what a model can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import index
from typing import Any, Literal, get_args

from torch import Tensor, nn

from veridical.errors import InputError, warn
from veridical.models.prompts import tokens_left

# --- units ----------------------------------------------------------------------------------------------

Span = tuple[int, int]
"""Where a part begins and where it ends, the end not included."""
UnitKind = Literal["token", "word", "sentence", "passage", "example", "turn"]

_ENDS = {
    "word": re.compile(r"(?<=\s)(?=\S)"),
    # full stops of Chinese and Japanese have no blank behind them
    "sentence": re.compile(
        r"(?<=[.!?])(?:[\"')\]]*)\s+(?=\S)|(?<=[。！？])[」』）]*\s*(?=[^\s」』）])|\n\s*(?=\S)"
    ),
    "passage": re.compile(r"\n[ \t\r]*\n\s*(?=\S)"),
}
_ENDS["example"] = _ENDS["passage"]


def parts(text: str, kind: str, start: int = 0, stop: int | None = None) -> list[Span]:
    """The words, sentences or passages of a text; what is blank behind a part belongs to it.

    >>> parts("It rains. Take a coat!", "sentence")
    [(0, 10), (10, 22)]
    """
    stop = len(text) if stop is None else stop
    inside = text[start:stop]
    blank = len(inside) - len(inside.lstrip())
    cuts = [start + blank, *(start + found.end() for found in _ENDS[kind].finditer(inside)), stop]
    cuts = sorted({cut for cut in cuts if start + blank <= cut <= stop})
    found = [(one, two) for one, two in pairwise(cuts) if text[one:two].strip()]
    # the examples of a few-shot prompt end with a question that is no example
    return found[:-1] if kind == "example" else found


def check_spans(spans: Sequence[Span], length: int, what: str, prompt: int) -> list[Span]:
    """The caller's own spans in order, or what is wrong with them."""
    wanted = f"the units of prompt {prompt} are pairs (start, stop) of its {length} {what}s"
    try:
        ordered = sorted((index(start), index(stop)) for start, stop in spans)
    except (TypeError, ValueError) as error:
        raise InputError(f"{wanted}; got {spans!r:.80}") from error
    odd = next((span for span in ordered if not 0 <= span[0] < span[1] <= length), None)
    if odd is not None:
        raise InputError(f"{wanted}; got {odd}")
    for one, two in pairwise(ordered):
        if two[0] < one[1]:
            raise InputError(f"{wanted} that do not overlap; got {one} and {two}")
    return ordered


def unit_of_tokens(
    text: str,
    offsets: Sequence[Span],
    spans: Sequence[Span],
    exact: bool,
    prompt: int,
    contents: Sequence[Span] | None = None,
) -> list[int]:
    """The unit of each token, -1 for none: that of its first character that is no blank.

    A token of blanks alone belongs to what it stands before on the same line, and one that reaches out of the
    `contents`, into a question say, to no unit. `exact` refuses a unit that begins or ends within a token, as
    one of the caller's own might.
    """
    owner, switched = [-1] * len(text), [contents is None] * len(text)
    for start, stop in contents or ():
        switched[start:stop] = [True] * (stop - start)
    for number, (start, stop) in enumerate(spans):
        owner[start:stop] = [number] * (stop - start)
    out = []
    for start, stop in offsets:
        owners = [owner[at] for at in range(start, stop) if not text[at].isspace()]
        kept_on = any(owned >= 0 for owned in owners) and not all(switched[start:stop])
        if len(set(owners)) > 1 or kept_on:
            across = f"a unit of prompt {prompt} begins or ends inside the token {text[start:stop]!r}"
            if exact:
                raise InputError(f"{across}; move its edge")
            warn(f"{across}, which {'stays on' if kept_on else 'belongs to the first'}")
            owners = [-1] if kept_on else owners
        if stop > start and not owners:
            leads = not exact and stop < len(text) and not text[start:stop].strip(" ")
            owners = [owner[stop if leads else start]]
        out.append(owners[0] if owners else -1)
    for number, (start, stop) in enumerate(spans):
        if number not in out:
            raise InputError(f"unit {text[start:stop]!r:.60} of prompt {prompt} has no token of its own")
    return out


# --- tokens ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tokens:
    """A text, its tokens, and the characters of each; a token that was added stands for none."""

    text: str
    """The text."""
    ids: tuple[int, ...]
    """Its tokens."""
    offsets: tuple[Span, ...]
    """The characters of each token, from and to."""


def tokenized(tokenizer: Any, text: str, prompt: int, special: bool = True) -> Tokens:
    """The tokens of a text; refuses where they do not give the text back.

    A tokenizer of transformers tells the characters of a token. Any other with `encode` and `decode` will do
    if the texts of single tokens, joined, are the text.
    """
    if getattr(tokenizer, "is_fast", False):
        made = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        ids, offsets = tuple(made["input_ids"]), tuple((a, b) for a, b in made["offset_mapping"])
        own = [token for token, (start, stop) in zip(ids, offsets, strict=True) if stop > start]
        back = str(tokenizer.decode(own, clean_up_tokenization_spaces=False))
        if back.lstrip() == text.lstrip():
            return Tokens(text, ids, offsets)
        raise _not_round(text, back, prompt)
    try:
        ids = tuple(int(token) for token in tokenizer.encode(text))
        pieces = [str(tokenizer.decode([token])) for token in ids]
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"a tokenizer is one of transformers, or has encode(text) and decode(tokens); this "
            f"{type(tokenizer).__name__} does not: {error}"
        ) from error
    except (KeyError, ValueError) as error:
        raise InputError(f"the tokenizer does not know a word of prompt {prompt}: {error}") from error
    if "".join(pieces) != text:
        raise _not_round(text, "".join(pieces), prompt)
    return Tokens(text, ids, tuple(pairwise(accumulate(map(len, pieces), initial=0))))


def _not_round(text: str, back: str, prompt: int) -> InputError:
    differs = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), 0)
    at = max(0, differs - 20)
    return InputError(
        f"the tokens of prompt {prompt} do not give its text back: {text[at : at + 40]!r} became "
        f"{back[at : at + 40]!r}, so units cannot be told apart; write the text as the tokenizer does"
    )


def continued(tokenizer: Any, prompt: Tokens | None, answer: str, number: int, special: bool) -> Tokens:
    """The tokens of an answer as they follow the prompt; None where a decoder begins with it."""
    if not isinstance(answer, str) or not answer:
        raise InputError(
            f"the answer to prompt {number} is empty; give the text whose probability is explained"
        )
    if prompt is None:
        made = tokenized(tokenizer, answer, number)
        last = max(place for place, (start, stop) in enumerate(made.offsets) if stop > start) + 1
        return Tokens(answer, made.ids[:last], made.offsets[:last])
    whole, begin = tokenized(tokenizer, prompt.text + answer, number, special), len(prompt.text)
    if whole.ids[: len(prompt.ids)] == prompt.ids and len(whole.ids) > len(prompt.ids):
        offsets = tuple((max(0, a - begin), b - begin) for a, b in whole.offsets[len(prompt.ids) :])
        return Tokens(answer, whole.ids[len(prompt.ids) :], offsets)
    warn(
        f"the last word of prompt {number} and the first of {answer!r:.40} would share a token and are read "
        "as two, which the model has rarely seen; let the blank between them begin the answer"
    )
    return tokenized(tokenizer, answer, number, special=False)


# --- prompts --------------------------------------------------------------------------------------------

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
    turns: tuple[tuple[str, int, int], ...] = ()
    """Role of each message of a chat, and where in the text it begins and ends; empty for a text."""

    @property
    def chat(self) -> bool:
        """Whether a chat template made the text, special tokens and all."""
        return bool(self.turns)

    @property
    def tokens(self) -> Tokens:
        """The text and its tokens, for an answer to follow."""
        return Tokens(self.text, self.ids, ())


def read_prompts(
    tokenizer: Any,
    prompts: Any,
    questions: Any,
    units: Units,
    spans: Literal["character", "token"],
    ended: bool = False,
) -> tuple[Prompt, ...]:
    """Every prompt with its units; `ended` lets an end token stand behind it, as an encoder reads it."""
    if prompts is None or isinstance(prompts, int | float | Mapping):
        raise InputError(f"prompts are a list of texts or of chats; got {type(prompts).__name__}")
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise InputError("there is no prompt; give a list of texts or of chats")
    if isinstance(given[0], Mapping):
        given = [given]
    behind = [""] * len(given) if questions is None else list(questions)
    own = None if isinstance(units, str) else list(units)
    for what, values in (("questions", behind), ("lists of units", own)):
        if values is not None and len(values) != len(given):
            raise InputError(f"{len(values)} {what} for {len(given)} prompts; give one for each")
    if isinstance(units, str) and units not in get_args(UnitKind):
        raise InputError(f"units are {', '.join(get_args(UnitKind))}, or spans; got {units!r}")
    return tuple(
        _read(tokenizer, prompt, behind[i], units if own is None else own[i], spans, i, ended)  # type: ignore[arg-type]
        for i, prompt in enumerate(given)
    )


def _read(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]],
    question: str,
    units: str | Sequence[Span],
    spans: str,
    number: int,
    ended: bool,
) -> Prompt:
    chat = not isinstance(prompt, str)
    turns: tuple[tuple[str, int, int], ...] = ()
    if isinstance(prompt, str):
        text, contents = prompt + question, [(0, len(prompt))]
    else:
        text, contents, turns = _chat(tokenizer, prompt, question, number)
    if not text.strip():
        raise InputError(f"prompt {number} is empty")
    made = tokenized(tokenizer, text, number, special=not chat)
    if (
        not (chat or ended)
        and made.ids[-1] in getattr(tokenizer, "all_special_ids", ())
        and made.offsets[-1][1] == 0
    ):
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
    else:
        places = (
            [(a, b) for a, b in made.offsets if b > a and any(c <= a and b <= d for c, d in contents)]
            if units == "token"
            else _places(text, contents, units, chat, number)
        )
        unit = unit_of_tokens(text, made.offsets, places, exact, number, contents)
    if not places:
        raise InputError(
            f"prompt {number} has no {units if isinstance(units, str) else 'unit'} to switch off"
        )
    names = tuple(text[a:b].strip() or text[a:b] for a, b in places)
    return Prompt(text, made.ids, tuple(unit), names, tuple(places), turns)


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
) -> tuple[str, list[Span], tuple[tuple[str, int, int], ...]]:
    """The text that the chat template makes, and where its messages lie, without the question and with it."""
    try:
        turns = [{"role": str(m["role"]), "content": m["content"]} for m in messages]
    except (TypeError, KeyError):
        turns = []
    if not turns or not all(isinstance(turn["content"], str) for turn in turns):
        raise InputError(
            f"prompt {number} is neither a text nor a list of messages {{'role': ..., 'content': ...}} "
            "of texts"
        )
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"prompt {number} is a chat and the tokenizer has no chat template; give a text")
    sizes = [len(turn["content"].strip()) for turn in turns]
    turns[-1]["content"] += question
    marked = [{**turn, "content": f"veridical{i}message"} for i, turn in enumerate(turns)]
    text, frame = (_templated(tokenizer, each, number) for each in (turns, marked))
    # by what stands around the messages: what they say may stand in the template, too
    around = re.split("|".join(turn["content"] for turn in marked), frame)
    for trim in (str, str.strip):
        contents = [trim(turn["content"]) for turn in turns]
        pieces = [part for pair in zip(around, [*contents, ""], strict=False) for part in pair]
        if len(around) == len(turns) + 1 and "".join(pieces) == text:
            break
    else:
        raise InputError(f"the chat template changes a message of prompt {number}, so its units are lost")
    spans, whole, at = [], [], 0
    for before, content, size, turn in zip(around, contents, sizes, turns, strict=False):
        start = at + len(before) + len(content) - len(content.lstrip())
        at += len(before) + len(content)
        spans.append((start, start + size))
        whole.append((turn["role"], start, at))
    return text, spans, tuple(whole)


def _templated(tokenizer: Any, turns: Sequence[Mapping[str, str]], number: int) -> str:
    try:
        return str(tokenizer.apply_chat_template([*turns], tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of its own
        raise InputError(f"the chat template refuses prompt {number}: {error}") from error


# --- the text without some units ------------------------------------------------------------------------


def text_left(tokenizer: Any, prompt: Prompt, on: Sequence[bool], other: Prompt | None = None) -> str:
    """The text without the units that are off, or with those of the `other` prompt in their places.

    The blank in front of a unit goes with it where another blank, or nothing, follows. A message of a chat of
    which nothing is left is left out, and the template writes the others; the last stays, empty, where
    nothing is left of any.
    """
    if all(on):
        return prompt.text
    if not prompt.chat:
        return _left(prompt, on, other, 0, len(prompt.text))
    turns = [
        {"role": role, "content": _left(prompt, on, other, start, stop)}
        for role, start, stop in prompt.turns
        if start == stop or _left(prompt, on, other, start, stop).strip()
    ]
    turns = turns or [{"role": prompt.turns[-1][0], "content": ""}]
    try:
        return _templated(tokenizer, turns, 0)
    except InputError as error:
        raise InputError(f"{error}, without some of its messages; say off='tokens'") from error


def _left(prompt: Prompt, on: Sequence[bool], other: Prompt | None, start: int, stop: int) -> str:
    left, at = "", start
    for number, (a, b) in enumerate(prompt.places):
        if on[number] or not start <= a < stop:
            continue
        left += prompt.text[at:a]
        unit, at = prompt.text[a:b], b
        if other is not None:
            core, (c, d) = unit.strip(), other.places[number]
            left += unit.replace(core, other.text[c:d].strip(), 1) if core else other.text[c:d]
        elif not unit[-1:].isspace() and not prompt.text[at:stop][:1].strip():
            left = left.rstrip(" ")
    return left + prompt.text[at:stop]


class TextLeft:
    """Writes prompts without units, or with those of other prompts, and cuts the texts into tokens."""

    def __init__(
        self, tokenizer: Any, prompts: Sequence[Prompt], others: Sequence[Prompt] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        own = (prompt.ids for prompt in (others or prompts))
        self.known = {
            (prompt.ids, prompt.unit, ids): (prompt, None if others is None else others[number])
            for number, (prompt, ids) in enumerate(zip(prompts, own, strict=True))
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> TextLeft:
        return self  # never written to, and a tokenizer is large

    def __repr__(self) -> str:
        return "drop" if all(other is None for _, other in self.known.values()) else "swap"

    def __call__(self, side: dict[str, Tensor], on: Tensor) -> list[tuple[int, ...]]:
        found = []
        for row, units in enumerate(on.tolist()):
            there = side["attended"][row]
            ids, unit = (tuple(side[name][row][there].tolist()) for name in ("tokens", "unit"))
            instead = side["instead"][row] if "instead" in side else None
            third = ids if instead is None else tuple(instead[instead >= 0].tolist())
            prompt, other = self.known.get((ids, unit, third), (None, None))
            if prompt is None:  # spans that are no units of the prompt, such as random ones
                found += tokens_left(
                    {name: value[row : row + 1] for name, value in side.items()}, on[row : row + 1]
                )
            else:
                text = text_left(self.tokenizer, prompt, units, other)
                found.append(tokenized(self.tokenizer, text, 0, not prompt.chat).ids)
        return found


# --- limits of a model ----------------------------------------------------------------------------------


def max_tokens(model: nn.Module, length: int | None) -> int | None:
    """How many tokens the model reads at most: what the caller says or its configuration, the less."""
    config = getattr(model, "config", None)
    stated = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    return min((limit for limit in (length, *stated) if isinstance(limit, int) and limit > 0), default=None)


def check_fitting(
    model: nn.Module, prompts: Sequence[Prompt], answers: Iterable[Sequence[int]], length: int | None
) -> None:
    """Refuse tokens that are too many, or that the model has no embedding for.

    Before answers are known, one token of each is: a model must not be given more than it can read.
    """
    most = max_tokens(model, length)
    known = _vocabulary(model)
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if most is not None and len(prompt.ids) + len(answer) > most:
            raise InputError(
                f"prompt {number} has {len(prompt.ids)} tokens and its answer {len(answer)}; the model reads "
                f"{most} at most. Shorten the prompt: it is never cut here"
            )
        largest = max(*prompt.ids, *answer)
        if known is not None and largest >= known:
            raise InputError(
                f"prompt {number} or its answer has token {largest}, and the model knows {known} of them "
                "(from 0 on); give the tokenizer that it was trained with"
            )


def _vocabulary(model: nn.Module) -> int | None:
    """How many tokens have an embedding: where the model does not name its layer, in its largest table."""
    named: Any = model
    try:
        layers = [named.get_input_embeddings()]
    except (AttributeError, NotImplementedError):
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return max((layer.num_embeddings for layer in layers if isinstance(layer, nn.Embedding)), default=None)
