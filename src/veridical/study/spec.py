"""What a study file may hold: a grid of tasks x explainers x metrics x seeds, and how to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from veridical.core.allowed import LARGE, LARGEST, MANY
from veridical.models.plan import Plan

FILE_KEYS = ("model", "data", "train", "labels", "text", "arch", "kind", "output")
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
Positive = Annotated[int, Field(ge=1, le=MANY)]
Seed = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


class Frozen(BaseModel):
    """Unknown keys are mistakes, and nothing is ever changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Frozen):
    """What one cell, map or preparation may take; one that takes more is recorded as failed.

    Workers in other processes are watched; in this process nothing can end a cell.
    """

    seconds: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """Seconds; None sets no limit."""


class Entry(Frozen):
    """An explainer or a metric: a registered name, or `code: module:attribute` which needs `--allow-code`.

    A bare text stands for its name.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    """A registered name, or as an explainer a file of finished maps (`maps.npz`, `maps.npz:method`)."""
    code: Annotated[str, Field(pattern=IMPORT_PATH)] | None = None
    """Import path `module:attribute`; None where `name` is given."""
    label: Annotated[str, Field(min_length=1)] | None = None
    """How results call it; None takes its own name."""
    settings: dict[str, Any] = {}
    """Its hyper-parameters as they are."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Hyper-parameters that are tried in turn, each with its values: one axis per key."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        self._check_origin()
        both = sorted(set(self.settings) & set(self.grid))
        if both:
            raise ValueError(f"{', '.join(both)} is in settings and in grid; keep one")
        return self

    def _check_origin(self) -> None:
        if (self.name is None) == (self.code is None):
            raise ValueError("give either name: (something registered) or code: (module:attribute)")

    @property
    def origin(self) -> str:
        """The name, that of a file without its folder, or the import path."""
        name = self.name or self.code or ""
        return Path(name).name if Path(name).suffix else name


class TaskEntry(Entry):
    """A task: an embedded name, a `model` and its `data` in files, or `code: module:function`.

    Files are read as the command line reads `--model` and `--data`: seen from the current folder, as data,
    and what can run code (`arch`, a .joblib file) only with `--allow-code`.
    `samples` are drawn from the task by `seed`; both, with the settings, go to a function that takes them.
    """

    samples: Positive | None = None
    """Samples drawn from the task; None takes the study's number."""
    seed: Seed = 0
    """Seed by which samples are drawn."""
    fill: str | Annotated[float, Field(ge=-LARGE, le=LARGE)] | None = None
    """What removed features become, by name or as a number; None is the task's own fill."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """A model on disk: a Hugging Face folder, weights, .joblib or .onnx; None for the other origins."""
    data: Annotated[str, Field(min_length=1)] | None = None
    """The samples of that model: a file of rows or a folder of images."""
    train: Annotated[str, Field(min_length=1)] | None = None
    """Reference rows, in any format of `data`."""
    labels: str | None = None
    """The column or array of the true classes."""
    text: str | None = None
    """The column of the texts."""
    arch: str | None = None
    """The function that builds the network of a file of weights, as module:function; this is code."""
    kind: Literal["huggingface", "weights", "sklearn", "onnx"] | None = None
    """What the model's file is, where its suffix leaves it open."""
    output: Annotated[int, Field(ge=0, le=MANY)] | None = None
    """Which target to explain, from 0, of an estimator that predicts several."""

    def _check_origin(self) -> None:
        if sum(origin is not None for origin in (self.name, self.code, self.model)) != 1:
            raise ValueError(
                "give one of name: (an embedded task), model: and data: (files), or code: (module:function)"
            )
        given = [key for key in FILE_KEYS[1:] if getattr(self, key) is not None]
        if self.model is None and given:
            raise ValueError(f"{', '.join(given)} describe a model of your own; name it with model:")
        if self.model is not None and self.data is None:
            raise ValueError("a model: needs data: the samples to explain")

    @property
    def files(self) -> dict[str, Any]:
        """What was given of model and data, with whole paths, so that any worker finds them."""
        given = {key: getattr(self, key) for key in FILE_KEYS if getattr(self, key) is not None}
        here = {"data", "train"} | (set() if (self.model or "").startswith("hf:") else {"model"})
        return {key: str(Path(value).absolute()) if key in here else value for key, value in given.items()}

    @property
    def origin(self) -> str:
        """The name, the import path, or the names of the files."""
        if self.model is None or self.data is None:
            return super().origin
        return f"{Path(self.model).stem} on {Path(self.data).stem}"


class ChunkPlan(Frozen):
    """How models are run, on whatever worker."""

    rows: Annotated[Positive, AfterValidator(lambda rows: Plan(rows=rows).rows)] | None = None
    """Rows per chunk: 1, 2, 4 or a multiple of 8; None measures once."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads that torch may use."""


class StudySpec(Frozen):
    """A whole study."""

    name: str = "study"
    """How reports call it."""
    tasks: Annotated[list[TaskEntry], Field(min_length=1)]
    """Tasks on which explanations are evaluated."""
    explainers: Annotated[list[Entry], Field(min_length=1)]
    """Explainers that are evaluated."""
    metrics: Annotated[list[Entry], Field(min_length=1)]
    """Metrics that evaluate them."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    """Seeds of all random draws; everything is computed once per seed."""
    samples: Positive | None = None
    """Samples per task, unless the task says otherwise; None takes what it brings."""
    shard_size: Positive | None = None
    """Samples of each part that a task is cut into; None cuts nothing."""
    plan: ChunkPlan = ChunkPlan()
    """How models are run."""
    device: str | None = None
    """Where models run, such as "cuda:0"; None leaves each task where it is."""
    keep_explanations: bool = True
    """Whether maps are kept as files beside the scores."""
    limits: Limits = Limits()
    """What one cell, map or preparation may take."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        return self
