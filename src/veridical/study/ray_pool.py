"""Python's futures on a Ray cluster: an audit, which takes an executor of `concurrent.futures`, runs there.

Tasks, model and data, are placed in the cluster's object store once and fetched by the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from veridical.core.allowed import Count, NotNegative
from veridical.core.settings import check_settings
from veridical.study.ray_setup import connect, environment, import_ray
from veridical.values.task import Task

KEPT_TASKS = 64
"""Tasks that stay in the object store; older ones are placed again when they are needed."""


@dataclass
class RayPool(Executor):
    """An executor of `concurrent.futures` whose work runs on a Ray cluster, this machine's by default.

    `with RayPool(num_cpus=8) as pool: vd.audit(task, executor=pool)`. A cluster that it started ends with it;
    one that was there before stays. The functions and classes it is given must be importable on every node.
    """

    address: str | None = None
    """That of a cluster (`auto`, `host:port`); without one, and without RAY_ADDRESS, a cluster is started."""
    num_cpus: Count | None = None
    """CPUs of the cluster that is started; None takes all."""
    cpus_per_job: Count = 1
    """CPUs that one job asks for."""
    gpus_per_job: NotNegative = 0.0
    """GPUs that one job asks for, or a part of one."""
    host: str = "127.0.0.1"
    """The address that a cluster started here listens on."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's own settings for what workers find around them."""

    def __post_init__(self) -> None:
        check_settings(self)
        self._ray = import_ray()
        self._began = connect(self.address, self.num_cpus, self.host, None)
        self._placed: dict[int, tuple[Task, Any]] = {}
        self._remote = self._ray.remote(
            num_cpus=self.cpus_per_job,
            num_gpus=self.gpus_per_job,
            max_retries=2,  # a lost worker; what raises in the work itself is not tried again
            runtime_env=environment(self.runtime_env),
        )(work)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Send work out; the future has its result, or raises what it raised."""
        tasks = [self._tasks_of(one) for one in args]
        pairs = zip(args, tasks, strict=True)
        sent = [replace(one, **dict.fromkeys(held)) if held else one for one, held in pairs]
        found: Future[Any] = self._remote.remote(fn, sent, tasks, named).future()
        return found

    def _tasks_of(self, thing: Any) -> dict[str, Any]:
        """Where the tasks among a dataclass's fields lie in the object store, by field."""
        if not is_dataclass(thing) or isinstance(thing, type | Task):
            return {}
        return {
            each.name: [self._place(getattr(thing, each.name))]  # inside a list it is not fetched at once
            for each in fields(thing)
            if isinstance(getattr(thing, each.name), Task)
        }

    def _place(self, task: Task) -> Any:
        if id(task) not in self._placed:
            while len(self._placed) >= KEPT_TASKS:
                del self._placed[next(iter(self._placed))]
            self._placed[id(task)] = task, self._ray.put(task)
        return self._placed[id(task)][1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._placed.clear()
        if self._began:
            with suppress(Exception):  # gone already
                self._ray.shutdown()
        self._began = False


def work(fn: Callable[..., Any], sent: list[Any], tasks: list[dict[str, Any]], named: dict[str, Any]) -> Any:
    """What runs on a worker: the call, its tasks fetched, each once."""
    import ray

    refs = {ref for held in tasks for (ref,) in held.values()}
    there = {ref: ray.get(ref) for ref in refs}
    whole = [
        replace(one, **{name: there[ref] for name, (ref,) in held.items()}) if held else one
        for one, held in zip(sent, tasks, strict=True)
    ]
    return fn(*whole, **named)
