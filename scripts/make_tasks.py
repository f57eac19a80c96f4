"""Train the models that are shipped in the package and write their weights.

    python -m scripts.make_tasks [--out FOLDER] [NAME ...]

Without --out the weights of the package itself are replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from scripts import product_reviews
from scripts.training import Recipe, fit
from veridical.core import files
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.data import embedded, known_answers, reviews
from veridical.data.known_answers import EVALUATED
from veridical.data.known_language import (
    COLOURS,
    NOTHING,
    PIECES,
    PROMPT_WORDS,
    SENTENCES,
    WordTokenizer,
    drawn_sentences,
    written,
)
from veridical.data.networks import CausalTransformer, ColourCNN, DigitsCNN, TextTransformer
from veridical.data.rows import WEIGHTS, WEIGHTS_KIND, Data
from veridical.models.predictor import call, take_side

# --- a prompt of which one sentence decides ---------------------------------------------------------------

TRAINED = 4096


class NextWord(nn.Module):
    """The logits behind the last token, which is all that is trained."""

    def __init__(self, model: CausalTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        answers: Tensor = self.model(tokens, attention_mask)
        return answers[:, -1]


def prompt_network() -> NextWord:
    return NextWord(CausalTransformer(len(PROMPT_WORDS), PIECES * SENTENCES + 4, 32))


def prompt_data() -> Data:
    """Prompts in which sentences are blank words, or hidden.

    Without another sentence the answer stays the judge's colour; without the judge's it is unknown.
    """
    ids = torch.arange(EVALUATED, EVALUATED + TRAINED)
    speakers, colours, place = drawn_sentences(ids)
    tokenizer = WordTokenizer(PROMPT_WORDS)
    texts = written(speakers, colours)
    rows = torch.tensor([tokenizer.encode(" ".join([*parts, "So it is "])) for parts in texts])
    chance = keyed.uniform(Key(0) / "known" / "prompt" / "missing", ids, 0, SENTENCES)
    silent = ids % 5 == 0
    missing = (chance < 0.2 * (ids % 4)[:, None]).scatter(1, place[:, None], silent[:, None])
    over = missing.repeat_interleave(PIECES, 1)
    over = torch.nn.functional.pad(over, (0, rows.shape[1] - over.shape[1]))
    hide = (ids % 2 == 1)[:, None]
    said = colours.gather(1, place[:, None])[:, 0] + PROMPT_WORDS.index(COLOURS[0])
    answers = torch.where(silent, PROMPT_WORDS.index(NOTHING), said)
    every = torch.arange(TRAINED)
    return Data(rows.masked_fill(over & ~hide, 0), answers, every, every, side=((~(over & hide)).long(),))


# --- what is trained on what, and how ---------------------------------------------------------------------


def sentence_data() -> Data:
    """Film snippets as embeddings of MiniLM: only the head behind it is trained."""
    data, model, _ = reviews.minilm_data()
    rows = torch.zeros(len(data.rows), model.head.in_features)
    with torch.no_grad():
        for part in track((*data.train.split(64), *data.test.split(64)), "embedding film snippets"):
            tokens = data.rows[part]
            longest = int((tokens != model.pad).any(0).nonzero()[-1]) + 1
            rows[part] = model.sentence(tokens[:, :longest])
    return Data(rows, data.labels, data.train, data.test)


def series(name: str) -> Data:
    return embedded.series_data(embedded.SERIES[name][0])[0]


def series_network(name: str) -> nn.Module:
    data = series(name)
    return embedded.SERIES[name][1](data.rows.shape[1], int(data.labels.max()) + 1)


def snippets_network() -> nn.Module:
    return TextTransformer(len(reviews.rotten_tomatoes_data()[1]), reviews.SNIPPET_LENGTH)


def write_product_reviews(folder: Path) -> None:
    reviews = product_reviews.write_reviews(3000, Key(0))
    tensors = {name: value.byte() for name, value in vars(reviews).items()} | {"opinion": reviews.opinion}
    words = {"words": list(product_reviews.VOCABULARY)}
    path = files.save_tensors(folder / "product_reviews.safetensors", "task data", tensors, words)
    path.chmod(0o644)


Making = tuple[Callable[[], nn.Module], Callable[[], Data], Recipe]
RECIPES = {
    "digits": Recipe(30, rate=3e-3, decay=1e-3),
    "colour_digits_cnn": Recipe(40, rate=5e-3, batch=32, decay=1e-3),
    "colour_digits_vit": Recipe(60, rate=2e-3, batch=32, decay=1e-1),
    "colour_digits_slant": Recipe(40, rate=5e-3, batch=32, decay=1e-3, loss="squared"),
    "breast_cancer": Recipe(40, rate=3e-3, decay=1e-2),
    "breast_cancer_logistic": Recipe(60, rate=1e-2, decay=1e-1),
    "wine": Recipe(60, rate=3e-3, decay=1e-2),
    "wine_logistic": Recipe(80, rate=1e-2, decay=1e-1),
    "diabetes": Recipe(40, rate=3e-3, decay=1e-1, loss="squared"),
    "reviews": Recipe(20, rate=5e-3, decay=1e-2),
    "mnist5k": Recipe(8, rate=3e-3, decay=1e-3),
    "basic_motions_cnn": Recipe(40, rate=3e-3, batch=8, decay=1e-2),
    "basic_motions_lstm": Recipe(40, rate=1e-2, batch=8, decay=1e-2),
    "japanese_vowels_cnn": Recipe(30, rate=3e-3, batch=16, decay=1e-2),
    "japanese_vowels_lstm": Recipe(30, rate=1e-2, batch=16, decay=1e-2),
}
COLOUR_RECIPE = Recipe(14, rate=3e-3, batch=32, decay=1e-3)
MAKINGS: dict[str, Making] = {
    **{name: (*embedded.SHIPPED[name], RECIPES[name]) for name in embedded.SHIPPED},
    **{
        name: (partial(series_network, name), partial(series, name), RECIPES[name])
        for name in embedded.SERIES
    },
    **{
        f"colour_digits_{round(100 * share)}": (
            ColourCNN,
            partial(embedded.colour_digit_data, share),
            COLOUR_RECIPE,
        )
        for share in known_answers.SHARES
    },
    "clever_hans": (
        partial(DigitsCNN, 2),
        lambda: known_answers.watermark_data()[0],
        Recipe(3, rate=3e-3, decay=1e-3),
    ),
    "rotten_tomatoes": (
        snippets_network,
        lambda: reviews.rotten_tomatoes_data()[0],
        Recipe(3, rate=3e-3, batch=96, decay=1e-1),
    ),
    "rotten_tomatoes_minilm": (
        partial(nn.Linear, 384, 2),
        sentence_data,
        Recipe(40, rate=1e-2, batch=128, decay=1e-2),
    ),
    "prompt": (prompt_network, prompt_data, Recipe(7, rate=1e-2, decay=1e-3)),
}
"""The network, the data and the recipe of each model."""


def quality(outputs: Tensor, labels: Tensor) -> float:
    """Accuracy of class outputs; R^2 of a single one."""
    if outputs.shape[1] > 1:
        return float((outputs.argmax(1) == labels).double().mean())
    truth = labels.double()
    return float(1 - (outputs[:, 0] - truth).square().sum() / (truth - truth.mean()).square().sum())


def make(name: str, folder: Path) -> float:
    """Train one model, write its weights, and say how good it is on its held-out rows."""
    network, read, recipe = MAKINGS[name]
    data = read()
    model = fit(network(), *data.training, recipe, name, take_side(data.side, data.train))
    with torch.no_grad():
        outputs = call(model, data.rows[data.test], take_side(data.side, data.test))
    reached = quality(outputs, data.labels[data.test])
    inner = model.model if isinstance(model, NextWord) else model
    path = files.save_tensors(
        folder / f"{name}.safetensors", WEIGHTS_KIND, inner.state_dict(), {"name": name, "quality": reached}
    )
    path.chmod(0o644)  # a temporary file is private, a part of a package is not
    return reached


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(MAKINGS)}")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for the weights")
    chosen = parser.parse_args(arguments)
    if not chosen.names:
        write_product_reviews(chosen.out)
    for name in chosen.names or list(MAKINGS):
        sys.stdout.write(f"{name}: {make(name, chosen.out):.4f}\n")


if __name__ == "__main__":
    main()
