"""Who is audited and by what: explainers, controls and the metrics that apply to a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from veridical.api import as_metric, labelled
from veridical.auditing.check import Checks
from veridical.auditing.effort import IMPORTANCE_ROWS, Effort
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, VeridicalError, unknown_name
from veridical.explainers import Explainer, as_explainer
from veridical.explainers import registry as explainer_registry
from veridical.explainers.occlusion import PermutationImportance
from veridical.fidelity import FFid, Finetuned, RFid, RobustnessTable, finetune, robustness_table
from veridical.fidelity.finetuning import why_no_finetuning
from veridical.fidelity.robustness import ORIGINAL, TUNED
from veridical.gef.iso_gef import MIN_DRAWS, IsoSigma
from veridical.metrics import AnyMetric, Metric
from veridical.metrics import registry as metric_registry
from veridical.models.predictor import take_side
from veridical.qge import QGE
from veridical.values.task import Task

FAMILIES = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "smoothgrad",
    "gradient_shap",
    "guided_backprop",
    "deeplift",
    "lrp",
    "gradcam",
    "attention_rollout",
    "gradient_x_attention",
    "occlusion",
    "lime",
    "kernel_shap",
    "rise",
    "permutation_importance",
    "tree_shap",
)
"""One explainer per family: what an audit below `thorough` stages at, as far as they apply."""
CONTROLS = ("random", "input_magnitude", "sobel")
"""Maps that know nothing of the model; each has to be beaten."""
CRITERIA = ("removal", "randomisation", "truth")
"""The criteria: all that a task offers must hold."""
DRAWS = 4
"""How often a control that draws is drawn."""


@dataclass(frozen=True)
class Panel:
    """The explainers and controls of an audit by label, and why others were left out."""

    explainers: Mapping[str, Explainer]
    controls: Mapping[str, Explainer]
    skipped: Mapping[str, str]


def choose_explainers(
    task: Task,
    given: Sequence[Any] | Mapping[str, Any] | None,
    effort: Effort,
    controls: Sequence[Any] | Mapping[str, Any] | None = None,
) -> Panel:
    """Those the caller names, or one of every family that applies; and what they must beat."""
    rivals = labelled(CONTROLS if controls is None else controls, as_explainer)
    if controls is None:
        rivals = {name: rival for name, rival in rivals.items() if rival.inapplicable_reason(task) is None}
    for rival in rivals.values():
        rival.check(task)
    offered = explainer_registry if given is None else given
    chosen: dict[str, Explainer] = {}
    skipped: dict[str, str] = {}
    for name, explainer in labelled(offered, as_explainer).items():
        if given is not None:
            explainer.check(task)
            (rivals if explainer.control else chosen)[name] = explainer
        elif not explainer.control:
            reason = explainer.inapplicable_reason(task)
            # of few columns the measured effects take the subsets of exact Shapley values anyway
            staged = name in FAMILIES or (name == "exact_shapley" and task.modality == "table")
            if reason is None and not effort.variants and not staged:
                reason = "a variant of others; it joins at effort 'thorough' or when named"
            if reason is None:
                if effort.coarse and isinstance(explainer, PermutationImportance):
                    explainer = replace(explainer, rows=IMPORTANCE_ROWS)
                chosen[name] = explainer
            else:
                skipped[name] = reason
    rivals = {_own_name(name, chosen): control for name, control in rivals.items()}
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise InputError(f"there is no explainer to audit besides the controls; {reasons}")
    return Panel(chosen, rivals, skipped)


def _own_name(name: str, taken: Mapping[str, Any]) -> str:
    """The control's name, made distinct from an explainer that was given the same."""
    while name in taken:
        name += " (control)"
    return name


def choose_criteria(given: Sequence[str] | None) -> tuple[str, ...]:
    """The criteria that are required, all by default."""
    if given is None:
        return CRITERIA
    given = [given] if isinstance(given, str) else [str(line) for line in given]
    for line in given:
        if line not in CRITERIA:
            raise unknown_name("criterion", line, CRITERIA)
    if "removal" not in given:
        raise InputError(
            "under the criterion 'removal' controls are beaten, and no verdict stands without it; "
            "give criteria=('removal', ...)"
        )
    return tuple(line for line in CRITERIA if line in given)


@dataclass(frozen=True)
class MetricPanel:
    """The metrics of an audit by label: those of each criterion that decide, and those that describe."""

    removal: Mapping[str, Metric]
    truth: Mapping[str, Metric]
    describing: Mapping[str, AnyMetric]
    refused: Mapping[str, str]
    """Why others do not apply here."""

    @property
    def scoring(self) -> dict[str, Metric]:
        """All that score finished maps of the audited model."""
        return {**self.removal, **self.truth}


def choose_metrics(
    task: Task,
    effort: Effort,
    finetuned: Finetuned | None,
    criteria: Sequence[str],
    given: Sequence[Any] | Mapping[str, Any] | None = None,
) -> MetricPanel:
    """The metrics that apply here, and why others do not; `given` ones are those of removal."""
    make = metric_registry.make
    named = {} if given is None else labelled(given, as_metric)
    for metric in named.values():
        metric.check(task)
    removal = {label: metric for label, metric in named.items() if isinstance(metric, Metric)}
    if given is not None and not removal:
        raise InputError(
            "none of these metrics scores finished maps, and the criterion 'removal' needs one that does; "
            "add 'rfid_plus', 'qge:pixel_flipping' or another of vd.list_metrics()"
        )
    truth: dict[str, AnyMetric] = {}
    describing = {label: metric for label, metric in named.items() if label not in removal}
    if task.masks is not None:
        describing["pointing_game"] = make("pointing_game")
        marked = truth if "truth" in criteria else describing
        marked["relevance_rank_accuracy"] = make("relevance_rank_accuracy")
    if effort.describe and effort.gef_draws >= MIN_DRAWS:  # with fewer draws there is nothing to correlate
        describing["gef_iso"] = IsoSigma(draws=effort.gef_draws)
    if effort.describe:
        describing["avg_sensitivity"] = make("avg_sensitivity", draws=effort.noise_draws)
        describing["efficient_mprt"] = make("efficient_mprt")
    describing |= {"sparseness": make("sparseness"), "complexity": make("complexity")}  # of maps at hand
    refused: dict[str, str] = {}

    def applying(metrics: Mapping[str, Any]) -> dict[str, Any]:
        reasons = {label: metric.inapplicable_reason(task) for label, metric in metrics.items()}
        refused.update({label: why for label, why in reasons.items() if why is not None})
        return {label: metric for label, metric in metrics.items() if reasons[label] is None}

    return MetricPanel(
        applying(removal or _removal(task, effort, finetuned)),
        applying(truth),
        applying(describing),
        refused,
    )


