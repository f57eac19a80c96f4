"""How much a file may ask of this machine, checked before anything is unfolded.

Every bound is set by the environment variable `VERIDICAL_MAX_` and its name in capitals, so that workers have
those of the process that started them.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from veridical.errors import InputError

BOUNDS: dict[str, tuple[int, str]] = {
    "file_mib": (4096, "MiB of one input file"),
    "array_mib": (4096, "MiB of all arrays or weights of one file, unfolded"),
    "image_pixels": (50_000_000, "pixels of one image, as it is stored and as it is scaled"),
    "yaml_kib": (1024, "KiB of a study file"),
    "yaml_nodes": (100_000, "values of a study file, aliases written out"),
    "yaml_depth": (32, "levels of nesting of a study file"),
    "grid_points": (100_000, "points of the grids of a study's axis"),
    "cells": (10_000_000, "cells of a study, shards aside"),
    "threads": (1024, "threads of a study's plan"),
}
"""The bounds by name: the usual value, and what it is of."""
MIB = 2**20


def bound(name: str) -> int:
    """The bound of this name: the usual one, or the environment's."""
    variable = f"VERIDICAL_MAX_{name.upper()}"
    text = os.environ.get(variable)
    if text is None:
        return BOUNDS[name][0]
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{variable} is a whole number, got '{text}'") from None


def refuse_more(name: str, amount: float, source: str) -> None:
    """Raise where `amount` is beyond the bound, and say how to move it."""
    most = bound(name)
    if amount > most:
        raise InputError(
            f"{source} asks for {amount:,.0f} {BOUNDS[name][1]}; at most {most:,} are taken. If you trust "
            f"it, set VERIDICAL_MAX_{name.upper()}"
        )


def check_file(path: Path) -> None:
    """Refuse a file that is too large, as it is or, for an archive (.npz, .pt), unfolded."""
    refuse_more("file_mib", path.stat().st_size / MIB, path.name)
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            unfolded = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # whoever reads it says what is wrong with it
    refuse_more("array_mib", unfolded / MIB, path.name)
