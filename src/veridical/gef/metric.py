"""GEF: does the explanation move as the model moves, under weight noise?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Count, NotNegative, Positive
from veridical.core.key import Key
from veridical.errors import InputError, warn
from veridical.explainers import Explainer
from veridical.functional import has_spread, partial_rank_correlation, pearson, spearman
from veridical.gef.forms import FORMS, Form, Run
from veridical.gef.map_checks import MapChecks, check_maps
from veridical.gef.noise_path import NoisePath, Rule, find_path
from veridical.gef.perturbation_log import log_of_score
from veridical.gef.perturbed_model import Perturbation, PerturbedModels
from veridical.metrics.base import CONSTANT, ExplainerMetric, Outcome, register
from veridical.models.context import Context, Memo
from veridical.models.cost import Cost
from veridical.models.embeddings import embedding_layer
from veridical.models.plan import memory_budget
from veridical.models.weights import Noise, NoiseSource
from veridical.values.scores import BY_DRAW, Curve, Direction, Scores
from veridical.values.task import Task

Distance = Literal["euclidean", "cosine"] | Callable[[Tensor, Tensor], Tensor]
Correlation = Literal["spearman", "pearson"] | Callable[[Tensor, Tensor], Tensor]
ModelDistance = Literal["logit", "outputs"]
MIN_LEVELS = 2
"""Levels that a correlation needs; of two it is 1 or -1."""
KNOWN_LEVELS = 3
"""Levels with an explanation that a draw needs where the path has as many."""
ZERO = 1e-6
"""Of the length of a map: a smaller movement is none."""
WEAK_FIT = 0.1
"""R^2 below which outputs are said to explain the map poorly (the jacobian form)."""
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
BLOCK_BYTES = 2**22
"""Bytes of maps held at once for each MiB that a chunk's activations may take on the device."""
UNUSED_WEIGHTS = (
    "weight noise changes no output of this model: its forward pass does not use the parameters that torch "
    "lists for it"
)


