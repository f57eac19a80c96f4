"""Class activation maps: the channels of one layer, weighted and laid over the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import NotApplicableError, unknown_name
from veridical.explainers.backprop import GuidedBackprop
from veridical.explainers.base import Explainer, hand_along, register, selected
from veridical.explainers.gradients import slopes_at
from veridical.explainers.grid import as_features, over_input, resized, spatial_axes, spatial_size
from veridical.explainers.last_maps import LastMaps, last_maps, layer_shapes, watched
from veridical.functional.devices import on_host
from veridical.models.context import Context
from veridical.models.predictor import call, repeat_side, take_side
from veridical.perturb.probe import blocks
from veridical.values.task import Task


@dataclass(frozen=True)
class Cam(Explainer):
    """Base of the class activation maps: one value per pixel (or step), shared over the channels.

    They look at the output of `layer`: by default at what the model computes last on a grid of places, behind
    activation and residual sum (see `LastMaps`), which the provenance names. The map is made on that grid
    and then upsampled, linearly in each axis, to the input's size.
    """

    layer: str | None = None
    """The layer whose channels are weighted; by default the last maps of the model."""
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "convolution"})

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        if task.modality == "series" and task.space.valid is not None:
            return "it lays a layer's grid over a whole series and cannot tell padding; give equal lengths"
        if self.layer is None:
            return self._no_maps(task)
        found = layer_shapes(task)
        if self.layer not in found:
            return str(unknown_name("layer that runs", self.layer, found))
        if len(found[self.layer]) != 1:
            return f"layer '{self.layer}' runs {len(found[self.layer])} times a pass; name one that runs once"
        shape, axes = found[self.layer][0], spatial_axes(task)
        if len(shape) != 2 + axes:
            return f"layer '{self.layer}' answers shape {shape}; expected rows, channels and {axes} more axes"
        return None

    def _stated(self, task: Task) -> dict[str, Any]:
        return {"layer": self.layer or last_maps(task).words}

    def attribute(self, task: Task, context: Context) -> Tensor:
        small = self.coarse(task, context.key)
        return as_features(task, resized(small[:, None], spatial_size(task))[:, 0])

    def coarse(self, task: Task, key: Key) -> Tensor:
        """The map (n, *grid) on the layer's own grid."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it weighs channels")

    def _no_maps(self, task: Task) -> str | None:
        if last_maps(task).astray:
            return (
                "the model gives other outputs when its operations are traced one by one: it changes a part "
                "of a tensor in place; name a layer with layer=..."
            )
        if last_maps(task).lost or (last_maps(task).transformer and last_maps(task).behind):
            return (
                "its tokens are not laid as rows x (at most 2 others, then the patches) x size (are there "
                "registers, a class token behind, or places before rows?), so that their grid cannot be told"
            )
        if last_maps(task).words:
            return None
        return (
            f"no convolution layer of the model answers rows, channels and {spatial_axes(task)} axes of more "
            "than one position; name a layer that does with layer=..."
        )


@dataclass(frozen=True)
class GradientCam(Cam):
    """Base of those that weigh activations A (n, channels, *grid) by the gradient g = dy_c/dA."""

    def coarse(self, task: Task, key: Key) -> Tensor:
        targets = task.targets  # before the watching begins: they may need the model without it
        x = task.inputs.detach()
        layer = self.layer or last_maps(task).layer
        with task.session(grad=True) as model:
            if layer is None:
                with LastMaps(x, spatial_axes(task)) as seen:
                    # by one operation more, which reads what was written in place
                    outputs = call(model, x, task.side).clone()
                found = _through_last(seen, selected(outputs, targets).sum(), self.name)
            else:
                with watched(task, layer) as layers:
                    outputs = call(model, x.requires_grad_(True), task.side)
                slopes = slopes_at(selected(outputs, targets).sum(), layers[:1])[0]
                if slopes is None:
                    raise _independent(self.name, f"layer '{layer}'")
                found = layers[0].detach(), slopes
        hand_along(task, outputs)
        return self.weigh(*found)

    def weigh(self, activations: Tensor, slopes: Tensor) -> Tensor:
        """The map of the activations and their gradients."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it weighs channels")


def _through_last(seen: LastMaps, total: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The last maps of a run and the gradient of the output with respect to them."""
    if seen.transformer:
        every = slopes_at(total, seen.tokens)
        for tokens, slopes in zip(reversed(seen.tokens), reversed(every), strict=True):
            if slopes is not None and bool(seen.as_maps(slopes).any()):
                return seen.as_maps(tokens.detach()), seen.as_maps(slopes)
        raise _independent(name, "the tokens of its patches")
    slopes = None if seen.last is None else slopes_at(total, [seen.last])[0]
    if seen.last is None or slopes is None:
        raise _independent(name, f"its last maps ({seen.place or 'none'})")
    return seen.last.detach(), slopes


