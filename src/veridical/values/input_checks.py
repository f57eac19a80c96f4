"""Reading what the caller gave a task: each thing checked, with a message that says what would fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from veridical.core.key import name_id
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError, warn
from veridical.models.dataframes import FrameCodec, is_frame
from veridical.models.predictor import Side


def tensor_of(value: Any, what: str, codec: FrameCodec | None, may_miss: bool = False) -> Tensor:
    """Rows as a tensor; NaN is a missing value where a model `may_miss` some, and an error elsewhere."""
    if is_frame(value):
        if codec is None:
            raise InputError(f"{what} is a data frame but inputs are not; give both as frames")
        tensor = codec.encode(value)
    elif type(value).__name__ == "Series" and hasattr(value, "iloc"):
        raise InputError(f"{what} is a single row (a Series); give a data frame of rows, as df.iloc[[0]] is")
    elif isinstance(value, tuple | list | Mapping) and not _is_numbers(value):
        raise InputError(
            f"{what} is a {type(value).__name__} of {len(value)} things; a task explains one tensor. Pass "
            "the one to explain as inputs= and the others as side=, or all of them to vd.tasks.from_parts"
        )
    else:
        tensor = as_tensor(value, what)
    if tensor.dim() < 2 or tensor.numel() == 0:
        raise ShapeError(
            f"{what} has shape {tuple(tensor.shape)}; expected (samples, ...) with at least one sample and "
            "one feature"
        )
    narrow = tensor.is_floating_point() and tensor.itemsize == 1
    if tensor.is_complex() or tensor.is_quantized or narrow:
        raise InputError(
            f"{what} is of {tensor.dtype}; expected real numbers of 16 bits or more, integers or booleans"
        )
    if tensor.is_floating_point():
        wrong = tensor.isinf() if may_miss else ~torch.isfinite(tensor)
        if bool(wrong.any()):
            bad = wrong.reshape(len(tensor), -1).any(-1).nonzero().reshape(-1)
            raise InputError(
                f"{what} has {'' if may_miss else 'NaN or '}infinite values in {len(bad)} rows (first: "
                f"{bad[:5].tolist()}); fill them in or leave those rows out"
            )
    return tensor


MOST_COLLECTED = 1024
"""Samples that are taken from a DataLoader or Dataset."""


def collected(value: Any, what: str) -> tuple[Any, Any]:
    """Rows, and labels where there are any, of a DataLoader or Dataset; anything else as it is."""
    if not isinstance(value, DataLoader | Dataset):
        return value, None
    name, parts, count = type(value).__name__, [], 0
    try:
        for batch in value if isinstance(value, DataLoader) else DataLoader(value, batch_size=64):
            parts.append(list(batch) if isinstance(batch, tuple | list) else [batch])
            count += len(parts[-1][0])
            if count > MOST_COLLECTED:
                warn(
                    f"{what} are the first {MOST_COLLECTED:,} samples of the {name}; give a tensor for others"
                )
                break
        joined = [torch.cat(one)[:MOST_COLLECTED] for one in zip(*parts, strict=True)]
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        joined = []
        why = f" ({type(error).__name__}: {error})"
    else:
        why = ""
    if len(joined) not in (1, 2):
        raise InputError(
            f"{what} is a {name} whose batches are not a tensor of rows, or that and labels{why}; give its "
            "tensors: inputs=torch.cat([batch[...] for batch in loader]), labels=..., side=..."
        )
    return joined[0], joined[1] if len(joined) == 2 else None


def holds_several(labels: Any) -> bool:
    """Whether labels are rows of zeros and ones, some with several ones or none: a multilabel task."""
    found = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if found.ndim != 2 or found.shape[1] < 2 or not bool(((found == 0) | (found == 1)).all()):
        return False
    return bool((found.sum(1) != 1).any())


def as_tensor(value: Any, what: str = "it") -> Tensor:
    """A plain tensor of numbers, copied from what people have, or an error that says what is wrong.

    What the caller writes to later, or has made in inference mode, is then no part of a task.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_meta:
            raise InputError(f"{what} is a sparse, nested or meta tensor; give a plain one")
        with torch.inference_mode(False):
            return value.detach().clone()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        # what was masked out is missing, whatever number lies beneath
        value = np.where(np.ma.getmaskarray(value), np.nan, np.ma.getdata(value))
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise InputError(f"{what} is a sparse matrix; give a plain one, as toarray() makes")
    if value is None:
        raise InputError(f"{what} is None; expected a tensor or an array of numbers")
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{what} must be a tensor or an array of numbers ({error})") from error


