"""Prompts and answers of a causal language model as a task: which parts of a prompt made an answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.core.allowed import Count
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.data.prompt_texts import (
    Prompt,
    Units,
    check_fitting,
    continued,
    max_tokens,
    read_prompts,
    tokenized,
)
from veridical.errors import InputError
from veridical.models.predictor import Side, check_finite, plain_output, take_side
from veridical.models.private_copy import private_copy
from veridical.models.prompts import Off, PromptModel, SwitchedOff, near
from veridical.perturb.fills import Zero
from veridical.values.task import Task

NEUTRAL = (" ...", "...", " the", ".")
"""Words that may stand in for tokens that are off; the first that is one token does."""


class Generation(Task):
    """A causal language model, prompts, and answers: the gates of the prompts' units are what is explained.

    `inputs` (N, units) are 1 where a unit is on; a unit that is removed has 0. The response is the
    log-probability of the answer, less that of the foil where there is one.

    Parameters
    ----------
    model : nn.Module
        Takes token ids and returns logits, as those of transformers do.
    tokenizer
        One of transformers, or any object with `encode` and `decode`.
    prompts : list of str, or of lists of chat messages
        Chats go through the tokenizer's chat template.
    answers : sequence of str, optional
        What is answered; None generates them, greedily.
    foils : sequence of str, optional
        What might have been answered instead.
    questions : sequence of str, optional
        Texts put behind the prompts that are never switched off.
    answer_parts : sequence, optional
        Which part of each answer is judged: a text in it, or token numbers. Its foil is judged at the same
        places, and has as many tokens.
    units : str or list of spans per prompt
        "token", "word", "sentence", "passage" (between blank lines), "example" (passages but the last),
        "turn" (messages of a chat), or spans of the caller's own.
    spans : {"character", "token"}
        What the caller's own spans count.
    off : {"fill", "drop", "pad", "mask", "zero"}
        What becomes of a unit that is off: a neutral word, the other tokens alone, those tokens, or zeros.
    neutral : str, optional
        The word of off="fill"; one token.
    new_tokens : int
        The most tokens that are generated.
    length : int, optional
        The most tokens that the model reads, where it does not say it.
    **settings
        Go to `Task`.

    Raises
    ------
    InputError
        Where the model is not causal, or does not follow what `off` means.
    """

    prompts: tuple[Prompt, ...]
    """The prompts, with the places of their units."""
    answers: tuple[Answer, ...]
    """What was answered, and the foils."""
    tokenizer: Any
    units: str
    off: str

    @checked
    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        prompts: Any,
        answers: Sequence[str] | None = None,
        *,
        foils: Sequence[str] | None = None,
        questions: Sequence[str] | None = None,
        answer_parts: Sequence[Any] | None = None,
        units: Units = "sentence",
        spans: Literal["character", "token"] = "character",
        off: Off = "fill",
        neutral: str | None = None,
        new_tokens: Count = 16,
        length: Count | None = None,
        **settings: Any,
    ) -> None:
        read = read_prompts(tokenizer, prompts, questions, units, spans)
        check_fitting(model, read, [[0]] * len(read), length)
        if answers is None:
            texts: list[Any] = generated(model, tokenizer, read, new_tokens, max_tokens(model, length))
        else:
            texts = _one_each(answers, len(read), "answers")
        rows = zip(
            read,
            texts,
            _one_each(foils, len(read), "foils"),
            _one_each(answer_parts, len(read), "answer_parts"),
            strict=True,
        )
        found = tuple(answer_of(tokenizer, *row, number) for number, row in enumerate(rows))
        for tokens in ([a.tokens for a in found], [a.foil_tokens or a.tokens for a in found]):
            check_fitting(model, read, tokens, length)
        side = _side(read, found)
        count = max(len(prompt.units) for prompt in read)
        valid = torch.tensor([[i < len(prompt.units) for i in range(count)] for prompt in read])
        names = [[*prompt.units, *[""] * (count - len(prompt.units))] for prompt in read]
        one_pass = all(a.tokens[:-1] == (a.foil_tokens or a.tokens)[:-1] for a in found)
        wrapped = PromptModel(
            model, switched_off(tokenizer, off, neutral), foils is not None, one_pass
        ).eval()
        settings.setdefault("name", "generation")
        super().__init__(
            wrapped,
            torch.ones(len(read), count),
            side=side,
            space=Space.units(count, None if bool(valid.all()) else valid, names),
            fill=Zero(),
            head="generation",
            targets=torch.zeros(len(read), dtype=torch.int64),
            **settings,
        )
        kind = units if isinstance(units, str) else "span"
        self.__dict__.update(prompts=read, answers=found, tokenizer=tokenizer, units=kind, off=off)
        if off == "drop":
            check_left(self)
        learn_predictions(self)
        check_exact(self)

    @classmethod
    def from_huggingface(
        cls, source: str | Path, prompts: Any, answers: Any = None, **settings: Any
    ) -> Generation:
        """The same from a folder, or a GGUF file, of transformers: see `vd.tasks.causal_model`."""
        from veridical.data.huggingface import causal_model

        device = settings.pop("device", None)
        model, tokenizer = causal_model(source)
        settings.setdefault("name", Path(source).stem)
        return cls(model.to(device or "cpu"), tokenizer, prompts, answers, **settings)

    @checked
    def with_off(self, off: Off, neutral: str | None = None) -> Generation:
        """The same prompts and answers where off means something else."""
        if off == "drop":
            check_left(self)
        return self._meaning(off, neutral)

    def _meaning(self, off: str, neutral: str | None = None) -> Generation:
        old = self.predictor
        how = switched_off(self.tokenizer, off, neutral)

        def around(model: nn.Module) -> PromptModel:
            assert isinstance(model, PromptModel)
            return PromptModel(model.model, how, model.has_foil, model.one_pass)

        source = old.source.wrapped(around)
        made = source.module
        assert isinstance(made, PromptModel)
        predictor = replace(old, source=source, differentiable=not made.no_gradient)
        task = self.changed(alone=True, predictor=predictor, outputs=self.known_outputs, off=off)
        assert isinstance(task, Generation)
        check_exact(task)
        return task

    def __getitem__(self, index: Any) -> Generation:
        task = super().__getitem__(index)
        places = torch.arange(len(self))
        kept = (
            places[index if isinstance(index, slice) else torch.as_tensor(index).cpu()].reshape(-1).tolist()
        )
        task.__dict__["prompts"] = tuple(self.prompts[place] for place in kept)
        task.__dict__["answers"] = tuple(self.answers[place] for place in kept)
        assert isinstance(task, Generation)
        return task


def _one_each(values: Any, count: int, what: str) -> list[Any]:
    if values is None:
        return [None] * count
    given = [values] if isinstance(values, str) else list(values)
    if len(given) != count:
        raise InputError(f"{len(given)} {what} for {count} prompts; give one for each")
    return given


def switched_off(tokenizer: Any, off: str, neutral: str | None) -> SwitchedOff:
    """What stands in for tokens that are off."""
    if neutral is not None and off != "fill":
        raise InputError(f"neutral is the word that fills units that are off; off={off!r} needs none")
    if off in ("drop", "zero"):
        return SwitchedOff(off == "drop")
    if off in ("pad", "mask"):
        token = getattr(tokenizer, f"{off}_token_id", None)
        if token is None:
            raise InputError(f"the tokenizer has no {off} token; say off='fill' or off='drop'")
        return SwitchedOff(False, int(token))
    plain = {"add_special_tokens": False} if hasattr(tokenizer, "all_special_ids") else {}
    for word in NEUTRAL if neutral is None else (neutral,):
        try:
            made = tokenizer.encode(word, **plain)
        except (KeyError, ValueError):
            continue
        if len(made) == 1 and made[0] != getattr(tokenizer, "unk_token_id", None):
            return SwitchedOff(False, int(made[0]))
    tried = repr(neutral) if neutral is not None else "none of " + ", ".join(map(repr, NEUTRAL))
    raise InputError(
        f"{tried} is {'not ' if neutral is not None else ''}a single token of this tokenizer; say "
        "neutral='...', a word that is one, or off='zero'"
    )


def _side(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, Tensor]:
    """What the model gets besides the gates: prompts that end together, answers that begin together."""
    tokens = _rows([p.ids for p in prompts], 0, left=True)
    answer = _rows([a.tokens for a in answers], 0)
    foil = _rows([a.foil_tokens or a.tokens[:1] for a in answers], 0)
    return {
        "tokens": tokens,
        "attended": _rows([[1] * len(p.ids) for p in prompts], 0, left=True).bool(),
        "unit": _rows([p.unit for p in prompts], -1, left=True),
        "answer": answer,
        "answered": _rows([[1] * len(a.tokens) for a in answers], 0).bool(),
        "judged": _rows([[i in a.judged for i in range(len(a.tokens))] for a in answers], 0).bool(),
        "predicted": answer,
        "foil": foil,
        "foiled": _rows([[1] * len(a.foil_tokens or a.tokens[:1]) for a in answers], 0).bool(),
        "foil_judged": _rows(
            [[i in a.foil_judged for i in range(len(a.foil_tokens or a.tokens[:1]))] for a in answers], 0
        ).bool(),
    }


def _rows(values: Sequence[Sequence[int]], blank: int, left: bool = False) -> Tensor:
    rows = [torch.tensor(row, dtype=torch.int64) for row in values]
    padding_side = "left" if left else "right"
    return nn.utils.rnn.pad_sequence(rows, True, blank, padding_side=padding_side)


# --- answers --------------------------------------------------------------------------------------------


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
    foil_judged: tuple[int, ...] = ()
    """Which of these are judged: all, or those at the places of the answer's."""


