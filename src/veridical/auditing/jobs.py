"""One piece of an audit's work, a method's maps of some samples and their scores; done once and kept.

Pieces do not know each other: they may be done in any order, in other processes, or have been done by a run
that was ended.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from veridical._version import __version__
from veridical.core.key import Key
from veridical.core.settings import holds_code
from veridical.errors import FormatError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.jobs import content_hash, resume
from veridical.metrics import Metric
from veridical.models.context import Memo
from veridical.models.cost import Cost
from veridical.values.evaluation import Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

log = logging.getLogger("veridical")
MAP = "map.safetensors"


@dataclass(frozen=True, eq=False)
class Job:
    """Maps made on one task and scored on another: the same, or one whose model they should not fit."""

    label: str
    explainer: Explainer
    metrics: Mapping[str, Metric]
    explained: Task
    scored_on: Task
    place: str
    """Which samples and models, in words: with label and settings it distinguishes the jobs of an audit."""
    draw: int = 0
    """Which of several draws of the maps."""
    elsewhere: Task | None = None
    """A second task to score the same maps on; those scores have labels of their own."""
    made: Explanation | None = None
    """The maps, where they are at hand already."""

    @property
    def labels(self) -> list[str]:
        """The labels of all scores."""
        more = [] if self.elsewhere is None else [elsewhere(label) for label in self.metrics]
        return [*self.metrics, *more]

    def key(self, seed: int) -> Key:
        return Key(seed) if not self.draw else Key(seed) / "draw" / self.draw


def elsewhere(label: str) -> str:
    """How scores on the second task are called."""
    return f"{label}, elsewhere"


class Done(NamedTuple):
    """What a job gave; no explanation where the map itself failed."""

    explanation: Explanation | None
    scores: dict[str, Scores]
    failures: list[Failure]

    @property
    def cost(self) -> Cost:
        """Rows of its maps and all its scores."""
        own = Cost() if self.explanation is None else self.explanation.cost
        return sum((scores.cost for scores in self.scores.values()), own)


def carry_out(job: Job, seed: int, memo: Memo | None = None) -> Done:
    """Explain and score; what raises is kept with its traceback."""
    memo = memo or Memo()
    scores: dict[str, Scores] = {}
    failures: list[Failure] = []

    def failed(metric: str | None, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        failures.append(Failure(job.label, metric, str(error), trace))

    with warnings.catch_warnings():
        if not job.place.startswith("samples"):
            warnings.simplefilter("ignore", VeridicalWarning)  # maps of other models are no news
        try:
            made = job.made or job.explainer(job.explained, job.key(seed), memo)
        except Exception as error:
            failed(None, error)
            return Done(None, scores, failures)
        for task in (job.scored_on, job.elsewhere):
            if task is None:
                continue
            seen = replace(made, targets=task.targets)  # scored for the class that is explained there
            for label, metric in job.metrics.items():
                name = label if task is job.scored_on else elsewhere(label)
                try:
                    scores[name] = metric(task, seen, Key(seed), memo)
                except Exception as error:
                    failed(label, error)
    return Done(made, scores, failures)


def carry_out_there(job: Job, seed: int, threads: int) -> Done:
    """The same in another process, with as many threads as here: how sums are split moves their last bits."""
    torch.set_num_threads(threads)
    return carry_out(job, seed)


@dataclass(eq=False)
class JobRunner:
    """Does jobs here or on an executor, and keeps what is done in a folder: a later run goes on from it."""

    seed: int
    folder: Path | None = None
    about: str = ""
    """A digest of the audit's task: the same job on other data is another one."""
    executor: Executor | None = None
    progress: bool | None = None
    memo: Memo = field(default_factory=Memo)
    """What the jobs that are done here have in common."""
    found: int = field(default=0, init=False)
    """Jobs that an earlier run had done."""

    def do(self, jobs: Sequence[Job], what: str) -> list[Done]:
        """All jobs, in the order given."""
        if self.executor is None:
            work: Callable[[Job], Done] = lambda job: carry_out(job, self.seed, self.memo)  # noqa: E731
        else:
            work = partial(carry_out_there, seed=self.seed, threads=torch.get_num_threads())
        return resume(
            [(str(i) if self.folder is None else self._hash(job), job) for i, job in enumerate(jobs)],
            work,
            load=self._load,
            save=self._save,
            executor=self.executor,
            what=what,
            progress=self.progress,
        )

    def _hash(self, job: Job) -> str:
        return content_hash(
            {
                "about": self.about,
                "place": job.place,
                "label": job.label,
                "explainer": job.explainer.to_json(),
                "metrics": {label: metric.to_json() for label, metric in job.metrics.items()},
                "seed": [self.seed, job.draw],
                "plan": asdict(job.scored_on.predictor.plan),
                "device": job.scored_on.device.type,
                "versions": [__version__, torch.__version__],
            }
        )

    def _load(self, hash: str, job: Job) -> Done | None:
        """What an earlier run kept of this job; None where something is missing, damaged or no longer so."""
        if self.folder is None or not (self.folder / hash / MAP).is_file():
            return None
        place = self.folder / hash
        try:
            made = Explanation.load(place / MAP).to(job.scored_on.device)
            scores = {label: Scores.load(place / f"{i}.safetensors") for i, label in enumerate(job.labels)}
        except FormatError as error:
            log.info("%s; it is done again", error)
            return None
        if holds_code(job.explainer) and not self._same_code(job, made):
            return None
        self.found += 1
        return Done(made, scores, [])

    def _same_code(self, job: Job, made: Explanation) -> bool:
        """Whether a user's function, whose text may have changed, still gives the first map."""
        again = job.explainer(job.explained[:1], job.key(self.seed)).values
        return torch.allclose(again, made.values[:1], rtol=1e-4, atol=1e-6, equal_nan=True)

    def _save(self, hash: str, job: Job, done: Done) -> None:
        if self.executor is not None:
            job.scored_on.predictor.meter.add(done.cost)  # evaluated there, counted here
        if self.folder is None or done.explanation is None or done.failures:
            return
        for i, label in enumerate(job.labels):
            done.scores[label].save(self.folder / hash / f"{i}.safetensors")
        done.explanation.save(self.folder / hash / MAP)  # last: where it is, the job is whole
