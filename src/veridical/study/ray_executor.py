"""Jobs on a Ray cluster: tasks placed once in its object store, lost workers and nodes made good.

A worker needs the plan and the task of a job. Both lie in the object store; a worker process fetches them
when it first needs them and keeps its `Workshop` for the jobs that follow. A worker that sees the study's
folder reads and writes there. One that does not (a folder in memory, or a path of another machine) is sent
the files a job needs and sends back those it made, which this process writes.

Ray is asked for no retries of its own: a worker's death is answered as "lost", so that the runner sees it and
counts it. Only when a whole node goes are its jobs given out again here, since they were not to blame.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from veridical.core.allowed import Count, Index, NotNegative, Positive
from veridical.core.settings import check_settings
from veridical.errors import StudyError
from veridical.study.cells import Context, Job, Result
from veridical.study.executors import refuse_scripts
from veridical.study.folder import EXPLANATIONS, PREPARED, Folder
from veridical.study.limits import passed
from veridical.study.plan import read_plan
from veridical.study.ray_setup import bound_to as bound_to
from veridical.study.ray_setup import connect, environment, import_ray
from veridical.study.ray_worker import Parcel, serve

log = logging.getLogger("veridical")
MIB = 2**20
LOOK_SECONDS = 1.0
HEAD_SECONDS = 5.0
OVERDUE_SECONDS = 60.0
"""A job on a cluster may wait for its place; only one this much over its limit is cancelled from here."""
KEPT_FILES = 8
NEEDED = (f"{EXPLANATIONS}/{{}}.safetensors", f"{PREPARED}/{{}}.safetensors", f"{PREPARED}/{{}}.json")


@dataclass(frozen=True)
class _Flight:
    """A job on its way, the nodes that lived when it left, and how often a node was lost under it."""

    job: Job
    nodes: frozenset[str]
    losses: int = 0
    since: float = field(default_factory=time.monotonic)
    cancelled: bool = False


@dataclass
class RayExecutor:
    """Jobs on a Ray cluster, this machine's by default.

    `address` is that of a cluster (`auto`, `host:port`), which is left running; without one, and without
    RAY_ADDRESS or a connection already made, a cluster is started here, bound to `host`, with `num_cpus`
    (all by default), and stopped in the end. A job asks for what the study file says under
    `resources`, and otherwise for as many CPUs as the study has threads, `gpus_per_cell` and
    `memory_per_cell` MiB. At most as many jobs as fit are under way, and `ahead` more. A job is given out
    again up to `retries` times when its node is lost.
    """

    address: str | None = None
    num_cpus: Count | None = None
    gpus_per_cell: NotNegative = 0.0
    memory_per_cell: Positive | None = None
    retries: Index = 3
    ahead: Index = 1
    host: str = "127.0.0.1"
    object_store_mib: Count | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)
        self._ray: Any = None
        self._began_ray = False
        self._flights: dict[Any, _Flight] = {}
        self._answers: list[Result] = []
        self._tasks: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._nodes: dict[str, dict[str, float]] = {}
        self._looked = -LOOK_SECONDS
        self._token = f".ray-{uuid.uuid4().hex}"

    # --- the protocol -------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Jobs of the study's ordinary size that fit on the nodes now alive, and a few ahead."""
        fitting = sum(_how_many(node, self._ordinary) for node in self._alive().values())
        return max(fitting, 1) + self.ahead

    def start(self, context: Context) -> None:
        """Connect to the cluster, or start one, and place what every worker needs."""
        refuse_scripts(context)
        self._context, self._folder = context, Folder(context.folder)
        self._ray = import_ray()
        # jobs that bring no folder along leave their files at this process
        self._carried = context.folder.startswith("memory:")
        self._connect()
        self._head = str(self._ray.get_runtime_context().gcs_address)
        self._plan = read_plan(self._folder, context.plan)
        self._ordinary = self._asked(context.resources)
        self._parcel = self._ray.put(
            Parcel(self._token, replace(context, plan=self._plan.digest), self._plan)
        )
        if not self._carried:
            self._folder.write(self._token, b"")
        # a worker that has seen one GPU cannot change to another, so it serves once where there are several
        several = any(node.get("GPU", 0) > 1 for node in self._alive().values())
        self._remote = self._ray.remote(max_calls=int(several))(serve)

    def submit(self, job: Job) -> None:
        """Send a job out; one that no node could ever take fails at once instead of waiting for ever."""
        asked = self._asked(job.resources)
        if not any(_how_many(node, asked) for node in self._alive().values()):
            wish = ", ".join(f"{amount:g} {what}" for what, amount in asked.items() if amount)
            error = f"no node of the cluster has what {job} asks for: {wish}"
            self._answers.append(Result(job.address, "failed", error=error))
            return
        with self._headed():
            self._send(job, asked)

    def wait(self) -> list[Result]:
        """Every result that has come in; blocks until there is one."""
        results, self._answers = self._answers, []
        while not results:
            with self._headed():
                ready, _ = self._ray.wait(list(self._flights), num_returns=1, timeout=HEAD_SECONDS)
            if not ready:
                self._refuse_headless()
                self._end_overdue()
                continue
            more, _ = self._ray.wait(list(self._flights), num_returns=len(self._flights), timeout=0)
            for ref in dict.fromkeys([*ready, *more]):
                result = self._landed(ref)
                if result is not None:
                    results.append(result)
        return results

    @contextmanager
    def _headed(self) -> Iterator[None]:
        """Where Ray fails because its head has just gone, say that and not what Ray says."""
        try:
            yield
        except Exception:
            self._refuse_headless()
            raise

    def _refuse_headless(self) -> None:
        """Say that the cluster's head is gone; Ray itself would wait, and then end this process."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=HEAD_SECONDS).close()
        except OSError:
            raise StudyError(
                f"the head of the Ray cluster at {host}:{port} is gone; the finished cells are kept: start "
                f"the cluster again, and veridical resume {self._folder.url} goes on"
            ) from None

    def _end_overdue(self) -> None:
        """Cancel jobs that should have ended long ago and did not hear of it."""
        most = self._context.limits.get("seconds")
        if most is None:
            return
        for ref, flight in list(self._flights.items()):
            if time.monotonic() - flight.since > most + OVERDUE_SECONDS and not flight.cancelled:
                self._flights[ref] = replace(flight, cancelled=True)
                self._ray.cancel(ref, force=True)

    def close(self) -> None:
        """Stop what is under way, and the cluster if this executor started it."""
        if self._ray is None:
            return
        for ref in self._flights:
            with suppress(Exception):
                self._ray.cancel(ref, force=True)
        self._flights, self._tasks, self._files = {}, {}, {}
        with suppress(Exception):  # the store may be gone, which is no reason to leave a cluster behind
            self._folder.delete(self._token)
        if self._began_ray:
            self._ray.shutdown()
        self._ray, self._began_ray = None, False

    # --- the cluster --------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._began_ray = connect(self.address, self.num_cpus, self.host, self.object_store_mib)

    def _alive(self) -> dict[str, dict[str, float]]:
        """The nodes that live and what each has, looked up at most once per second."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._refuse_headless()
            with self._headed():
                self._nodes = {n["NodeID"]: n["Resources"] for n in self._ray.nodes() if n["Alive"]}
            self._looked = time.monotonic()
        return self._nodes

    def _asked(self, resources: Mapping[str, float]) -> dict[str, float]:
        """What a job of these resources asks for, by Ray's names."""
        memory = resources.get("memory_mib", self.memory_per_cell)
        return {
            "CPU": resources.get("cpus", float(self._context.threads or 1)),
            "GPU": resources.get("gpus", self.gpus_per_cell),
            "memory": 0.0 if memory is None else float(memory) * MIB,
        }

    # --- out and back -------------------------------------------------------------------------------

    def _send(self, job: Job, asked: Mapping[str, float], losses: int = 0) -> None:
        ref = self._remote.options(
            name=str(job),
            num_cpus=asked["CPU"],
            num_gpus=asked["GPU"],
            memory=asked["memory"] or None,
            max_retries=0,
            runtime_env=environment(self.runtime_env),
        ).remote(
            # inside containers, references are not fetched before a worker asks for them
            self._token,
            [self._parcel],
            job,
            self._placed(job.task),
            dict(self._needed(job)) if self._carried else None,
        )
        self._flights[ref] = _Flight(job, frozenset(self._alive()), losses)

    def _landed(self, ref: Any) -> Result | None:
        """The result of a job; None if it went out again."""
        flight, problems = self._flights.pop(ref), self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except problems.RayTaskError as problem:
            # before the job began: something cannot be imported there, say
            error = str(problem.cause) if problem.cause is not None else "the worker could not begin"
            return Result(flight.job.address, "failed", error=error, traceback=str(problem))
        except problems.RuntimeEnvSetupError as problem:
            return Result(flight.job.address, "failed", error=f"no environment for the worker: {problem}")
        except problems.RayError as problem:
            return self._lost(flight, problem)
        if answer is None:
            if not self._carried:
                log.warning("a worker does not see %s: results come back here instead", self._folder.url)
            self._carried = True
            self._send(flight.job, self._asked(flight.job.resources), flight.losses)
            return None
        result, files = answer
        for name, content in files.items():
            self._folder.write(name, content)
        return Result.from_json(result)

    def _lost(self, flight: _Flight, problem: Exception) -> Result | None:
        if flight.cancelled:
            error = str(passed(self._context.limits, float("inf")))
            return Result(flight.job.address, "failed", error=error)
        self._looked = -LOOK_SECONDS
        problems = self._ray.exceptions
        of_node = isinstance(problem, (problems.NodeDiedError, problems.ObjectLostError))
        of_node = of_node or not flight.nodes <= set(self._alive())
        if of_node and flight.losses < self.retries:
            log.warning("a node of the cluster was lost; %s is given out again", flight.job)
            asked = self._asked(flight.job.resources)
            if any(_how_many(node, asked) for node in self._alive().values()):
                self._send(flight.job, asked, flight.losses + 1)
                return None
        lines = str(problem).strip().splitlines()
        said = f"{type(problem).__name__}: {lines[0] if lines else 'no reason given'}"
        return Result(flight.job.address, "lost", error=f"the worker was lost ({said})")

    # --- what is placed -----------------------------------------------------------------------------

    def _placed(self, label: str) -> dict[str, Any]:
        """A reference to a task in the object store; none where each worker must load its own part."""
        if label not in self._tasks:
            self._tasks[label] = None if self._plan.task(label).ranged else self._place(label)
        ref = self._tasks[label]
        return {} if ref is None else {label: ref}

    def _place(self, label: str) -> Any:
        from veridical.study.loading import load_task
        from veridical.study.planning import torch_threads

        planned = self._plan.task(label)
        try:
            with torch_threads(self._plan.threads):
                task = load_task(
                    planned.choice,
                    rows=planned.rows,
                    threads=self._plan.threads,
                    device=self._plan.device,
                    allow_code=self._context.allow_code,
                )
            return self._ray.put(task)
        except Exception as problem:
            # a model that does not pickle, or a device this machine lacks: workers can still load it
            log.warning("every worker loads '%s' by itself, it cannot be placed: %s", label, problem)
            return None

    def _needed(self, job: Job) -> Iterator[tuple[str, Any]]:
        """References to the files a job rests on, the last few of which stay in the object store."""
        for name in (form.format(need) for need in job.needs for form in NEEDED):
            if name not in self._files:
                if not self._folder.exists(name):
                    continue
                while len(self._files) >= KEPT_FILES:
                    self._files.pop(next(iter(self._files)))
                self._files[name] = self._ray.put(self._folder.read(name))
            yield name, self._files[name]


# --- small things --------------------------------------------------------------------------------------


def _how_many(node: Mapping[str, float], asked: Mapping[str, float]) -> int:
    """How many jobs that ask for this fit on a node."""
    room = [node.get(what, 0.0) / amount for what, amount in asked.items() if amount > 0]
    return int(min(room, default=1.0) + 1e-9)
