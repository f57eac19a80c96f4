"""Who works in a folder: every run leaves a note there and renews it while it lives.

Runs of the same plan may share a folder: their files are the same. A run of another plan is told that the
folder is taken. Each run writes its note before it looks for others, so of two that begin together at least
one sees the other; if both do, both step back and try again after a moment of chance.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import Any, Self

from veridical.core import files
from veridical.errors import FormatError, StorageError, StudyError
from veridical.study.folder import LEASES, Folder
from veridical.study.plan import StudyPlan

log = logging.getLogger("veridical")
BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0
"""A note this old, by the clock of the reader, is of a run that is gone."""
TRIES = 4
KIND, FORMAT = "lease", 1


class Lease:
    """A run's right to write into a folder, as a context."""

    def __init__(self, folder: Folder, plan: StudyPlan) -> None:
        self._folder, self._id = folder, uuid.uuid4().hex
        self._name = f"{LEASES}/{self._id}.json"
        self._about: dict[str, Any] = {"plan": plan.digest, "study": plan.name, "host": socket.gethostname()}
        self._about["pid"] = os.getpid()
        self._since = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.shared = False
        """Whether another run of the same plan was there when this one began."""

    def __enter__(self) -> Self:
        for attempt in range(TRIES):
            self._write()
            others = self._others()
            taken = [other for other in others if other["plan"] != self._about["plan"]]
            if not taken:
                break
            self._folder.delete(self._name)
            if attempt == TRIES - 1:
                raise StudyError(_told(self._folder, taken[0]))
            time.sleep(random.random() * 0.5)
        self.shared = bool(others)
        if not self.shared:
            self._folder.sweep(self._since)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            self._folder.delete(self._name)

    def _write(self) -> None:
        content = {**self._about, "at": time.time()}
        self._folder.write(self._name, files.pack_json(content, KIND, FORMAT, self._id))

    def _renew(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self._write()
            except StorageError as error:
                log.warning("the folder's lease could not be renewed: %s", error)

    def _others(self) -> list[dict[str, Any]]:
        """The notes of runs that live; those of dead ones are removed."""
        found = []
        for name in self._folder.files(LEASES):
            if name == f"{self._id}.json":
                continue
            try:
                note = files.unpack_json(self._folder.read(f"{LEASES}/{name}"), name, KIND, FORMAT)
            except (FileNotFoundError, FormatError):
                continue
            if _lives(note):
                found.append(note)
            else:
                self._folder.delete(f"{LEASES}/{name}")
        return found


def _lives(note: dict[str, Any]) -> bool:
    if abs(time.time() - note["at"]) > DEAD_SECONDS:
        return False
    # on Windows, to ask for a process by a signal would be to end it
    if note["host"] != socket.gethostname() or os.name == "nt":
        return True
    try:
        os.kill(note["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _told(folder: Folder, other: dict[str, Any]) -> str:
    return (
        f"{folder.url} is in use by another study, '{other['study']}' (process {other['pid']} on "
        f"{other['host']}, last seen {max(0.0, time.time() - other['at']):.0f} s ago); wait until it "
        "ends, or give this study a folder of its own"
    )
