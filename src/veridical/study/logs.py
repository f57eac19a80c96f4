"""What a run does, as lines of JSON for machines."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from veridical.study.bar import Pace
from veridical.study.events import Event


class JsonLog:
    """A watcher that writes one JSON object per line, to standard error unless told otherwise."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        if event.what == "planned":
            self._pace = Pace()
        counts = event.counts
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "event": event.what,
            "study": event.plan.name,
            "cells": counts.cells,
            "done": counts.known + counts.done,
            "failed": counts.failed,
            "left": counts.left,
        }
        if event.what == "planned":
            line |= {
                "folder": event.folder,
                "uncached": event.plan.uncached(),
                "skipped": len(event.plan.skipped),
            }
        if event.job is not None:
            job = event.job
            line |= {"kind": job.kind, "address": job.address, "task": job.task, "explainer": job.explainer}
            line |= {"metric": job.metric, "seed": job.seed, "shard": list(job.shard)}
        if event.result is not None:
            result = event.result
            self._pace.add(event)
            seconds = self._pace.left(event)
            line |= {
                "seconds": round(result.seconds, 4),
                "forward": result.forward,
                "backward": result.backward,
                "host": result.host,
                "pid": result.pid,
                "warnings": list(result.warnings),
                "evaluations_per_second": round(self._pace.rate, 1),
                "seconds_left": None if seconds is None else round(seconds, 1),
            }
            if result.error:
                line |= {"error": result.error, "traceback": result.traceback}
        print(json.dumps(line), file=self._stream, flush=True)
