"""Several inputs explained jointly (an image and a table, premise and hypothesis): one space with parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.space import Space
from veridical.errors import InputError, ShapeError
from veridical.models.dataframes import as_pandas
from veridical.perturb.fills import PartValues
from veridical.values.explanation import Explanation
from veridical.values.input_checks import as_tensor, checked_space
from veridical.values.task import Task

EXACT = 2**24
"""Integers up to here stay what they are beside numbers of 32 bits."""


@dataclass(frozen=True, eq=False)
class Part:
    """One of several inputs that are explained jointly."""

    rows: Any
    """What the model takes there, one entry per sample."""
    space: Space | None = None
    """Its features; guessed from the shape where none is given, as a task does."""
    fill: float = 0.0
    """What its removed elements become: a number of the input space, or the id of a mask or pad token."""
    train: Any = None
    """Its reference rows: of all parts or of none."""


def from_parts(model: Any, parts: Mapping[str, Any], *, by_name: bool = False, **settings: Any) -> Task:
    """A task whose features are those of several inputs together, so that they compete in one map.

    A part of integers, such as token ids, has no gradient: a task with one is evaluated without gradients.

    Parameters
    ----------
    model
        A module or function of all parts.
    parts : mapping of str to Part or rows
        In the order in which the model takes them.
    by_name : bool
        Whether the model is called with the names of the parts.
    **settings
        Go to `Task`; a `fill` there replaces those of the parts.

    Returns
    -------
    Task
        `values_by_part` takes its maps apart again.

    Examples
    --------
    >>> both = {"image": torch.ones(2, 1, 4, 4), "table": torch.ones(2, 3)}
    >>> from_parts(lambda image, table: image.mean((1, 2, 3))[:, None] * table, both)
    Task: 2 samples of (19,), 3 outputs (multiclass), 19 column_group features, on cpu
    """
    given = _read(parts)
    rows = {name: _tensor(part.rows, f"part '{name}'") for name, part in given.items()}
    counts = {name: len(own) for name, own in rows.items()}
    if len(set(counts.values())) > 1:
        raise ShapeError(f"parts differ in their samples: {counts}")
    spaces = {name: checked_space(_space(part), rows[name]) for name, part in given.items()}
    whole = [not own.is_floating_point() for own in rows.values()]
    if any(whole) and not all(whole) and any(int(own.abs().max()) > EXACT for own in rows.values()):
        raise InputError(f"integers beyond {EXACT} are not exact beside floats; number them anew")
    settings = {
        "name": " and ".join(given),
        "space": _joined(spaces, len(rows[next(iter(rows))])),
        **settings,
    }
    if "fill" not in settings:
        widths = tuple(prod(own.shape[1:]) for own in rows.values())
        settings["fill"] = PartValues(widths, tuple(float(part.fill) for part in given.values()))
    train = {n: _tensor(p.train, f"train of part '{n}'") for n, p in given.items() if p.train is not None}
    if train:
        if len(train) < len(given):
            raise InputError(f"reference rows are given for {', '.join(train)} alone; all parts need them")
        settings.setdefault("train", _flat(train))
    split = Split(
        tuple((n, tuple(own.shape[1:]), w) for (n, own), w in zip(rows.items(), whole, strict=True))
    )
    wrapper = JointModel if isinstance(model, nn.Module) else JointFunction
    task = Task(wrapper(model, split, by_name), _flat(rows), **settings)
    if not any(whole):
        return task
    # a gradient through integers would be zero, and silently so
    predictor = replace(task.predictor, differentiable=False)
    return task.changed(
        alone=True, predictor=predictor, targets="kept" if "targets" in settings else "predicted"
    )


def values_by_part(explanation: Explanation, parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Take a joint map apart.

    Parameters
    ----------
    explanation : Explanation
        Of a task that `from_parts` made.
    parts : mapping of str to Part or rows
        Those of the task.

    Returns
    -------
    dict of str to Tensor
        Values (N, features of the part) by the part's name.
    """
    sizes = {name: _space(part).n_features for name, part in _read(parts).items()}
    if sum(sizes.values()) != explanation.space.n_features:
        raise ShapeError(f"the map has {explanation.space.n_features} features, the parts have {sizes}")
    return dict(zip(sizes, explanation.values.split(list(sizes.values()), 1), strict=True))


