"""What one job may take: seconds and memory, watched from inside the process that does it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from veridical.errors import VeridicalWarning

LOOK_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""How much longer an executor waits for a job that does not hear (a native routine that never returns)."""
MIB = 2**20


class LimitReached(BaseException):
    """A job took more than it may; no `except Exception` of a user's code holds it up."""


@contextmanager
def within(limits: Mapping[str, float]) -> Iterator[None]:
    """Raise `LimitReached` in the main thread once a limit is passed.

    A timer interrupts the work ten times a second to look. Signals reach the main thread alone, and only
    between two steps of Python: a single long native call is noticed when it returns.
    """
    if not limits:
        yield
        return
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        warnings.warn(
            "limits are not watched: that needs the main thread and a system with timers; use "
            "executor='processes'",
            VeridicalWarning,
            stacklevel=3,
        )
        yield
        return
    began = time.monotonic()

    def look(*_: Any) -> None:
        reason = passed(limits, time.monotonic() - began)
        if reason is not None:
            raise LimitReached(reason)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def passed(limits: Mapping[str, float], seconds: float) -> str | None:
    """Which limit is passed, as a sentence; None if none is."""
    most = limits.get("seconds")
    if most is not None and seconds > most:
        return f"it took longer than {most:g} s (limits: seconds)"
    memory = limits.get("memory_mib")
    if memory is not None and (held := resident_mib()) > memory:
        return f"its process held {held:.0f} MiB, more than {memory:g} (limits: memory_mib)"
    return None


def resident_mib() -> float:
    """Memory that this process holds now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    except (OSError, ValueError, IndexError):
        return 0.0
