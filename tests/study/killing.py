"""Killing a study at random moments and comparing what comes out with an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veridical import study as studies
from veridical.study.tables import from_parquet

KINDS = ("cells", "explanations", "prepared")
COMMAND = """
import json, sys
from veridical import study
study.run(json.loads(sys.argv[1]), sys.argv[2], executor=sys.argv[3], allow_code=True, progress=False)
"""


@dataclass(frozen=True)
class Report:
    """What happened: cells there at each kill, and what differs from the undisturbed run."""

    cells: int
    kills: list[int]
    different: list[str]
    recomputed: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{len(self.kills)} kills after {self.kills} of {self.cells} cells; {len(self.different)} files "
            f"differ from an undisturbed run; {len(self.recomputed)} finished files were computed again; "
            f"{self.seconds:.0f} s"
        )


def files(folder: Path) -> dict[str, bytes]:
    """Every finished file that must not depend on when and where it was made."""
    return {
        f"{kind}/{path.name}": path.read_bytes()
        for kind in KINDS
        for path in sorted((folder / kind).glob("*"))
        if path.suffix in (".parquet", ".safetensors", ".json")
    }


def start(study: dict[str, Any], folder: Path, executor: str) -> subprocess.Popen[bytes]:
    """The study in a process of its own, with the paths of this one."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    command = [sys.executable, "-c", COMMAND, json.dumps(study), str(folder), executor]
    return subprocess.Popen(command, env=env)


def count(folder: Path) -> int:
    """Finished cells."""
    return len(list((folder / "cells").glob("*.parquet")))


def kill_often(
    study: dict[str, Any], folder: Path, kills: int, executor: str = "in-process", seed: int = 0
) -> Report:
    """Run a study, SIGKILL its process at random moments, go on, and compare with an undisturbed run."""
    began = time.monotonic()
    chance = random.Random(seed)
    whole = studies.run(study, folder / "whole", executor="in-process", allow_code=True, progress=False)
    cells = whole.status().cells
    killed, stamps, recomputed = folder / "killed", {}, []
    at: list[int] = []
    while len(at) < kills:
        before = count(killed)
        process = start(study, killed, executor)
        # in the middle of the work, not of the imports: after some new cells, and then a moment
        wanted = before + chance.randint(1, max(1, (cells - before) // (kills - len(at) + 1)))
        while count(killed) < wanted and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        if process.poll() is not None:
            raise RuntimeError(f"the study ended, with status {process.returncode}, before it was killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
        at.append(count(killed))
        for path in (killed / "cells").glob("*.parquet"):
            from_parquet(path.read_bytes())  # every file there is whole
            stamp = path.stat().st_mtime_ns
            if stamps.setdefault(path.name, stamp) != stamp:
                recomputed.append(path.name)
    if start(study, killed, executor).wait() != 0:
        raise RuntimeError("the last run did not end well")
    expected, found = files(folder / "whole"), files(killed)
    names = sorted({*expected, *found})
    different = [name for name in names if expected.get(name) != found.get(name)]
    return Report(cells, at, different, recomputed, time.monotonic() - began)