@dataclass(frozen=True)
class Split:
    """Takes rows (N, elements) apart into the inputs of a model."""

    shapes: tuple[tuple[str, tuple[int, ...], bool], ...]
    """Of each part its name, the shape of one entry, and whether it holds integers."""

    def __call__(self, rows: Any) -> dict[str, Any]:
        out, at = {}, 0
        for name, shape, whole in self.shapes:
            piece = rows[:, at : at + prod(shape)].reshape(len(rows), *shape)
            at += prod(shape)
            if whole:
                piece = piece.round().long() if isinstance(piece, Tensor) else piece.round().astype("int64")
            out[name] = piece
        return out


@dataclass(frozen=True, eq=False)
class JointFunction:
    """A function of several inputs as one of rows that hold them all."""

    model: Any
    """What is evaluated."""
    split: Split
    """How rows are taken apart."""
    by_name: bool
    """Whether the inputs are given by their names."""

    def __call__(self, rows: Any, *side: Any, **named: Any) -> Any:
        pieces = self.split(rows)
        if self.by_name:
            return self.model(*side, **pieces, **named)
        return self.model(*pieces.values(), *side, **named)


class JointModel(nn.Module):
    """A module of several inputs as one of rows that hold them all."""

    def __init__(self, model: nn.Module, split: Split, by_name: bool) -> None:
        super().__init__()
        self.model, self.split, self.by_name = model, split, by_name
        self.train(model.training)

    def forward(self, rows: Tensor, *side: Any, **named: Any) -> Any:
        return JointFunction(self.model, self.split, self.by_name)(rows, *side, **named)


def _read(parts: Mapping[str, Any]) -> dict[str, Part]:
    if not isinstance(parts, Mapping) or len(parts) < 2:
        raise InputError("parts are a mapping of at least two names to rows or Parts; one input is a Task's")
    return {str(name): part if isinstance(part, Part) else Part(part) for name, part in parts.items()}


def _tensor(rows: Any, what: str) -> Tensor:
    found = as_tensor(as_pandas(rows), what)
    if found.dim() < 2 or found.numel() == 0:
        raise ShapeError(f"{what} has shape {tuple(found.shape)}; expected (samples, ...) with a feature")
    return found


def _space(part: Part) -> Space:
    return Space.of(_tensor(part.rows, "a part")) if part.space is None else part.space


def _flat(rows: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([own.flatten(1) for own in rows.values()], 1)


def _joined(spaces: Mapping[str, Space], samples: int) -> Space:
    """The features of all parts, one part behind the other."""
    labels, valid, first = [], [], 0
    for space in spaces.values():
        lead = (len(space.labels),) if space.per_sample else (1,)
        own = space.labels.reshape(*lead, *space.labels.shape[-len(space.input_shape) :])
        own = own.expand(samples, *space.input_shape).flatten(1)
        labels.append(torch.where(own < 0, own, own + first))
        here = torch.ones(samples, space.n_features, dtype=torch.bool) if space.valid is None else space.valid
        valid.append(here)
        first += space.n_features
    one = not any(space.per_sample for space in spaces.values())
    flat = torch.cat([own[:1] if one else own for own in labels], 1)
    names = tuple(
        tuple(f"{n}: {s.feature_name(i, k)}" for n, s in spaces.items() for i in range(s.n_features))
        for k in range(samples if any(s._names_per_sample for s in spaces.values()) else 1)
    )
    tokens = all(space.kind == "token" for space in spaces.values())
    return Space(
        "token" if tokens else "column_group",
        (flat.shape[1],),
        first,
        flat[0] if one else flat,
        per_sample=not one,
        valid=None if all(s.valid is None for s in spaces.values()) else torch.cat(valid, 1),
        names=names if len(names) > 1 else names[0],
    )
