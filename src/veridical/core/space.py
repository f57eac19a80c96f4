"""What a feature is: a pixel, a patch, a superpixel, a time step, a token, a column, a concept, a switch.

One idea covers them all: a *label map* that says for every element of an input which feature it belongs
to. Pixels share a label over colour channels, patches over a block, column groups over the columns of one
category. Masks are made over features and expanded to elements; maps are made over elements and pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError, visible

Reduction = Literal["sum", "mean"]
KINDS = tuple(
    "pixel voxel patch superpixel step step_channel token column column_group concept unit element".split()
)
MANY_PIXELS = 64 * 64
"""The most pixels, or voxels, that are features each unless a task says otherwise."""
PATCHES_A_SIDE = {3: 14, 4: 6}
"""How many patches along each side an image, or a volume, with more of them is cut into, by its axes."""


@dataclass(frozen=True, eq=False, repr=False)
class Space:
    """The features of an input: how masks expand to it and how maps pool over it.

    `labels` has the shape of one input (1 where an axis is shared) or, when `per_sample`, one such map per
    sample; -1 marks an element that belongs to no feature and is never removed. `valid` (N, V) says which
    features exist in each sample (padding, special tokens and missing superpixels do not).

    >>> space = Space.patches((1, 4, 4), 2)
    >>> space.n_features
    4
    >>> space.pool(torch.ones(1, 1, 4, 4))
    tensor([[4., 4., 4., 4.]])
    """

    kind: str
    input_shape: tuple[int, ...]
    n_features: int
    labels: Tensor
    per_sample: bool = False
    valid: Tensor | None = None
    names: tuple[Any, ...] | None = None
    _direct: bool = field(default=False, init=False)
    _gaps: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"space kind '{self.kind}' is unknown; expected one of {', '.join(KINDS)}")
        object.__setattr__(self, "labels", self.labels.to(torch.int64))
        lead = 1 if self.per_sample else 0
        shape = tuple(self.labels.shape[lead:])
        fits = len(shape) == len(self.input_shape) and all(
            a in (1, b) for a, b in zip(shape, self.input_shape, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"labels of shape {shape} do not lie over an input of shape {self.input_shape}; "
                "each axis must match or be 1"
            )
        if self.valid is not None:
            # an attention mask comes as integers, whose complement is not what a truth value's is
            object.__setattr__(self, "valid", self.valid.to(torch.bool))
            if self.valid.dim() != 2 or self.valid.shape[-1] != self.n_features:
                raise ShapeError(
                    f"valid has shape {tuple(self.valid.shape)}, expected (samples, {self.n_features})"
                )
        flat = self.labels.reshape(-1)
        if flat.numel() and int(flat.max()) >= self.n_features:
            raise InputError(f"label {int(flat.max())} is out of range for {self.n_features} features")
        # labels that merely count through the elements need no gather, only a reshape
        counts_through = not self.per_sample and torch.equal(
            flat.cpu(), torch.arange(self.n_features, dtype=flat.dtype)
        )
        object.__setattr__(self, "_direct", counts_through)
        object.__setattr__(self, "_gaps", bool((flat < 0).any()))

    @property
    def covers_inputs(self) -> bool:
        """Whether every element of an input is known to belong to a feature."""
        return self._direct

    # --- constructors -------------------------------------------------------------------------------

    @classmethod
    def pixels(cls, shape: Sequence[int]) -> Space:
        """One feature per pixel of a (channels, height, width) image, shared over the channels."""
        return replace(cls.patches(_image(shape), 1), kind="pixel")

    @classmethod
    def voxels(cls, shape: Sequence[int]) -> Space:
        """One feature per voxel of a (channels, depth, height, width) volume, shared over the channels."""
        return replace(cls.patches(_volume(shape), 1), kind="voxel")

    @classmethod
    def patches(cls, shape: Sequence[int], size: int | tuple[int, ...]) -> Space:
        """One feature per block of a (channels, height, width) image or of a volume; edges may be smaller."""
        channels, *sides = _image(shape) if len(shape) == 3 else _volume(shape)
        sizes = (size,) * len(sides) if isinstance(size, int) else tuple(size)
        if len(sizes) != len(sides) or not all(1 <= s <= n for s, n in zip(sizes, sides, strict=True)):
            raise InputError(f"patch size {sizes} does not fit an image of {tuple(sides)}")
        labels, count = torch.zeros((), dtype=torch.int64), 1
        for side, along in zip(sides, sizes, strict=True):
            across = -(-side // along)
            labels = labels[..., None] * across + torch.arange(side) // along
            count *= across
        return cls("patch", (channels, *sides), count, labels[None])

    @classmethod
    def superpixels(cls, shape: Sequence[int], labels: Tensor) -> Space:
        """One feature per segment, from a label map (H, W) or one per sample (N, H, W); -1 is no feature."""
        channels, height, width = _image(shape)
        labels = torch.as_tensor(labels).to(torch.int64)
        if labels.shape[-2:] != (height, width) or labels.dim() not in (2, 3):
            raise ShapeError(
                f"superpixel labels have shape {tuple(labels.shape)}, "
                f"expected ({height}, {width}) or (N, {height}, {width})"
            )
        if labels.numel() == 0 or int(labels.max()) < 0:
            raise InputError("superpixel labels name no segment at all")
        count = int(labels.max()) + 1
        labels = labels.clamp(min=-1)
        if labels.dim() == 2:
            missing = sorted(set(range(count)) - set(labels.unique().tolist()))
            if missing:
                raise InputError(
                    f"segments are numbered 0..{count - 1} but {missing[:5]} lie nowhere; renumber them with "
                    "torch.unique(labels, return_inverse=True)[1]"
                )
            return cls("superpixel", (channels, height, width), count, labels[None])
        flat = labels.reshape(len(labels), -1)
        present = torch.zeros(len(labels), count + 1, dtype=torch.bool, device=labels.device)
        present.scatter_(1, flat.where(flat >= 0, count), True)
        return cls("superpixel", (channels, height, width), count, labels[:, None], True, present[:, :count])

    @classmethod
    def steps(cls, shape: Sequence[int], time_axis: int = -1, lengths: Tensor | None = None) -> Space:
        """One feature per time step of a series, shared over its channels; `lengths` marks padding."""
        shape = tuple(shape)
        axis = time_axis % len(shape)
        size = [1] * len(shape)
        size[axis] = shape[axis]
        labels = torch.arange(shape[axis]).reshape(size)
        valid = None
        if lengths is not None:
            valid = torch.arange(shape[axis])[None] < torch.as_tensor(lengths).cpu()[:, None]
        return cls("step", shape, shape[axis], labels, valid=valid)

    @classmethod
    def step_channels(cls, shape: Sequence[int], time_axis: int = -1, lengths: Tensor | None = None) -> Space:
        """One feature a (time step, channel) pair of a series."""
        shape = tuple(shape)
        elements = cls.elements(shape)
        valid = None
        if lengths is not None:
            step_valid = cls.steps(shape, time_axis, lengths)
            assert step_valid.valid is not None
            valid = step_valid.valid[:, step_valid.labels.expand(shape).reshape(-1)]
        return replace(elements, kind="step_channel", valid=valid)

    @classmethod
    def tokens(
        cls, length: int, valid: Tensor | None = None, names: Sequence[Sequence[str]] | None = None
    ) -> Space:
        """One feature per token; `valid` (N, length) leaves out padding and special tokens."""
        named = None if names is None else tuple(tuple(row) for row in names)
        return cls("token", (length,), length, torch.arange(length), valid=valid, names=named)

    @classmethod
    def columns(cls, count: int, names: Sequence[str] | None = None) -> Space:
        """One feature per column of a table."""
        return cls("column", (count,), count, torch.arange(count), names=_names(names, count))

    @classmethod
    def column_groups(
        cls, groups: Sequence[int] | Sequence[Sequence[int]] | Tensor, names: Sequence[str] | None = None
    ) -> Space:
        """One feature per group of columns (the one-hot columns of a category): an index for each column.

        `[[0, 1], [2]]`, a list of the columns of each group, says the same as `[0, 0, 1]`.
        """
        if not isinstance(groups, Tensor) and len(groups) and isinstance(groups[0], Sequence):
            return cls.column_groups(_group_of_each(groups), names)
        try:
            labels = torch.as_tensor(groups).to(torch.int64)
        except (TypeError, ValueError) as error:
            raise InputError(f"groups are the number of its group for each column ({error})") from error
        if labels.dim() != 1 or not len(labels):
            raise InputError(f"groups are the number of its group for each column, got {groups!r:.80}")
        count = int(labels.max()) + 1
        if sorted(set(labels.tolist()) - {-1}) != list(range(count)):
            raise InputError(f"group indices must cover 0..{count - 1}, got {sorted(set(labels.tolist()))}")
        return cls("column_group", (len(labels),), count, labels, names=_names(names, count))

    @classmethod
    def concepts(cls, count: int, names: Sequence[str] | None = None) -> Space:
        """One feature per concept code."""
        return replace(cls.columns(count, names), kind="concept")

    @classmethod
    def units(
        cls,
        count: int,
        valid: Tensor | None = None,
        names: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> Space:
        """One feature per switch: 1 is on, 0 is off. `names` may differ between samples."""
        own: tuple[Any, ...] | None
        if names and not isinstance(names[0], str):
            own = tuple(tuple(row) for row in names)
        else:
            own = _names(names, count)  # type: ignore[arg-type]
        return cls("unit", (count,), count, torch.arange(count), valid=valid, names=own)

    @classmethod
    def elements(cls, shape: Sequence[int]) -> Space:
        """One feature per element: every channel of every pixel apart."""
        shape = tuple(shape)
        count = int(torch.Size(shape).numel())
        return cls("element", shape, count, torch.arange(count).reshape(shape))

    @classmethod
    def of(cls, inputs: Tensor) -> Space:
        """Guess the space of a batch: images have pixels, series steps, integer rows tokens, rows columns.

        An image of more than 4,096 pixels is cut into about 14 x 14 patches, a volume of more voxels into
        6 x 6 x 6: one pixel of a photo decides nothing, and to remove each takes tens of thousands of rows.
        """
        shape = tuple(inputs.shape[1:])
        if len(shape) in PATCHES_A_SIDE and prod(shape[1:]) > MANY_PIXELS:
            across = PATCHES_A_SIDE[len(shape)]
            return cls.patches(shape, tuple(-(-side // across) for side in shape[1:]))
        if len(shape) == 4:
            return cls.voxels(shape)
        if len(shape) == 3:
            return cls.pixels(shape)
        if len(shape) == 2:
            return cls.steps(shape)
        if len(shape) == 1:
            return cls.columns(shape[0]) if inputs.is_floating_point() else cls.tokens(shape[0])
        return cls.elements(shape)

    # --- use ----------------------------------------------------------------------------------------

    def expand(self, features: Tensor, samples: slice | Tensor | None = None) -> Tensor:
        """Lay feature values (B, ..., V) over inputs: (B, ..., *shape of the labels).

        `samples` says which samples the B rows are; it matters only where labels differ between samples.
        Elements of no feature get False or 0.
        """
        lead = features.shape[:-1]
        if self._direct:
            return features.reshape(*lead, *self.labels.shape)
        if not self.per_sample:
            flat = self.labels.reshape(-1)
            laid = features.index_select(-1, flat.clamp(min=0))
            return self._blank(laid, flat).reshape(*lead, *self.labels.shape)
        labels = self.labels if samples is None else self.labels[samples]
        flat = labels.reshape(len(labels), *[1] * (features.dim() - 2), -1)
        index = flat.clamp(min=0).expand(*lead, flat.shape[-1])
        laid = self._blank(features.gather(-1, index), flat)
        return laid.reshape(*lead, *labels.shape[1:])

    def _blank(self, laid: Tensor, flat_labels: Tensor) -> Tensor:
        return laid.masked_fill(flat_labels < 0, 0) if self._gaps else laid

    def pool(self, maps: Tensor, reduce: Reduction = "sum") -> Tensor:
        """Gather a map over the inputs (N, *input_shape) into one value per feature (N, V)."""
        if tuple(maps.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"map of shape {tuple(maps.shape)} does not lie over inputs (N, "
                f"{', '.join(map(str, self.input_shape))})"
            )
        if self._direct:
            return self._shared(maps, reduce).reshape(len(maps), self.n_features)
        labels = self.labels.to(maps.device)
        full = (
            labels.expand(len(maps), *self.input_shape)
            if self.per_sample
            else labels.expand(self.input_shape)
        )
        index = full.reshape(len(maps), -1) if self.per_sample else full.reshape(1, -1)
        index = index.expand(len(maps), -1)
        flat = maps.reshape(len(maps), -1)
        # elements of no feature go to a spare slot that is cut off again
        index = torch.where(index < 0, self.n_features, index)
        out = flat.new_zeros(len(maps), self.n_features + 1)
        out.scatter_reduce_(1, index, flat, reduce, include_self=False)
        return out[:, :-1]

    def anywhere(self, mask: Tensor) -> Tensor:
        """Whether it holds (N, *input_shape) of any element of each feature: (N, V)."""
        labels = self.labels if self.per_sample else self.labels[None]
        over = [i for i in range(1, mask.dim()) if labels.shape[i] != mask.shape[i]]
        held = mask.view(torch.uint8).amax(over, keepdim=True).bool() if over else mask
        if self._direct:
            return held.reshape(len(mask), self.n_features)
        # written, not compared: on a GPU the many elements of few features would wait for one another
        index = torch.where(held & (labels >= 0), labels, self.n_features).flatten(1)
        out = index.new_zeros(len(mask), self.n_features + 1, dtype=torch.bool)
        return out.scatter_(1, index, True)[:, :-1]

    def _shared(self, maps: Tensor, reduce: Reduction) -> Tensor:
        """Gather over the axes along which a feature is one, such as the channels of a pixel."""
        over = [
            i
            for i, (own, full) in enumerate(zip(self.labels.shape, self.input_shape, strict=True), 1)
            if own != full
        ]
        if not over:
            return maps
        return maps.sum(over) if reduce == "sum" else maps.mean(over)

    def take(self, index: Tensor | slice) -> Space:
        """The space of a subset of the samples."""
        if not self.per_sample and self.valid is None and not self._names_per_sample:
            return self
        names = self.names
        if names is not None and self._names_per_sample:
            places = torch.arange(len(names))[index if isinstance(index, slice) else index.cpu()]
            names = tuple(names[i] for i in places.tolist())
        return self._derive(
            labels=self.labels[index] if self.per_sample else self.labels,
            valid=None if self.valid is None else self.valid[index],
            names=names,
        )

    def to(self, device: torch.device | str) -> Space:
        """The same space with its tensors on another device."""
        held = (self.labels,) if self.valid is None else (self.labels, self.valid)
        if all(tensor.device == torch.device(device) for tensor in held):
            return self
        valid = None if self.valid is None else self.valid.to(device)
        return self._derive(labels=self.labels.to(device), valid=valid)

    def at_embeddings(self, width: int) -> Space:
        """The same tokens when each is an embedding vector of `width` numbers."""
        return self._derive(input_shape=(*self.input_shape, width), labels=self.labels[..., None])

    def _derive(self, **changes: Any) -> Space:
        """This space with what is known to fit it, unchecked: to read labels would wait for a GPU."""
        space = copy(self)
        for name, value in changes.items():
            object.__setattr__(space, name, value)
        return space

    def counts(self, samples: int) -> Tensor:
        """How many features each of `samples` samples has."""
        if self.valid is None:
            return torch.full((samples,), self.n_features, device=self.labels.device)
        return self.valid.sum(-1)

    def feature_name(self, feature: int, sample: int = 0) -> str:
        """A readable name for one feature."""
        if self.names is not None:
            names = self.names[sample] if self._names_per_sample else self.names
            return visible(str(names[feature]))
        if self.kind == "pixel":
            row, column = divmod(feature, self.input_shape[-1])
            return f"pixel ({row}, {column})"
        if self.kind == "voxel":
            rest, column = divmod(feature, self.input_shape[-1])
            slice_, row = divmod(rest, self.input_shape[-2])
            return f"voxel ({slice_}, {row}, {column})"
        return f"{self.kind} {feature}"

    @property
    def _names_per_sample(self) -> bool:
        return self.names is not None and bool(self.names) and isinstance(self.names[0], tuple)

    def __repr__(self) -> str:
        note = "" if self.valid is None else f", {int(self.valid.sum())} valid in {len(self.valid)} samples"
        return f"Space({self.kind}, {self.n_features} features over {self.input_shape}{note})"


def _image(shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ShapeError(f"an image is (channels, height, width), got {tuple(shape)}")
    channels, height, width = shape
    return int(channels), int(height), int(width)


def _volume(shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != 4:
        raise ShapeError(f"a volume is (channels, depth, height, width), got {tuple(shape)}")
    return tuple(int(side) for side in shape)


def _group_of_each(groups: Sequence[Any]) -> list[int]:
    """The number of its group for each column, from the columns of each group."""
    if not all(isinstance(group, Sequence) for group in groups):
        raise InputError(
            f"groups are lists of columns, or the number of its group for each; got {groups!r:.80}"
        )
    pairs = sorted((column, number) for number, group in enumerate(groups) for column in group)
    if [column for column, _ in pairs] != list(range(len(pairs))):
        raise InputError(f"groups hold every column once, 0 to {len(pairs) - 1}; got {groups!r:.80}")
    return [number for _, number in pairs]


def _names(names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) != count:
        raise ShapeError(f"{len(names)} names for {count} features")
    return tuple(str(name) for name in names)
