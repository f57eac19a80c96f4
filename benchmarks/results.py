"""Results written row by row, so that a run that is cut off leaves whole ones: JSON lines and Markdown."""

from __future__ import annotations

import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from benchmarks.timing import Timing


def machine(device: str) -> dict[str, Any]:
    """What a figure must carry to mean anything: machine, versions and date."""
    name = torch.cuda.get_device_name() if device != "cpu" else _processor()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "veridical": vd.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else f"{platform.machine()} CPU"


def sentence(facts: dict[str, Any]) -> str:
    """The machine in one line, for above a table."""
    return (
        f"Machine: {facts['device']}, {facts['threads']} threads; Python {facts['python']}, "
        f"torch {facts['torch']}, veridical {facts['veridical']}, {facts['date']}."
    )


class Results:
    """Rows by table, in a folder: `results.jsonl` grows by a line a row, `tables.md` is written again."""

    def __init__(self, folder: Path | None, device: str, seconds: float | None = None) -> None:
        self.folder = folder
        self.facts = machine(device)
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._end = None if seconds is None else time.monotonic() + seconds
        self._part_end: float | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def late(self) -> bool:
        """Whether the time given is over, or that of the part now running."""
        now = time.monotonic()
        return any(end is not None and now > end for end in (self._end, self._part_end))

    def begin(self, seconds: float | None) -> None:
        """From now on a part runs, for so many seconds at most."""
        self._part_end = None if seconds is None else time.monotonic() + seconds

    def add(self, table: str, **row: Any) -> None:
        """Keep and print one row."""
        self.tables.setdefault(table, []).append(row)
        print(f"  {table} | " + " | ".join(_cell(value) for value in row.values()), flush=True)
        if self.folder is None:
            return
        with (self.folder / "results.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps({"table": table, **row, "machine": self.facts}) + "\n")
        (self.folder / "tables.md").write_text(self.markdown(), encoding="utf-8")

    def timing(self, table: str, timing: Timing) -> None:
        """Keep one timing, the ratio beside it."""
        self.add(
            table,
            **{
                "what": timing.name,
                "rows forward": timing.forward,
                "rows backward": timing.backward,
                "rows computed": timing.computed,
                "seconds": timing.seconds,
                "bare seconds": timing.bare_seconds,
                "overhead": round(timing.overhead, 3),
            },
        )

    def markdown(self) -> str:
        """All tables."""
        out = [sentence(self.facts)]
        for title, rows in self.tables.items():
            out += ["", f"## {title}", "", *markdown_table(rows)]
        return "\n".join(out) + "\n"


def markdown_table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of like keys as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(_cell(row.get(name, "")) for name in names) + " |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.4f}"
    return str(value)
