"""Who is audited and who judges: explainers, controls and metrics that apply to a task, by effort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veridical.api import labelled
from veridical.audit.effort import Effort
from veridical.errors import InputError
from veridical.explainers import Explainer, as_explainer
from veridical.explainers import registry as explainer_registry
from veridical.fidelity import FFid, Finetuned, RFid
from veridical.gef import GEF
from veridical.metrics import AnyMetric
from veridical.metrics import registry as metric_registry
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
)
"""One explainer per family: what an audit below `thorough` looks at, as far as they apply."""
CONTROLS = ("random", "sobel")
DECIDING = frozenset({"GEF", "F-Fidelity", "QGE"})
"""The systems that measure faithfulness, and so decide; all others describe."""


@dataclass(frozen=True)
class Panel:
    """The explainers and controls of an audit by label, and why others were left out."""

    explainers: Mapping[str, Explainer]
    controls: Mapping[str, Explainer]
    skipped: Mapping[str, str]


def choose_explainers(task: Task, given: Sequence[Any] | Mapping[str, Any] | None, effort: Effort) -> Panel:
    """Those the caller names, or every applicable one that the effort can afford; controls always join."""
    skipped: dict[str, str] = {}
    controls = {name: explainer_registry.make(name) for name in CONTROLS}
    controls = {name: control for name, control in controls.items() if control.why_not(task) is None}
    if given is not None:
        named = labelled(given, as_explainer)
        for label, explainer in named.items():
            explainer.check(task)
            if explainer.control:
                controls[label] = explainer
        chosen = {label: explainer for label, explainer in named.items() if not explainer.control}
    else:
        chosen = {}
        for name in explainer_registry:
            explainer = explainer_registry.make(name)
            reason = None if explainer.control else _left_out(explainer, task, effort)
            if reason is not None:
                skipped[name] = reason
            elif not explainer.control:
                chosen[name] = explainer
    controls = {_own_name(name, chosen): control for name, control in controls.items()}
    if not chosen:
        raise InputError(
            "there is no explainer to audit besides the controls; "
            + "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        )
    return Panel(chosen, controls, skipped)


def _own_name(name: str, taken: Mapping[str, Any]) -> str:
    """The control's name, told apart from an explainer that was given the same."""
    while name in taken:
        name += " (control)"
    return name


def _left_out(explainer: Explainer, task: Task, effort: Effort) -> str | None:
    reason = explainer.why_not(task)
    if reason is not None:
        return reason
    if not effort.variants and explainer.name not in FAMILIES:
        return f"a variant of others; it joins at effort 'thorough' or when named (effort is '{effort.name}')"
    rows = rows_of(explainer, task)
    if rows > effort.dearest:
        return (
            f"one map asks the model {rows:,} rows, more than the {effort.dearest:,} that effort "
            f"'{effort.name}' affords; name it in explainers= to have it"
        )
    return None


def rows_of(explainer: Explainer, task: Task) -> int:
    """Rows that one map asks; those of occlusion and ablation come from the features."""
    counted = explainer.rows_per_sample(task)
    if explainer.name in ("occlusion", "feature_ablation"):
        counted = max(counted, task.space.n_features)
    return counted


@dataclass(frozen=True)
class Seat:
    """A metric on the panel of judges: its system, and whether it decides."""

    metric: AnyMetric
    system: str

    @property
    def decides(self) -> bool:
        return self.system in DECIDING


def choose_judges(
    task: Task, effort: Effort, finetuned: Finetuned | None
) -> tuple[dict[str, Seat], dict[str, str]]:
    """The metrics that judge here by label, and why others cannot."""
    steps = min(effort.flip_steps, task.space.n_features)
    removal: dict[str, Any] = {
        "sizes": effort.removal_sizes,
        "draws": effort.removal_draws,
        "variant": "probability",
        "reference": "prediction",
    }
    wanted: dict[str, tuple[str, Any]] = {"gef": ("GEF", lambda: GEF(draws=effort.gef_draws))}
    for sign in ("plus", "minus"):
        if finetuned is None:
            wanted[f"rfid_{sign}"] = ("F-Fidelity", lambda sign=sign: RFid(sign=sign, **removal))
        else:
            wanted[f"ffid_{sign}"] = (
                "F-Fidelity",
                lambda sign=sign: FFid(sign=sign, finetuned=finetuned, beta=finetuned.beta, **removal),
            )
    wanted |= {
        "qge:pixel_flipping": ("QGE", lambda: QGE(metric_registry.make("pixel_flipping", steps=steps))),
        "qge:faithfulness_correlation": (
            "QGE",
            lambda: QGE(metric_registry.make("faithfulness_correlation", runs=effort.subset_runs)),
        ),
        "avg_sensitivity": (
            "robustness",
            lambda: metric_registry.make("avg_sensitivity", draws=effort.noise_draws),
        ),
        "efficient_mprt": ("randomisation", lambda: metric_registry.make("efficient_mprt")),
        "sparseness": ("complexity", lambda: metric_registry.make("sparseness")),
        "complexity": ("complexity", lambda: metric_registry.make("complexity")),
    }
    if task.masks is not None:
        wanted |= {
            name: ("localisation", lambda name=name: metric_registry.make(name))
            for name in ("relevance_rank_accuracy", "pointing_game")
        }
    seats: dict[str, Seat] = {}
    refused: dict[str, str] = {}
    for label, (system, make) in wanted.items():
        metric = make()
        reason = metric.why_not(task)
        if reason is None:
            seats[label] = Seat(metric, system)
        else:
            refused[label] = reason
    return seats, refused
