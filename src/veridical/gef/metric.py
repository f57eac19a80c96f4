"""GEF: does the explanation move as the model moves, under weight noise?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers import Explainer
from veridical.functional import has_spread, partial_rank_correlation, pearson, spearman
from veridical.gef.distortion import Distance, Form, Moved, RunningReference, Setting, arc, fast, jacobian
from veridical.gef.path import NoisePath, Rule, find_path
from veridical.gef.worlds import Perturbation
from veridical.metrics.base import ExplainerMetric, Outcome, register
from veridical.rng import Key
from veridical.scores import Curve, Direction
from veridical.task import Task

BLOCK_BYTES = 2**28
ZERO = 1e-6
WEAK_FIT = 0.1


def gef_score(
    model: Tensor, explanation: Tensor, correlation: Callable[[Tensor, Tensor], Tensor] = spearman
) -> tuple[Tensor, Tensor, Tensor]:
    """Correlate distortions (N, M, Z) over levels, then average over draws: scores, degenerate, empty.

    A draw whose explanation does not move scores 0 and is degenerate (Corollary 1); one whose model does not
    move is left out; a sample with no draw left is empty and NaN.
    """
    still = ~has_spread(explanation)
    unmoved = ~has_spread(model)
    each = torch.where(still, 0.0, correlation(model, explanation))
    kept = ~unmoved
    total = torch.where(kept, each, 0.0).sum(-1)
    count = kept.sum(-1)
    score = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
    return score, (still & kept).any(-1), count == 0


@register
@dataclass(frozen=True)
class GEF(ExplainerMetric):
    """Generalised explanation faithfulness: rank correlation of how far model and explanation move.

    q = mean over `draws` of Spearman(d_f, d_phi) over `levels` of weight noise theta * N(1, sigma^2), from
    nearly none to where the predictions agree by chance. `form` says how the explanation's movement is
    measured: `fast` (Fast-GEF), `reference` (as the authors programmed GEF), `jacobian` (the pulled-back
    energy), `arc` (the length of the explanation's own path).
    The score of a perfect explanation is not 1: read it beside `details["ceiling"]`, rho(sigma, d_f).
    """

    form: Form = "fast"
    levels: int = 5
    draws: int = 5
    steps: int = 5
    output_draws: int = 5
    output_noise: float = 1e-3
    distance: Distance = "euclidean"
    model_distance: Literal["logit", "outputs"] = "logit"
    correlation: Literal["spearman", "pearson"] = "spearman"
    normalise: bool = True
    mean_then_correlate: bool = False
    same_direction: bool = False
    perturb: Perturbation = "weights"
    path: tuple[float, ...] | Rule = "isotonic"
    name: ClassVar[str] = "gef"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the explanation move as the model moves, under weight noise?"
    assumes: ClassVar[str] = "a faithful explanation changes when, and as much as, the model's answer does"
    misleads: ClassVar[str] = (
        "as an absolute number: its ceiling is below 1, and both distances grow with noise"
    )
    paper: ClassVar[str] = "Generalised Explanation Faithfulness; Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "weights"})

    def __post_init__(self) -> None:
        choices = {
            "form": ("fast", "reference", "jacobian", "arc"),
            "distance": ("euclidean", "cosine"),
            "model_distance": ("logit", "outputs"),
            "correlation": ("spearman", "pearson"),
            "perturb": ("weights", "input"),
        }
        for what, known in choices.items():
            if getattr(self, what) not in known:
                raise InputError(f"{what} is one of {', '.join(known)}; got {getattr(self, what)!r}")
        for what in ("draws", "steps", "output_draws"):
            if getattr(self, what) < 1:
                raise InputError(f"{what} must be at least 1, got {getattr(self, what)}")
        if len(self.path if isinstance(self.path, tuple) else range(self.levels)) < 3:
            raise InputError("a correlation over levels needs at least 3 of them")
        if self.same_direction and self.form == "reference":
            raise InputError(
                "same_direction scales one draw over the levels; 'reference' draws anew at each step"
            )

    def why_not(self, task: Task) -> str | None:
        if self.perturb == "input" and task.predictor.differentiable:
            return None
        return super().why_not(task)

    def noise_path(self, task: Task, key: Key = Key(0)) -> NoisePath:  # noqa: B008 (frozen)
        """The path of this task, found once and shared by all explainers; its cost is counted apart."""
        if isinstance(self.path, tuple):
            return NoisePath.given(self.path)
        rule: Rule = self.path
        label = f"gef path {self.levels} {rule} {self.perturb} {key.seed}"
        root = Key(key.seed)

        def search() -> NoisePath:
            path: NoisePath = task.uncounted(
                lambda: find_path(task, self.levels, rule, self.perturb, key=root)
            )
            return path

        found: NoisePath = task.calibrated(label, search)
        return found

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        path = self.noise_path(task, key)
        model, explanation, fits, spans = self._distortions(task, explainer, path, key)
        smallest = ZERO * math.sqrt(task.space.n_features)
        still = explanation <= (smallest if self.form in ("fast", "arc") else smallest**2)
        if self.form == "reference":
            still = explanation <= smallest**4
        explanation = torch.where(still, 0.0, explanation)
        return self._outcome(path, model, explanation, fits, spans)

    def _outcome(
        self, path: NoisePath, model: Tensor, explanation: Tensor, fits: Tensor | None, spans: Tensor | None
    ) -> Outcome:
        judged_model, judged = model, explanation
        if self.mean_then_correlate:
            judged_model, judged = model.mean(1, keepdim=True), explanation.mean(1, keepdim=True)
        correlate = spearman if self.correlation == "spearman" else pearson
        score, degenerate, empty = gef_score(judged_model, judged, correlate)
        sigma = torch.tensor(path.levels, dtype=torch.float64, device=model.device).expand(model.shape)
        details = {
            "ceiling": spearman(sigma, model).nanmean(-1),
            "rho_sigma_explanation": spearman(sigma, explanation).nanmean(-1),
            "partial": partial_rank_correlation(model, explanation, sigma).nanmean(-1),
            "model_distortion": model,
            "explanation_distortion": explanation,
        }
        flags = {
            "the explanation does not move": degenerate,
            "the model does not move": empty,
        }
        if fits is not None and spans is not None:
            details |= {"fit": fits, "in_span": spans}
            flags[f"outputs explain the map poorly (R2 < {WEAK_FIT})"] = ~(fits >= WEAK_FIT)
        curve = Curve(
            torch.tensor(path.levels, dtype=torch.float64),
            explanation.mean(1),
            "weight noise sigma" if self.perturb == "weights" else "input noise sigma",
            "explanation distortion",
        )
        return Outcome(score, flags, curve, details, {"path": path.to_json()})

    def _distortions(
        self, task: Task, explainer: Explainer, path: NoisePath, key: Key
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Distortions (N, M, Z), some samples at a time so that memory does not grow with their number."""
        size = max(1, BLOCK_BYTES // (8 * task.space.n_features * (8 if self.form == "jacobian" else 3)))
        parts = [
            self._block(task[at : at + size] if size < len(task) else task, explainer, path, key)
            for at in range(0, len(task), size)
        ]
        model = torch.cat([part[0] for part in parts])
        explanation = torch.cat([part[1] for part in parts])
        if self.form != "jacobian":
            return model, explanation, None, None
        return model, explanation, torch.cat([p[2] for p in parts]), torch.cat([p[3] for p in parts])

    def _block(self, task: Task, explainer: Explainer, path: NoisePath, key: Key) -> tuple[Tensor, ...]:
        setting = Setting(
            task,
            explainer,
            key,
            self.distance,
            self.model_distance,
            self.normalise,
            self.same_direction,
            self.perturb,
            self.steps,
            self.output_draws,
            self.output_noise,
        )
        forms = {"fast": fast, "arc": arc, "jacobian": jacobian}
        measure = forms.get(self.form) or RunningReference()
        clean = setting.explain(task, "clean")
        rows: list[list[Moved]] = [
            [measure(setting, sigma, draw, z, clean) for z, sigma in enumerate(path.levels)]
            for draw in range(self.draws)
        ]

        def table(read: Callable[[Moved], Tensor]) -> Tensor:
            return torch.stack([torch.stack([read(cell) for cell in row], -1) for row in rows], 1)

        model, explanation = table(lambda cell: cell.model), table(lambda cell: cell.explanation)
        if self.form != "jacobian":
            return model, explanation
        fits, spans = table(lambda cell: _known(cell.fit)), table(lambda cell: _known(cell.in_span))
        return model, explanation, fits.nanmean((1, 2)), spans.nanmean((1, 2))


def _known(value: Tensor | None) -> Tensor:
    if value is None:
        raise InputError("this form has no fit to report")
    return value


def FastGEF(**settings: object) -> GEF:  # noqa: N802 (reads as the class it makes)
    """GEF in its fast form (Fast-GEF)."""
    return GEF(**{"form": "fast", **settings})  # type: ignore[arg-type]
