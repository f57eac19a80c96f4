"""What a study file may say: a grid of tasks x explainers x metrics x seeds, and how to run it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from veridical.values.bounds import refuse_more

IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
Positive = Annotated[int, Field(ge=1)]


def _bounded_threads(count: int) -> int:
    refuse_more("threads", count, "plan.threads")
    return count


class Strict(BaseModel):
    """Unknown keys are mistakes; a spec is never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(Strict):
    """What one job asks of a cluster; executors of one machine do not look at it."""

    cpus: Annotated[float, Field(ge=0)] | None = None
    gpus: Annotated[float, Field(ge=0)] | None = None
    memory_mib: Positive | None = None

    def given(self) -> dict[str, float]:
        """Only what was said."""
        return self.model_dump(exclude_none=True)


class Limits(Strict):
    """What one cell, map or preparation may take; one that takes more is recorded as failed."""

    seconds: Annotated[float, Field(gt=0)] | None = None
    memory_mib: Positive | None = None

    def given(self) -> dict[str, float]:
        """Only what was said."""
        return self.model_dump(exclude_none=True)


class Entry(Strict):
    """An explainer or a metric: a registered name, or `code: module:attribute` which needs `--allow-code`.

    `settings` are its hyper-parameters as they are; each key of `grid` is an axis, whose values are tried in
    turn. A bare text stands for its name.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    code: Annotated[str, Field(pattern=IMPORT_PATH)] | None = None
    label: Annotated[str, Field(min_length=1)] | None = None
    settings: dict[str, Any] = {}
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    resources: Resources = Resources()

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.name is None) == (self.code is None):
            raise ValueError("say either name: (something registered) or code: (module:attribute)")
        both = sorted(set(self.settings) & set(self.grid))
        if both:
            raise ValueError(f"{', '.join(both)} is in settings and in grid; keep one")
        return self

    @property
    def origin(self) -> str:
        """The name or the import path."""
        return self.name or self.code or ""


class TaskEntry(Entry):
    """A task: an embedded name, or `code: module:function` that returns a `Task`.

    `samples` are drawn from the task by `seed`; both, with the settings, go to a function that takes them.
    A function that takes `start` and `stop` is asked for one shard at a time and is never loaded whole.
    """

    samples: Positive | None = None
    seed: int = 0
    fill: str | float | None = None


class ChunkPlan(Strict):
    """How models are run, on whatever worker: `rows` a chunk (a multiple of 8; measured once when not
    given) and torch's `threads`."""

    rows: Annotated[int, Field(ge=8, multiple_of=8)] | None = None
    threads: Annotated[Positive, AfterValidator(_bounded_threads)] = 1


class StudySpec(Strict):
    """A whole study."""

    name: str = "study"
    tasks: Annotated[list[TaskEntry], Field(min_length=1)]
    explainers: Annotated[list[Entry], Field(min_length=1)]
    metrics: Annotated[list[Entry], Field(min_length=1)]
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    samples: Positive | None = None
    shards: Positive | None = None
    shard_size: Positive | None = None
    plan: ChunkPlan = ChunkPlan()
    device: str | None = None
    keep_explanations: bool = True
    resources: Resources = Resources()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shards is not None and self.shard_size is not None:
            raise ValueError("say shards or shard_size, not both")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        return self
