"""Class activation maps: the channels of one convolution, weighted and laid over the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import NotApplicableError, unknown_name
from veridical.explainers.base import Explainer, hand_along, register, selected
from veridical.explainers.cam_layer import LastMaps
from veridical.explainers.cam_places import Looked, _watched, last_maps, layer_shapes, looked_at
from veridical.explainers.gradients import slopes_at
from veridical.explainers.grid import as_features, resized, spatial_axes, spatial_size
from veridical.models.predictor import call
from veridical.values.task import Task


@dataclass(frozen=True)
class Cam(Explainer):
    """Base of the class activation maps: one value per pixel (or step), shared over the channels.

    They look at the output of `layer`: by default at what the model computes last on a grid of places, behind
    activation and residual sum (see `cam_layer`), which the provenance names. The map is made on that grid
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

    def stated(self, task: Task) -> dict[str, Any]:
        return {"layer": self.layer or last_maps(task).words}

    def attribute(self, task: Task, key: Key) -> Tensor:
        small = self.coarse(task, key)
        return as_features(task, resized(small[:, None], spatial_size(task))[:, 0])

    def coarse(self, task: Task, key: Key) -> Tensor:
        """The map (n, *grid) on the layer's own grid."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it weighs channels")

    def _no_maps(self, task: Task) -> str | None:
        if last_maps(task).astray:
            return (
                "the model answers otherwise when its operations are followed one by one: it changes a part "
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

    def tells_outputs(self, task: Task) -> bool:
        return True

    def prepared(self, task: Task) -> Task:
        return looked_at(task) if self.layer is None else task

    def coarse(self, task: Task, key: Key) -> Tensor:
        targets = task.targets  # before the watching begins: they may need the model without it
        x = task.inputs.detach()
        with task.session(grad=True) as model:
            if self.layer is None:
                outputs = call(model, x, task.side)
                looked = task.predictor.model
                assert isinstance(looked, Looked)
                looked.confirm(outputs, task.known("outputs"))
                found = _through_last(looked.kept["last maps"], selected(outputs, targets).sum(), self.name)
            else:
                with _watched(task, self.layer) as seen:
                    outputs = call(model, x.requires_grad_(True), task.side)
                slopes = slopes_at(selected(outputs, targets).sum(), seen[:1])[0]
                if slopes is None:
                    raise _independent(self.name, f"layer '{self.layer}'")
                found = seen[0].detach(), slopes
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
