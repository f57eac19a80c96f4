"""Seconds and hosts, in files of their own: what a cell holds is the same on every machine and run."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import Any

from veridical.study.events import Event
from veridical.study.folder import TIMINGS, Folder

REWRITE_SECONDS = 10.0


class Timings:
    """A watcher that keeps one line per job: address, kind, seconds, host, process, and when it ended."""

    def __init__(self, folder: Folder) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._name = f"{TIMINGS}/{stamp}-{uuid.uuid4().hex[:8]}.jsonl"
        self._folder = folder
        self._lines: list[str] = []
        self._written = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.what == "planned":
            counts = event.counts
            self._add(
                {
                    "run": event.plan.name,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "cells": counts.cells,
                    "known": counts.known,
                }
            )
        elif event.result is not None and event.job is not None:
            result = event.result
            if result.address != event.job.address:
                return  # a cell that fell with what it rests on took no time
            self._add(
                {
                    "address": result.address,
                    "kind": event.job.kind,
                    "status": event.what,
                    "seconds": round(result.seconds, 6),
                    "host": result.host,
                    "pid": result.pid,
                    "warnings": list(result.warnings),
                }
            )
        if event.what == "finished":
            self._write()

    def _add(self, record: dict[str, Any]) -> None:
        line = json.dumps({**record, "at": round(time.time(), 3)})
        if self._folder.local is not None:
            self._folder.append(self._name, line)
            return
        self._lines.append(line)
        if time.monotonic() - self._written > REWRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        if self._lines:
            self._folder.write(self._name, ("\n".join(self._lines) + "\n").encode())
        self._written = time.monotonic()


def read_timings(folder: Folder) -> list[dict[str, Any]]:
    """Every line of every run that is whole; a killed run may have left half of one."""
    found = []
    for name in folder.files(TIMINGS):
        for line in folder.read(f"{TIMINGS}/{name}").decode("utf-8", "replace").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found