@register
@dataclass(frozen=True)
class GEF(ExplainerMetric):
    """Generalised explanation faithfulness: rank correlation of how far model and explanation move.

    q = mean over `draws` of Spearman(d_f, d_phi) over `levels` of weight noise theta * N(1, sigma^2), from
    nearly none to where the predictions agree by chance. `form` says how the explanation's movement is
    measured on the way to a level: `reference` (as the authors programmed GEF), `jacobian` (the pulled-back
    energy), `arc` (the length of the explanation's own path). `FastGEF` compares the two ends alone.
    The score of a perfect explanation is not 1: read it beside `details["ceiling"]`, rho(sigma, d_f).
    """

    form: Form = "reference"
    """How the explanation's movement is measured."""
    levels: Count = 5
    """Noise levels, Z."""
    draws: Count = 5
    """Noisy models at each level, M."""
    steps: Count = 5
    """Steps on the way to a level, T (`arc`, `jacobian`, `reference`)."""
    output_draws: Count = 5
    """Copies of each model, K: with noise on its outputs (`reference`) or around it (`jacobian`)."""
    output_noise: NotNegative = 1e-3
    """Standard deviation of that noise."""
    distance: Distance = "euclidean"
    """Between two maps; cosine is for sparse codes, and a function takes two sets of maps (N, V)."""
    model_distance: ModelDistance = "logit"
    """How far the model moved: at the explained output, or over all outputs."""
    correlation: Correlation = "spearman"
    """Of the two distortions over the levels; a function takes two sets of rows (R, Z), and gives (R,)."""
    normalise: bool = True
    """Whether maps are divided by their root mean square before they are compared."""
    mean_then_correlate: bool = False
    """Average the distortions over draws first, as in the proof for linear models (A.1.3)."""
    same_direction: bool = False
    """Scale one draw of noise over all levels; a variant, not comparable with the papers."""
    perturb: Perturbation = "weights"
    """What gets the noise."""
    path: tuple[Positive, ...] | Rule = "fitted"
    """The rule by which the noise levels are found, or the levels themselves, rising."""
    name: ClassVar[str] = "gef"
    version: ClassVar[int] = 5
    forms: ClassVar[tuple[str, ...]] = ("reference", "jacobian", "arc")
    keyed_as: ClassVar[str] = "gef"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the explanation move as the model moves, on the way to weight noise?"
    assumes: ClassVar[str] = "a faithful explanation changes when, and as much as, the model's answer does"
    misleads: ClassVar[str] = (
        "as an absolute number: its ceiling is below 1, and both distances grow with noise"
    )
    paper: ClassVar[str] = "Generalised Explanation Faithfulness; equations 11 to 19"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "weights"})
    takes_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.form not in self.forms:
            raise InputError(
                f"{type(self).__name__}: form is one of {', '.join(map(repr, self.forms))}, "
                f"got {self.form!r}; 'fast' is that of FastGEF ('fast_gef'), others are those of GEF ('gef')"
            )
        if not isinstance(self.path, str):
            try:
                levels = tuple(float(level) for level in self.path)
            except (TypeError, ValueError):
                raise InputError(f"a path holds numbers, as (0.1, 0.5, 1.0), got {self.path!r}") from None
            object.__setattr__(self, "path", NoisePath.given(levels).levels)
        if len(self.path if isinstance(self.path, tuple) else range(self.levels)) < MIN_LEVELS:
            raise InputError(f"a correlation over levels needs at least {MIN_LEVELS} of them")
        if self.same_direction and self.form == "reference":
            raise InputError(
                "same_direction scales one draw over the levels; 'reference' draws anew at each step"
            )

    def inapplicable_reason(self, task: Task) -> str | None:
        if self.perturb == "weights":
            return super().inapplicable_reason(task)
        if task.members is not None:
            return "noise on inputs does not reach the picture of a class; use perturb='weights'"
        if not task.inputs.is_floating_point() and embedding_layer(task.predictor.model) is None:
            return "noise cannot be added to whole numbers and the model has no embedding layer"
        return None

    def noise_path(self, task: Task, key: Key = Key(0), draws: int = 800) -> NoisePath:  # noqa: B008 (frozen)
        """The path of this task, found once and shared by all explainers; a score alone counts its rows.

        At most `draws` perturbed models are asked; the path is then the task's, whoever asks.
        """
        if isinstance(self.path, tuple):
            return NoisePath.given(self.path)
        rule: Rule = self.path
        label = f"gef path {self.levels} {rule} {self.perturb} {key.seed}"
        if label not in task.estimates:
            task.estimates[label] = task.uncounted(
                lambda: find_path(task, self.levels, rule, self.perturb, draws, Key(key.seed))
            )
        path: NoisePath = task.estimates[label]
        return path

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        # a score rests on its path, whoever searched it: its cost does not depend on who came first
        task.predictor.meter.add(self.basis(task, context.key))
        (found,) = self._outcomes(task, ExplainerGroup({self.name: explainer}), context.key).values()
        if isinstance(found, Exception):
            raise found
        return found

    def basis(self, task: Task, key: Key) -> Cost:
        return Cost(self.noise_path(task, key).rows)

    def score_all(
        self,
        task: Task,
        explainers: Mapping[str, Explainer],
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> dict[str, Scores | Exception]:
        """Score several explainers on the same perturbed models, each drawn and evaluated once for all.

        The rows of a noise path that was searched are in no single cost here, but in each one's provenance.

        Parameters
        ----------
        task : Task
            What is explained.
        explainers : mapping from str to Explainer
            The explainers by label.
        key : Key
            Decides all draws.
        memo : Memo, optional
            What a larger call has computed so far.

        Returns
        -------
        dict from str to Scores or Exception
            The scores by label, or what an explainer raised.
        """
        self.check(task)
        group = ExplainerGroup(explainers)
        for who in group:
            with group.working(who, task):
                explainers[who].check(task)
        context = Context.begun(task.predictor, key / (self.keyed_as or self.name), memo)
        outcomes = self._outcomes(task, group, context.key)
        out: dict[str, Scores | Exception] = {}
        for who, explainer in explainers.items():
            found = outcomes[who]
            if isinstance(found, Exception):
                out[who] = found
                continue
            scores = self._scores(task, found, explainer.name, key, context, explainer.to_json())
            out[who] = replace(scores, cost=group.costs[who])
        return out

    def _outcomes(self, task: Task, group: ExplainerGroup, key: Key) -> dict[str, Outcome | Exception]:
        path = self.noise_path(task, key)
        # under input noise tokens move at their embeddings, so the unperturbed map is made there too
        where = task if self.perturb == "weights" else task.at_embeddings()
        distortions = self._distortions(where, group, path, key)
        out: dict[str, Outcome | Exception] = dict(group.errors)
        for who, found in distortions.items():
            if self.perturb == "weights" and not bool(found.model.any()):
                warn(UNUSED_WEIGHTS)
            outcome = self._outcome(path, found)
            log = log_of_score(task, found.model, found.checks, self.perturb == "weights")
            flags = {CONSTANT: found.constant, **outcome.flags}
            out[who] = replace(outcome, flags=flags, notes={**outcome.notes, "perturbation_log": log})
        return out

    def _distortions(
        self, task: Task, group: ExplainerGroup, path: NoisePath, key: Key
    ) -> dict[str, Distortions]:
        """Distortions of each explainer, some samples at a time: memory does not grow with their number."""
        widths = [group.explainers[who]._space_of(task).n_features for who in group]
        # of all the clean maps and those that wait, and what one explainer works on
        maps = 2 * sum(widths) + (7 if self.form == "jacobian" else 2) * max(widths, default=0)
        size = max(1, BLOCK_BYTES * memory_budget(task.device) // (8 * max(1, maps)))
        noise: Callable[[Key], Noise] | None = None
        if self.perturb == "weights":
            noise = NoiseSource(task.predictor.source.module)
        runs: dict[str, list[Run]] = {who: [] for who in group}
        checks = {}
        for who in group:
            with group.working(who, task):
                checks[who] = check_maps(task, group.explainers[who], key / "explainer")
        for at in range(0, len(task), size):
            block = task if size >= len(task) else task[at : at + size]
            models = PerturbedModels(block, self.perturb, noise)
            for who in group:
                with group.working(who, task):
                    own = Run(self, block, group.explainers[who], key, path.sigma_max, models, checks[who])
                    runs[who].append(own)
            for draw in range(self.draws):
                levels = self._levels(path, draw)
                for level, sigma in enumerate(levels):
                    for who in group:
                        with group.working(who, task):
                            own = runs[who][-1]
                            own.sigma_max = levels[-1]
                            own.moved.append(FORMS[self.form](own, sigma, draw, level))
        for who in group:
            with group.working(who, task):
                for own in runs[who]:
                    own.check_finite()
        return {who: Distortions.of(runs[who]) for who in group}

    def _levels(self, path: NoisePath, draw: int) -> tuple[float, ...]:
        """The noise levels of one draw."""
        return path.of_draw(draw, self.draws)

    def correlate(self, x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
        """The correlation of two distortions (..., Z) over the levels that count."""
        if isinstance(self.correlation, str):
            return CORRELATIONS[self.correlation](x, y, where)
        if where is None or bool(where.all()):
            return self.correlation(x.flatten(0, -2), y.flatten(0, -2)).reshape(x.shape[:-1]).double()
        rows = zip(x.flatten(0, -2), y.flatten(0, -2), where.flatten(0, -2), strict=True)
        each = [self.correlation(a[kept][None], b[kept][None]).reshape(()).double() for a, b, kept in rows]
        return torch.stack(each).reshape(x.shape[:-1])

    def _nothing(self, size: Tensor) -> Tensor:
        """What counts as no movement for a map of this length: 1e-6 of it, as each form measures."""
        if not isinstance(self.distance, str):
            return torch.zeros_like(size)  # in units that nobody knows
        if self.form in ("fast", "arc") and self.distance == "cosine":
            return torch.full_like(size, ZERO**2 / 2)
        return (ZERO * size) ** {"fast": 1, "arc": 1, "jacobian": 2, "reference": 4}[self.form]

    def _outcome(self, path: NoisePath, found: Distortions) -> Outcome:
        """Scores with their ceiling, flags, curve and details."""
        nothing = self._nothing(found.size)[:, None, None]
        model, explanation = found.model, torch.where(found.explanation <= nothing, 0.0, found.explanation)
        finite = model.isfinite().all(-1, keepdim=True)
        model, explanation = (torch.where(finite, each, torch.nan) for each in (model, explanation))
        compared = model, explanation
        if self.mean_then_correlate:
            compared = model.nanmean(1, keepdim=True), explanation.nanmean(1, keepdim=True)
        score, degenerate, empty = gef_score(*compared, self.correlate)
        by_draw = draw_scores(*compared, self.correlate)[0]
        known = ~explanation.isnan()
        overflown = ~finite[..., 0].any(-1)
        few = min(KNOWN_LEVELS, model.shape[-1])
        lost = ((~compared[1].isnan()).sum(-1) < few).all(-1) & ~overflown
        sigma = torch.tensor(path.levels, dtype=torch.float64, device=model.device).expand(model.shape)
        partial = partial_rank_correlation(model, explanation, sigma, known)
        details = {
            "ceiling": spearman(sigma, model).nanmean(-1),
            "rho_sigma_explanation": spearman(sigma, explanation, known).nanmean(-1),
            "partial": partial.nanmean(-1),
            "partial_draws": (~partial.isnan()).sum(-1),
            "draws": finite[..., 0].sum(-1),
            BY_DRAW: by_draw,
            "maps_missing": (~known & finite).sum((1, 2)),
            "model_distortion": model,
            "explanation_distortion": explanation,
        }
        there = ~compared[1].isnan()
        flat = ~has_spread(compared[1], there) & (there.sum(-1) >= few) & degenerate[:, None]
        moved = compared[1].nan_to_num().amax(-1) > 0
        flags = {
            "the explanation does not move": (flat & ~moved).any(-1),
            "the explanation moves as far at every level": (flat & moved).any(-1),
            "the model does not move": empty & ~lost & ~overflown,
            "no explanation": lost,
            "no explanation at some levels": (~known & finite).any(-1).any(-1) & ~lost,
            "answers are not finite": overflown,
            "draws dropped: answers are not finite": ~finite.all(1)[..., 0] & ~overflown,
            "the map is mostly rounding: float64 gives another": found.checks.rounding,
            "the same call gives another map": torch.full_like(lost, not found.checks.repeats),
        }
        if found.fit is not None and found.in_span is not None:
            details |= {"fit": found.fit, "in_span": found.in_span}
            flags[f"outputs explain the map poorly (R2 < {WEAK_FIT})"] = ~(found.fit >= WEAK_FIT)
        levels = torch.tensor(path.levels, dtype=torch.float64)
        noise = "weight noise sigma" if self.perturb == "weights" else "input noise sigma"
        curve = Curve(levels, explanation.nanmean(1), noise, "explanation distortion")
        return Outcome(score, flags, curve, details, {"path": path.to_json()})


@register
@dataclass(frozen=True)
class FastGEF(GEF):
    """Fast-GEF: the explanation's movement is the distance between its maps at the two ends (equation 6).

    It asks one explanation a noisy model, where `GEF` asks `steps` of them; the noisy models are the same.
    """

    form: Form = "fast"
    """How the explanation's movement is measured."""
    name: ClassVar[str] = "fast_gef"
    version: ClassVar[int] = 4
    forms: ClassVar[tuple[str, ...]] = ("fast",)
    summary: ClassVar[str] = "Does the explanation move as the model moves, under weight noise?"
    paper: ClassVar[str] = "Generalised Explanation Faithfulness; Algorithm 1"


def gef_score(
    model: Tensor, explanation: Tensor, correlation: Callable[..., Tensor] = spearman
) -> tuple[Tensor, Tensor, Tensor]:
    """Correlate distortions over levels, then average over draws.

    A draw whose explanation does not move scores 0 and is degenerate (Corollary 1); one whose model does not
    move, or gives an output that is not finite, is left out; a sample with no draw left is empty and NaN.
    Levels without an explanation (NaN) are passed over, and a draw with fewer than three others is left out.

    Parameters
    ----------
    model : Tensor
        How far the model moved (N, draws, levels).
    explanation : Tensor
        How far the explanation moved (N, draws, levels).
    correlation : callable
        Rank correlation along the last axis, as `veridical.functional.spearman`.

    Returns
    -------
    tuple of Tensor
        Scores, whether a draw is degenerate, and whether no draw is left, each (N,).
    """
    each, still = draw_scores(model, explanation, correlation)
    kept = ~each.isnan()
    return each.nanmean(-1), (still & kept).any(-1), ~kept.any(-1)


def draw_scores(
    model: Tensor, explanation: Tensor, correlation: Callable[..., Tensor] = spearman
) -> tuple[Tensor, Tensor]:
    """What each draw gives (N, draws), NaN where it is left out, and where the explanation did not move."""
    known = ~explanation.isnan() & model.isfinite().all(-1, keepdim=True)
    enough = known.sum(-1) >= min(KNOWN_LEVELS, explanation.shape[-1])
    still = ~has_spread(explanation, known) & enough
    kept = has_spread(model, known) & enough
    each = torch.where(still, 0.0, correlation(model, explanation, known))
    return torch.where(kept, each, torch.nan), still


@dataclass(frozen=True, eq=False)
class Distortions:
    """What was found of one explainer along the path."""

    model: Tensor
    """How far the model moved (N, M, Z)."""
    explanation: Tensor
    """How far the explanation moved (N, M, Z)."""
    size: Tensor
    """The length of the unperturbed maps (N,)."""
    constant: Tensor
    """Which of those tell no feature from another (N,)."""
    checks: MapChecks
    """What explaining a few samples again showed."""
    fit: Tensor | None = None
    """R^2 of the fitted response of the map to the outputs (N,), `jacobian` only."""
    in_span: Tensor | None = None
    """The share of the steps in the span of the outputs seen (N,), `jacobian` only."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Distortions:
        """The distortions of runs on some samples after the other."""

        def table(name: str) -> Tensor:
            """What the form found in every cell (N, M, Z)."""
            draws = runs[0].metric.draws
            blocks = [torch.stack([getattr(cell, name) for cell in run.moved]) for run in runs]
            return torch.cat([each.unflatten(0, (draws, -1)).permute(2, 0, 1) for each in blocks])

        fitted = {}
        if runs[0].moved[0].fit is not None:
            fitted = {name: table(name).nanmean((1, 2)) for name in ("fit", "in_span")}
        size, constant = torch.cat([run.sizes for run in runs]), torch.cat([run.constant for run in runs])
        return cls(table("model"), table("explanation"), size, constant, runs[0].checks, **fitted)


@dataclass(eq=False)
class ExplainerGroup:
    """Explainers scored together: one that raises is left out with its error, the others go on."""

    explainers: Mapping[str, Explainer]
    """All explainers by label."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """What those raised that are left out."""
    costs: dict[str, Cost] = field(default_factory=dict)
    """The rows of each one."""

    def __iter__(self) -> Iterator[str]:
        return iter([who for who in self.explainers if who not in self.errors])

    @contextmanager
    def working(self, who: str, task: Task) -> Iterator[None]:
        """Count the rows of this one, and keep its error; rows that serve all are counted with the first."""
        before = task.predictor.meter.cost
        try:
            yield
        except Exception as error:
            self.errors[who] = error
        finally:
            self.costs[who] = self.costs.get(who, Cost()) + (task.predictor.meter.cost - before)
