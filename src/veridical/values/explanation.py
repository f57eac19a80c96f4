"""An explanation: one relevance per feature and sample, the space it lives in, and who made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.core.space import Space
from veridical.errors import InputError, OutOfRangeError, ShapeError, visible
from veridical.functional import has_spread, positions, rms_normalise
from veridical.functional.correlation import ties_along
from veridical.models.cost import Cost
from veridical.values.ties import check_order, reversed_ties, tied_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veridical.values.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Relevance `values` (N, V) over a `space`, for the outputs `targets`, made by `explainer`.

    `order` (N, V) ranks the features from least to most relevant: the stable argsort of the values, valid
    features first, unless it is given. It travels with the map, since values alone cannot order tied features
    apart once they have been re-assigned (an inverse of an inverse would not return to where it began).

    A map must be finite, or NaN throughout to say that a sample could not be explained.
    """

    values: Tensor
    space: Space
    targets: Tensor
    ids: Tensor
    explainer: str = "given"
    given_order: Tensor | None = None
    """The order, where the values alone do not decide it; None: sorted when it is first read."""
    cost: Cost = field(default_factory=Cost)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = field(init=False)
    """Whether every sample could be explained; known from the check of the values."""
    given_tied: Tensor | None = None
    """The ties along the order, where the values alone do not decide them."""
    draw_ids: Tensor = None  # type: ignore[assignment]
    """What keys the draws of each sample: a digest of its input; its id where that is not known."""
    error: Tensor | None = None
    """The standard error of each value (N, V), where maps were drawn several times."""
    written: tuple[int, int] = field(init=False)
    """Which tensor the values are and how often it had been written to when they were checked."""

    def __post_init__(self) -> None:
        for what, kind in (("values", Tensor), ("space", Space), ("targets", Tensor), ("ids", Tensor)):
            if not isinstance(getattr(self, what), kind):
                given = getattr(self, what)
                raise InputError(f"Explanation: {what} is of type {kind.__name__}, got {given!r:.80}")
        if self.draw_ids is None:
            object.__setattr__(self, "draw_ids", self.ids)
        values = self.values
        shape = (self.ids.numel(), self.space.n_features)
        if values.shape != shape:
            raise ShapeError(
                f"explanation has shape {tuple(values.shape)}, expected {shape}: "
                f"{shape[0]} samples x {shape[1]} {self.space.kind} features"
            )
        object.__setattr__(self, "whole", self._checked(values))
        object.__setattr__(self, "written", (id(values), _writes(values)))
        if self.given_order is not None:
            check_order(self.given_order, self._existing(), self.explainer)

    def _checked(self, values: Tensor) -> bool:
        """Whether every sample could be explained; raises where a map is neither finite nor all NaN."""
        infinite, absent = ~torch.isfinite(values), torch.isnan(values)
        if self.space.valid is not None:
            valid = self.space.valid.to(values.device)
            infinite, absent = infinite & valid, absent | ~valid
        # NaN is how an explainer says that it failed on a whole sample; a partial NaN is a mistake
        missing = absent.all(-1)
        wrong = infinite.any(-1) & ~missing
        if bool(wrong.any()):
            bad = wrong.nonzero().reshape(-1)[:5].tolist()
            raise InputError(
                f"the map of '{self.explainer}' is NaN or infinite in samples {bad}; "
                "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
            )
        return not bool(missing.any())

    @cached_property
    def order(self) -> Tensor:
        """The features (N, V) from least to most relevant, those that do not exist last."""
        # sorting costs more than many methods do, and not every metric ranks
        given = self.given_order
        return torch.argsort(self._existing(), dim=-1, stable=True) if given is None else given

    @cached_property
    def tied(self) -> Tensor:
        """(N, V) along `order`: whether a feature ties with the one before, so that either may come first."""
        if self.given_tied is not None:
            return self.given_tied
        return ties_along(self._existing().gather(-1, self.order), self._counts)

    def _existing(self) -> Tensor:
        """The values as they are ranked: zeros for a map that is missing, infinity where no feature is."""
        values = self.values if self.whole else self.values.masked_fill(self.missing[:, None], 0.0)
        return values if self.valid is None else values.masked_fill(~self.valid, torch.inf)

    @property
    def _counts(self) -> Tensor | int:
        return self.space.n_features if self.valid is None else self.valid.sum(-1)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def valid(self) -> Tensor | None:
        """Which features exist in each sample (N, V), or None when all do."""
        return None if self.space.valid is None else self.space.valid.to(self.values.device)

    @property
    def missing(self) -> Tensor:
        """Samples that could not be explained (N,): NaN in every feature they have."""
        absent = torch.isnan(self.values)
        return (absent if self.valid is None else absent | ~self.valid).all(-1)

    @cached_property
    def ranks(self) -> Tensor:
        """The place of each feature in `order`: 0 for the least relevant. Invalid features come last."""
        return positions(self.order)

    @cached_property
    def spread(self) -> Tensor:
        """Maps whose values differ at all, and so rank anything (N,)."""
        return has_spread(self.values, self.valid)

    @cached_property
    def has_ties(self) -> bool:
        """Whether any map has ties; read once, since that waits for a GPU."""
        return bool(self.tied.any())

    @cached_property
    def tied_pairs(self) -> Tensor:
        """The share of the pairs of features that tie, so that the map does not rank them (N,)."""
        return tied_pairs(self.tied, self._counts)

    @property
    def descending_ranks(self) -> Tensor:
        """0 for the most relevant feature; invalid features keep the last places."""
        valid, ranks = self.valid, self.ranks
        if valid is None:
            return self.space.n_features - 1 - ranks
        count = valid.sum(-1, keepdim=True)
        return torch.where(valid, count - 1 - ranks, ranks)

    def with_values(self, values: Tensor, explainer: str | None = None) -> Explanation:
        """Another map for the same samples; its order is its own."""
        return replace(
            self,
            values=values,
            given_order=None,
            given_tied=None,
            error=None,
            explainer=explainer or self.explainer,
        )

    def normalised(self) -> Explanation:
        """Divide each map by its root mean square, signs kept (GEF eq. 21); zeros stay zeros."""
        scaled = rms_normalise(self.values, where=self.valid).to(self.values.dtype)
        if self.valid is not None:
            scaled = scaled.masked_fill(~self.valid, 0.0)
        return replace(self, values=scaled, given_order=self.order, given_tied=self.tied, error=None)

    def along(self, order: Tensor) -> Explanation:
        """The same values along another ranking (N, V), least relevant first, without ties."""
        values, tied = self._values_along(order), _no_ties(order)
        return replace(self, values=values, given_order=order, given_tied=tied, error=None)

    def strictly_along(self, order: Tensor, tied: Tensor | None = None) -> Explanation:
        """The same for what is known to be a ranking: nothing is checked, as that would wait for a GPU."""
        tied = _no_ties(order) if tied is None else tied
        return self._unchecked(values=self._values_along(order), given_order=order, given_tied=tied)

    def _unchecked(self, **changes: Any) -> Explanation:
        """This explanation with what is known to fit it."""
        made = object.__new__(Explanation)
        changes = {"error": None, **changes} if "values" in changes else changes
        for each in fields(self):
            object.__setattr__(made, each.name, changes.get(each.name, getattr(self, each.name)))
        return made

    def _values_along(self, order: Tensor) -> Tensor:
        return torch.empty_like(self.values).scatter_(-1, order, self.values.gather(-1, self.order))

    def inverted(self, negated: bool = False) -> Explanation:
        """Reverse the ranking and re-assign the sorted values along it (QGE eq. 4), or negate all values.

        Ties are turned round with the ranking, never read from the new values. On (values, order, tied) both
        are exact involutions. `negated` reverses the same ranking but keeps no magnitudes.
        """
        turned = self.strictly_along(self._reversed_order(), reversed_ties(self.tied, self._counts))
        values = -self.values if negated else turned.values
        return turned._unchecked(values=values, explainer=f"inverse of {self.explainer}")

    def _reversed_order(self) -> Tensor:
        if self.valid is None:
            return self.order.flip(-1)
        count = self.valid.sum(-1, keepdim=True)
        place = torch.arange(self.space.n_features, device=self.order.device)[None]
        return self.order.gather(-1, torch.where(place < count, count - 1 - place, place))

    def take(self, index: Tensor | slice) -> Explanation:
        """The explanation of a subset of the samples."""
        return replace(
            self,
            values=self.values[index],
            targets=self.targets[index],
            ids=self.ids[index],
            draw_ids=self.draw_ids[index],
            given_order=self.order[index],
            given_tied=self.tied[index],
            space=self.space.take(index),
            error=None if self.error is None else self.error[index],
        )

    def matching(self, task: Task) -> Explanation:
        """The same on the device of a task, which it must belong to: same samples, same features."""
        own, space = (len(self.ids), self.space.n_features), task.space
        if id(self.values) == self.written[0] and _writes(self.values) != self.written[1]:
            raise InputError(
                f"the values of '{self.explainer}' were written to since they were ranked; use "
                "explanation.with_values(values), which ranks anew"
            )
        if own != (len(task.inputs), space.n_features):
            raise ShapeError(
                f"explanation has {own[0]} samples x {own[1]} {self.space.kind} features, the task "
                f"{len(task.inputs)} samples x {space.n_features} {space.kind} features; explain this task, "
                "or aggregate with `space.pool(map)`"
            )
        # to compare would wait for the device
        if self.ids is not task.ids and not torch.equal(self.ids.to(task.inputs.device), task.ids):
            raise InputError(
                "the explanation's ids are not the task's: it explains other samples, or these in another "
                "order; bring them together with explanation.take(index) or task[index]"
            )
        moved = self.to(task.inputs.device)
        if moved.draw_ids is task.draw_ids:
            return moved
        return moved._unchecked(draw_ids=task.draw_ids)

    def to(self, device: torch.device | str) -> Explanation:
        """The same explanation on another device."""
        if self.values.device == torch.device(device):
            return self
        held = (
            "values",
            "targets",
            "ids",
            "draw_ids",
            "space",
            *(["error"] if self.error is not None else []),
        )
        moved = {n: getattr(self, n).to(device) for n in held}
        return replace(self, **moved, given_order=self.order.to(device), given_tied=self.tied.to(device))

    def maps(self) -> Tensor:
        """The values laid back over the inputs: (N, *shape of the labels)."""
        return self.space.expand(self.values)

    def save(self, path: str | Path) -> Path:
        """Write to one safetensors file."""
        return files.write_file(path, self.to_bytes())

    def to_bytes(self, content_hash: str = "") -> bytes:
        """The content of such a file; `content_hash` says what the maps were made from."""
        tensors = {
            "values": self.values,
            "order": self.order,
            "tied": self.tied,
            "targets": self.targets,
            "ids": self.ids,
            "draw_ids": self.draw_ids,
            "labels": self.space.labels,
        }
        if self.space.valid is not None:
            tensors["valid"] = self.space.valid
        if self.error is not None:
            tensors["error"] = self.error
        header = {
            "explainer": self.explainer,
            "space": {
                "kind": self.space.kind,
                "input_shape": list(self.space.input_shape),
                "n_features": self.space.n_features,
                "per_sample": self.space.per_sample,
                "names": self.space.names,
            },
            "cost": [self.cost.forward, self.cost.backward, self.cost.rows],
            "provenance": dict(self.provenance),
        }
        return files.pack_tensors("explanation", tensors, header, content_hash)

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Read what `save` wrote."""
        return cls.from_bytes(files.read_file(path), str(path))

    @classmethod
    def from_bytes(cls, content: bytes, source: str, content_hash: str | None = None) -> Explanation:
        """Read what `to_bytes` made; under another content hash than was asked for it is refused."""
        tensors, header = files.unpack_tensors(content, "explanation", source, content_hash)
        with files.understood(source):
            about = header["space"]
            names = about["names"]
            if names is not None:
                names = tuple(tuple(n) if isinstance(n, list) else n for n in names)
            space = Space(
                about["kind"],
                tuple(about["input_shape"]),
                about["n_features"],
                tensors["labels"],
                about["per_sample"],
                tensors.get("valid"),
                names,
            )
            return cls(
                tensors["values"],
                space,
                tensors["targets"],
                tensors["ids"],
                header["explainer"],
                tensors["order"],
                Cost(*header["cost"]),
                header["provenance"],
                given_tied=tensors.get("tied"),
                draw_ids=tensors.get("draw_ids"),  # type: ignore[arg-type]
                error=tensors.get("error"),
            )

    def top(self, sample: int = 0, count: int = 5) -> list[tuple[str, float]]:
        """The most relevant features of one sample by name, with their relevance."""
        self._there(sample)
        valid = self.space.n_features if self.valid is None else int(self.valid[sample].sum())
        best = self.order[sample, :valid].flip(0)[:count].tolist()
        return [(self.space.feature_name(i, sample), float(self.values[sample, i])) for i in best]

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The lower and upper ends (N, V) of each value's interval, of maps that were drawn several times.

        By Student's t over the draws: it holds what chance does to a value, nothing else.
        """
        if self.error is None:
            raise InputError(
                f"'{self.explainer}' was drawn once, so nothing shows how far its values move; draw it "
                "several times: vd.explain(explainer, task, repeats=10)"
            )
        from scipy.stats import t

        wide = self.error * float(t.ppf((1 + level) / 2, self.provenance["repeats"] - 1))
        return self.values - wide, self.values + wide

    def plot(self, sample: int = 0, ax: Axes | None = None, inputs: Tensor | None = None) -> Axes:
        """Draw the map of one sample (over its input where given) and return the axes."""
        from veridical.values.plots import plot_explanation

        self._there(sample)
        return plot_explanation(self, sample, ax, inputs)

    def _there(self, sample: int) -> None:
        if not -len(self) <= sample < len(self):
            raise OutOfRangeError(f"sample {sample} of an explanation of {len(self)} samples is not there")

    def __repr__(self) -> str:
        return (
            f"Explanation by {visible(self.explainer)}: {len(self)} samples x {self.space.n_features} "
            f"{self.space.kind} features, cost {self.cost}"
        )


def _no_ties(order: Tensor) -> Tensor:
    return torch.zeros_like(order, dtype=torch.bool)


def _writes(values: Tensor) -> int:
    """How often values were written to; torch does not count in inference mode."""
    return -1 if values.is_inference() else values._version