def as_device(device: Any, here: bool = True) -> torch.device:
    """A device, `here` one that this machine has; or the sentence that says what is wrong with it."""
    try:
        place = torch.device(device)
        if here:
            torch.empty(0, device=place)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device {device!r:.80} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    if place.type == "meta":
        raise InputError("the meta device computes nothing; say cpu or cuda")
    return place


def rows_of(value: Any, what: str, rows: int, place: torch.device) -> Tensor:
    """Something that there is one of for each sample."""
    tensor = as_tensor(value, what).to(place)
    if tensor.dim() == 0 or len(tensor) != rows:
        raise ShapeError(f"{len(tensor) if tensor.dim() else 'a single'} {what} for {rows} samples")
    return tensor


def _is_numbers(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and not any(isinstance(v, Tensor | np.ndarray) for v in value)
    )


def home_of(model: Any, device: torch.device | str | None) -> tuple[torch.device, torch.dtype | None]:
    """Where the model lives and in which precision it computes."""
    as_device(torch.get_default_device(), here=False)  # what is made on meta holds no numbers
    held = [p for p in model.parameters() if p.is_floating_point()] if isinstance(model, nn.Module) else []
    places = {p.device for p in held}
    if len(places) > 1:
        raise InputError(f"the model's parameters lie on several devices ({', '.join(map(str, places))})")
    if any(place.type == "meta" for place in places):
        raise InputError("the model lies on the meta device and has no weights; load them first")
    home = next(iter(places), None)
    if device is not None and home is not None and as_device(device, here=False).type != home.type:
        raise InputError(
            f"the model lies on {home} and device={device} was asked for; move it with model.to('{device}')"
        )
    dtype = held[0].dtype if held else None
    if dtype in (torch.float16, torch.bfloat16):
        warn(
            f"the model computes in {dtype}, which separates responses to about three digits; ties are "
            "counted on that grid. model.float() gives sharper scores"
        )
        dtype = getattr(model, "gate_dtype", dtype)
    return home or as_device(device or "cpu"), dtype


def cast(rows: Tensor, place: torch.device, dtype: torch.dtype | None) -> Tensor:
    """Rows on a device; floating-point ones in the model's dtype."""
    if rows.is_floating_point() and dtype is not None:
        return rows.to(device=place, dtype=dtype)
    return rows.to(place)


def behaves_otherwise(module: nn.Module) -> bool:
    """Whether a module has other outputs in the training mode it is in: dropout, or batch statistics."""
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    return any(
        m.training and (isinstance(m, random) or (isinstance(m, nn.RNNBase) and m.dropout > 0))
        for m in module.modules()
    )


def side_of(side: Any, rows: int | None, place: torch.device) -> Side:
    """Side inputs as tensors on a device, one row for each sample."""
    if isinstance(side, Mapping):
        out: Side = {str(name): as_tensor(value, "side").to(place) for name, value in side.items()}
    else:
        given = side if isinstance(side, tuple | list) else (side,)
        out = tuple(as_tensor(value, "side").to(place) for value in given)
    for value in out.values() if isinstance(out, dict) else out:
        if rows is not None and (value.dim() == 0 or len(value) != rows):
            held = len(value) if value.dim() else "no"
            raise ShapeError(f"a side input has {held} rows, inputs have {rows}")
    return out


