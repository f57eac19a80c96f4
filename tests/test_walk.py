"""How far a reader has to walk: the files that one score passes, and the calls from one file to another."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import veridical as vd
from veridical.data.networks import DigitsCNN

SOURCE = Path(vd.__file__).parent
MOST_FILES, MOST_BORDERS = 22, 96
ASKS_FOR_A_DEVICE = re.compile(r"\.is_cuda|\.is_cpu|\.type [!=]= \"c|torch\.cuda\.(?!OutOfMemoryError)")
MAY_ASK = (
    "functional/devices.py",
    "random/hash_kernels.py",
    "masking/road/kernel.py",
    "atlas/run.py",  # the name of the device in a report
)


class Walk:
    """Counts our files, and how often a call enters another one than the last call did."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.borders = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)):
            self.files.add(file)
            self.borders += file != self._last
            self._last = file


def walked(task: vd.Task) -> Walk:
    walk = Walk()
    sys.setprofile(walk)
    try:
        scores = vd.score("pixel_flipping", task, "gradient").values
    finally:
        sys.setprofile(None)
    assert bool(torch.isfinite(scores).all())
    return walk


def digits_like() -> vd.Task:
    torch.manual_seed(0)
    return vd.Task(DigitsCNN(), torch.rand(8, 1, 8, 8), targets=torch.arange(8) % 10)


@pytest.mark.skipif(sys.getprofile() is not None, reason="somebody else counts")
def test_a_score_passes_few_files_and_crosses_few_borders() -> None:
    walked(digits_like())  # what is imported on the first call is not the way of a score
    walk = walked(digits_like())
    names = sorted(str(Path(file).relative_to(SOURCE)) for file in walk.files)
    assert len(names) <= MOST_FILES, names
    assert walk.borders <= MOST_BORDERS


def test_a_border_counts_when_it_is_crossed() -> None:
    walk = Walk()
    sys.setprofile(walk)
    try:
        vd.core.Key(0) / "one"
        vd.functional.positions(torch.tensor([1, 0]))
        vd.core.Key(0) / "two"
    finally:
        sys.setprofile(None)
    assert (len(walk.files), walk.borders) == (2, 3)


def test_only_the_model_and_kernels_ask_for_a_device() -> None:
    asking = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if ASKS_FOR_A_DEVICE.search(file.read_text()) and not file.is_relative_to(SOURCE / "model")
    }
    assert asking <= set(MAY_ASK), sorted(asking - set(MAY_ASK))
