"""Which of the trusted methods lead: those that samples cannot tell from the best one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.auditing.evidence import ALPHA, LOOKS, Entry, Rules
from veridical.functional.best_probability import best_probability
from veridical.functional.leading_group import leading_group, mean_units

SURE_FROM = 64
"""Samples from which on a probability of being best is calibrated, and shown."""


def pairwise(rules: Rules, entries: Sequence[Entry]) -> Tensor:
    """What each method wins against each other one in the samples that all have (E, E, N)."""
    count = min(entry.removal.samples for entry in entries)
    cut = [entry.removal.first(count) for entry in entries]
    return torch.stack([torch.stack([rules.removal_units(a, [b]) for b in cut]) for a in cut])


def leading(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> tuple[str, ...]:
    """The methods that lead, at a level divided over all looks."""
    if len(entries) < 2:
        return tuple(entry.label for entry in entries)
    kept = leading_group(pairwise(rules, entries), level=ALPHA, looks=len(LOOKS), seed=seed).kept
    return tuple(entries[i].label for i in kept)


class Groups(NamedTuple):
    """Methods that cannot be told apart, the leading ones first, and how likely each group holds the best."""

    groups: tuple[tuple[str, ...], ...]
    probability: tuple[float, ...]
    """Nothing where it would not be calibrated, or where there is one group."""


def groups_of(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> Groups:
    """The leading group, then the leading one of the others, and so on."""
    left, found = list(entries), []
    while left:
        group = leading(rules, left, seed)
        found.append(group)
        left = [entry for entry in left if entry.label not in group]
    if len(found) < 2 or min(entry.removal.samples for entry in entries) < SURE_FROM:
        return Groups(tuple(found), ())
    places = {entry.label: i for i, entry in enumerate(entries)}
    own = mean_units(pairwise(rules, entries))
    chance = best_probability(own, [[places[label] for label in group] for group in found], seed=seed)
    return Groups(tuple(found), tuple(chance.tolist()))
