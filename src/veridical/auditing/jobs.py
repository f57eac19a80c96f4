"""One piece of an audit's work, a method's maps of some samples and their scores; done once and kept.

Pieces do not know each other: they may be done in any order, in other processes, or have been done by a run
that was ended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from veridical._version import __version__
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import holds_code
from veridical.errors import FormatError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.metrics import Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.perturb.token_rows import remembering
from veridical.values.evaluation import Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

log = logging.getLogger("veridical")


@dataclass(frozen=True, eq=False)
class Job:
    """Maps made on one task and scored on another: the same, or one whose model they should not fit."""

    label: str
    explainer: Explainer
    metrics: Mapping[str, Metric]
    explained: Task
    judged: Task
    place: str
    """Which samples and models, in words: with label and settings it tells jobs of an audit apart."""
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
        """What its maps and all its scores asked."""
        own = Cost() if self.explanation is None else self.explanation.cost
        return sum((scores.cost for scores in self.scores.values()), own)


def carry_out(job: Job, seed: int) -> Done:
    """Explain and score; what raises is kept with its traceback."""
    scores: dict[str, Scores] = {}
    failures: list[Failure] = []

    def failed(metric: str | None, error: Exception) -> None:
        told = "".join(traceback.format_exception(error))
        failures.append(Failure(job.label, metric, str(error), told))

    with sharing(job.judged), remembering(), warnings.catch_warnings():
        if not job.place.startswith("samples"):
            warnings.simplefilter("ignore", VeridicalWarning)  # maps of other models are no news
        try:
            made = job.made or job.explainer(job.explained, job.key(seed)).settle()
        except Exception as error:
            failed(None, error)
            return Done(None, scores, failures)
        for task in (job.judged, job.elsewhere):
            if task is None:
                continue
            seen = replace(made, targets=task.targets)  # judged for the class that is explained there
            for label, metric in job.metrics.items():
                name = label if task is job.judged else elsewhere(label)
                try:
                    scores[name] = metric(task, seen, Key(seed)).settle()
                except Exception as error:
                    failed(label, error)
    return Done(made, scores, failures)


def carry_out_there(job: Job, seed: int, threads: int) -> Done:
    """The same in another process, with as many threads as here: how sums are split moves their last bits."""
    torch.set_num_threads(threads)
    return carry_out(job, seed)


@dataclass(eq=False)
class Crew:
    """Does jobs here or on an executor, and keeps what is done in a folder: a later run goes on from it."""

    seed: int
    folder: Path | None = None
    about: str = ""
    """A digest of the audit's task: the same job on other data is another one."""
    executor: Executor | None = None
    progress: bool | None = None
    found: int = field(default=0, init=False)
    """Jobs that an earlier run had done."""

    def do(self, jobs: Sequence[Job], what: str) -> list[Done]:
        """All jobs, in the order given."""
        kept = {i: done for i, job in enumerate(jobs) if (done := self._read(job)) is not None}
        self.found += len(kept)
        fresh = [i for i in range(len(jobs)) if i not in kept]
        for i, done in zip(fresh, self._fresh([jobs[i] for i in fresh], what), strict=True):
            self._write(jobs[i], done)
            kept[i] = done
        return [kept[i] for i in range(len(jobs))]

    def _fresh(self, jobs: Sequence[Job], what: str) -> Iterator[Done]:
        if self.executor is None:
            for job in track(jobs, what, self.progress):
                yield carry_out(job, self.seed)
            return
        threads = torch.get_num_threads()
        running = [self.executor.submit(carry_out_there, job, self.seed, threads) for job in jobs]
        try:
            for job, one in zip(jobs, track(running, what, self.progress), strict=True):
                done = one.result()
                job.judged.predictor.meter.add(done.cost)  # asked there, paid for here
                yield done
        finally:
            for one in running:
                one.cancel()

    def _place(self, job: Job) -> Path | None:
        if self.folder is None:
            return None
        told = {
            "about": self.about,
            "place": job.place,
            "explainer": job.explainer.to_json(),
            "metrics": {label: metric.to_json() for label, metric in job.metrics.items()},
            "seed": [self.seed, job.draw],
            "plan": asdict(job.judged.predictor.plan),
            "device": job.judged.device.type,
            "versions": [__version__, torch.__version__],
        }
        text = json.dumps(told, sort_keys=True, default=repr)
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self.folder / f"{re.sub(r'[^0-9a-zA-Z_]+', '-', job.label)[:40]}-{digest}"

    def _read(self, job: Job) -> Done | None:
        """What an earlier run kept of this job; None where something is missing, damaged or no longer so."""
        place = self._place(job)
        if place is None or not (place / "map.safetensors").is_file():
            return None
        try:
            made = Explanation.load(place / "map.safetensors").to(job.judged.device)
            scores = {label: Scores.load(place / f"{i}.safetensors") for i, label in enumerate(job.labels)}
        except FormatError as error:
            log.info("%s; it is done again", error)
            return None
        if holds_code(job.explainer) and not self._same_code(job, made):
            return None
        return Done(made, scores, [])

    def _same_code(self, job: Job, made: Explanation) -> bool:
        """Whether a user's function, whose text may have changed, still gives the first map."""
        again = job.explainer(job.explained[:1], job.key(self.seed)).values
        return torch.allclose(again, made.values[:1], rtol=1e-4, atol=1e-6, equal_nan=True)

    def _write(self, job: Job, done: Done) -> None:
        place = self._place(job)
        if place is None or done.explanation is None or done.failures:
            return
        for i, label in enumerate(job.labels):
            done.scores[label].save(place / f"{i}.safetensors")
        done.explanation.save(place / "map.safetensors")  # last: where it is, the job is whole
