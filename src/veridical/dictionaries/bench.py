"""What dictionaries are judged on: activations of a layer, what is known about them, and their model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.dictionary_training import Stream
from veridical.core.key import Key, permutation
from veridical.dictionaries.planted import Superposition
from veridical.errors import InputError, ShapeError
from veridical.gef import GEF
from veridical.gef.codes import End, layer_activations
from veridical.values.task import Task


def activations(
    task: Task,
    layer: str,
    *,
    axis: int = 1,
    end: End = "output",
    shards: int = 1,
    stay: int = 64,
    seed: int = 0,
) -> Stream:
    """Rows for `train` from any layer of a task: one per sample and position, padding left out.

    Parameters
    ----------
    task, layer
        Whose activations.
    axis
        Where the layer counts its units: 1 for channels of a convolution, -1 for a transformer.
    end
        What is read: the layer's "output" or its "input".
    shards
        Above 1, one share of the samples, picked at random, is in memory at a time; the model is evaluated
        on it when its turn comes.
    stay
        Steps that are made from a shard before the next is read.
    seed
        Keys which samples make a shard.

    Returns
    -------
    Stream
        For `train`.
    """
    if not 1 <= shards <= len(task):
        raise InputError(f"shards is from 1 to the {len(task)} samples, got {shards}")
    order = permutation(Key(seed) / "shards", torch.zeros(1, dtype=torch.int64), 0, len(task))[0]

    def read(number: int) -> Tensor:
        part = task if shards == 1 else task[order[number::shards]]
        states = layer_activations(part, layer, end, axis)
        valid = part.space.valid
        if part.modality == "text" and valid is not None and valid.shape[1] == states.shape[1]:
            return states[valid.to(states.device)]
        return states.flatten(0, 1)

    return Stream(read, shards, stay)


@dataclass(frozen=True, eq=False)
class Bench:
    """Activations of one layer of a task, to train and to judge on, in `parts` that tell sampling noise.

    Labels say of every row which properties it has (a planted feature fires, a token is a number, ...);
    probes are fitted on those of `train` and judged on those of the task's own rows.
    """

    task: Task
    layer: str
    train: Tensor
    """Rows (n, D) that dictionaries and probes are fitted on."""
    train_labels: Tensor | None = None
    """Properties (n, L) of the train rows, as 0 and 1."""
    labels: Tensor | None = None
    """Properties (m, L) of the task's rows, sample by sample and position by position."""
    axis: int = 1
    """Axis of the layer's units: 1 for channels, -1 for a transformer."""
    skip: int = 0
    """Positions at the beginning that are neither judged nor replaced: a language model's first token."""
    truth: Superposition | None = None
    """What was planted, where the rows are; the task's inputs are then the features."""
    untrained: Tensor | None = None
    """Rows of the same layer of an untrained model."""
    parts: int = 8
    """Disjoint parts of the samples; every metric has one value on each."""
    probe_rows: int = 65536
    """Train rows, from the first on, whose codes probes read."""
    gef: GEF = field(default_factory=lambda: GEF(distance="cosine", draws=2))
    """How codes are judged by GEF."""
    gef_samples: int = 64
    """Samples that GEF evaluates: each is explained in every perturbed model."""
    seed: int = 0
    """Seed of the parts and of GEF's draws."""
    _held: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.task) < 2 * self.parts:
            raise InputError(f"{len(self.task)} samples are too few for {self.parts} parts")
        for name, rows in (("train_labels", len(self.train)), ("labels", None)):
            given = getattr(self, name)
            if given is not None and rows is not None and len(given) != rows:
                raise ShapeError(f"{name} has {len(given)} rows for {rows} activations")

    @classmethod
    def planted(
        cls, superposition: Superposition, samples: int = 2048, train: int = 16384, labels: int = 24
    ) -> Bench:
        """The bench of planted features: properties are the most frequent ones, parents of others first."""
        task = superposition.task(samples)
        known = superposition.codes(train, draw=2)
        sets = (
            torch.bincount(
                superposition.parents[superposition.parents >= 0], minlength=superposition.features
            )
            > 0
        )
        rate = (known > 0).double().mean(0)
        order = torch.argsort((rate.clamp(max=0.5) + sets) * (rate > 0.01), descending=True, stable=True)[
            :labels
        ]
        other = replace(superposition, seed=superposition.seed + 1)
        return cls(
            task,
            "embed",
            known @ superposition.directions,
            (known[:, order] > 0),
            (task.inputs[:, order] > 0),
            truth=superposition,
            untrained=known @ other.directions,
        )

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Compute something once for this bench."""
        if name not in self._held:
            self._held[name] = make()
        return self._held[name]

    @cached_property
    def states(self) -> Tensor:
        """The layer's activations (N, J, D) of the task's samples."""
        return layer_activations(self.task, self.layer, axis=self.axis)[:, self.skip :].float()

    @property
    def test(self) -> Tensor:
        """Rows (m, D) that dictionaries are judged on."""
        return self.states.flatten(0, 1)

    @cached_property
    def sample_part(self) -> Tensor:
        """The part of every sample (N,)."""
        one = torch.zeros(1, dtype=torch.int64)
        order = permutation(Key(self.seed) / "parts", one, 0, len(self.task))[0].to(self.task.device)
        return order % self.parts

    @property
    def row_part(self) -> Tensor:
        """The part of every row (m,)."""
        return self.sample_part.repeat_interleave(self.states.shape[1])

    def means(self, values: Tensor, samples: bool = False) -> Tensor:
        """The mean over each part (parts,) of a value per row, or per sample; NaN is left out."""
        part = self.sample_part[: len(values)] if samples else self.row_part
        values = values.double()
        there = ~values.isnan()
        total = values.new_zeros(self.parts).index_add_(0, part[there], values[there])
        return total / torch.bincount(part[there], minlength=self.parts)


class Subject:
    """A dictionary on a bench, with what several metrics need of it, found once."""

    def __init__(self, dictionary: Dictionary, bench: Bench, sibling: Dictionary | None = None) -> None:
        self.dictionary, self.bench, self.sibling = dictionary.to(bench.train.device), bench, sibling

    @cached_property
    def codes(self) -> Tensor:
        """Codes (m, atoms) of the test rows."""
        return self._codes(self.bench.test)

    @cached_property
    def train_codes(self) -> Tensor:
        """Codes of the train rows that probes read."""
        return self._codes(self.bench.train[: self.bench.probe_rows])

    def _codes(self, rows: Tensor) -> Tensor:
        return torch.cat([self.dictionary.encode(part) for part in rows.split(8192)])
