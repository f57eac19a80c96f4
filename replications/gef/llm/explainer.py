"""The explainer that asks a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from replications.gef.llm.prompt import WORDINGS, build_prompt, parse_reply, tidy
from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import Explainer
from veridical.models.context import Context
from veridical.values.task import Task


def _in_other_order(text: str, key: Key, digest: Tensor) -> str:
    """The words of a text in an order that is the same under all noise."""
    words = text.split()
    order = keyed.permutation(key, digest[None], 0, len(words))[0].tolist()
    return " ".join(words[place] for place in order)


MARKS = ("##", "Ġ", "▁", "Ċ")
"""How sub-word tokenizers mark a piece inside, or at the start of, a word."""


PART = 3
"""Letters of the shortest piece by which a word is known."""


@dataclass(frozen=True)
class LLMx(Explainer):
    """The k tokens that a language model thinks matter, as 1 against 0 (LLM-x, GEF A.4.4).

    `generate` is any function from a prompt to a text, at temperature 0. The prompt names what the classifier
    is trained `about` and its `labels`, and how certain it is before and after the noise; synonyms are drawn
    by the key, which GEF keeps the same in all worlds. The words of the reply are encoded by the classifier's
    `tokenizer` (with `encode` and `decode`), as they stand inside a text and at its start, and matched to the
    input's tokens, or, without one, compared with the tokens' names. A reply that cannot be parsed, or names
    nothing of the text, is no explanation: NaN for that sample.
    """

    generate: Callable[[str], str]
    """From a prompt to a text."""
    about: str
    """What the classifier is trained on, in words of the prompt."""
    labels: tuple[str, ...]
    """Names of the classes."""
    k: Count = 5
    """Tokens that the language model is asked for."""
    tokenizer: Any = None
    """The classifier's own; None compares words with the tokens' names."""
    shuffled: bool = False
    """Whether the words of a text are given in another order, drawn by the key (section 4 of the paper)."""
    name: ClassVar[str] = "llm_x"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "tokens named by a language model that knows the classifier's certainty"
    paper: ClassVar[str] = "GEF paper, A.4.4"
    modalities: ClassVar[frozenset[str]] = frozenset({"text"})
    stochastic: ClassVar[bool] = True
    _one_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if not callable(self.generate):
            raise InputError("LLM-x needs a function from prompt to text")

    def to_json(self) -> dict[str, Any]:
        """The settings as plain data; functions and tokenizers are named, not stored."""
        said = getattr(self.generate, "__qualname__", None) or repr(self.generate)
        return {
            "name": self.name,
            "version": self.version,
            "generate": said,
            "about": self.about,
            "labels": list(self.labels),
            "k": self.k,
            "shuffled": self.shuffled,
            "tokenizer": None if self.tokenizer is None else type(self.tokenizer).__qualname__,
        }

    def inapplicable_reason(self, task: Task) -> str | None:
        if len(self.labels) != task.n_outputs and task.modality == "text":
            return f"it has {len(self.labels)} labels and the model {task.n_outputs} classes"
        if self.tokenizer is None and task.space.names is None and task.modality == "text":
            return "it needs the classifier's tokenizer, or names for the tokens: Space.tokens(names=...)"
        return super().inapplicable_reason(task)

    def prompts(self, task: Task, key: Key = Key(0)) -> list[str]:  # noqa: B008 (frozen)
        """What is asked about each sample of a task, perturbed or not."""
        after = self._certainty(task, task.outputs)
        unperturbed = task.reference is task or task.noise_share == 0
        before = after if unperturbed else self._certainty(task, task.reference.outputs)
        wordings = keyed.integers(key / "wording", task.draw_ids, 0, 1, WORDINGS)[:, 0].tolist()
        texts = self._texts(task)
        if self.shuffled:
            texts = [
                _in_other_order(text, key / "order", one)
                for text, one in zip(texts, task.draw_ids, strict=True)
            ]
        rows = zip(texts, task.targets.tolist(), before.tolist(), after.tolist(), wordings, strict=True)
        return [
            build_prompt(text, self.about, self.labels, target, p, q, task.noise_share, self.k, wording)
            for text, target, p, q, wording in rows
        ]

    def attribute(self, task: Task, context: Context) -> Tensor:
        # asked through the meter: the certainty under noise is this explainer's own question
        outputs = task.predictor.outputs(task.inputs, task.side)
        task = task.changed(outputs=outputs)
        tokens = self._tokens(task)
        out = torch.zeros(len(task), task.space.n_features)
        for row, prompt in enumerate(self.prompts(task, context.key)):
            words = parse_reply(self.generate(prompt), self.k)
            found = self._matched(words or [], tokens[row])
            out[row] = found if bool(found.any()) else torch.nan
        return out.to(task.device)

    def _certainty(self, task: Task, outputs: Tensor) -> Tensor:
        return task.probabilities(outputs).gather(1, task.targets[:, None])[:, 0]

    def _tokens(self, task: Task) -> list[list[Any]]:
        """The tokens of each sample: ids for a tokenizer, tidied names otherwise; None where not valid."""
        valid = task.space.valid
        keep = torch.ones(len(task), task.space.n_features, dtype=torch.bool) if valid is None else valid
        if self.tokenizer is not None:
            ids = task.inputs if not task.inputs.is_floating_point() else task.reference.inputs
            rows: list[list[Any]] = ids.tolist()
        else:
            width = range(task.space.n_features)
            rows = [[_plain(task.space.feature_name(f, i)) for f in width] for i in range(len(task))]
        return [
            [token if kept else None for token, kept in zip(row, keeps, strict=True)]
            for row, keeps in zip(rows, keep.tolist(), strict=True)
        ]

    def _texts(self, task: Task) -> list[str]:
        tokens = self._tokens(task)
        if self.tokenizer is not None:
            return [self.tokenizer.decode([t for t in row if t is not None]) for row in tokens]
        names = task.space.feature_name
        return [
            _joined([names(f, i) for f, token in enumerate(row) if token is not None])
            for i, row in enumerate(tokens)
        ]

    def _matched(self, words: list[str], tokens: list[Any]) -> Tensor:
        """1 for every token that the words name, 0 for the others (V,)."""
        if self.tokenizer is None:
            return torch.tensor([float(token is not None and token in set(words)) for token in tokens])
        out = torch.zeros(len(tokens))
        for word in words:
            spelled = [_encode(self.tokenizer, lead + case) for case in _cases(word) for lead in ("", " ")]
            unknown = getattr(self.tokenizer, "unk_token_id", None)
            places = {at for ids in spelled if unknown not in ids for at in _runs(ids, tokens)}
            if not places:
                # a word that the text spells otherwise ("dont"): the longer pieces that both share
                pieces = {piece for ids in spelled[:2] for piece in ids if self._tells(piece, word)}
                places = {place for place, token in enumerate(tokens) if token in pieces}
            out[list(places)] = 1.0
        return out

    def _tells(self, piece: int, word: str) -> bool:
        """Whether a piece is a good part of a word, and not a letter, a mark or what stands for unknown."""
        text = _plain(self.tokenizer.decode([piece]))
        return len(text) >= PART and text in word


def _cases(word: str) -> list[str]:
    """A lower-case word as a text may spell it."""
    return list(dict.fromkeys((word, word.capitalize(), word.upper())))


def _runs(ids: list[int], tokens: list[Any]) -> set[int]:
    """The places at which these ids stand, one after the other."""
    starts = [at for at in range(len(tokens) - len(ids) + 1) if tokens[at : at + len(ids)] == ids]
    return {at + i for at in starts for i in range(len(ids))}


def _encode(tokenizer: Any, word: str) -> list[int]:
    try:
        return list(tokenizer.encode(word, add_special_tokens=False))
    except TypeError:
        return list(tokenizer.encode(word))


def _plain(token: str) -> str:
    for mark in MARKS:
        token = token.removeprefix(mark)
    return tidy(token)


def _joined(tokens: list[str]) -> str:
    """The text that word pieces stand for, as far as their marks tell."""
    starts_marked = any(token.startswith(("Ġ", "▁")) for token in tokens)
    text = ""
    for token in tokens:
        inside = not token.startswith(("Ġ", "▁")) if starts_marked else token.startswith("##")
        text += ("" if inside or not text else " ") + token.removeprefix("##").lstrip("Ġ▁")
    return text
