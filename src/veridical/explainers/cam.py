"""Class activation maps: the channels of one layer, weighted and laid over the input.

Where no layer is named they read what the model computes last on a grid of places. In a convolutional
network that is the last value on the grid of its last convolution: behind the norm, the activation, the
residual sum and the concatenation that follow it, also where those are no layers. In a vision transformer
(one convolution, which cuts patches) it is the last residual sum of tokens through which patches still reach
the output: behind it only the class token counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.core.facts import fact
from veridical.errors import NotApplicableError, unknown_name
from veridical.explainers.backprop import GuidedBackprop
from veridical.explainers.base import Explainer, keep_outputs, register, selected
from veridical.explainers.gradients import slopes_at
from veridical.explainers.layout import as_features, over_input, resized, spatial_axes, spatial_size
from veridical.explainers.trace.operations import tensors
from veridical.explainers.trace.tracer import Tracer, agree
from veridical.models.context import Context
from veridical.models.predictor import call, repeat_side, take_side
from veridical.perturb.probe import blocks
from veridical.values.task import Task


@dataclass(frozen=True)
class Cam(Explainer):
    """Base of the class activation maps: one value per pixel (or step), shared over the channels.

    They read the output of `layer`: by default what the model computes last on a grid of places, behind
    activation and residual sum (see `LastMaps`), which the provenance names. The map is made on that grid
    and then upsampled, linearly in each axis, to the input's size.
    """

    layer: str | None = None
    """The layer whose channels are weighted; by default the last maps of the model."""
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "convolution"})

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        if task.modality == "series" and task.space.valid is not None:
            return "it lays a layer's grid over a whole series and cannot see padding; give equal lengths"
        if self.layer is None:
            return last_maps(task).refusal
        found = last_maps(task).shapes
        if self.layer not in found:
            return str(unknown_name("layer that runs", self.layer, found))
        if len(found[self.layer]) != 1:
            return f"layer '{self.layer}' runs {len(found[self.layer])} times a pass; name one that runs once"
        shape, axes = found[self.layer][0], spatial_axes(task)
        if len(shape) != 2 + axes:
            return f"layer '{self.layer}' gives shape {shape}; expected rows, channels and {axes} more axes"
        return None

    def _stated(self, task: Task) -> dict[str, Any]:
        return {"layer": self.layer or last_maps(task).words}

    def attribute(self, task: Task, context: Context) -> Tensor:
        small = self.coarse(task, context)
        return as_features(task, resized(small[:, None], spatial_size(task))[:, 0])

    def coarse(self, task: Task, context: Context) -> Tensor:
        """The map (n, *grid) on the layer's own grid."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it weighs channels")


@dataclass(frozen=True)
class GradientCam(Cam):
    """Base of those that weigh activations A (n, channels, *grid) by the gradient g = dy_c/dA."""

    def coarse(self, task: Task, context: Context) -> Tensor:
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
                slopes = slopes_at(selected(outputs, targets).sum(), layers)
                if not layers or slopes[-1] is None:
                    raise _independent(self.name, f"layer '{layer}', whose maps it reads")
                found = layers[-1].detach(), slopes[-1]
        keep_outputs(context, task, outputs)
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
        place = last_maps(task)
        return 1 + (place.channels if self.layer is None else place.shapes[self.layer][0][1])

    def _pieces(self, task: Task) -> Iterator[Task]:
        # the masked rows of few samples are cut into chunks here
        return task.chunks(1)

    def _activations(self, task: Task) -> Tensor:
        layer = self.layer or last_maps(task).layer
        with task.session():
            if layer is not None:
                with watched(task, layer) as outputs:
                    task.predictor.chunk(task.inputs, task.side)
                if not outputs:
                    raise _independent(self.name, f"layer '{layer}', whose maps it reads")
                return outputs[-1]
            padded = task.predictor.padding(len(task))
            x = task.inputs[padded]
            with LastMaps(x, spatial_axes(task)) as seen:
                task.predictor.chunk(x, take_side(task.side, padded), len(task))
            if seen.last is None:
                raise _independent(self.name, "its last maps (none)")
            return seen.last

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is None and self.layer is None and last_maps(task).transformer:
            return "its patches are tokens, which have no maps to see through; give a convolutional network"
        return reason

    def coarse(self, task: Task, context: Context) -> Tensor:
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
    return flat.amin(2), flat.amax(2)


