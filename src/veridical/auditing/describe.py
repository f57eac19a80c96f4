"""What describes a method and decides nothing: how its maps move with the model, the input, the class."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import replace

from veridical.auditing.effort import Effort
from veridical.auditing.evidence import Test
from veridical.auditing.jobs import Job
from veridical.auditing.panel import Judges
from veridical.auditing.race import Race
from veridical.auditing.swap import marks
from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers import registry as explainer_registry
from veridical.explainers.transforms import OtherClass, Shuffled
from veridical.gef import GEF, NoisePath
from veridical.metrics import ExplainerMetric
from veridical.perturb.shared_work import sharing
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.scores import Scores


def describe(
    race: Race, judges: Judges, table: Evaluation, effort: Effort, seed: int
) -> tuple[Evaluation, NoisePath | None]:
    """Score what describes, on the samples of the first look; methods with dear maps are left out of it."""
    task = race.first_look
    scores, failures = dict(table.scores), list(table.failures)
    cheap = {
        r.label: r.explainer
        for r in (*race.runners.values(), *race.controls.values())
        if r.asked.forward <= effort.gef_rows and r.done[0].explanation is not None
    }
    path = None

    def keep(who: str, what: str, found: Scores | Exception) -> None:
        if isinstance(found, Scores):
            scores[who, what] = found
            if what == "gef_iso":  # the same worlds give both numbers
                own = found.details["q"]
                scores[who, "gef"] = replace(found, values=own, metric="gef", details={}, curve=None)
            return
        told = "".join(traceback.format_exception(found))
        failures.append(Failure(who, what, str(found), told))
        warnings.warn(f"metric '{what}' on '{who}' failed: {found}", VeridicalWarning, stacklevel=4)

    with sharing(task):
        for label, (_, metric) in judges.describing.items():
            if isinstance(metric, GEF):
                path = metric.noise_path(task, Key(seed), effort.search_draws)
            if isinstance(metric, ExplainerMetric):
                for who, found in metric.score_all(task, cheap, Key(seed)).items():
                    keep(who, label, found)
                continue
            for who, maps in table.explanations.items():
                try:
                    few = maps.take(slice(0, len(task)))
                    keep(who, label, metric(task, few, Key(seed)))  # type: ignore[operator]
                except Exception as error:
                    keep(who, label, error)
    order = [*race.runners, *race.controls]
    in_order = {cell: scores[cell] for who in order for cell in scores if cell[0] == who}
    return replace(table, scores=in_order, failures=failures), path


def beside(race: Race, best: str, seed: int) -> tuple[Test, ...]:
    """How the chosen method does against maps that metrics could mistake for good ones."""
    runner, task = race.runners[best], race.first_look
    rivals: dict[str, Explainer] = {
        "its values in other places": Shuffled(runner.explainer),
        "its maps of another class": OtherClass(runner.explainer),
        "noise that moves with the outputs": explainer_registry.make("moving_noise"),
    }
    metrics = {label: race.judges.removal[label] for label in race.heard_labels}
    rules, found = race.rules(), []
    with sharing(task):
        for name, explainer in rivals.items():
            if explainer.why_not(task) is not None:
                continue
            job = Job(best, explainer, metrics, task, task, f"beside: {name}")
            done = race.job_runner.do([job], f"beside: {name}")
            theirs = marks(done, [len(task)], race.judges.removal)
            own = runner.marks(race.judges.removal).first(len(task))
            found.append(Test.of("beside", name, rules.removal_units(own, [theirs])))
    return tuple(found)
