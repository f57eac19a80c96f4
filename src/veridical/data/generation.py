"""Prompts and answers of a causal language model as a task: which parts of a prompt made an answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.core.allowed import Count
from veridical.core.settings import checked
from veridical.data.prompt_answers import Answer, answer_of, generated, learn_predictions
from veridical.data.prompt_exactness import check_exact, check_left
from veridical.data.prompt_limits import check_fitting, most_tokens
from veridical.data.prompt_texts import Prompt, Units, read_prompts
from veridical.errors import InputError
from veridical.models.prompted import Off, PromptModel, SwitchedOff
from veridical.perturb.fills import Zero
from veridical.values.explanation import Explanation
from veridical.values.space import Space
from veridical.values.task import Task

NEUTRAL = (" ...", "...", " the", ".")
"""Words that may stand in for tokens that are off; the first that is one token does."""


class Generation(Task):
    """A causal language model, prompts, and answers: the gates of the prompts' units are what is explained.

    `inputs` (N, units) are 1 where a unit is on; a unit that is removed has 0. The response is the
    log-probability of the answer, less that of the foil where there is one. `model` is a torch module or one
    of transformers that takes token ids and answers logits; `tokenizer` one of transformers, or any object
    with `encode` and `decode`.

    Prompts are texts, or lists of chat messages for the tokenizer's chat template. `questions` are texts put
    behind the prompts that are never switched off. `answers` of None are generated, greedily. `units` are
    "token", "word", "sentence", "passage" (between blank lines), "example" (passages but the last), "turn"
    (messages of a chat), or one list of spans per prompt. `off` says what becomes of a unit that is off:
    "fill" (a neutral word), "drop" (the text without it), "pad", "mask" (those tokens) or "zero".
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
        said: list[Any] = (
            generated(model, tokenizer, read, new_tokens, most_tokens(model, length))
            if answers is None
            else _one_each(answers, len(read), "answers")
        )
        against = _one_each(foils, len(read), "foils") if foils is not None else [None] * len(read)
        chosen = _one_each(answer_parts, len(read), "answer_parts") if answer_parts else [None] * len(read)
        told = tuple(
            answer_of(tokenizer, prompt, text, foil, part, number)
            for number, (prompt, text, foil, part) in enumerate(zip(read, said, against, chosen, strict=True))
        )
        for tokens in ([a.tokens for a in told], [a.foil_tokens or a.tokens for a in told]):
            check_fitting(model, read, tokens, length)
        side = _side(read, told)
        count = max(len(prompt.units) for prompt in read)
        valid = torch.tensor([[i < len(prompt.units) for i in range(count)] for prompt in read])
        names = [[*prompt.units, *[""] * (count - len(prompt.units))] for prompt in read]
        one_pass = all(a.tokens[:-1] == (a.foil_tokens or a.tokens)[:-1] for a in told)
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
        self.__dict__.update(prompts=read, answers=told, tokenizer=tokenizer, units=kind, off=off)
        if off == "drop":
            check_left(self)
        learn_predictions(self)
        check_exact(self)

    @classmethod
    def from_huggingface(
        cls, source: str | Path, prompts: Any, answers: Any = None, **settings: Any
    ) -> Generation:
        """The same from a folder, or a GGUF file, of transformers: see `vd.tasks.causal_model`."""
        from veridical.data.causal_models import causal_model

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
        task = self.changed(alone=True, predictor=predictor, outputs=self.known("outputs"), off=off)
        assert isinstance(task, Generation)
        check_exact(task)
        return task

    def pooled(self, explanation: Explanation, fine: Generation) -> Explanation:
        """Scores of finer units of the same prompts (those of the task `fine`), summed over these units.

        Where a finer unit reaches over several of these, its score is shared out by tokens.
        """
        ours, theirs = self.side["unit"], fine.side["unit"]  # type: ignore[call-overload]
        if ours.shape != theirs.shape or not torch.equal(self.side["tokens"], fine.side["tokens"]):  # type: ignore[call-overload]
            raise InputError("scores are pooled over units of the same prompts, and these are others")
        values = explanation.values.to(self.device)
        if values.shape != (len(fine), fine.space.n_features):
            raise InputError(
                f"the explanation has scores {tuple(values.shape)}, and the finer units are "
                f"{(len(fine), fine.space.n_features)}; give an explanation of the task `fine`"
            )
        counts = torch.zeros_like(values).scatter_add_(1, theirs.clamp(min=0), (theirs >= 0).to(values))
        each = (values / counts.clamp(min=1)).gather(1, theirs.clamp(min=0)).masked_fill(theirs < 0, 0.0)
        sums = values.new_zeros(len(self), self.space.n_features)
        sums.scatter_add_(1, ours.clamp(min=0), each.masked_fill(ours < 0, 0.0))
        return Explanation(sums, self.space, self.targets, self.ids, f"{explanation.explainer} pooled")

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
    for word in NEUTRAL if neutral is None else (neutral,):
        try:
            made = tokenizer.encode(word, **_plain(tokenizer))
        except (KeyError, ValueError):
            continue
        if len(made) == 1 and made[0] != getattr(tokenizer, "unk_token_id", None):
            return SwitchedOff(False, int(made[0]))
    tried = repr(neutral) if neutral is not None else "none of " + ", ".join(map(repr, NEUTRAL))
    raise InputError(
        f"{tried} is {'not ' if neutral is not None else ''}a single token of this tokenizer; say "
        "neutral='...', a word that is one, or off='zero'"
    )


def _plain(tokenizer: Any) -> dict[str, Any]:
    return {"add_special_tokens": False} if hasattr(tokenizer, "all_special_ids") else {}


def _side(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, Tensor]:
    """What the model is told besides the gates: prompts that end together, answers that begin together."""
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
    }


def _rows(values: Sequence[Sequence[int]], blank: int, left: bool = False) -> Tensor:
    longest = max(map(len, values))
    padded = []
    for row in values:
        more = [blank] * (longest - len(row))
        padded.append([*more, *row] if left else [*row, *more])
    return torch.tensor(padded, dtype=torch.int64)
