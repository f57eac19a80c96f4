"""One bank of masks per sample and model: sets of removed features for all that fit effects to responses.

Sets of one to all but one feature are drawn in proportion to the Shapley kernel, each beside what it leaves
(Covert and Lee 2021); of few features every set is there. KernelSHAP, LIME and the audit's measured effects
read one bank: within one call its rows are evaluated once, for every output. Judges never read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.models.context import Context
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets, Given
from veridical.perturb.subset_table import places_of

MASKS = 512
"""Rows evaluated for each sample, at most: as many as KernelSHAP and LIME take."""
OWNER = "kernel_shap"
"""Whose key the sets are drawn by."""


@dataclass(frozen=True, eq=False)
class Bank:
    """Masks of samples and the logits under them: none gone, all gone, then sets beside what they leave.

    Weighted sums over masks estimate means over sets whose size, 0 to all, is uniform, and which are uniform
    among those of their size. Where `every` set is there they are these means.
    """

    task: MaskedTask
    """Of the samples whose masks these are."""
    rows: Tensor
    """Which samples (n,) these are of the task that was given."""
    masks: Tensor
    """(n, B, V): True where a feature is removed."""
    weights: Tensor
    """(n, B), in float64."""
    every: bool
    context: Context
    name: Hashable
    """What decides the masks besides the sample."""

    @property
    def responses(self) -> Tensor:
        """The logit of the explained output under each mask (n, B), rounded to the grid."""
        return self._evaluated(False)

    @property
    def outputs(self) -> Tensor:
        """The logits of all outputs under each mask (n, B, C)."""
        return self._evaluated(True)

    def _evaluated(self, all_outputs: bool) -> Tensor:
        return probe(
            self.task,
            Given(self.masks[:, 1:]),
            response="logit",
            key=Key(self.context.key.seed) / "fill of explainers",
            with_clean=True,
            all_outputs=all_outputs,
            memo=self.context.memo,
            kept=self.name,
        )


def banks(
    task: MaskedTask, context: Context, count: int = MASKS, even_above: int | None = None
) -> Iterator[Bank]:
    """The masks of a task's samples, in one bank unless they differ in features of which every set is there.

    Parameters
    ----------
    task : MaskedTask
        Model, inputs and the outputs to explain.
    context : Context
        The call this is a part of: its key, before any name of an explainer, and its memo.
    count : int
        Rows evaluated for each sample, at most.
    even_above : int, optional
        Of samples with more features than this, sets of every size are drawn equally often: for fits that
        use those of middle size, and have too few rows to spare. KernelSHAP does not share them.

    Yields
    ------
    Bank
        The masks of some samples, which have the same few features or all too many for every set.

    Examples
    --------
    >>> task = vd.Task(nn.Linear(3, 2), torch.ones(4, 3), fill=0.0)
    >>> [(tuple(bank.masks.shape), bank.every) for bank in banks(task, Context(Key(0)))]
    [((4, 8, 3), True)]
    """
    task.outputs  # noqa: B018 (evaluated once here, so that the parts below share it)
    most = most_of_every(count)
    even_above = task.space.n_features if even_above is None else max(most, even_above)
    if task.space.valid is None:
        features = task.space.n_features
        yield _bank(task, slice(None), min(features, most + 1), count, context, features > even_above)
        return
    counts = task.space.counts(len(task))
    # of so many features every set is there; else 0 or, with sets of even sizes, -1
    kinds = torch.where(counts <= most, counts, -(counts > even_above).long())
    for kind in kinds.unique().tolist():
        rows = (kinds == kind).nonzero()[:, 0]
        yield _bank(task, rows, kind if kind > 0 else most + 1, count, context, kind < 0)


def most_of_every(count: int) -> int:
    """The most features whose 2^D sets take at most `count` rows (the set of all is the input itself)."""
    return (count + 1).bit_length() - 1


def _bank(
    task: MaskedTask, rows: Tensor | slice, features: int, count: int, context: Context, even: bool
) -> Bank:
    """The bank of samples that all have `features` features, or all too many for every set."""
    numbers = torch.arange(len(task), device=task.inputs.device)[rows]
    task = task if isinstance(rows, slice) else task[rows]
    given, samples = task.space.valid, slice(0, len(task))
    everything = torch.ones(len(task), task.space.n_features, dtype=torch.bool, device=task.inputs.device)
    valid = everything if given is None else given
    there = valid.sum(-1, keepdim=True)
    every, key = features <= most_of_every(count), context.key / OWNER
    key = key / "even" if even else key
    if every:
        pairs = 2 ** (features - 1) - 1
        sets = AllSubsets(places_of(task), pairs).removed(samples, slice(0, pairs))
    else:
        pairs = (count - 1) // 2
        draws = torch.arange(pairs, device=task.inputs.device)
        mass = _size_mass(there, task.space.n_features, even)
        sizes = _spread_sizes(key / "sizes", task.draw_ids, pairs, there, mass)
        width = task.space.n_features
        sets = keyed.subsets(key / "sets", task.draw_ids, draws, width, sizes[..., None], given)
    both = torch.stack([sets, valid[:, None] & ~sets], 2).flatten(1, 2)
    ends = torch.stack([torch.zeros_like(valid), valid], 1)
    masks = torch.cat([ends, both], 1)
    removed = masks.sum(-1)
    if every:
        of_size = torch.tensor([float(comb(features, s)) for s in range(features + 1)], dtype=torch.float64)
        expected = of_size.to(removed.device)[removed]
    else:
        # how many sets of this size are drawn in the mean; the ends are there once
        share = mass / mass.sum(-1, keepdim=True)
        expected = 2 * pairs * share.gather(-1, (removed - 1).clamp(0, share.shape[-1] - 1))
        expected[:, :2] = 1.0
    weights = 1 / ((there + 1) * expected)
    return Bank(task, numbers, masks, weights, every, context, (key, count, every))


def _size_mass(there: Tensor, longest: int, even: bool) -> Tensor:
    """(N, longest - 1): what sets of size 1, 2, ... weigh: alike, or 1 / (s (D - s)) as Shapley's kernel."""
    size = torch.arange(1, longest, device=there.device)
    rest = there - size
    mass = (rest > 0).double()
    return mass if even else mass / (size * rest.clamp(min=1))


def _spread_sizes(key: Key, ids: Tensor, pairs: int, there: Tensor, mass: Tensor) -> Tensor:
    """(N, pairs) sizes of sets with P(s) in proportion to their mass, spread evenly over it."""
    ends = (mass.cumsum(-1) / mass.sum(-1, keepdim=True)).contiguous()
    offset = keyed.uniform(key, ids, 0, 1, torch.float64)
    at = (torch.arange(pairs, device=ids.device) + offset) / pairs
    found = 1 + torch.searchsorted(ends, at.contiguous(), right=True)
    return torch.minimum(found, there - 1)
