"""What is sent to a worker and what comes back: plain data that pickles, and goes to JSON and back.

A study is cut into three kinds of job:

- `prepare`: something estimated once from a whole task and used by every shard and explainer (a fine-tuned
  model, a noise path);
- `explain`: the maps of one explainer on one shard of a task, which serve every metric;
- `score`: one cell, that is one metric on one explainer, seed and shard.

Each job has an `address`, the digest of everything that decides its result, and leaves one file of that name
in the study's folder. A worker needs nothing but a `Context` to carry out a job: it reads the run's plan from
the folder, refuses a job to which the plan gives another address, loads the task by its name, writes the
file, and answers with a `Result`. See `worker_state.Workshop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["prepare", "explain", "score"]
Status = Literal["done", "failed", "lost"]


@dataclass(frozen=True)
class Context:
    """What every worker of a study is started with.

    `folder` is a local path or an fsspec URL that all workers reach. `imports` are modules to import first,
    since they register explainers or metrics of the user's own. `resources` are what one job asks of a
    cluster: `cpus`, `gpus`, `memory_mib`. `plan` is the digest of the run's own plan, the folder's current
    one if not given. `limits` are what one job may take: `seconds`, `memory_mib`.
    """

    folder: str
    allow_code: bool = False
    imports: tuple[str, ...] = ()
    threads: int | None = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    plan: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The context as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Context:
        """Back from plain data."""
        return cls(**{**data, "imports": tuple(data["imports"])})


@dataclass(frozen=True)
class Job:
    """One piece of work; `needs` are the addresses of the jobs that must be done before.

    Explainer and metric are named by their labels in the plan, the shard by its rows [start, stop). `facts`
    says what a `prepare` job prepares.
    """

    kind: Kind
    address: str
    task: str
    shard: tuple[int, int]
    seed: int = 0
    explainer: str | None = None
    metric: str | None = None
    needs: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Rows of the task that this job works on."""
        return self.shard[1] - self.shard[0]

    def __str__(self) -> str:
        parts = [self.task, self.explainer, self.metric, f"seed {self.seed}"]
        name = " / ".join(part for part in parts if part is not None)
        return f"{self.kind} {name}, rows {self.shard[0]} to {self.shard[1]}"

    def to_json(self) -> dict[str, Any]:
        """The job as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Back from plain data."""
        start, stop = data["shard"]
        return cls(**{**data, "shard": (start, stop), "needs": tuple(data["needs"])})


@dataclass(frozen=True)
class Result:
    """What became of a job.

    `done`: its file is in the folder. `failed`: it raised, and would raise again. `lost`: its worker died
    before it answered, which says nothing about the job; the runner tries it again a few times, not counting
    the times when the worker had not `begun`.
    """

    address: str
    status: Status
    seconds: float = 0.0
    forward: int = 0
    backward: int = 0
    host: str = ""
    pid: int = 0
    error: str = ""
    traceback: str = ""
    warnings: tuple[str, ...] = ()
    begun: bool = True

    def to_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Back from plain data."""
        return cls(**{**data, "warnings": tuple(data["warnings"])})
