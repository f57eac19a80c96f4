"""Who works in a folder: every run leaves a note there and renews it while it lives.

Runs of the same plan may share a folder: their files are the same. A run of another plan is refused while
the folder is taken. Each run writes its note before it looks for others, so of two that begin together at
least one sees the other; if both do, both step back and try again after a moment of chance.

A run of this machine lives as long as its process does, whatever the clock says; one of another machine as
long as it renews its note.
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
from pathlib import Path
from typing import Any, Self

from veridical.errors import FormatError, StorageError, StudyError
from veridical.jobs.store import Store

log = logging.getLogger("veridical")
LEASES = "leases"
RENEW_SECONDS = 10.0
DEAD_SECONDS = 60.0
"""A note of another machine this old, by the clock of the reader, is of a run that is gone."""
TRIES = 4
KIND, FORMAT = "lease", 2


class Lease:
    """A run's right to write into a folder, as a context.

    Parameters
    ----------
    store
        The folder.
    plan
        The content hash of what is computed: runs of one plan may share the folder.
    name
        What is running there, for the message to others.

    Raises
    ------
    StudyError
        Where a run of another plan is at work in the folder.
    """

    def __init__(self, store: Store, plan: str, name: str) -> None:
        self._store, self._id = store, uuid.uuid4().hex
        self._file = f"{LEASES}/{self._id}.json"
        about = {"plan": plan, "name": name, "host": socket.gethostname(), "pid": os.getpid()}
        self._note: dict[str, Any] = {**about, "began": process_start(os.getpid())}
        self._since = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.shared = False
        """Whether another run of the same plan was there when this one began."""

    def __enter__(self) -> Self:
        for attempt in range(TRIES):
            self._write()
            others = self._others()
            taken = [other for other in others if other["plan"] != self._note["plan"]]
            if not taken:
                break
            self._store.delete(self._file)
            if attempt == TRIES - 1:
                raise StudyError(_in_use(self._store, taken[0]))
            time.sleep(random.random() * 0.5)
        self.shared = bool(others)
        if not self.shared:
            self._store.sweep(self._since)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._store.delete(self._file)

    def _write(self) -> None:
        self._store.write_json(self._file, {**self._note, "at": time.time()}, KIND, FORMAT, self._id)

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            try:
                self._write()
            except StorageError as error:
                log.warning("the folder's lease could not be renewed: %s", error)

    def _others(self) -> list[dict[str, Any]]:
        """The notes of runs that live; those of dead ones are removed, and what is no note is left."""
        found = []
        for name in set(self._store.files(LEASES)) - {f"{self._id}.json"}:
            try:
                note = self._store.read_json(f"{LEASES}/{name}", KIND, FORMAT)
                lives = _lives(**note)
            except (FileNotFoundError, FormatError, TypeError, ValueError, OverflowError):
                continue
            if lives:
                found.append(note)
            else:
                self._store.delete(f"{LEASES}/{name}")
        return found


def _lives(plan: str, name: str, host: str, pid: int, began: str, at: float) -> bool:
    age = abs(time.time() - at)
    if host != socket.gethostname() or os.name == "nt":
        return age <= DEAD_SECONDS
    if pid < 1:  # a signal to many
        return False
    now = process_start(pid)
    # another process may have the number of one that is gone
    return now is not None and (now == began or "" in (now, began))


def process_start(pid: int) -> str | None:
    """When a process of this machine began, by its own clock.

    Parameters
    ----------
    pid
        The number of the process.

    Returns
    -------
    str or None
        Ticks since the machine was started, "" where the system does not report it, None where it has ended.
    """
    try:
        if os.name != "nt":  # there, a signal would end the process
            os.kill(pid, 0)
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return None if words[0] in "ZX" else words[19]  # a zombie works no more


def _in_use(store: Store, other: dict[str, Any]) -> str:
    return (
        f"{store.folder} is in use by another study, '{other['name']}' (process {other['pid']} on "
        f"{other['host']}, last seen {max(0.0, time.time() - other['at']):.0f} s ago); wait until it "
        "ends, or give this study a folder of its own"
    )
