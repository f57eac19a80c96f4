"""Explanations made worse on purpose, step by step, so that the right order of explainers is known."""

from __future__ import annotations

import torch

from veridical.errors import InputError
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def degraded(explanation: Explanation, ratio: float, repeat: int = 0, key: Key = Key(0)) -> Explanation:  # noqa: B008
    """Permute the scores of the first round(ratio * n) positions of a keyed order among themselves.

    One order a (sample, repeat) serves all ratios, so the positions hit are nested: what is wrong at a ratio
    is wrong at every higher one.
    """
    if not 0 <= ratio <= 1:
        raise InputError(f"a ratio of degradation lies in [0, 1], got {ratio}")
    ids, width = explanation.ids, explanation.space.n_features
    n = explanation.space.counts(len(explanation)).to(ids.device)
    hit = (n.double() * ratio + 0.5 + 1e-9).floor().long()
    order = keyed.permutation(key / "positions", ids, repeat, width, explanation.valid)
    place = torch.arange(width, device=ids.device)
    shuffle = keyed.permutation(key / "scores", ids, repeat, width, place < hit[:, None])
    # places behind those hit stay themselves
    source = torch.where(place < hit[:, None], shuffle, place)
    values = explanation.values.gather(-1, order)
    moved = torch.empty_like(values).scatter_(-1, order, values.gather(-1, source))
    return explanation.with_values(moved, f"{explanation.explainer}, {ratio:.0%} degraded")
