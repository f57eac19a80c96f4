"""Score-CAM: channels weighted by what the model answers to the input seen through each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.base import register, selected
from veridical.explainers.cam import Cam, _independent, _weighted
from veridical.explainers.cam_layer import LastMaps
from veridical.explainers.cam_places import _watched, last_maps, layer_shapes
from veridical.explainers.grid import over_input, resized, spatial_axes, spatial_size
from veridical.functional.devices import on_host
from veridical.models.predictor import repeat_side, take_side
from veridical.perturb.probe import blocks
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class ScoreCam(Cam):
    """max(0, sum_k a_k A_k), a = softmax over channels of y_c when the input is seen through channel k only.

    The input is multiplied by the channel, upsampled and scaled to [0, 1] (Algorithm 1). A channel that is
    flat shows nothing and gets no weight. Its weights are shares of 1 and say nothing of a channel's size or
    sign. Rows per sample: one, and one per channel.
    """

    name: ClassVar[str] = "scorecam"
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "last activation of convolutions weighted by the output through each channel"
    paper: ClassVar[str] = "Wang et al. 2020, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"convolution"})

    def rows_per_sample(self, task: Task) -> int:
        return 1 + (last_maps(task).channels if self.layer is None else layer_shapes(task)[self.layer][0][1])

    def pieces(self, task: Task) -> Iterator[Task]:
        # the masked rows of few samples are cut into chunks here
        return task.chunks(1)

    def _activations(self, task: Task) -> Tensor:
        with task.session():
            if self.layer is not None:
                with _watched(task, self.layer) as outputs:
                    task.predictor.chunk(task.inputs, task.side)
                return outputs[0]
            padded = task.predictor.padding(len(task))
            x = task.inputs[padded]
            with LastMaps(x, spatial_axes(task)) as seen:
                task.predictor.chunk(x, take_side(task.side, padded), len(task))
            if seen.last is None:
                raise _independent(self.name, "its last maps (none)")
            return seen.last

    def _no_maps(self, task: Task) -> str | None:
        if last_maps(task).transformer:
            return (
                "its patches are tokens, which have no maps to look through; give it a convolutional network"
            )
        return super()._no_maps(task)

    def coarse(self, task: Task, key: Key) -> Tensor:
        activations = self._activations(task)[: len(task)].detach()
        low, high = _ends(activations)
        shows = high > low
        scores = torch.empty_like(low)
        with task.session():
            for rows, channels in blocks(len(task), scores.shape[1], task.predictor.rows):
                masks = resized(activations[rows, channels], spatial_size(task))
                laid = over_input(task, masks)
                bottom, top = (end.view(*end.shape, *[1] * (laid.dim() - 2)) for end in _ends(masks))
                span = torch.where(top > bottom, top - bottom, 1.0)
                variants = task.inputs[rows, None] * ((laid - bottom) / span)
                side = repeat_side(take_side(task.side, rows), masks.shape[1])
                outputs = task.predictor.chunk(variants.flatten(0, 1), side)
                target = task.targets[rows].repeat_interleave(masks.shape[1])
                scores[rows, channels] = selected(outputs, target).view(masks.shape[:2]).to(scores.dtype)
        weights = scores.masked_fill(~shows, -torch.inf).softmax(1).nan_to_num(0.0)
        return _weighted(activations, weights).clamp(min=0)


def _ends(maps: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value (n, channels) of each map."""
    flat = maps.flatten(2)
    if on_host(flat):  # where looking once takes five times as long as twice
        return flat.amin(2), flat.amax(2)
    low, high = flat.aminmax(dim=2)
    return low, high
