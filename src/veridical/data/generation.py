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
    TextLeft,
    Tokens,
    Units,
    check_fitting,
    continued,
    max_tokens,
    read_prompts,
    tokenized,
)
from veridical.errors import InputError, NotApplicableError
from veridical.models.predictor import Side, check_finite, plain_output, take_side
from veridical.models.private_copy import private_copy
from veridical.models.prompts import (
    AnswerModel,
    Off,
    PromptModel,
    SwitchedOff,
    Wanted,
    decoder_start,
    near,
    tokens_left,
)
from veridical.models.servers import Characters, ServedModel, Server
from veridical.perturb.fills import Zero
from veridical.values.task import Task

NEUTRAL = (" ...", "...", " the", ".")
"""Words that may stand in for tokens that are off; the first that is one token does."""


class Generation(Task):
    """A language model, prompts, and answers: the gates of the prompts' units are what is explained.

    `inputs` (N, units) are 1 where a unit is on; a unit that is removed has 0. The response is the
    log-probability of the answer, less that of the foil where there is one. The model is causal, or an
    encoder that reads the prompt with a decoder that answers.

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
    off : {"fill", "drop", "tokens", "swap", "pad", "mask", "zero"}
        What becomes of a unit that is off: its tokens become a neutral word, the text without it is tokenised
        anew, its tokens are left out, the same unit of `contrasts` takes its place, its tokens become those
        tokens, or zeros.
    contrasts : list of str, or of lists of chat messages, optional
        With off="swap": the other context of each prompt, with as many units. With all units off the answer
        follows that context, so that values that sum to the whole fall explain the contrast of the two.
    wanted : {"log_probability", "perplexity", "entropy"}
        The response: perplexity and mean entropy of the answer's tokens have their sign turned, so that
        a unit that makes the model surer has a positive value.
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
        Where the model reads its answer beforehand, or does not follow what `off` means.
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
        contrasts: Any = None,
        wanted: Wanted = "log_probability",
        neutral: str | None = None,
        new_tokens: Count = 16,
        length: Count | None = None,
        **settings: Any,
    ) -> None:
        if type(model).__name__.endswith(_READ_AHEAD):
            raise InputError(
                f"{type(model).__name__} reads a text as a whole and is no causal language model "
                "(...ForCausalLM): it would know the answer it is asked for"
            )
        encodes = decoder_start(model) is not None
        read = read_prompts(tokenizer, prompts, questions, units, spans, encodes)
        others = None
        if (contrasts is None) == (off == "swap"):
            raise InputError("contrasts are the other contexts of off='swap': give both or neither")
        if contrasts is not None:
            others = read_prompts(tokenizer, contrasts, questions, units, spans, encodes)
            _check_contrasts(read, others)
        if wanted != "log_probability" and foils is not None:
            raise InputError(f"wanted={wanted!r} is asked of the answer alone; give no foils")
        check_fitting(model, read, [[0]] * len(read), length)
        if answers is None:
            texts: list[Any] = generated(model, tokenizer, read, new_tokens, max_tokens(model, length))
        else:
            texts = _one_each(answers, len(read), "answers")
        found = _answers(tokenizer, read, texts, foils, answer_parts, encodes)
        for tokens in ([a.tokens for a in found], [a.against for a in found]):
            check_fitting(model, read, tokens, length)
        one_pass = all(a.tokens[:-1] == a.against[:-1] for a in found)
        how = switched_off(tokenizer, off, neutral, read, others)
        asked = PromptModel(model, how, foils is not None, one_pass, wanted).eval()
        self._made(asked, tokenizer, read, found, units, off, _side(read, found, encodes, others), settings)
        if how.rewrite is not None:
            check_left(self)
        learn_padding(self)
        learn_predictions(self)
        check_exact(self)

    def _made(
        self,
        asked: AnswerModel,
        tokenizer: Any,
        read: tuple[Prompt, ...],
        found: tuple[Answer, ...],
        units: Units,
        off: str,
        side: dict[str, Tensor],
        settings: dict[str, Any],
    ) -> None:
        """The task of a model on these prompts, nothing of it checked yet."""
        count = max(len(prompt.units) for prompt in read)
        valid = torch.tensor([[i < len(prompt.units) for i in range(count)] for prompt in read])
        names = [[*prompt.units, *[""] * (count - len(prompt.units))] for prompt in read]
        settings.setdefault("name", "generation")
        super().__init__(
            asked,
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

    @classmethod
    def from_server(
        cls,
        server: Server,
        prompts: Any,
        answers: Sequence[str],
        *,
        foils: Sequence[str] | None = None,
        questions: Sequence[str] | None = None,
        answer_parts: Sequence[Any] | None = None,
        units: Units = "sentence",
        **settings: Any,
    ) -> Generation:
        """Texts and answers of a model behind a server; a unit that is off is dropped from the text.

        Each row is one text to the server, two with foils; `server.spent` counts them.
        """
        if units == "token":
            raise InputError("the tokens of a server are not known here; say units='word'")
        if foils is not None and answer_parts is not None:
            raise InputError("a server's tokens are not known here, so no foil is judged in part")
        read = read_prompts(Characters(), prompts, questions, units, "character")
        texts = _one_each(answers, len(read), "answers")
        found = _answers(Characters(), read, texts, foils, answer_parts, False)
        task = object.__new__(cls)
        asked = ServedModel(server, TextLeft(Characters(), read), foils is not None).eval()
        side = _side(read, found)
        task._made(asked, Characters(), read, found, units, "drop", side, {"name": server.model, **settings})
        check_left(task)
        learn_predictions(task)
        return task

    def with_off(self, off: Off) -> Generation:
        """The same prompts and answers where off means something else than a swap."""
        task = self._asked(off=switched_off(self.tokenizer, off, None, self.prompts), pads=False)
        task.__dict__["off"] = off
        learn_padding(task)
        check_exact(task)
        return task

    def _asked(self, **changes: Any) -> Generation:
        """The same prompts asked otherwise; what the model predicts stays known."""
        old = self.predictor
        if not isinstance(old.source.module, PromptModel):
            raise NotApplicableError("a server is asked for texts without units, off='drop', alone")

        def around(model: nn.Module) -> PromptModel:
            assert isinstance(model, PromptModel)
            return model.around(model.model, **changes)

        source = old.source.wrapped(around)
        predictor = replace(old, source=source, differentiable=not getattr(source.module, "no_gradient", ""))
        task = self.changed(alone=True, predictor=predictor, outputs=self.known_outputs)
        assert isinstance(task, Generation)
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


def _check_contrasts(prompts: Sequence[Prompt], others: Sequence[Prompt]) -> None:
    if len(prompts) != len(others):
        raise InputError(f"{len(others)} contrasts for {len(prompts)} prompts; give one for each")
    for number, (prompt, other) in enumerate(zip(prompts, others, strict=True)):
        if len(prompt.units) != len(other.units):
            raise InputError(
                f"prompt {number} has {len(prompt.units)} units and its contrast {len(other.units)}; each "
                "unit is replaced by the same one of the contrast"
            )


def switched_off(
    tokenizer: Any,
    off: str,
    neutral: str | None,
    prompts: Sequence[Prompt] = (),
    others: Sequence[Prompt] | None = None,
) -> SwitchedOff:
    """What becomes of units that are off."""
    if neutral is not None and off != "fill":
        raise InputError(f"neutral is the word that fills units that are off; off={off!r} needs none")
    if off in ("drop", "swap"):
        return SwitchedOff(TextLeft(tokenizer, prompts, others))
    if off in ("tokens", "zero"):
        return SwitchedOff(tokens_left if off == "tokens" else None)
    if off in ("pad", "mask"):
        token = getattr(tokenizer, f"{off}_token_id", None)
        if token is None:
            raise InputError(f"the tokenizer has no {off} token; say off='fill' or off='drop'")
        return SwitchedOff(None, int(token))
    plain = {"add_special_tokens": False} if hasattr(tokenizer, "all_special_ids") else {}
    for word in NEUTRAL if neutral is None else (neutral,):
        try:
            made = tokenizer.encode(word, **plain)
        except (KeyError, ValueError):
            continue
        if len(made) == 1 and made[0] != getattr(tokenizer, "unk_token_id", None):
            return SwitchedOff(None, int(made[0]))
    tried = repr(neutral) if neutral is not None else "none of " + ", ".join(map(repr, NEUTRAL))
    raise InputError(
        f"{tried} is {'not ' if neutral is not None else ''}a single token of this tokenizer; say "
        "neutral='...', a word that is one, or off='zero'"
    )


def _side(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    encodes: bool = False,
    others: Sequence[Prompt] | None = None,
) -> dict[str, Tensor]:
    """What the model gets besides the gates: prompts that end together, answers that begin together.

    Prompts that an encoder reads begin together, too.
    """
    left = not encodes
    tokens = _rows([p.ids for p in prompts], 0, left)
    answer = _rows([a.tokens for a in answers], 0)
    foils = [a.foil_tokens or a.tokens[:1] for a in answers]
    parts = zip(answers, foils, strict=True)
    return {
        "tokens": tokens,
        "attended": _rows([[1] * len(p.ids) for p in prompts], 0, left).bool(),
        "unit": _rows([p.unit for p in prompts], -1, left),
        "answer": answer,
        "answered": _rows([[1] * len(a.tokens) for a in answers], 0).bool(),
        "judged": _rows([[i in a.judged for i in range(len(a.tokens))] for a in answers], 0).bool(),
        "predicted": answer,
        "foil": _rows(foils, 0),
        "foiled": _rows([[1] * len(foil) for foil in foils], 0).bool(),
        "foil_judged": _rows([[i in a.foil_judged for i in range(len(foil))] for a, foil in parts], 0).bool(),
        **({} if others is None else {"instead": _rows([p.ids for p in others], -1)}),
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

    @property
    def against(self) -> tuple[int, ...]:
        """The tokens of the foil, or of the answer where there is none."""
        return self.foil_tokens or self.tokens


def _answers(
    tokenizer: Any, prompts: Sequence[Prompt], texts: Sequence[Any], foils: Any, parts: Any, encodes: bool
) -> tuple[Answer, ...]:
    """The answers and foils of all prompts as tokens."""
    further = (_one_each(foils, len(prompts), "foils"), _one_each(parts, len(prompts), "answer_parts"))
    rows = zip(prompts, texts, *further, strict=True)
    return tuple(answer_of(tokenizer, *row, number, encodes) for number, row in enumerate(rows))


def answer_of(
    tokenizer: Any,
    prompt: Prompt,
    answer: str | tuple[int, ...],
    foil: str | None,
    part: Any,
    number: int,
    encodes: bool,
) -> Answer:
    """An answer and its foil as tokens behind a prompt; `part` is a text in the answer, or token numbers.

    What was generated are tokens, and stays: its text might be cut into others.
    """

    def cut(text: str) -> Tokens:
        return continued(tokenizer, None if encodes else prompt.tokens, text, number, not prompt.chat)

    if isinstance(answer, tuple):
        text = str(tokenizer.decode(list(answer)))
        made = tokenized(tokenizer, text, number, special=False)
        made = made if made.ids == answer else Tokens(text, answer, ())
    else:
        made = cut(answer)
    text, tokens, judged = made.text, made.ids, _judged(made, part, number)
    if foil is None:
        return Answer(text, tokens, judged)
    against = cut(foil)
    if against.ids == tokens:
        raise InputError(f"answer and foil of prompt {number} are the same text {text!r:.40}")
    if part is not None and len(against.ids) != len(tokens):
        raise InputError(
            f"a part of the answer to prompt {number} is judged, and its foil of {len(against.ids)} tokens "
            f"for {len(tokens)} has no such part; give a foil of equally many tokens, or none"
        )
    return Answer(
        text, tokens, judged, foil, against.ids, _judged(against, None, number) if part is None else judged
    )


def _judged(made: Tokens, part: Any, number: int) -> tuple[int, ...]:
    """Which tokens are judged: those with characters, or a part of them."""
    if part is None:
        own = tuple(place for place, (a, b) in enumerate(made.offsets) if b > a)
        return own or tuple(range(len(made.ids)))
    if isinstance(part, str):
        at = made.text.find(part)
        if at < 0 or not part or not made.offsets:
            raise InputError(
                f"the part {part!r:.40} of the answer to prompt {number} is not in it, or not among its "
                "tokens; give their numbers"
            )
        return tuple(i for i, (a, b) in enumerate(made.offsets) if a < at + len(part) and at < b)
    chosen = tuple(sorted({int(place) for place in part}))
    if not chosen or chosen[0] < 0 or chosen[-1] >= len(made.ids):
        raise InputError(
            f"parts {chosen} of an answer of {len(made.ids)} tokens to prompt {number} are not there"
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
    ends, start = _ends(own, tokenizer), decoder_start(own)
    answers = []
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt.ids if start is None else (start,)], device=home)
        read = {} if start is None else {"input_ids": torch.tensor([prompt.ids], device=home)}
        length = ids.shape[1]
        for _ in range(new_tokens if most is None else min(new_tokens, most - length)):
            with torch.no_grad():
                said = own(ids) if start is None else own(**read, decoder_input_ids=ids)
                token = plain_output(said)[:, -1].argmax(-1, keepdim=True)
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
        assert isinstance(model, AnswerModel)
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

_APART = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.1}
"""By how much answers may differ that should be the same, by precision."""
_READ_AHEAD = ("MaskedLM", "Classification", "QuestionAnswering", "MultipleChoice")
"""How the classes of transformers are called that read a text as a whole."""


def check_exact(task: Generation) -> None:
    """Refuse a model that is not causal, or that does not follow what `off` means.

    A prompt whose first unit is off is evaluated with the token in its place.
    """
    side = task.side
    assert isinstance(side, dict)
    _check_causal(task, side)
    model = task.predictor.source.module
    assert isinstance(model, PromptModel)
    if model.off.token is not None:
        gates = task.inputs[:1].clone()
        gates[0, 0] = 0
        row = _row(task, 0)
        off = row["unit"] == 0
        plain = {**row, "tokens": torch.where(off, model.off.token, row["tokens"])}
        (one, _, _), (two, _, _) = evaluated(task, gates, row), evaluated(task, task.inputs[:1], plain)
        if not near(one, two, _APART[model.precision]):
            raise InputError(
                f"to this model prompt 0 with units that are off is another prompt: the response is "
                f"{float(one):.4g} with the token put in by its embedding, {float(two):.4g} with the token "
                "itself; say off='drop'"
            )


def learn_padding(task: Generation) -> None:
    """Let prompts of different lengths share a pass, with padding, where the model follows that."""
    model, side = task.predictor.source.module, task.side
    assert isinstance(model, PromptModel)
    assert isinstance(side, dict)
    needed = model.off.rewrite is not None or not bool(side["attended"].all())
    padded = task._asked(pads=True)
    if not needed or _pads(padded):
        task.__dict__["predictor"] = padded.predictor


def _pads(task: Generation) -> bool:
    """Whether the longest prompt without its first tokens is answered alike alone, and padded beside itself.

    A window or a scan may see padding, and attention may answer NaN where all that it sees is padding.
    """
    assert isinstance(task.side, dict)
    lengths = task.side["attended"].sum(1)
    longest = int(lengths.argmax())
    row, width = _row(task, longest), int(lengths.max())
    less = min(max(3, width - int(lengths.min())), width - 1)
    with task.session():
        model = task.predictor.model
        assert isinstance(model, PromptModel)
        config = getattr(model.model, "config", None)
        if "attention_mask" not in model.takes or getattr(config, "attention_chunk_size", None):
            return False
        whole = row["tokens"][row["attended"]][None]
        cut = whole[:, less:]
        both = torch.cat([nn.functional.pad(cut, (less, 0) if model.start is None else (0, less)), whole])
        there = torch.ones_like(both, dtype=torch.bool)
        there[0, slice(None, less) if model.start is None else slice(-less, None)] = False
        answer = row["answer"].expand(2, -1)
        answered = torch.ones_like(answer, dtype=torch.bool)
        kept = answer.shape[1] if bool(task.side["answered"].all()) else 1  # answers are padded, too
        answered[0, kept:] = False
        one = model.logits(
            cut,
            torch.ones_like(cut, dtype=torch.bool),
            torch.ones_like(cut).to(task.inputs),
            answer[:1],
            answered[1:],
        )
        some = slice(0, task.predictor.rows)  # the padded one alone, where the plan takes one
        two = model.logits(both[some], there[some], there[some].to(task.inputs), answer[some], answered[some])
    return near(two[:1, :kept], one[:, :kept], _SAME[model.precision])


def _row(task: Generation, place: int) -> dict[str, Tensor]:
    """The side inputs of one prompt."""
    row = take_side(task.side, slice(place, place + 1))
    assert isinstance(row, dict)
    return row


_SAME = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2}
"""By how much logits may differ, as a share of the largest, between a prompt and the same with padding."""


def check_left(task: Generation, dropped: int | None = None) -> None:
    """Refuse prompts of which nothing is left when all units, or so many, are off; templates that refuse."""
    model = task.predictor.source.module
    assert isinstance(model, AnswerModel)
    rewrite = model.off.rewrite
    assert rewrite is not None
    units = task.space.n_features
    one = torch.eye(units, dtype=torch.bool, device=task.device)
    for number, prompt in enumerate(task.prompts):
        cases = [~one[: len(prompt.units)]] if dropped else [~one[: len(prompt.units)], one[:1] & False]
        for on in torch.cat(cases):
            if not rewrite(_row(task, number), on[None])[0]:
                raise InputError(
                    f"with all units dropped nothing is left of prompt {number} for an answer to follow: put "
                    "what is asked behind the units (questions=...), or say off='fill'"
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