def _removal(task: Task, effort: Effort, finetuned: Finetuned | None) -> dict[str, AnyMetric]:
    """What decides by default: F-Fidelity both ways, and QGE of flipping and of faithfulness correlation."""
    settings: dict[str, Any] = {
        "sizes": effort.removal_sizes,
        "draws": effort.removal_draws,
        "variant": "probability",
        "reference": "prediction",
    }
    if finetuned is not None:
        settings |= {"finetuned": finetuned, "beta": finetuned.beta}
    make = metric_registry.make
    name, kind = ("rfid", RFid) if finetuned is None else ("ffid", FFid)
    flipping = make("pixel_flipping", steps=min(effort.flip_steps, task.space.n_features))
    return {
        f"{name}_plus": kind(sign="plus", **settings),
        f"{name}_minus": kind(sign="minus", **settings),
        "qge:pixel_flipping": QGE(flipping),
        "qge:faithfulness_correlation": QGE(make("faithfulness_correlation", runs=effort.subset_runs)),
    }


BETA = 0.1
"""The share of features the fine-tuned model learns to miss, at least one: the published default."""
FINETUNING_RATE = 1e-3
"""Ten times the published rate, at which few epochs leave most models as they were."""


def finetuned_model(
    task: Task,
    train: Any,
    checks: Checks,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
) -> tuple[Finetuned | None, RobustnessTable | None]:
    """The model of removal tests: a fine-tuned one where masks disturb the original and rows are there."""
    reason = _why_the_original(task, train, checks, effort)
    if reason is None:
        rows = _training_rows(task, train, effort.training_rows, seed)
        try:
            made = finetune(
                task,
                **rows,
                beta=BETA,
                epochs=effort.training_epochs,
                rate=FINETUNING_RATE,
                seed=seed,
                progress=progress,
            )
            reason = made.held_out.inapplicable_reason
            if reason is None:
                shares = (0.0, BETA / 2, BETA)
                table = robustness_table(
                    task, made, shares=shares, reference="prediction", seed=seed, progress=progress, **rows
                )
                notes.append(_summary(table))
                return made, table
        except VeridicalError as error:
            reason = f"fine-tuning failed: {error}"
    notes.append(f"F-Fidelity scores with the original model (RFid): {reason}.")
    return None, None


def finetuning_rows(task: Task, train: Any, effort: Effort) -> int:
    """On how many rows a model would be fine-tuned, if masks disturb it."""
    if _why_not_tuned(task, train, effort) is not None:
        return 0
    given = task.train if train is None else train[0] if isinstance(train, tuple) else train
    return min(effort.training_rows, 0 if given is None else len(given))


def _why_the_original(task: Task, train: Any, checks: Checks, effort: Effort) -> str | None:
    """Why F-Fidelity needs or gets no fine-tuned model here."""
    return "masks hardly disturb it" if not checks.masking_hurts else _why_not_tuned(task, train, effort)


def _why_not_tuned(task: Task, train: Any, effort: Effort) -> str | None:
    if task.head in ("regression", "generation"):
        return f"a {task.head} has no right class"
    reason = why_no_finetuning(task, train)
    if reason is not None:
        return f"it cannot be fine-tuned: {reason}"
    return None if effort.training_rows else f"effort '{effort.name}' leaves no time to fine-tune"


def _training_rows(task: Task, train: Any, most: int, seed: int) -> dict[str, Any]:
    """The rows to fine-tune on with their side inputs: all, or as many random ones as the effort affords."""
    given, labels = train if isinstance(train, tuple) else (train, None)
    side: Any = None
    if train is None:
        given, labels, side = task.train, task.train_labels, task.train_side
    if len(given) > most:
        one, key = torch.zeros(1, dtype=torch.int64), Key(seed) / "audit" / "training rows"
        index = keyed.permutation(key, one, 0, len(given))[0, :most]
        given, labels = (
            held[index.to(held.device) if isinstance(held, Tensor) else index.numpy()]
            if held is not None
            else None
            for held in (given, labels)
        )
        side = None if side is None else take_side(side, index.to(task.device))
    return {"train": given if labels is None else (given, labels), "train_side": side}


def _summary(table: RobustnessTable) -> str:
    """What fine-tuning did to the model's robustness to masks."""
    original, tuned = table.accuracy[ORIGINAL], table.accuracy[TUNED]
    lost, back = original[0] - original[-1], tuned[-1] - original[-1]
    words = (
        f"F-Fidelity scores with a model fine-tuned under masks, which wins back {100 * back:.1f} of the "
        f"{100 * lost:.1f} points of agreement that masks cost the original"
    )
    if back < lost / 2:
        return f"{words}: what is left is lost information or too short a training, so read it with reserve."
    return f"{words}."
