"""A task that counts who loads it, and a metric that stays until a test has done something to its worker."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import veridical as vd
from tests.study.user_code import whole
from veridical.metrics.base import Metric, Outcome

PATIENCE = 60.0


def counted(samples: int = 8, folder: str = "") -> vd.Task:
    """A task that notes which process has loaded it."""
    (Path(folder) / f"{os.getpid()}.loaded").touch()
    return whole(samples)


def where() -> str:
    """The Ray node this process belongs to, or nothing outside of Ray."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


@dataclass(frozen=True)
class Held(Metric):
    """The sum of the map; while `folder`/hold is there it says who it is and waits."""

    folder: str = ""
    name: ClassVar[str] = "held"

    def evaluate(self, task, explanation, context):  # type: ignore[no-untyped-def]
        hold, until = Path(self.folder) / "hold", time.monotonic() + PATIENCE
        if hold.exists():
            part = Path(self.folder) / f"{os.getpid()}.part"
            part.write_text(where())
            part.rename(part.with_suffix(".held"))
        while hold.exists() and time.monotonic() < until:
            time.sleep(0.02)
        return Outcome(explanation.values.double().sum(-1))