@register
@dataclass(frozen=True)
class GuidedGradCam(Explainer):
    """Guided backpropagation times Grad-CAM's map, laid over the input (Selvaraju et al. 2017, section 3.2).

    Rows: each x forward and backward twice.
    """

    layer: str | None = None
    """The layer that Grad-CAM reads; by default the last maps of the model."""
    name: ClassVar[str] = "guided_gradcam"
    summary: ClassVar[str] = "guided backpropagation weighted by Grad-CAM"
    paper: ClassVar[str] = "Selvaraju et al. 2017, section 3.2"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "convolution"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return GradCam(self.layer).inapplicable_reason(task) or GuidedBackprop().inapplicable_reason(task)

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
        coarse = GradCam(self.layer).coarse(task, context)
        return fine * over_input(task, resized(coarse[:, None], spatial_size(task))[:, 0])


_CONVOLUTIONS = frozenset(f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3))
_SUMS = frozenset({"add", "iadd", "radd"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
_EXTRA = 2
"""The most class and distillation tokens that stand before those of the patches."""


class LastMaps(Tracer):
    """Notes while a model runs which values lie on a grid of `axes` axes."""

    def __init__(self, x: Tensor, axes: int) -> None:
        super().__init__(x)
        self.axes, self.rows = axes, len(x)
        self.grid: tuple[int, ...] = ()
        self.place = ""
        self.last: Tensor | None = None
        self.tokens: list[Tensor] = []
        self._convolutions, self._patches, self._lost = 0, False, False
        self._just_made = False
        self._layers: list[str] = []
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.behind = False
        """Whether tokens of the model's own stand behind those of the patches."""

    @property
    def transformer(self) -> bool:
        """Whether the only convolution cuts the input into patches, and tokens follow."""
        return self._convolutions == 1 and self._patches and bool(self.tokens)

    @property
    def lost(self) -> bool:
        """Whether tokens follow the patches that cannot be laid on their grid: registers, or rows behind."""
        return self._convolutions == 1 and self._patches and self._lost

    @property
    def layer(self) -> str | None:
        """The layer that runs once and whose output the last maps are, if there is one."""
        return next((name for name in self._layers if len(self.shapes[name]) == 1), None)

    def after_layer(self, name: str, output: Any) -> None:
        """Note that a layer has run; its output stands for the last maps if nothing has read them before."""
        if isinstance(output, Tensor):
            self.shapes.setdefault(name, []).append(tuple(output.shape))
        if self._just_made and output is self.last:
            self._layers.append(name)

    def __enter__(self) -> Any:
        if self._with_gradients:
            # by which is known what depends on the input behind what cannot be traced
            self.x.requires_grad_(True)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.forget()

    def _refuse_untraced(self, given: list[Tensor]) -> None:
        # a gradient passes what cannot be traced
        self.attributed.update(v for v in given if v.requires_grad and not v.is_leaf)

    def _trace(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, attributed: bool) -> Any:
        value = func(*args, **kwargs)
        self._just_made = False
        for made in tensors(value):
            if made.is_floating_point():
                self.attributed.add(made)
                if name not in ("detach", "data"):  # no gradient comes back to a copy that is cut off
                    self._note(name, made, args, kwargs)
        return value

    def _note(self, name: str, made: Tensor, args: Any, kwargs: Any) -> None:
        shape = tuple(made.shape)
        if name in _JOINS and self._patches and self.last is not None and shape[2:] == self.last.shape[1:2]:
            parts = args[0] if args else kwargs["tensors"]
            # a token for each row is laid beside the patches: made of the model's own weights alone
            self.behind |= parts[-1] not in self.attributed and parts[-1].shape[1] <= _EXTRA
        fits = len(shape) == 2 + self.axes and shape[0] == self.rows and prod(shape[2:]) > 1
        if name in _CONVOLUTIONS and fits:
            self.grid, self.tokens = shape[2:], []
            self._convolutions += 1
            kernel = (args[1] if len(args) > 1 else kwargs["weight"]).shape[2:]
            stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
            stride = (stride,) * self.axes if isinstance(stride, int) else tuple(stride)
            self._patches = tuple(kernel) == stride and max(kernel) > 1
        if fits and shape[2:] == self.grid:
            if made is not self.last:
                self._just_made, self._layers = True, []
            self.last, self.place = made, f"{name}, {shape[1]} x {' x '.join(map(str, self.grid))}"
        elif name in _SUMS and self.grid and shape[0] == self.rows and self._laid(made) is not None:
            self.tokens.append(made)
        elif name in _SUMS and self._patches and self.last is not None and len(shape) == 3:
            many = prod(shape[:2]) >= self.rows * prod(self.grid)
            self._lost |= many and shape[2] == self.last.shape[1]

    def _laid(self, tokens: Tensor) -> tuple[tuple[int, ...], int] | None:
        """The grid of tokens (rows, places, size) or (rows, *grid, size), and how many stand before it."""
        grid = self.grid
        while all(length > 1 for length in grid):
            if tuple(tokens.shape[1:-1]) == grid:
                return grid, 0
            extra = tokens.shape[1] - prod(grid)
            if tokens.dim() == 3 and 0 <= extra <= _EXTRA:
                return grid, extra
            grid = tuple(length // 2 for length in grid)  # a stage may merge neighbouring patches
        return None

    def as_maps(self, tokens: Tensor) -> Tensor:
        """Tokens as maps (rows, size, *grid), without those that stand for no patch."""
        laid = self._laid(tokens)
        assert laid is not None
        grid, extra = laid
        return tokens.flatten(1, -2)[:, extra:].transpose(1, 2).unflatten(2, grid)


@dataclass(frozen=True)
class Place:
    """What a run on one row shows of a model's layers, and where its last maps are."""

    shapes: dict[str, list[tuple[int, ...]]]
    """The output shapes of every layer, in the order they ran."""
    words: str
    """The operation that makes the last maps and their size."""
    grid: tuple[int, ...]
    channels: int
    transformer: bool
    """Whether they are tokens."""
    behind: bool
    """Whether tokens of its own stand behind those of its patches."""
    layer: str | None
    """The layer whose output they are, which need not be traced; None if there is none."""
    refusal: str | None
    """Why the last maps cannot be read, or None if they can."""


def last_maps(task: Task) -> Place:
    """What one row shows of the model's last maps; not counted."""
    place: Place = task.uncounted(lambda: _place(task.reference))
    return place


@fact
def _place(task: Task) -> Place:
    row, side = task.inputs[:1], take_side(task.side, slice(0, 1))
    with task.session() as model:
        with LastMaps(row, spatial_axes(task)) as seen, _every_layer(task, seen.after_layer):
            # by one operation more, which reads what was written in place
            traced = call(model, row, side).clone()
        own = call(model, row, side)
        # unless it gives other outputs at every run
        astray = not agree(traced, own) and agree(own, call(model, row, side))
    refusal = None
    if astray:
        refusal = (
            "the model gives other outputs when its operations are traced one by one: it changes a part "
            "of a tensor in place; name a layer with layer=..."
        )
    elif seen.lost or (seen.transformer and seen.behind):
        refusal = (
            "its tokens are not laid as rows x (at most 2 others, then the patches) x size (are there "
            "registers, a class token behind, or places before rows?), so that their grid is not known"
        )
    elif seen.last is None:
        refusal = (
            f"no convolution layer of the model gives rows, channels and {spatial_axes(task)} axes of more "
            "than one position; name a layer that does with layer=..."
        )
    tokens = "the last residual sum of tokens by which patches reach the output"
    words = tokens if seen.transformer else seen.place
    channels = 0 if seen.last is None else seen.last.shape[1]
    layer = None if seen.transformer else seen.layer
    return Place(seen.shapes, words, seen.grid, channels, seen.transformer, seen.behind, layer, refusal)


@contextmanager
def _every_layer(task: Task, after: Callable[[str, Any], None]) -> Iterator[None]:
    """While this is open, `after(name, output)` is called behind each layer."""
    handles = [
        layer.register_forward_hook(lambda _layer, _inputs, output, name=name: after(name, output))
        for name, layer in task.predictor.model.named_modules()
        if not isinstance(layer, torch.jit.ScriptModule)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched(task: Task, name: str) -> Iterator[list[Tensor]]:
    """What the layer gives while the body runs; the hook goes also when the body raises."""
    seen: list[Tensor] = []

    def after(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        seen.append(output)
        # the model goes on with a copy: an activation in place would overwrite what we keep
        return output.clone()

    named = dict(task.predictor.model.named_modules())
    # a view of other weights holds the caller's module under a name of its own
    handle = named[name if name in named else f"module.{name}"].register_forward_hook(after)
    try:
        yield seen
    finally:
        handle.remove()
