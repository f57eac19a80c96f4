"""What concept methods are fitted on: rows of each kind, crops and segments of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, conv2d, interpolate
from torch.overrides import TorchFunctionMode

from veridical.concepts.concepts import Concepts
from veridical.concepts.dictionary import Dictionary
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.methods import METHODS
from veridical.concepts.methods.base import ConceptMethod, needed
from veridical.concepts.methods.decompositions import CRAFT
from veridical.concepts.methods.mcd import HUMCD
from veridical.concepts.splitting import Split, Tap, split
from veridical.core.settings import mismatch
from veridical.errors import InputError, NotApplicableError, ShapeError, missing_extra, unknown_name, visible
from veridical.values.task import Task

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
    cut = partial(slic, n_segments=segments, compactness=0.1, start_label=0, channel_axis=-1)
    pictures = images.detach().cpu().double().movedim(1, -1).numpy()
    return torch.stack([torch.from_numpy(cut(picture)) for picture in pictures]).to(images.device)


class MaskedModel(nn.Module):
    """The model on part of an image: what lies outside the mask never enters a convolution.

    Before every convolution its input is zero outside the mask (shrunk to the layer's size); its output is
    scaled by the share of kernel cells that were inside, as if the kernel had met the segment alone. The
    embedding is the mean of the last map over the mask. With nothing masked this is the model itself.
    """

    def __init__(self, module: nn.Module, map_layer: str) -> None:
        super().__init__()
        self.module = module
        self.map_layer = map_layer

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        mask = mask[:, None].to(images)
        with _Masked(mask):
            _, last = Tap(self.module, self.map_layer, "output")(images)
        inside = adaptive_max_pool2d(mask, last.shape[2:])
        return (last * inside).sum((2, 3)) / inside.sum((2, 3)).clamp(min=1)


class _Masked(TorchFunctionMode):
    """While this is on, convolutions read what lies inside a mask."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not conv2d:
            return func(*args, **(kwargs or {}))
        named = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        held = {**dict(zip(named, args, strict=False)), **(kwargs or {})}
        inside = adaptive_max_pool2d(self.mask, held["input"].shape[2:])
        kernel = torch.ones(1, 1, *held["weight"].shape[2:]).to(self.mask)
        how = {name: held[name] for name in ("stride", "padding", "dilation") if name in held}
        # against the cells that the whole image would have met, so that zero padding keeps its own effect
        whole, met = (conv2d(cells, kernel, **how) for cells in (torch.ones_like(inside[:1]), inside))
        bias = 0.0 if held.get("bias") is None else held["bias"][:, None, None]
        seen = func(**{**held, "input": held["input"] * inside})
        return (seen - bias) * (whole / met.clamp(min=1)) + bias


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
        raise NotApplicableError(f"segments are cut from images (N, C, H, W), not {tuple(inputs.shape)}")
    if split.map_layer is None:
        raise NotApplicableError(
            "no layer of this model gives a map whose mean is the embedding; MCD applies"
        )
    if split.task.side:
        raise NotApplicableError("segments are cut from one image; this model takes side inputs too")
    labels = segmenter(inputs)
    wanted = (len(inputs), *inputs.shape[2:])
    if tuple(labels.shape) != wanted:
        raise ShapeError(f"the segmenter gave {tuple(labels.shape)}, expected a number per pixel {wanted}")
    labels = labels.to(device=inputs.device, dtype=torch.int64)
    numbers = torch.arange(int(labels.max()) + 1, device=inputs.device)
    sizes = (labels.flatten(1)[:, :, None] == numbers).double().mean(1)
    image, number = (sizes >= max(smallest, 1e-12)).nonzero(as_tuple=True)
    if not len(image):
        raise InputError(f"no segment covers {smallest:.0%} of its image; lower smallest")
    view = MaskedModel(split.task.predictor.model, split.map_layer)
    predictor = split.task.predictor.with_model(view, lambda output: output)
    found = [
        predictor.outputs(inputs[image[at]], (labels[image[at]] == number[at][:, None, None],))
        for at in torch.arange(len(image), device=inputs.device).split(4 * predictor.rows)
    ]
    outputs = split.task.predictor.outputs(inputs)[image]
    ids = torch.arange(len(image), device=inputs.device)
    return Embeddings(torch.cat(found), outputs, ids, kind="segments")


Entry = ConceptMethod | Concepts | Dictionary
"""What can be compared: a method to fit, concepts that are ready, a dictionary that was loaded."""


def entries(given: Any) -> dict[str, Entry]:
    """Methods, names, ready concepts and dictionaries under one label each.

    Settings tell apart what has one name: `pca(n_concepts=3)` beside `pca(n_concepts=5)`. A mapping brings
    its own labels.
    """
    if isinstance(given, Mapping):
        return {visible(str(label)): _entry(item) for label, item in given.items()}
    if isinstance(given, str | Entry):
        given = [given]
    elif mismatch(given, Sequence[Any]) is not None:
        raise InputError(f"concepts are several methods, names or concepts, got {given!r:.80}")
    made = [_entry(item) for item in given]
    names = [getattr(item, "name", getattr(item, "method", "dictionary")) for item in made]
    found: dict[str, Entry] = {}
    for item, name in zip(made, names, strict=True):
        label, same = name, [other for other, also in zip(made, names, strict=True) if also == name]
        if isinstance(item, ConceptMethod):
            own = {f.name: getattr(item, f.name) for f in fields(item)}
            differ = [f"{n}={v}" for n, v in own.items() if any(getattr(o, n, None) != v for o in same)]
            label = f"{name}({', '.join(differ)})" if differ else name
        if label in found:
            raise InputError(f"two entries are called {label}; give a mapping from labels")
        found[label] = item
    return found


def _entry(item: Any) -> Entry:
    if isinstance(item, str):
        if item.lower() not in METHODS:
            raise unknown_name("concept method", item, METHODS)
        return METHODS[item.lower()]()
    if isinstance(item, type) and issubclass(item, ConceptMethod):
        return item()
    if isinstance(item, Entry):
        return item
    known = "a method (PCA()), its name ('pca'), ready Concepts or a loaded dictionary"
    raise InputError(f"concepts come from {known}; got a {type(item).__name__}")


@dataclass(eq=False)
class Materials:
    """The rows that methods are fitted on, by kind: given ones, and what a split model can supply."""

    given: Mapping[Kind, Embeddings]
    split: Split | None = None
    _made: dict[tuple[str, Any], Embeddings] = field(default_factory=dict)

    @classmethod
    def of(cls, train: Embeddings, given: Mapping[Kind, Embeddings] | None = None) -> Materials:
        """Of embeddings at hand: they are what they say they are, and whole samples beside it."""
        own: dict[Kind, Embeddings] = {}
        if train.kind in (None, "pooled", "positions"):
            own["pooled"] = train.as_pooled()
            if train.spatial or train.kind == "positions":
                own["positions"] = train
        elif train.kind is not None:
            own[train.kind] = train
        return cls({**own, **(given or {})})

    def rows(self, method: ConceptMethod) -> Embeddings:
        """What the method is fitted on; refused where it cannot be had, never replaced by something else."""
        kind, parts = method.fits_on, self.split
        if kind in self.given:
            return self.given[kind]
        if parts is None:
            raise NotApplicableError(
                needed(method, f"give them as materials={{'{kind}': ...}}, or compare on a task")
            )
        if kind in ("pooled", "positions"):
            return parts.train(spatial=kind == "positions" and parts.positions)
        outputs, images = parts.train().outputs, parts.task.train
        assert images is not None
        if images.dim() != 4:
            raise NotApplicableError(
                needed(method, f"inputs here are no images but {tuple(images.shape[1:])}")
            )
        if isinstance(method, CRAFT):
            size = max(1, round(method.crop_share * min(images.shape[2:])))
            make = partial(crop_embeddings, parts, images, size, outputs)
        elif isinstance(method, HUMCD):
            size = method.segments
            make = partial(segment_embeddings, parts, images, partial(superpixels, segments=size))
        else:
            raise NotApplicableError(needed(method, f"give them as materials={{'{kind}': ...}}"))
        if (kind, size) not in self._made:
            self._made[kind, size] = make()
        return self._made[kind, size]

    def concepts(self, item: Entry, head: Head, seed: Any) -> Concepts:
        """Fit a method on its rows; what is ready is taken as it is."""
        if isinstance(item, Concepts):
            return item
        if isinstance(item, ConceptMethod):
            return item.fit(self.rows(item), head, seed)
        return item.concepts(head, "dictionary")


def materials_of(
    train: Task | Split | Embeddings,
    test: Embeddings | None,
    head: Head | None,
    given: Mapping[Kind, Embeddings] | None,
    layer: str | None = None,
) -> tuple[Materials, Embeddings, Embeddings, Head]:
    """What methods are fitted on, train and test embeddings and the head: of a task, or of embeddings."""
    if not isinstance(train, Embeddings):
        parts = train if isinstance(train, Split) else split(train, layer)
        return Materials(given or {}, parts), parts.train(), parts.test(), parts.head
    if test is None or head is None:
        raise InputError("give a task, or train and test embeddings with their head")
    return Materials.of(train, given), train, test, head
