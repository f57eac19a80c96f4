"""What the randomisation metrics share: models randomised layer by layer, and how alike two maps are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from veridical.core.space import Space
from veridical.functional import centred_ranks, cosine, has_spread, pearson, rms_normalise, ssim
from veridical.metrics import Curve, Key, Task
from veridical.models.randomised_layers import cascade, randomised, randomised_by_layer
from veridical.models.weights import Replaced, layers

Order = Literal["top_down", "bottom_up", "independent"]
Similarity = Literal["spearman", "pearson", "ssim"]
_WINDOW = 7


def randomised_models(task: Task, order: Order, key: Key) -> Iterator[Task]:
    """The task at each step of the cascade; a layer keeps its fresh weights through later steps.

    The unrandomised model is not among them.
    """
    module = task.predictor.unwrapped
    steps = cascade(module, order)
    fresh = randomised_by_layer(module, list(dict.fromkeys(layer for names in steps for layer in names)), key)
    for names in steps:
        yield _with_fresh(task, {n: value for layer in names for n, value in fresh[layer].items()})


def fully_randomised(task: Task, key: Key) -> Task:
    """The task with every layer randomised."""
    module = task.predictor.unwrapped
    return _with_fresh(task, randomised(module, layers(module), key))


def _with_fresh(task: Task, weights: dict[str, Tensor]) -> Task:
    # not copied, as weights by name would be: nobody else has these, and they may be large
    return task.with_weights(Replaced(weights, task.predictor.weights))


def similarity_by_layer(
    task: Task,
    order: Order,
    draws: int,
    key: Key,
    explain: Callable[[Task, Key], Tensor],
    ready: Callable[[Tensor], Tensor],
    alike: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The clean maps, and their similarity to the maps of each randomised model (N, draws, layers).

    `ready` makes maps (N, V) ready to be compared, the clean ones once; `alike` compares two of them: (N,).
    """
    clean = explain(task, key / "clean")
    first = ready(clean)
    rows = []
    for draw in range(draws):
        models = randomised_models(task, order, key / "weights" / draw)
        own = key / "explain" / draw
        found = [alike(first, ready(explain(other, own / step))) for step, other in enumerate(models)]
        rows.append(torch.stack(found, 1))
    return clean, torch.stack(rows, 1)


def layer_curve(table: Tensor, order: Order, y_label: str) -> Curve:
    """The mean over draws of each layer's similarity, as a curve over the cascade."""
    steps = torch.arange(1, table.shape[-1] + 1, device=table.device)
    return Curve(steps, table.nanmean(1), f"layers randomised, {order.replace('_', ' ')}", y_label)


def why_not_similar(kind: Similarity, task: Task) -> str | None:
    """Why maps of this task cannot be compared in this way, or None if they can."""
    if kind != "ssim":
        return None
    if task.modality != "image":
        return f"similarity='ssim' compares images, this task is {task.modality}"
    height, width = task.inputs.shape[-2:]
    if min(height, width) < _WINDOW:
        return f"similarity='ssim' looks at windows of {_WINDOW} pixels, these images are {height} x {width}"
    return None


def comparable(kind: Similarity, maps: Tensor, space: Space, absolute: bool = False) -> Tensor:
    """Maps (..., N, V) made ready for `compare`: done once for a map that is compared with many others.

    Centred ranks for "spearman", the values for "pearson", values over their root mean square for "ssim".
    """
    maps = maps.abs() if absolute else maps
    if kind == "spearman":
        return centred_ranks(maps, where=space.valid)
    return maps if kind == "pearson" else rms_normalise(maps, where=space.valid)


def compare(kind: Similarity, a: Tensor, b: Tensor, space: Space) -> Tensor:
    """Similarity of comparable maps (N, V) over valid features (N,); NaN where a map has no spread.

    Of several maps b (K, N, V) that of each (K, N). "ssim" lays the maps back over the image and takes the
    mean over channels where these are features of their own.
    """
    if kind == "spearman":
        return cosine(a, b)
    if b.dim() > a.dim():
        return torch.stack([compare(kind, a, each, space) for each in b])
    if kind == "pearson":
        return pearson(a, b, where=space.valid)
    height, width = space.input_shape[-2:]
    images = [space.expand(m) for m in (a, b)]
    full = [image.expand(*image.shape[:-2], height, width) for image in images]
    alike = ssim(*full, size=_WINDOW).flatten(1).mean(-1)
    spread = has_spread(a, where=space.valid) & has_spread(b, where=space.valid)
    return torch.where(spread, alike, torch.nan)