def _independent(name: str, what: str) -> NotApplicableError:
    return NotApplicableError(
        f"explainer '{name}' does not apply here: the output does not depend on {what}; name another layer "
        "with layer=..."
    )


@register
@dataclass(frozen=True)
class GradCam(GradientCam):
    """max(0, sum_k a_k A_k), where a_k is the mean of the gradient over channel k (eq. 1-2)."""

    name: ClassVar[str] = "gradcam"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "last convolution weighted by its mean gradient"
    paper: ClassVar[str] = "Selvaraju et al. 2017, eq. 1-2"

    def weigh(self, activations: Tensor, slopes: Tensor) -> Tensor:
        weights = slopes.flatten(2).mean(2)
        return _weighted(activations, weights).clamp(min=0)


@register
@dataclass(frozen=True)
class GradCamPlusPlus(GradientCam):
    """max(0, sum_k w_k A_k) with w_k = sum_ij alpha_kij max(0, g_kij) (eq. 19).

    alpha = g^2 / (2 g^2 + g^3 sum_ab A_kab), and 0 where g is. The paper's factor exp(y_c) is common to a map
    and left out.
    """

    name: ClassVar[str] = "gradcam_plus_plus"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "last convolution weighted by its positive gradients"
    paper: ClassVar[str] = "Chattopadhay et al. 2018, eq. 19"

    def weigh(self, activations: Tensor, slopes: Tensor) -> Tensor:
        total = activations.flatten(2).sum(2).reshape(*activations.shape[:2], *[1] * (activations.dim() - 2))
        below = 2 * slopes.square() + total * slopes.pow(3)
        alpha = torch.where(below == 0, 0.0, slopes.square() / torch.where(below == 0, 1.0, below))
        weights = (alpha * slopes.clamp(min=0)).flatten(2).sum(2)
        return _weighted(activations, weights).clamp(min=0)


@register
@dataclass(frozen=True)
class LayerCam(GradientCam):
    """max(0, sum_k max(0, g_k) A_k), element by element (eq. 6-8)."""

    name: ClassVar[str] = "layercam"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "last convolution weighted place by place by its positive gradient"
    paper: ClassVar[str] = "Jiang et al. 2021"

    def weigh(self, activations: Tensor, slopes: Tensor) -> Tensor:
        return (slopes.clamp(min=0) * activations).sum(1).clamp(min=0)


def _weighted(maps: Tensor, weights: Tensor) -> Tensor:
    """The sum (n, *grid) over channels of each map times its weight (n, channels)."""
    return (weights[:, None] @ maps.flatten(2)).view(len(maps), *maps.shape[2:])


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

    def _pieces(self, task: Task) -> Iterator[Task]:
        # the masked rows of few samples are cut into chunks here
        return task.chunks(1)

    def _activations(self, task: Task) -> Tensor:
        layer = self.layer or last_maps(task).layer
        with task.session():
            if layer is not None:
                with watched(task, layer) as outputs:
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


@register
@dataclass(frozen=True)
class GuidedGradCam(Explainer):
    """Guided backpropagation times Grad-CAM's map, laid over the input (Selvaraju et al. 2017, section 3.2).

    Rows: each x forward and backward twice.
    """

    layer: str | None = None
    """The layer that Grad-CAM looks at; by default the last maps of the model."""
    name: ClassVar[str] = "guided_gradcam"
    summary: ClassVar[str] = "guided backpropagation weighted by Grad-CAM"
    paper: ClassVar[str] = "Selvaraju et al. 2017, section 3.2"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "convolution"})

    def why_not(self, task: Task) -> str | None:
        return GradCam(self.layer).why_not(task) or GuidedBackprop().why_not(task)

    def _stated(self, task: Task) -> dict[str, Any]:
        return GradCam(self.layer)._stated(task)

    def _pieces(self, task: Task) -> Iterator[Task]:
        # one gradient at a time, so that a piece may fill a chunk
        return task.chunks(1)

    def rows_per_sample(self, task: Task) -> int:
        return 2

    def attribute(self, task: Task, context: Context) -> Tensor:
        guided = GuidedBackprop()
        fine = guided.attribute(guided._prepared(task), context)
        coarse = GradCam(self.layer).coarse(task, context.key)
        return fine * over_input(task, resized(coarse[:, None], spatial_size(task))[:, 0])
