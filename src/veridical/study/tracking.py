"""A study in MLflow: a parent run for the study, and a nested run for each task, explainer and metric.

A nested run has the settings of its explainer and metric as parameters, and for every seed, as the step, the
mean score, how many samples have none, and the cost. What was tracked before is found again by its tags, so
tracking a study a second time brings its runs up to date instead of adding others.
"""

from __future__ import annotations

import logging
import math
import platform
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.errors import InputError

if TYPE_CHECKING:
    from veridical.study.events import Event
    from veridical.study.result import Study

log = logging.getLogger("veridical")
PARENT, STUDY, CELL, STATE = "mlflow.parentRunId", "veridical.study", "veridical.cell", "veridical.state"
LONGEST = 500
"""The shortest limit that MLflow has had for the value of a parameter."""


def track(study: Study | str | Path, tracking_uri: str, experiment: str | None = None) -> str:
    """Write a study to an MLflow server, or to a folder or database it can use; the parent run's id.

    The experiment is named after the study unless told otherwise. Nothing global is set: an active run or
    tracking URI of the caller's stays as it is.
    """
    from veridical.study.result import Study as Opened

    client = _client(tracking_uri)
    return _Tracked(client, study if isinstance(study, Opened) else Opened(study), experiment).write()


class MlflowTracker:
    """A watcher that tracks a study when its run has ended; a server that fails never harms the study."""

    def __init__(self, tracking_uri: str, experiment: str | None = None) -> None:
        self.tracking_uri, self.experiment = tracking_uri, experiment
        _client(tracking_uri)  # without mlflow the user hears of it now, not after hours

    def __call__(self, event: Event) -> None:
        if event.what != "finished":
            return
        try:
            track(event.folder, self.tracking_uri, self.experiment)
        except Exception as problem:
            log.warning("the study is computed, but MLflow did not take it: %s", problem)


class _Tracked:
    """One study on its way to one server."""

    def __init__(self, client: Any, study: Study, experiment: str | None) -> None:
        self.client, self.study = client, study
        name = experiment or study.name
        found = client.get_experiment_by_name(name)
        self.experiment = client.create_experiment(name) if found is None else found.experiment_id

    def write(self) -> str:
        """Bring parent and nested runs up to date."""
        from veridical.study.plan import digest_of

        plan, state = self.study.plan, self.study.status()
        parent = self._run(STUDY, digest_of(plan.to_json()), plan.name, {})
        params = {
            "tasks": ", ".join(task.label for task in plan.tasks),
            "explainers": ", ".join(thing.label for thing in plan.explainers),
            "metrics": ", ".join(thing.label for thing in plan.metrics),
            "seeds": ", ".join(map(str, plan.seeds)),
            "threads": plan.threads,
            "device": plan.device or "cpu",
            **{f"version.{name}": version for name, version in _versions().items()},
            **{f"rows.{task.label}": task.rows for task in plan.tasks},
        }
        counts = {"cells": state.cells, "done": state.done, "failed": state.failed, "seconds": state.seconds}
        self._log(parent, params, [(name, float(value), 0) for name, value in counts.items()])
        try:
            self.client.log_text(parent, self.study.folder.read("study.yaml").decode(), "study.yaml")
        except Exception as problem:
            # a server may well have no place for files
            log.warning("MLflow does not keep the study file: %s", problem)
        for labels, cells in self._by_label().items():
            self._write_nested(parent, labels, cells)
        self.client.set_terminated(parent, "FINISHED" if state.complete else "FAILED")
        return parent

    def _write_nested(self, parent: str, labels: tuple[str, str, str], cells: list[Any]) -> None:
        from veridical.study.plan import digest_of

        task, explainer, metric = labels
        plan = self.study.plan
        failed = [f.error for f in self.study.failures if f.name[:3] == labels]
        seconds = self._seconds
        values: list[tuple[str, float, int]] = []
        for name in cells:
            scores = self.study[name]
            cell = {
                "mean": scores.mean(skip_nan=True),
                "undefined": int(scores.values.isnan().sum()),
                "samples": len(scores),
                "forward": scores.cost.forward,
                "backward": scores.cost.backward,
                "seconds": sum(seconds.get(job.address, 0.0) for job in self.study.cells[name]),
            }
            values += [(key, float(value), name.seed) for key, value in cell.items()]
        params = {"task": task, "explainer": explainer, "metric": metric}
        params |= _flat("explainer", plan.explainer(explainer).content)
        params |= _flat("metric", plan.metric(metric).content)
        state = digest_of([params, sorted(values, key=str), failed])
        tags = {PARENT: parent, "veridical.values.task": task}
        run = self._run(CELL, digest_of([parent, *labels]), " / ".join(labels), tags, state)
        if run is None:
            return
        self._log(run, params, values)
        if failed:
            self.client.set_tag(run, "veridical.error", failed[0][:LONGEST])
        self.client.set_tag(run, STATE, state)
        self.client.set_terminated(run, "FAILED" if failed else "FINISHED")

    # --- runs ---------------------------------------------------------------------------------------

    def _run(
        self, tag: str, digest: str, name: str, tags: Mapping[str, str], state: str | None = None
    ) -> Any:
        """The run that bears a tag, made if there is none; None if it is already in the given state."""
        query = f"tags.`{tag}` = '{digest}'"
        found = self.client.search_runs([self.experiment], query, max_results=1)
        if not found:
            made = self.client.create_run(self.experiment, tags={**tags, tag: digest}, run_name=name)
            return made.info.run_id
        if state is not None and found[0].data.tags.get(STATE) == state:
            return None
        run = found[0].info.run_id
        self.client.update_run(run, status="RUNNING")
        return run

    def _log(self, run: str, params: Mapping[str, Any], values: list[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        # a parameter never changes once it is set, so what is there already is left alone
        known = self.client.get_run(run).data.params
        fresh = [Param(_key(key), str(value)[:LONGEST]) for key, value in params.items()]
        fresh = [param for param in fresh if param.key not in known]
        numbers = [Metric(key, value, now, step) for key, value, step in values if not math.isnan(value)]
        for start in range(0, max(len(fresh), 1), 100):
            self.client.log_batch(run, params=fresh[start : start + 100])
        for start in range(0, len(numbers), 1000):
            self.client.log_batch(run, metrics=numbers[start : start + 1000])

    # --- what is written ----------------------------------------------------------------------------

    def _by_label(self) -> dict[tuple[str, str, str], list[Any]]:
        """The cells whose scores are there, seed by seed; also where none is, because all have failed."""
        found: dict[tuple[str, str, str], list[Any]] = {}
        for name in self.study:
            found.setdefault((name.task, name.explainer, name.metric), []).append(name)
        for failure in self.study.failures:
            found.setdefault((failure.name.task, failure.name.explainer, failure.name.metric), [])
        return found

    @property
    def _seconds(self) -> dict[str, float]:
        return {line["address"]: line["seconds"] for line in self.study.timings if "address" in line}


def _client(tracking_uri: str) -> Any:
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise InputError("tracking a study needs MLflow: pip install 'veridical[mlflow]'") from None
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def _versions() -> dict[str, str]:
    import torch

    from veridical._version import __version__

    return {"veridical": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _key(name: str) -> str:
    """MLflow takes letters, digits and a few signs in the name of a parameter."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def _flat(prefix: str, content: Mapping[str, Any]) -> dict[str, str]:
    return dict(_leaves(prefix, content))


def _leaves(prefix: str, content: Any) -> Iterator[tuple[str, str]]:
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _leaves(f"{prefix}.{key}", value)
    else:
        yield prefix, str(content)
