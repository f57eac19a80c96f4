"""Embeddings of parts of images: crops, and segments that the network sees alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, conv2d, interpolate

from veridical.concepts.embeddings import Embeddings
from veridical.concepts.splitting import Split, Tap
from veridical.errors import InputError, NotApplicableError, ShapeError, missing_extra

Segmenter = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to the number of each pixel's segment (N, H, W); below 0 is no segment."""


def crop_embeddings(split: Split, inputs: Tensor, size: int, outputs: Tensor | None = None) -> Embeddings:
    """Embeddings of square crops, 80% of their size apart and each resized to the whole input.

    A crop belongs to the output its image is predicted as.

    Parameters
    ----------
    split
        The model that embeds them.
    inputs
        Images (N, C, H, W).
    size
        Side of a crop in pixels.
    outputs
        The model's outputs of the images (default: evaluated).

    Returns
    -------
    Embeddings
        Of kind "crops", (N, crops, D).
    """
    if inputs.dim() != 4:
        raise NotApplicableError(f"crops are cut from images (N, C, H, W); inputs are {tuple(inputs.shape)}")
    if not 1 <= size <= min(inputs.shape[2:]):
        raise InputError(f"crops of {size} pixels do not fit into images of {tuple(inputs.shape[2:])}")
    step = max(1, int(0.8 * size))
    cut = inputs.unfold(2, size, step).unfold(3, size, step)
    count, channels, high, wide = cut.shape[:4]
    crops = cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels, size, size)
    whole = interpolate(crops, inputs.shape[2:], mode="bilinear", align_corners=False)
    found = split.collect(whole)
    if outputs is None:
        outputs = split.collect(inputs).outputs
    ids = torch.arange(count, device=inputs.device)
    return Embeddings(found.values.reshape(count, high * wide, -1), outputs, ids, kind="crops")


def superpixels(images: Tensor, segments: int = 12) -> Tensor:
    """SLIC superpixels (scikit-image)."""
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise missing_extra("scikit-image", "vision") from error
    pictures = images.detach().cpu().double().movedim(1, -1).numpy()
    found = [
        slic(picture, n_segments=segments, compactness=0.1, start_label=0, channel_axis=-1)
        for picture in pictures
    ]
    return torch.stack([torch.from_numpy(labels) for labels in found]).to(images.device)


class MaskedModel(nn.Module):
    """The model on part of an image: what lies outside the mask never enters a convolution.

    Before every convolution its input is zero outside the mask (shrunk to the layer's size); its answer is
    scaled by the share of kernel cells that were inside, as if the kernel had met the segment alone. The
    embedding is the mean of the last map over the mask. With nothing masked this is the model itself.
    """

    def __init__(self, module: nn.Module, map_layer: str) -> None:
        super().__init__()
        self.module = module
        self.map_layer = map_layer

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        mask = mask[:, None].to(images)
        hooks = [
            hook
            for layer in self.module.modules()
            if isinstance(layer, nn.Conv2d)
            for hook in (
                layer.register_forward_pre_hook(partial(_cut, mask)),
                layer.register_forward_hook(partial(_rescale, mask)),
            )
        ]
        try:
            _, last = Tap(self.module, self.map_layer, "output")(images)
        finally:
            for hook in hooks:
                hook.remove()
        inside = adaptive_max_pool2d(mask, last.shape[2:])
        return (last * inside).sum((2, 3)) / inside.sum((2, 3)).clamp(min=1)


def _cut(mask: Tensor, _layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0] * adaptive_max_pool2d(mask, given[0].shape[2:]), *given[1:])


def _rescale(mask: Tensor, layer: nn.Conv2d, given: tuple[Any, ...], answer: Tensor) -> Tensor:
    inside = adaptive_max_pool2d(mask, given[0].shape[2:])
    kernel = torch.ones(1, 1, *layer.kernel_size, dtype=mask.dtype, device=mask.device)
    if isinstance(layer.padding, str):
        raise NotApplicableError(
            f"a convolution with padding='{layer.padding}' cannot be masked; give a number"
        )

    def met(cells: Tensor) -> Tensor:
        return conv2d(cells, kernel, None, layer.stride, layer.padding, layer.dilation)

    # against the cells that the whole image would have met, so that zero padding keeps its own effect
    ratio = met(torch.ones_like(inside[:1])) / met(inside).clamp(min=1)
    bias = 0.0 if layer.bias is None else layer.bias[:, None, None]
    return (answer - bias) * ratio + bias


def segment_embeddings(
    split: Split, inputs: Tensor, segmenter: Segmenter = superpixels, smallest: float = 0.01
) -> Embeddings:
    """One embedding per segment, grouped under the class its whole image is predicted as.

    Rows are counted: one per segment.

    Parameters
    ----------
    split
        A model that averages a map before its head.
    inputs
        Images (N, C, H, W).
    segmenter
        Gives the number of each pixel's segment (N, H, W); below 0 is no segment.
    smallest
        Segments smaller than this share of the image are left out.

    Returns
    -------
    Embeddings
        Of kind "segments", (segments, D).

    Raises
    ------
    NotApplicableError
        The inputs are no images, or no layer gives a map whose mean is the embedding.
    """
    if inputs.dim() != 4:
        raise NotApplicableError(
            f"segments are cut from images (N, C, H, W); inputs are {tuple(inputs.shape)}"
        )
    if split.map_layer is None:
        raise NotApplicableError(
            "HU-MCD needs a map whose mean is the embedding, which no layer of this model gives; MCD applies"
        )
    if split.task.side:
        raise NotApplicableError("segments are cut from one image; this model takes side inputs too")
    labels = segmenter(inputs)
    if tuple(labels.shape) != (len(inputs), *inputs.shape[2:]):
        raise ShapeError(
            f"the segmenter gave {tuple(labels.shape)}, expected {(len(inputs), *inputs.shape[2:])}: the "
            "number of its segment for every pixel"
        )
    labels = labels.to(device=inputs.device, dtype=torch.int64)
    numbers = torch.arange(int(labels.max()) + 1, device=inputs.device)
    sizes = (labels.flatten(1)[:, :, None] == numbers).double().mean(1)
    image, number = (sizes >= max(smallest, 1e-12)).nonzero(as_tuple=True)
    if not len(image):
        raise InputError(f"no segment covers {smallest:.0%} of its image; lower smallest")
    view = MaskedModel(split.task.predictor.model, split.map_layer)
    predictor = split.task.predictor.with_model(view, _same)
    found = [
        predictor.outputs(inputs[image[at]], (labels[image[at]] == number[at][:, None, None],))
        for at in torch.arange(len(image), device=inputs.device).split(4 * predictor.rows)
    ]
    outputs = split.task.predictor.outputs(inputs)[image]
    ids = torch.arange(len(image), device=inputs.device)
    return Embeddings(torch.cat(found), outputs, ids, kind="segments")


def _same(answer: Tensor) -> Tensor:
    return answer