def answer_of(
    tokenizer: Any, prompt: Prompt, answer: str | tuple[int, ...], foil: str | None, part: Any, number: int
) -> Answer:
    """An answer and its foil as tokens behind a prompt; `part` is a text in the answer, or token numbers.

    What was generated are tokens, and stays: its text might be cut into others.
    """
    special = not prompt.chat
    if isinstance(answer, tuple):
        text, tokens = str(tokenizer.decode(list(answer))), answer
    else:
        text, tokens = answer, continued(tokenizer, prompt.tokens, answer, number, special)
    judged = _judged(tokenizer, text, tokens, part, number)
    if foil is None:
        return Answer(text, tokens, judged)
    against = continued(tokenizer, prompt.tokens, foil, number, special)
    if against == tokens:
        raise InputError(f"answer and foil of prompt {number} are the same text {text!r:.40}")
    if part is not None and len(against) != len(tokens):
        raise InputError(
            f"a part of the answer to prompt {number} is judged, and its foil of {len(against)} tokens for "
            f"{len(tokens)} has no such part; give a foil of equally many tokens, or none"
        )
    return Answer(text, tokens, judged, foil, against, tuple(range(len(against))) if part is None else judged)


def _judged(tokenizer: Any, text: str, tokens: tuple[int, ...], part: Any, number: int) -> tuple[int, ...]:
    if part is None:
        return tuple(range(len(tokens)))
    if isinstance(part, str):
        at = text.find(part)
        made = tokenized(tokenizer, text, number, special=False)
        if at < 0 or not part or made.ids != tokens:
            raise InputError(
                f"the part {part!r:.40} of the answer to prompt {number} is not in it, or not among its "
                "tokens; give their numbers"
            )
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
        ids, length = torch.tensor([prompt.ids], device=home), len(prompt.ids)
        for _ in range(new_tokens if most is None else min(new_tokens, most - length)):
            with torch.no_grad():
                token = plain_output(own(ids))[:, -1].argmax(-1, keepdim=True)
            if int(token) in ends:
                break
            ids = torch.cat([ids, token], 1)
        if ids.shape[1] == length:
            raise InputError(f"the model answers nothing to prompt {number}; give answers=...")
        answers.append(tuple(ids[0, length:].tolist()))
    return answers


