"""Tasks to load by name, and makers of a user's own: what `vd.tasks` offers."""

from __future__ import annotations

from collections.abc import Callable
from csv import DictReader
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any

from veridical.core.registry import Catalogue
from veridical.core.settings import checked
from veridical.data.files import smollm2_file
from veridical.data.huggingface import causal_model
from veridical.data.joint import Part, from_parts, values_by_part
from veridical.data.known_answers import KnownAnswer
from veridical.data.load import from_huggingface, load_task
from veridical.errors import InputError, unknown_name
from veridical.values.task import Task

__all__ = [
    "KnownAnswer",
    "Part",
    "causal_model",
    "from_huggingface",
    "from_parts",
    "known",
    "load",
    "load_task",
    "names",
    "smollm2_file",
    "values_by_part",
]


@dataclass(frozen=True)
class Entry:
    """One embedded task: `maker` names the function (samples, seed) -> Task, imported on first use."""

    maker: str
    modality: str
    samples: int
    quality: str
    licence: str
    about: str
    origin: str

    def line(self) -> str:
        """One line for the listing."""
        return (
            f"{self.modality:<6} {self.samples:>5} samples  {self.quality:<15}  {self.origin:<10}  "
            f"{self.about}; data: {self.licence}"
        )


def _read() -> dict[str, Entry]:
    """The table beside this file: one line per task."""
    table = files("veridical.data").joinpath("catalogue.csv").read_text("utf-8").splitlines()
    rows: list[dict[str, Any]] = [{**row, "samples": int(row["samples"])} for row in DictReader(table)]
    return {row.pop("name"): Entry(**row) for row in rows}


ENTRIES: dict[str, Entry] = _read()


def names() -> Catalogue:
    """The embedded tasks by name.

    Returns
    -------
    Catalogue
        For every task its modality, evaluated samples, quality, origin and the data's licence.
    """
    return Catalogue({name: entry.line() for name, entry in sorted(ENTRIES.items())})


@checked
def load(name: str, samples: int | None = None, seed: int = 0) -> Task:
    """An embedded task on all of its held-out samples, or on some of them.

    The model and the split never depend on `seed`. Sample ids are row numbers of the data set, so that a
    sample draws the same random numbers in whatever selection it appears.

    Parameters
    ----------
    name : str
        One of `names()`.
    samples : int, optional
        How many held-out samples are drawn; all of them by default.
    seed : int
        Which samples are drawn.

    Returns
    -------
    Task

    Raises
    ------
    UnknownNameError
        Where there is no task of this name.
    MissingExtraError
        Where a package is not installed that the task reads its data or weights from.

    Examples
    --------
    >>> load("digits", samples=4)
    Task: 4 samples of (1, 8, 8), 10 outputs (multiclass), 64 pixel features, on cpu
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    made: Task | KnownAnswer = _maker(name)(samples, seed)
    return made.task if isinstance(made, KnownAnswer) else made


def known(name: str, samples: int | None = None, seed: int = 0) -> KnownAnswer:
    """An embedded task together with its true explanation.

    Parameters
    ----------
    name : str
        One of `names()` that begin with 'known/', which may be left out.
    samples : int, optional
        How many held-out samples are drawn; all of them by default.
    seed : int
        Which samples are drawn.

    Returns
    -------
    KnownAnswer
        The task, the truth (samples, features), and the explainers that must win and lose on it.

    Examples
    --------
    >>> known("linear", samples=4).truth.shape
    torch.Size([4, 12])
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    full = name if name.startswith("known/") else f"known/{name}"
    if full not in ENTRIES:
        raise unknown_name("known answer", name, [n.removeprefix("known/") for n in ENTRIES if "/" in n])
    answer: KnownAnswer = _maker(full)(samples, seed)
    return answer


def _maker(name: str) -> Callable[..., Any]:
    if name not in ENTRIES:
        raise unknown_name("task", name, ENTRIES)
    module, _, function = ENTRIES[name].maker.partition(":")
    maker: Callable[..., Any] = getattr(import_module(f"veridical.data.{module}"), function)
    return maker