def checked_space(space: Space, rows: Tensor) -> Space:
    """The space, if it fits the rows, with tensors of its own."""
    if not isinstance(space, Space):
        raise InputError(f"space is a Space, such as Space.patches(shape, 4); got {space!r:.80}")
    if space.input_shape != tuple(rows.shape[1:]):
        raise ShapeError(f"the space lies over {space.input_shape}, inputs are {tuple(rows.shape[1:])}")
    for what, tensor in (("labels", space.labels if space.per_sample else None), ("valid", space.valid)):
        if tensor is not None and len(tensor) != len(rows):
            raise ShapeError(f"the space has {what} for {len(tensor)} samples, the task has {len(rows)}")
    if space.valid is not None and not bool(space.valid.any(-1).all()):
        raise InputError("a sample has no valid feature at all; leave it out")
    valid = None if space.valid is None else space.valid.clone()
    return space._derive(labels=space.labels.clone(), valid=valid)


def ids_of(ids: Sequence[int | str] | Tensor | None, rows: int, place: torch.device) -> Tensor:
    """The names of samples as integers: row numbers unless given."""
    if ids is None:
        return torch.arange(rows, device=place)
    try:
        given = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        given = given if isinstance(given, list) else [given]
        numbers = torch.tensor(
            [int(i) if isinstance(i, int | np.integer) else name_id(str(i)) for i in given], dtype=torch.int64
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"ids are one whole number of 63 bits or one text per sample ({error})") from error
    if len(numbers) != rows:
        raise ShapeError(f"{len(numbers)} ids for {rows} samples")
    if len(numbers.unique()) != rows:
        raise InputError("ids must differ between samples: they name them")
    return numbers.to(place)


def sample_digests(rows: Tensor, side: Side = (), space: Space | None = None) -> Tensor:
    """64 bits of each sample's own input and side inputs (N,), by which its draws are keyed.

    Two samples with other inputs have other draws, in whatever task they are; equal ones have the same.
    Padding and the precision of a float leave a digest as it is.
    """
    parts = [rows, *(side.values() if isinstance(side, dict) else side)]
    flat = [_plain_numbers(part) for part in parts]
    kept = None
    if space is not None and space.valid is not None:
        kept = space.expand(space.valid).expand_as(rows).reshape(len(rows), -1).cpu()
    digests = []
    for n in range(len(rows)):
        made = hashlib.blake2b(digest_size=8)
        for part in flat:
            row = part[n]
            if kept is not None and row.numel() == kept.shape[1]:
                row = row[kept[n]]
            made.update(row.numpy().tobytes())
        digests.append(int.from_bytes(made.digest(), "little", signed=True))
    return torch.tensor(digests, dtype=torch.int64, device=rows.device)


def _plain_numbers(part: Tensor) -> Tensor:
    flat = part.detach().reshape(len(part), -1).cpu()
    # plus zero: -0.0 is 0.0
    return flat.float() + 0.0 if flat.is_floating_point() else flat.to(torch.int64)


def labels_of(labels: Any, rows: int, place: torch.device, classes: Any = None) -> Tensor:
    """True classes or values, one for each sample."""
    found = rows_of(class_numbers(labels, "labels", classes), "labels", rows, place)
    if found.is_floating_point() and bool(found.isnan().any()):
        raise InputError(f"labels are missing (NaN) in {int(found.isnan().sum())} samples; leave them out")
    return found


def class_numbers(values: Any, what: str, classes: Any) -> Any:
    """Names of classes as the numbers of a model's outputs; everything else as it is."""
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if isinstance(array, Tensor) or not (array.size and all(isinstance(one, str) for one in array.flat)):
        return values
    if classes is None:
        raise InputError(
            f"{what} are names ({str(array.flat[0])!r:.40}) and the model does not name its classes; give "
            "the numbers 0, 1, ... of its outputs"
        )
    number = {str(name): place for place, name in enumerate(classes)}
    unknown = sorted({str(name) for name in array.flat} - set(number))
    if unknown:
        raise InputError(f"{what} {unknown[:5]} are not among the model's classes {list(number)[:12]}")
    return np.asarray([number[str(name)] for name in array.flat]).reshape(array.shape)


