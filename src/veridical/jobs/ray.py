"""Python's futures on a Ray cluster: whatever takes an executor of `concurrent.futures` runs there.

Tasks, model and data, are placed in the cluster's object store once and fetched by the workers.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from veridical.errors import InputError, MissingExtraError, StudyError
from veridical.jobs.run import WorkerLostError
from veridical.values.task import Task

log = logging.getLogger("veridical")
KEPT_TASKS = 64
"""Tasks that stay in the object store; older ones are placed again when they are needed."""
MOST_CALLS = 1000
"""Calls that are out at a time, each waited for by a thread."""
MIB = 2**20
HOST = "127.0.0.1"
"""Where a cluster started here listens."""
RETRIES = 3
"""How often a call is given out again when its worker or node is lost."""
NODE_LOST = (
    "the Ray node of this machine was lost, and the run with it; what is finished is kept: run this again "
    "(veridical resume FOLDER), which goes on from there"
)
HEAD_LOST = (
    "the head of the Ray cluster is gone; what is finished is kept: start it again and run this again "
    "(veridical resume FOLDER), which goes on from there"
)


class RayPool(Executor):
    """An executor of `concurrent.futures` whose work runs on a Ray cluster, this machine's by default.

    `with RayPool(num_cpus=8) as pool: vd.audit(task, executor=pool)`. A cluster that it started ends with it;
    one that was there before stays. The functions and classes it is given must be importable on every node.
    A worker or node that dies is Ray's to make good; a call under which four workers died raises.

    Parameters
    ----------
    address
        That of a cluster (`auto`, `host:port`); without one, and without RAY_ADDRESS, a cluster is started
        when the first call is submitted.
    num_cpus
        CPUs of the cluster that is started; None takes all.
    cpus, gpus, memory_mib
        What one call needs.
    seconds
        A call that runs longer raises `TimeoutError`; None sets no limit.
    runtime_env
        Ray's own settings for what workers find around them.

    Raises
    ------
    MissingExtraError
        Where Ray is not installed.
    """

    def __init__(
        self,
        address: str | None = None,
        num_cpus: int | None = None,
        *,
        cpus: float = 1,
        gpus: float = 0.0,
        memory_mib: int | None = None,
        seconds: float | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value, least in (("num_cpus", num_cpus, 1), ("cpus", cpus, 0)):
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise InputError(f"RayPool: {name} is a number from {least}, got {value!r}")
        self._given = address, num_cpus
        self.resources = {"cpus": cpus, "gpus": gpus, "memory_mib": memory_mib or 0}
        self.seconds, self.runtime_env = seconds, dict(runtime_env or {})
        self._ray: Any = None
        self._ours = False
        self._placed: dict[int, tuple[Task, Any]] = {}
        self._nodes: list[dict[str, float]] = []
        self._checked = 0.0
        self._threads: ThreadPoolExecutor | None = None
        self._needed: dict[str, str] = {}
        """What has to answer, by its address, with what is said where it does not."""
        self._lost = False

    # --- calls --------------------------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Send work out; the future has its result, or raises what it raised."""
        self._connect()
        needed = self.resources
        if not any(_fits(node, needed) for node in self._alive()):
            wish = ", ".join(f"{amount:g} {what}" for what, amount in needed.items() if amount)
            made: Future[Any] = Future()
            made.set_exception(InputError(f"no node of the cluster has what this needs: {wish}"))
            return made
        tasks = [self._tasks_of(one) for one in args]
        sent = [replace(a, **dict.fromkeys(held)) if held else a for a, held in zip(args, tasks, strict=True)]
        ref = self._remote.options(
            num_cpus=needed["cpus"],
            num_gpus=needed["gpus"],
            memory=needed["memory_mib"] * MIB or None,
            max_retries=RETRIES,
            runtime_env=environment(self.runtime_env),
        ).remote(fn, sent, tasks, named)
        assert self._threads is not None
        return self._threads.submit(self._result, ref)

    def _result(self, ref: Any) -> Any:
        problems = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=self.seconds)
        except problems.GetTimeoutError:
            with suppress(Exception):  # it may have ended just now
                self._ray.cancel(ref, force=True)
            raise TimeoutError(f"it took longer than {self.seconds:g} s (limits: seconds)") from None
        except problems.RayTaskError:
            raise
        except problems.RayError as error:
            lines = str(error).strip().splitlines() or ["no reason given"]
            raise WorkerLostError(f"the worker was lost ({type(error).__name__}: {lines[0]})") from None

    # --- tasks --------------------------------------------------------------------------------------

    def _tasks_of(self, thing: Any) -> dict[str, Any]:
        """Where the tasks among a dataclass's fields lie in the object store, by field."""
        if not is_dataclass(thing) or isinstance(thing, type | Task):
            return {}
        return {
            each.name: [self.place(getattr(thing, each.name))]  # inside a list it is not fetched at once
            for each in fields(thing)
            if isinstance(getattr(thing, each.name), Task)
        }

    def place(self, task: Task) -> Any:
        """Put a task into the object store, once; what Ray knows it by."""
        self._connect()
        if id(task) not in self._placed:
            while len(self._placed) >= KEPT_TASKS:
                del self._placed[next(iter(self._placed))]
            self._placed[id(task)] = task, self._ray.put(task)
        return self._placed[id(task)][1]

    # --- the cluster --------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Calls of the ordinary size that fit on the nodes now alive, and one ahead."""
        self._connect()
        return max(sum(_fits(node, self.resources) for node in self._alive()), 1) + 1

    def check(self) -> None:
        """Raise where the head or this machine's node is gone; Ray would wait, and then end this process."""
        for address, said in self._needed.items():
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError:
                self._lost = True
                raise StudyError(f"{said} ({address} does not answer)") from None

    def _alive(self) -> list[dict[str, float]]:
        """What each living node has, read at most once per second."""
        if time.monotonic() - self._checked >= 1.0:
            self.check()
            alive = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
            if self._node not in alive:
                raise StudyError(NODE_LOST)  # Ray will end this process, sooner or later
            nodes = list(alive.values())
            if len(nodes) < len(self._nodes):
                log.warning("a node of the cluster was lost; its jobs are given out again")
            self._nodes, self._checked = nodes, time.monotonic()
        return self._nodes

    def _connect(self) -> None:
        if self._ray is not None:
            return
        self._ray = import_ray()
        self._ours = connect(*self._given)
        self._threads = ThreadPoolExecutor(MOST_CALLS)
        context = self._ray.get_runtime_context()
        self._node = context.get_node_id()
        (own,) = (node for node in self._ray.nodes() if node["NodeID"] == self._node)
        self._needed[str(context.gcs_address)] = HEAD_LOST
        self._needed[f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"] = NODE_LOST
        # a worker that has seen one GPU cannot change to another, so it serves once where there are several
        several = any(node.get("GPU", 0) > 1 for node in self._alive())
        self._remote = self._ray.remote(max_calls=int(several))(work)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._placed.clear()
        if self._ours:
            with suppress(Exception):  # gone already
                self._ray.shutdown()
        if self._threads is not None:
            # what waits for a node that is gone waits without end
            self._threads.shutdown(wait and not self._lost, cancel_futures=True)
        self._ray, self._threads, self._ours, self._needed = None, None, False, {}


def work(fn: Callable[..., Any], sent: list[Any], tasks: list[dict[str, Any]], named: dict[str, Any]) -> Any:
    """What runs on a worker: the call, its tasks fetched, each once."""
    import ray

    there = {ref: ray.get(ref) for ref in {ref for held in tasks for (ref,) in held.values()}}
    whole = [
        replace(one, **{name: there[ref] for name, (ref,) in held.items()}) if held else one
        for one, held in zip(sent, tasks, strict=True)
    ]
    return fn(*whole, **named)


def _fits(node: Mapping[str, float], needed: Mapping[str, float]) -> int:
    """How many calls of this need fit on a node."""
    amounts = {"CPU": needed["cpus"], "GPU": needed["gpus"], "memory": needed["memory_mib"] * MIB}
    room = [node.get(what, 0.0) / amount for what, amount in amounts.items() if amount > 0]
    return int(min(room, default=1.0) + 1e-9)


# --- before Ray starts ------------------------------------------------------------------------------------


def import_ray() -> Any:
    """Ray, or the command that installs it."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("a Ray cluster needs Ray: pip install 'veridical[ray]'") from None
    return ray


def connect(address: str | None, num_cpus: int | None) -> bool:
    """Connect to a cluster, or start one here; whether it is ours to leave, which one from before is not."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    # a study is nobody's affair but its owner's
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        with bound_to(address.rpartition(":")[0]):
            ray.init(address=address, **quiet)
        return True
    # a token for this cluster alone: other users of the machine stay out, and Ray, which otherwise
    # keeps one token in the home folder, writes nothing there
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # workers are as important as this process, as they are without Ray
    os.environ.setdefault("RAY_worker_niceness", "0")
    with bound_to(HOST):
        ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, _node_ip_address=HOST, **quiet)
    where = next(iter(ray.nodes()))["NodeManagerAddress"]
    if where != HOST:
        ray.shutdown()
        raise InputError(f"Ray would listen on {where} instead of {HOST}; it was not started")
    return True


@contextmanager
def bound_to(host: str) -> Iterator[None]:
    """Let Ray take 127.0.0.1 at its word while a cluster starts or is connected to.

    On Linux Ray replaces a loopback address by one that other machines reach, unless it is told that there
    are no other machines: by a variable for the processes it starts, by a constant for this one.
    """
    from ray._private import ray_constants

    variable = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, set_before = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(variable)
    if host == HOST:
        ray_constants.ENABLE_RAY_CLUSTER, os.environ[variable] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(variable, None)
        if set_before is not None:
            os.environ[variable] = set_before


def environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime environment of workers: the caller's, with this process's import paths and bounds.

    Installed packages are left to each node's own Python.
    """
    installed = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    own = [
        path
        for path in dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
        if os.path.isdir(path) and not any(Path(path).resolve().is_relative_to(p) for p in installed)
    ]
    bounds = {name: value for name, value in os.environ.items() if name.startswith("VERIDICAL_MAX_")}
    variables = {"PYTHONPATH": os.pathsep.join(own), **bounds, **given.get("env_vars", {})}
    return {**given, "env_vars": variables}
