"""Dictionaries beside which metrics are read: controls that know nothing, and others of known order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.dictionary_training import Recipe, train
from veridical.concepts.methods.decompositions import kmeans
from veridical.core.key import Key, normal, permutation
from veridical.dictionaries.bench import Bench

Maker = Callable[[Bench, Recipe, Key], Dictionary]
"""Makes a dictionary of a recipe's width on a bench's train rows."""


def trained(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """The dictionary itself; made once, however many others begin with it."""
    if (recipe, key) not in bench.trained:
        bench.trained[recipe, key] = train(bench.train, recipe, key, progress=False).dictionary
    return bench.trained[recipe, key]


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


def damaged(dictionary: Dictionary, share: float, key: Key) -> Dictionary:
    """A share of the atoms replaced by random directions; a larger share keeps what a smaller one took."""
    width, dimension = dictionary.decoder.shape
    order = permutation(key, torch.zeros(1, dtype=torch.int64), 0, width)[0]
    gone = order[: round(share * width)].to(dictionary.decoder.device)
    noise = normalize(normal(key / "atoms", gone, 0, dimension), dim=-1).to(dictionary.decoder)
    encoder, decoder = dictionary.encoder.clone(), dictionary.decoder.clone()
    encoder[gone] = noise * encoder[gone].norm(dim=-1, keepdim=True)
    decoder[gone] = noise * decoder[gone].norm(dim=-1, keepdim=True)
    return replace(dictionary, encoder=encoder, decoder=decoder)


def ladder(recipe: Recipe, bench: Bench) -> dict[str, Maker]:
    """Dictionaries whose order is known: trained for less, or with more and more random atoms."""

    def fewer(by: int) -> Maker:
        return lambda b, r, key: trained(b, replace(r, steps=max(1, r.steps // by)), key)

    def hurt(share: float) -> Maker:
        return lambda b, r, key: damaged(trained(b, r, key), share, key / "damage")

    made = {"1/4 steps": fewer(4), "1/16 steps": fewer(16), "25% random": hurt(0.25)}
    made |= {"50% random": hurt(0.5), "75% random": hurt(0.75)}
    return made if bench.truth is None else {"true atoms": true_atoms, **made}


def true_atoms(bench: Bench, recipe: Recipe, key: Key) -> Dictionary:
    """The planted directions as atoms, as many as the recipe has; only the encoder learns."""
    assert bench.truth is not None
    atoms = bench.truth.directions[: recipe.width]
    own = replace(recipe, frozen="decoder", width=len(atoms))
    return train(bench.train, own, key, atoms=atoms.to(bench.train), progress=False).dictionary


def family(recipe: Recipe, bench: Bench) -> Mapping[str, Maker]:
    """The trained dictionary, the ladder around it, and the controls."""
    return {"trained": trained, **ladder(recipe, bench), **controls(bench)}
