"""What the output loses when a window, a feature, or a feature's own value is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import Count
from veridical.errors import InputError
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.explainers.masking import MaskingExplainer
from veridical.models.context import Context
from veridical.perturb.fills import Marginal
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given, Groups
from veridical.values.task import Task


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
        answers = probe(
            task,
            Given(windows),
            response="logit",
            key=self.fill_key(context.key),
            with_clean=True,
            memo=context.memo,
        )
        falls = answers[:, :1] - answers[:, 1:]
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
        answers = probe(
            task, rule, response="logit", key=self.fill_key(context.key), with_clean=True, memo=context.memo
        )
        return (answers[:, :1] - answers[:, 1:]).to(task.outputs.dtype)


@register
@dataclass(frozen=True)
class PermutationImportance(Explainer):
    """phi_i = y(x) - mean over reference rows r of y(x with its i-th feature from r).

    On a linear model that is w_i (x_i - mean of r_i). Breiman's importance of a feature is the mean over
    samples of what a loss gains by it; here the explained output stands in its place. Rows: features x
    `rows` for each sample.
    """

    rows: Count = 16
    """Reference rows whose values a feature takes."""
    name: ClassVar[str] = "permutation_importance"
    summary: ClassVar[str] = "fall of the output when a feature takes the values of reference rows"
    paper: ClassVar[str] = "Breiman 2001; Fisher et al. 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"train"})

    def rows_per_sample(self, task: Task) -> int:
        return Marginal(self.rows).repeats_on(task) * task.space.n_features

    def attribute(self, task: Task, context: Context) -> Tensor:
        rule = Groups(task.space.n_features, task.device)
        fill = Marginal(self.rows)
        answers = probe(
            task, rule, response="logit", fill=fill, key=FILL_KEY, with_clean=True, memo=context.memo
        )
        return (answers[:, :1] - answers[:, 1:]).to(task.outputs.dtype)
