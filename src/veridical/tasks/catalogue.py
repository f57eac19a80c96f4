"""The embedded tasks by name: what each is, how good its model is, and which function makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from veridical.errors import InputError, unknown_name
from veridical.registry import Catalogue
from veridical.task import Task


@dataclass(frozen=True)
class Entry:
    """One embedded task: `maker` names the function (samples, seed) -> Task, imported when it is asked for."""

    maker: str
    modality: str
    samples: int
    quality: str
    licence: str
    about: str
    origin: str = "shipped"

    def line(self) -> str:
        """One line for the listing."""
        return (
            f"{self.modality:<6} {self.samples:>6} samples  {self.quality:<16} {self.origin:<10} "
            f"{self.about}; data: {self.licence}"
        )


_UCI = "CC BY 4.0 (UCI)"

ENTRIES: dict[str, Entry] = {
    "digits": Entry(
        "shipped:digits", "image", 359, "98.3% accuracy", _UCI, "small CNN on 8 x 8 handwritten digits"
    ),
}


def names() -> Catalogue:
    """Every embedded task with its modality, evaluated samples, quality, origin and the data's licence."""
    return Catalogue({name: entry.line() for name, entry in sorted(ENTRIES.items())})


def load(name: str, samples: int | None = None, seed: int = 0) -> Task:
    """The embedded task of this name on all of its held-out samples, or on `samples` of them drawn by `seed`.

    The model and the split never depend on `seed`. Sample ids are row numbers of the data set, so that a
    sample draws the same random numbers in whatever selection it appears.

    >>> load("digits", samples=4)
    Task: 4 samples of (1, 8, 8), 10 outputs (multiclass), 64 pixel features, on cpu
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    task: Task = _maker(name)(samples, seed)
    return task


def _maker(name: str) -> Callable[..., Any]:
    if name not in ENTRIES:
        raise unknown_name("task", name, ENTRIES)
    module, _, function = ENTRIES[name].maker.partition(":")
    maker: Callable[..., Any] = getattr(import_module(f"veridical.tasks.{module}"), function)
    return maker
