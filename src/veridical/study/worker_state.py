"""Carrying out a job, on whatever worker: the same bits wherever and whenever it is done.

Every job works on a task derived anew from the loaded one, so that what an earlier job left in a task's cache
changes neither a value nor a count; threads and chunk plan are the study's.
"""

from __future__ import annotations

import gc
import os
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from veridical.core.key import Key
from veridical.errors import FormatError, InputError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.metrics import ExplainerMetric, Metric
from veridical.models.cost import Cost
from veridical.study.cells import Context, Job, Result
from veridical.study.folder import EXPLANATIONS, Folder
from veridical.study.limits import LimitReached, within
from veridical.study.loading import identify_task, load_task
from veridical.study.plan import PlannedTask, read_plan
from veridical.study.preparations import equipped, prepare
from veridical.study.resolve import make_explainer, make_metric
from veridical.study.store import place, read_map
from veridical.study.tables import to_parquet
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

KEPT_TASKS = 2
DROPPED_BYTES = 2**26
KEPT_EXPLANATIONS = 2


class Workshop:
    """One worker's place: the plan, the tasks it has loaded, and the last explanations.

    `tasks` may hold tasks by label that something else has loaded and placed (an object store, say).
    """

    def __init__(self, context: Context, tasks: Mapping[str, Task] | None = None) -> None:
        self._threads = torch.get_num_threads()
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        for module in context.imports:
            import_module(module)
        self.context = context
        self.folder = Folder(context.folder)
        self.plan = read_plan(self.folder, context.plan)
        self._tasks: dict[tuple[str, tuple[int, int] | None], Task] = {}
        self._placed = tasks or {}
        self._lent: list[Task] = []
        self._dropped = 0
        self._explanations: dict[str, Explanation] = {}

    def close(self) -> None:
        """Put back the caller's threads."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def carry_out(self, job: Job) -> Result:
        """Do a job and leave its file in the folder; what goes wrong is part of the answer."""
        began = time.perf_counter()
        status, error, trace, cost = "done", "", "", Cost()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._refuse_foreign(job)
                work = {"prepare": self._prepare, "explain": self._explain, "score": self._score}[job.kind]
                with within(self.context.limits):
                    cost = work(job)
            except LimitReached as problem:
                status, error = "failed", str(problem)
            except Exception as problem:
                status, error = "failed", f"{type(problem).__name__}: {problem}"
                trace = traceback.format_exc()
            finally:
                while self._lent:
                    _let_go(self._lent.pop())
        return Result(
            job.address,
            status,  # type: ignore[arg-type]
            time.perf_counter() - began,
            cost.forward,
            cost.backward,
            socket.gethostname(),
            os.getpid(),
            error,
            trace,
            tuple(dict.fromkeys(str(warning.message) for warning in caught)),
        )

    def _refuse_foreign(self, job: Job) -> None:
        if self.plan.address(job) != job.address:
            raise InputError(f"{job} is not of the plan {self.plan.digest}: its address would be another")

    # --- the three kinds ----------------------------------------------------------------------------

    def _prepare(self, job: Job) -> Cost:
        task = self.task(job)
        before = task.predictor.meter.cost
        facts = dict(job.facts)
        who = next(m for m in self.plan.metrics if any(facts in of_seed for of_seed in m.prepares))
        prepare(facts, make_metric(who.choice, self.context.allow_code), task, self.folder, job.address)
        return task.predictor.meter.cost - before

    def _explain(self, job: Job) -> Cost:
        return self._explained(job, job.address, job.seed).cost

    def _score(self, job: Job) -> Cost:
        assert job.metric is not None
        task, key = self.task(job), Key(job.seed)
        planned = self.plan.metric(job.metric)
        facts = planned.prepares[self.plan.seeds.index(job.seed)]
        of_task = self.plan.task(job.task)
        ready = {self.plan.preparation(of_task, f).address: f for f in facts}
        metric = make_metric(planned.choice, self.context.allow_code)
        plain = metric.to_json()
        metric = equipped(metric, task, ready, self.folder)
        if isinstance(metric, ExplainerMetric):
            scores = metric(task, self._explainer(job), key)
        elif isinstance(metric, Metric):
            scores = metric(task, self._map(job), key)
        else:
            raise InputError(f"'{metric.name}' judges neither maps nor methods")
        # the file a fine-tuned model lies in is this machine's affair
        scores = replace(scores, provenance={**scores.provenance, "metric": plain})
        self._keep(job, scores)
        return scores.cost

    def _keep(self, job: Job, scores: Scores) -> None:
        labels = {"task": job.task, "explainer": job.explainer, "metric": job.metric, "seed": job.seed}
        self.folder.write(place(job), to_parquet(scores, labels, self.plan.settings(job), job.address))

    # --- what they work on --------------------------------------------------------------------------

    def task(self, job: Job) -> Task:
        """The rows of a job, as a task that nothing has touched."""
        planned = self.plan.task(job.task)
        kept = (job.task, job.shard if planned.ranged else None)
        if kept not in self._tasks:
            while len(self._tasks) >= KEPT_TASKS:
                self._forget(next(iter(self._tasks)))
            self._tasks[kept] = self._checked(planned, kept[1])
        rows = slice(job.samples) if planned.ranged else slice(*job.shard)
        # its answers to masks are its own, or what a job costs would depend on which jobs came before it
        task = self._tasks[kept][rows].changed(calibrated_alike=True, mask_answers={})
        self._lent.append(task)
        return task

    def _forget(self, kept: tuple[str, tuple[int, int] | None]) -> None:
        task = self._tasks.pop(kept)
        self._dropped += task.inputs.nbytes
        if task is not self._placed.get(kept[0]):
            _let_go(task)
        # a task made by a user's function points at itself too, and only the collector finds it
        if self._dropped > DROPPED_BYTES:
            gc.collect()
            self._dropped = 0

    def _checked(self, planned: PlannedTask, shard: tuple[int, int] | None) -> Task:
        label, rows = planned.label, planned.samples
        if shard is not None:
            task, rows = self._load(label, shard), shard[1] - shard[0]
        else:
            task = self._placed[label] if label in self._placed else self._load(label)
        same = shard is not None or identify_task(task, planned.choice)[0] == planned.digest
        if len(task) != rows or not same:
            raise InputError(
                f"the task '{label}' is another here than when the study was planned ({len(task)} rows, "
                f"{rows} expected): its data, model or code has changed; run the study again"
            )
        return task

    def _load(self, label: str, shard: tuple[int, int] | None = None) -> Task:
        planned = self.plan.task(label)
        return load_task(
            planned.choice,
            rows=planned.rows,
            threads=self.plan.threads,
            device=self.plan.device,
            allow_code=self.context.allow_code,
            shard=shard,
        )

    def _explainer(self, job: Job) -> Explainer:
        assert job.explainer is not None
        return make_explainer(self.plan.explainer(job.explainer).choice, self.context.allow_code)

    def _map(self, job: Job) -> Explanation:
        """The explanation a cell rests on: in hand, in the folder, or made again if it is gone."""
        assert job.explainer is not None
        address = job.needs[-1]
        if address in self._explanations:
            return self._explanations[address]
        try:
            return self._remember(address, read_map(self.folder, address, job.samples))
        except (FormatError, FileNotFoundError) as error:
            if isinstance(error, FormatError):
                warnings.warn(f"{error}; it is made again", VeridicalWarning, stacklevel=2)
            seed = job.seed if self.plan.task(job.task).draws[job.explainer] else 0
            return self._explained(job, address, seed)

    def _explained(self, job: Job, address: str, seed: int) -> Explanation:
        explanation = self._explainer(job)(self.task(job), Key(seed))
        with tempfile.TemporaryDirectory() as where:
            path = explanation.save(Path(where) / "map.safetensors", address)
            self.folder.write(f"{EXPLANATIONS}/{address}.safetensors", path.read_bytes())
        return self._remember(address, explanation)

    def _remember(self, address: str, explanation: Explanation) -> Explanation:
        while len(self._explanations) >= KEPT_EXPLANATIONS:
            self._explanations.pop(next(iter(self._explanations)))
        self._explanations[address] = explanation
        return explanation


def _let_go(task: Task) -> None:
    """Free the rows of a task now: it points at itself, and would wait for the garbage collector."""
    vars(task).clear()
