"""Dictionaries whose order is known: true atoms, fewer steps, more and more damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.concepts.dictionary import Dictionary, Recipe, train
from veridical.core.key import Key, normal, permutation
from veridical.dictionaries.bench import Bench
from veridical.dictionaries.controls import Maker, controls, trained


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


def jittered(dictionary: Dictionary, sigma: float, key: Key) -> Dictionary:
    """Encoder and decoder times N(1, sigma^2): what should change no judgement."""
    ids = torch.arange(len(dictionary.decoder), device=dictionary.decoder.device)

    def moved(name: str, tensor: Tensor) -> Tensor:
        return tensor * (1 + sigma * normal(key / name, ids, 0, tensor.shape[1]).to(tensor))

    return replace(
        dictionary,
        encoder=moved("encoder", dictionary.encoder),
        decoder=moved("decoder", dictionary.decoder),
    )


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