def _ends(model: nn.Module, tokenizer: Any) -> set[int]:
    """The tokens that end an answer: a model that was taught to chat may have others than its tokenizer."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    given = [getattr(tokenizer, "eos_token_id", None), *(own if isinstance(own, list | tuple) else [own])]
    return {int(token) for token in given if token is not None}


def evaluated(task: Generation, gates: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Responses, the most probable tokens, and log-probabilities of the answers to rows, not counted."""
    found = []
    with task.session():
        model = task.predictor.model
        assert isinstance(model, PromptModel)
        for at in range(0, len(gates), task.predictor.rows):
            some = slice(at, at + task.predictor.rows)
            found.append(model.answers(gates[some], take_side(side, some)))  # type: ignore[arg-type]
    response, predicted, own = (torch.cat(part) for part in zip(*found, strict=True))
    return response, predicted, own


def learn_predictions(task: Generation) -> None:
    """Evaluate once what the model predicts at each place of the answers; its outputs are then known."""
    total, predicted, _ = evaluated(task, task.inputs, task.side)
    check_finite(total[:, None])
    outputs = torch.stack([total, torch.ones_like(total)], 1)
    task.__dict__.update(side={**task.side, "predicted": predicted}, known_outputs=outputs)  # type: ignore[dict-item]


