"""Dictionaries that know nothing, or know it otherwise: beside them every metric has to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.concepts.dictionary import Dictionary, Recipe, train
from veridical.concepts.methods.kmeans import kmeans
from veridical.core.key import Key, permutation
from veridical.dictionaries.bench import Bench

Maker = Callable[[Bench, Recipe, Key], Dictionary]
"""Makes a dictionary of a recipe's width on a bench's train rows."""


def trained(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """The dictionary itself; made once, however many others begin with it."""
    name = f"trained {recipe.to_json()} {key}"
    return bench.once(name, lambda: train(bench.train, recipe, key, progress=False).dictionary)


def frozen_decoder(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """Random atoms; only the encoder learns."""
    return trained(bench, replace(recipe, frozen="decoder"), key)


def frozen_encoder(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """A random encoder; only the atoms learn."""
    return trained(bench, replace(recipe, frozen="encoder"), key)


def pca(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """Principal directions, each with both signs; the largest `active` are kept where the recipe says so."""
    rows = bench.train.double()
    centre = rows.mean(0)
    directions = torch.linalg.eigh((rows - centre).T @ (rows - centre)).eigenvectors.flip(1).T
    kept = directions[: (recipe.width + 1) // 2]
    atoms = torch.stack([kept, -kept], 1).flatten(0, 1)[: recipe.width].float()
    return _read(atoms, centre.float(), recipe.active)


def centres(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """Directions of K-Means' centres; the one that a row lies most along is active."""
    rows = bench.train[permutation(key, torch.zeros(1, dtype=torch.int64), 0, len(bench.train))[0][:16384]]
    centre = rows.mean(0)
    found = kmeans(rows - centre, min(recipe.width, len(rows)), key / "kmeans", starts=1, steps=20)[0]
    return _read(normalize(found, dim=-1), centre, 1)


def shuffled(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """Trained on rows whose dimensions were shuffled one by one: the same values, no features."""
    dims, count = torch.arange(bench.train.shape[1], device=bench.train.device), len(bench.train)
    order = torch.cat([permutation(key / "shuffle", ids, 0, count) for ids in dims.split(16)])
    rows = bench.train.gather(0, order.T)
    return train(rows, recipe, key, progress=False).dictionary


def untrained(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """Trained on the same layer of an untrained model."""
    assert bench.untrained is not None
    return train(bench.untrained, recipe, key, progress=False).dictionary


def _read(atoms: Tensor, centre: Tensor, active: int | None) -> Dictionary:
    kind = "relu" if active is None else "topk"
    return Dictionary(atoms, atoms.new_zeros(len(atoms)), atoms, centre, kind, active)  # type: ignore[arg-type]


def controls(bench: Bench) -> dict[str, Maker]:
    """Every control that this bench allows, by name."""
    found: dict[str, Maker] = {
        "frozen decoder": frozen_decoder,
        "frozen encoder": frozen_encoder,
        "pca": pca,
        "k-means": centres,
        "shuffled": shuffled,
    }
    return found if bench.untrained is None else found | {"untrained model": untrained}


RANDOM = ("frozen decoder", "frozen encoder", "shuffled", "untrained model")
"""Controls that no metric should take for a trained dictionary."""