def masks_of(masks: Any, space: Space, rows: int, place: torch.device) -> Tensor:
    """Object masks as one truth per feature: a feature belongs to the object if most of it does."""
    tensor = rows_of(masks, "masks", rows, place)
    shape = tuple(tensor.shape[1:])
    if shape == (space.n_features,):
        return tensor.bool()
    full = tensor.reshape(rows, *[1] * (len(space.input_shape) - len(shape)), *shape).float()
    try:
        full = full.expand(rows, *space.input_shape)
    except RuntimeError as error:
        raise ShapeError(
            f"masks have shape {shape}; expected ({space.n_features},) or {space.input_shape} per sample"
        ) from error
    return space.to(place).pool(full, "mean") > 0.5


def targets_of(targets: Any, rows: int, outputs: int, place: torch.device, classes: Any = None) -> Tensor:
    """The explained output of each sample, as an index."""
    tensor = as_tensor(class_numbers(targets, "targets", classes), "targets")
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise InputError(f"targets are class indices (integers), got {tensor.dtype}")
    if tensor.dim() == 0:
        tensor = tensor.expand(rows)
    if tuple(tensor.shape) != (rows,):
        raise ShapeError(f"targets have shape {tuple(tensor.shape)}, expected ({rows},)")
    if int(tensor.min()) < 0 or int(tensor.max()) >= outputs:
        bad = tensor[(tensor < 0) | (tensor >= outputs)][0]
        raise InputError(f"target {int(bad)} is out of range: the model has {outputs} outputs")
    return tensor.to(device=place, dtype=torch.int64)


def say_patches(space: Space) -> None:
    """Say that the features of an image are patches where nobody chose them."""
    if space.kind != "patch":
        return
    shape = space.input_shape
    sides, kind = " x ".join(map(str, shape[1:])), "pixels" if len(shape) == 3 else "voxels"
    warn(
        f"inputs of {sides} {kind} are explained by {space.n_features} patches; choose others with "
        f"space=vd.Space.patches({shape}, size), or vd.Space.{kind}({shape}) for each by itself, which takes "
        "methods that remove features many more rows"
    )


def look_for_bytes(rows: Tensor) -> None:
    """Say that the pixels of images run to 255, which few networks are trained on."""
    if rows.dim() == 4 and rows.min() >= 0 and 128 < (high := float(rows.max())) <= 255:
        warn(
            f"the pixels run up to {high:.0f} and reach the model as they are; if it was trained on others, "
            "scale them: inputs / 255"
        )


def look_for_channels_last(rows: Tensor) -> None:
    """Warn where images seem to have their channels last: features would be columns of pixels."""
    if rows.dim() != 4:
        return
    high, wide, last = rows.shape[1:]
    if high == wide > 4 and last in (1, 3, 4):
        warn(
            f"inputs of shape {tuple(rows.shape)} are read as images of {high} channels and {wide} x {last} "
            "pixels; if channels come last, turn them: inputs.permute(0, 3, 1, 2). space= confirms them"
        )


def look_for_time_first(rows: Tensor, module: nn.Module) -> None:
    """Warn where a series seems to have its time first: features would be channels instead of steps."""
    if rows.dim() != 3 or not rows.is_floating_point():
        return
    first, last = rows.shape[1:]
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv1d):
            turned = layer.in_channels == last != first
        elif isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            turned = layer.input_size == last
        elif isinstance(layer, nn.MultiheadAttention):
            turned = layer.embed_dim == last
        else:
            continue
        if turned:
            warn(
                f"inputs of shape {tuple(rows.shape)} are read as series of {first} channels and {last} "
                f"steps, but '{name}' ({type(layer).__name__}) takes {last} values at each step; where time "
                f"comes first, say so: space=vd.Space.steps({(first, last)}, time_axis=0)"
            )
        return
