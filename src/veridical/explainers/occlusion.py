"""Methods that remove features and read the output: what they share, occlusion and ablation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.errors import InputError, warn
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.explainers.diagnostics import difference_from_empty
from veridical.explainers.layout import Cells, few_cells
from veridical.functional.devices import at_a_time
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.perturb.fills import Fill, Marginal
from veridical.perturb.mask_bank import Bank, banks, most_of_every
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given, Groups, MaskRule
from veridical.values.task import Task

# --- masks ------------------------------------------------------------------------------------------------


_MASKED_FEATURES = 2**22, 2**28  # truth values that are written out at a time: on a CPU, elsewhere


def coin_masks(key: Key, ids: Tensor, features: int, draws: int, keep: float | Tensor) -> Tensor:
    """(N, draws, features): each feature is removed with probability 1 - keep, by a coin of its own.

    `keep` is one number, or one per sample and mask (N, draws).
    """
    gone = 1 - (keep if isinstance(keep, float) else keep.double())
    masks: Tensor = keyed.bernoulli(key, ids, torch.arange(draws, device=ids.device), features, gone)
    return masks


def mask_pieces(task: Task, masks: int) -> Iterator[Task]:
    """The task in pieces that fill whole chunks and whose masks fit a fixed memory.

    On a CPU they stay in its cache; a GPU is kept at work by as few pieces as can be, alike in size.
    """
    together = max(1, task.predictor.rows // masks)
    most = at_a_time(task.device, *_MASKED_FEATURES)
    size = together * max(1, most // (together * masks * task.space.n_features))
    if size >= len(task):
        yield task
        return
    size = together * -(-len(task) // (together * -(-len(task) // size)))
    task.outputs  # noqa: B018 (evaluated once here: each piece would wait for its own)
    yield from (task[at : at + size] for at in range(0, len(task), size))


ALONE = "each feature alone"
"""The name of the masks each of which removes one feature."""


def responses_to(
    task: Task,
    rule: MaskRule,
    key: Key,
    context: Context,
    kept: Hashable = None,
    *,
    fill: Fill | None = None,
    clean: bool = True,
) -> Tensor:
    """The explained logit under each mask (N, M), or with `clean` behind that of the untouched input.

    `kept` is what decides the masks of a sample, so that one call evaluates them once for every output.
    """
    memo = context.memo
    return probe(task, rule, response="logit", fill=fill, key=key, with_clean=clean, memo=memo, kept=kept)


# --- bases ------------------------------------------------------------------------------------------------


ROWS_PER_FEATURE = 8
"""Answers for each feature with which all stay as they are."""
ROWS_PER_CELL = 12
"""Answers for each cell where features are joined: with so many two seeds agree on photos, too."""
FEWEST_CELLS = 9
"""Into fewer than 3 x 3 nothing is joined, however few the responses: that would be no map."""


USUAL_MASKS = 512
"""Masked inputs that methods which draw evaluate of a sample by default."""


def usual_repeats(features: int, least: int, most: int) -> int:
    """How often every feature is changed to make the usual number of masked inputs, between two bounds."""
    return min(most, max(least, USUAL_MASKS // features))


def most_cells(responses: int) -> int:
    """How many cells so many responses can tell apart."""
    return max(FEWEST_CELLS, responses // ROWS_PER_CELL)


@dataclass(frozen=True)
class MaskingExplainer(Explainer):
    """Base of methods that evaluate masked inputs and draw nothing but, perhaps, rows for their fill."""

    def _draws_on(self, task: Task) -> bool:
        return self.stochastic or task.fill.follows_seed(task)

    def masks(self, task: Task) -> int | Tensor:
        """Masks evaluated for every sample, or for each one (n,), where none is evaluated twice."""
        return self.rows_per_sample(task)

    def _declared(self, task: Task) -> Cost:
        masks = self.masks(task)
        total = int(masks.sum()) if isinstance(masks, Tensor) else masks * len(task)
        return Cost(total * task.fill.repeats_on(task))

    @staticmethod
    def fill_key(key: Key) -> Key:
        """What the fill draws by: the seed alone, so that one seed draws alike for every model."""
        return Key(key.seed) / "fill of explainers"


@dataclass(frozen=True)
class SharesOut(MaskingExplainer):
    """Base of methods that share out what all features together do to the output."""

    completeness: ClassVar[str] = "values sum to y(x) less y without features"

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return difference_from_empty(task, self.fill_key(key))


@dataclass(frozen=True)
class ReadsCells(MaskingExplainer):
    """Base of methods that draw many masks: of a large image they read cells of neighbours."""

    stochastic: ClassVar[bool] = True

    def cells_of(self, task: Task) -> Cells | None:
        """The cells that features are joined into, or None where they stay as they are."""
        raise NotImplementedError

    def fitted(self, task: Task, context: Context) -> Tensor:
        """The map (n, V) of a task whose features are the cells."""
        raise NotImplementedError

    def over_features(self, joined: Cells, values: Tensor) -> Tensor:
        """The values of cells (n, cells) as those of their features: each has that of its cell."""
        return values[:, joined.of]

    def _pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def _stated(self, task: Task) -> dict[str, Any]:
        joined = self.cells_of(task)
        return {"cells": joined.in_words()} if joined is not None and joined.count < len(joined.of) else {}

    def attribute(self, task: Task, context: Context) -> Tensor:
        joined = self.cells_of(task)
        if joined is None:
            return self.fitted(task, context)
        return self.over_features(joined, self.fitted(joined.over(task), context))


@dataclass(frozen=True)
class FitsBank(ReadsCells):
    """Base of methods that fit one unknown per feature to the bank of masks: all of one call share its rows.

    Of an image they fit as many unknowns as the rows can tell apart.
    """

    def responses(self) -> int:
        """How many responses the fit has for each sample, at most."""
        raise NotImplementedError

    def joins(self) -> bool:
        """Whether neighbours may be joined."""
        raise NotImplementedError

    def even_above(self) -> int | None:
        """Above how many features sets of every size are drawn equally often, if ever."""
        return None

    def fitted_to(self, bank: Bank, context: Context) -> Tensor:
        """The map (n, V) of the samples of a bank."""
        raise NotImplementedError

    def fitted(self, task: Task, context: Context) -> Tensor:
        out = torch.zeros(len(task), task.space.n_features, dtype=task.outputs.dtype, device=task.device)
        whole = context.with_key(context.key.parent)
        for bank in banks(task, whole, self.responses(), self.even_above()):
            out[bank.rows] = self.fitted_to(bank, context).to(out.dtype)
        return out

    def _draws_on(self, task: Task) -> bool:
        most, valid = most_of_every(self.responses()), task.space.valid
        return task.fill.follows_seed(task) or (
            self.unknowns(task) > most and (valid is None or bool((valid.sum(-1) > most).any()))
        )

    def rows_per_sample(self, task: Task) -> int:
        unknowns = self.unknowns(task)
        return self.responses() if unknowns > most_of_every(self.responses()) else 2**unknowns

    def masks(self, task: Task) -> Tensor:
        counts = task.space.counts(len(task)).clamp(max=self.unknowns(task))
        drawn = torch.full_like(counts, 2 * ((self.responses() - 1) // 2) + 1)
        return torch.where(counts <= most_of_every(self.responses()), 2**counts - 1, drawn)

    def cells_of(self, task: Task) -> Cells | None:
        few = task.space.n_features <= self.responses() // ROWS_PER_FEATURE
        if few or not self.joins():
            return None
        return few_cells(task.space, most_cells(self.responses()))

    def unknowns(self, task: Task) -> int:
        """How many features, or cells, are fitted."""
        joined = self.cells_of(task)
        return task.space.n_features if joined is None else joined.count

    def over_features(self, joined: Cells, values: Tensor) -> Tensor:
        return joined.shared_out(values)

    def _stated(self, task: Task) -> dict[str, Any]:
        stated, features = super()._stated(task), task.space.n_features
        if stated or features <= self.responses():
            return stated
        return {"underdetermined": f"{self.responses()} responses for {features} features: one fit of many"}

    def check(self, task: Task) -> None:
        super().check(task)
        if "underdetermined" in self._stated(task):
            warn(
                f"'{self.name}' has {self._stated(task)['underdetermined']}; evaluate more rows, or give "
                "the task fewer features (patches, superpixels)"
            )


@register
@dataclass(frozen=True)
class Occlusion(MaskingExplainer):
    """The fall of the explained output when a sliding window is removed, shared by the features under it.

    On images the window is `window` x `window` pixels at every `stride`, on volumes as many voxels along each
    axis, on series `window` steps; in all other spaces each feature is removed alone. A feature under several
    windows gets their mean.
    """

    window: Count = 3
    """Side of the window, in pixels or time steps."""
    stride: Count = 2
    """Pixels or time steps from one window to the next."""
    name: ClassVar[str] = "occlusion"
    summary: ClassVar[str] = "fall of the output under a sliding window"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def __post_init__(self) -> None:
        if self.stride > self.window:
            raise InputError(
                f"occlusion needs window >= stride so that windows cover the input, "
                f"got window {self.window}, stride {self.stride}"
            )

    def masks(self, task: Task) -> int:
        return len(self._windows(task))

    def attribute(self, task: Task, context: Context) -> Tensor:
        windows = self._windows(task)
        slides = task.space.kind in ("pixel", "voxel", "step")
        name = (self.name, self.window, self.stride) if slides else ALONE
        responses = responses_to(task, Given(windows), self.fill_key(context.key), context, name)
        falls = responses[:, :1] - responses[:, 1:]
        cover = windows.to(falls.dtype)
        # each window's fall is shared out over its features, then averaged over the windows of a feature
        mean = (falls @ cover) / cover.sum(0).clamp(min=1)
        return mean.to(task.inputs.dtype) if task.inputs.is_floating_point() else mean.float()

    def _windows(self, task: Task) -> Tensor:
        """(windows, V): the features each window removes."""
        kind, shape = task.space.kind, task.space.input_shape
        if kind in ("pixel", "voxel"):
            windows = torch.ones(1, 1, dtype=torch.bool, device=task.device)
            for size in shape[1:]:
                along = _spans(size, self.window, self.stride, task.device)
                windows = (windows[:, None, :, None] & along[None, :, None, :]).flatten(2).flatten(0, 1)
            return windows
        if kind == "step":
            return _spans(task.space.n_features, self.window, self.stride, task.device)
        return torch.eye(task.space.n_features, dtype=torch.bool, device=task.device)


def _spans(size: int, window: int, stride: int, device: torch.device) -> Tensor:
    """(windows, size): which places each window covers; the last ones are cut off at the edge.

    Windows start at multiples of the stride whatever the size, so padding behind an input moves none.
    """
    places = torch.arange(size, device=device)
    first = torch.arange(0, max(1, size - window + stride), stride, device=device)[:, None]
    return (places >= first) & (places < first + window)


@register
@dataclass(frozen=True)
class FeatureAblation(MaskingExplainer):
    """The fall of the explained output when one feature is removed: phi_i = y(x) - y(x without i).

    On an additive model with a constant fill this is the feature's own term. (Leave-one-out, as in
    Zeiler and Fergus 2014 with a window of one feature.)
    """

    name: ClassVar[str] = "feature_ablation"
    summary: ClassVar[str] = "fall of the output when each feature is removed alone"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def masks(self, task: Task) -> int:
        return task.space.n_features

    def attribute(self, task: Task, context: Context) -> Tensor:
        rule = Groups(task.space.n_features, task.device)
        responses = responses_to(task, rule, self.fill_key(context.key), context, ALONE)
        return (responses[:, :1] - responses[:, 1:]).to(task.outputs.dtype)


@register
@dataclass(frozen=True)
class PermutationImportance(Explainer):
    """phi_i = y(x) - mean over reference rows r of y(x with its i-th feature from r).

    On a linear model that is w_i (x_i - mean of r_i). Breiman's importance of a feature is the mean over
    samples of what a loss gains by it; here the explained output stands in its place. Rows: features x
    `rows` for each sample.
    """

    rows: Count | None = None
    """Reference rows whose values a feature takes; None: 4 to 16, as many as make 512 masked inputs."""
    name: ClassVar[str] = "permutation_importance"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "fall of the output when a feature takes the values of reference rows"
    paper: ClassVar[str] = "Breiman 2001; Fisher et al. 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"train"})

    def taken(self, task: Task) -> Marginal:
        """The reference rows whose values a feature takes."""
        return Marginal(usual_repeats(task.space.n_features, 4, 16) if self.rows is None else self.rows)

    def rows_per_sample(self, task: Task) -> int:
        return self.taken(task).repeats_on(task) * task.space.n_features

    def attribute(self, task: Task, context: Context) -> Tensor:
        rule = Groups(task.space.n_features, task.device)
        responses = responses_to(task, rule, FILL_KEY, context, ALONE, fill=self.taken(task))
        return (responses[:, :1] - responses[:, 1:]).to(task.outputs.dtype)