# --- whether a model follows what off means -------------------------------------------------------------

WINDOWS = ("sliding_window", "window_size", "attention_chunk_size")
"""What configurations call the number of tokens that a layer looks back."""
_APART = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.1}
"""By how much answers may differ that should be the same, by precision."""


def check_exact(task: Generation) -> None:
    """Refuse a model that is not causal, or that does not follow what `off` means.

    A padded prompt is evaluated without padding; one whose first unit is off with the token in its place,
    or shortened in fact.
    """
    side = task.side
    assert isinstance(side, dict)
    _check_causal(task, side)
    padding = (~side["attended"]).sum(1)
    if int(padding.max()):
        place = int(padding.argmax())
        _same(task, place, task.inputs[place], "padding in front of it")
    if task.off == "drop":
        _check_window(task)
    if task.off != "zero":
        gates = task.inputs[0].clone()
        gates[0] = 0
        _same(task, 0, gates, "units that are off")


def check_left(task: Generation, dropped: int | None = None) -> None:
    """Refuse prompts of which nothing is left when all units, or so many, are dropped."""
    for number, prompt in enumerate(task.prompts):
        if min(prompt.unit) >= 0 and len(prompt.units) <= (dropped or len(prompt.units)):
            raise InputError(
                f"with all units dropped nothing is left of prompt {number} for an answer to follow: put "
                "what is asked behind the units (questions=...), or say off='fill'"
            )


def _check_window(task: Generation) -> None:
    """Refuse layers that look back so many tokens, hidden ones too: the shorter text would show them more."""
    model = task.predictor.source.module
    assert isinstance(model, PromptModel)
    config = getattr(model.model, "config", None)
    kinds = getattr(config, "layer_types", None) or ["sliding"]
    if getattr(config, "use_sliding_window", True) is False or {*kinds} == {"full_attention"}:
        return
    stated = [getattr(config, name, None) for name in WINDOWS]
    window = min((each for each in stated if isinstance(each, int)), default=None)
    # the last token of an answer is predicted, not read
    read = max(
        len(prompt.ids) + max(len(answer.tokens), len(answer.foil_tokens or ())) - 1
        for prompt, answer in zip(task.prompts, task.answers, strict=True)
    )
    if window is not None and window < read:
        raise InputError(
            f"layers of this model look back {window} tokens, those that are dropped included, and a prompt "
            f"with its answer has {read}: say off='fill'"
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
