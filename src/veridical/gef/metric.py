"""GEF: does the explanation move as the model moves, under weight noise?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Count, NotNegative, Positive
from veridical.core.key import Key
from veridical.errors import InputError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers.first_maps import FirstMaps
from veridical.gef.distortion import Form
from veridical.gef.found import Found
from veridical.gef.noise_path import NoisePath
from veridical.gef.outcome import FEWEST, outcome_of
from veridical.gef.path import Rule, find_path
from veridical.gef.receipt import of_score
from veridical.gef.setting import Distance, ModelDistance
from veridical.gef.shared_worlds import Company
from veridical.gef.walk import Walk
from veridical.gef.worlds import Perturbation
from veridical.metrics.base import CONSTANT, ExplainerMetric, Outcome, register
from veridical.models.cost import Cost
from veridical.models.embeddings import embedding_layer
from veridical.models.sessions import Question
from veridical.values.scores import Direction, Scores
from veridical.values.task import Task

ZERO = 1e-6
"""Of the length of a map: a smaller movement is none."""
DEAF = (
    "weight noise changes no output of this model: its forward pass does not use the parameters that torch "
    "lists for it"
)


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
    """How the explanation's movement is measured."""
    levels: Count = 5
    """Noise levels, Z."""
    draws: Count = 5
    """Noisy models at each level, M."""
    steps: Count = 5
    """Steps on the way to a level, T (`arc`, `jacobian`, `reference`)."""
    output_draws: Count = 5
    """Copies of each model with noise on its outputs, K (`reference`)."""
    output_noise: NotNegative = 1e-3
    """Standard deviation of that noise."""
    distance: Distance = "euclidean"
    """Between two maps; cosine is for sparse codes."""
    model_distance: ModelDistance = "logit"
    """How far the model moved: at the explained output, or over all outputs."""
    correlation: Literal["spearman", "pearson"] = "spearman"
    """Of the two distortions over the levels."""
    normalise: bool = True
    """Whether maps are divided by their root mean square before they are compared."""
    mean_then_correlate: bool = False
    """Average the distortions over draws first, as in the proof for linear models (A.1.3)."""
    same_direction: bool = False
    """Scale one draw of noise over all levels; a variant, not comparable with the papers."""
    perturb: Perturbation = "weights"
    """What gets the noise."""
    path: tuple[Positive, ...] | Rule = "isotonic"
    """The rule by which the noise levels are found, or the levels themselves, rising."""
    name: ClassVar[str] = "gef"
    version: ClassVar[int] = 2
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the explanation move as the model moves, under weight noise?"
    assumes: ClassVar[str] = "a faithful explanation changes when, and as much as, the model's answer does"
    misleads: ClassVar[str] = (
        "as an absolute number: its ceiling is below 1, and both distances grow with noise"
    )
    paper: ClassVar[str] = "Generalised Explanation Faithfulness; Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "weights"})
    takes_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            try:
                levels = tuple(float(level) for level in self.path)
            except (TypeError, ValueError):
                raise InputError(f"a path holds numbers, as (0.1, 0.5, 1.0), got {self.path!r}") from None
            object.__setattr__(self, "path", NoisePath.given(levels).levels)
        if len(self.path if isinstance(self.path, tuple) else range(self.levels)) < FEWEST:
            raise InputError(f"a correlation over levels needs at least {FEWEST} of them")
        if self.same_direction and self.form == "reference":
            raise InputError(
                "same_direction scales one draw over the levels; 'reference' draws anew at each step"
            )

    def why_not(self, task: Task) -> str | None:
        if self.perturb == "weights":
            return super().why_not(task)
        if task.members is not None:
            return "noise on inputs does not reach the picture of a class; use perturb='weights'"
        if not task.inputs.is_floating_point() and embedding_layer(task.predictor.model) is None:
            return "noise cannot be added to whole numbers and the model has no embedding layer"
        return None

    def noise_path(self, task: Task, key: Key = Key(0), draws: int = 20) -> NoisePath:  # noqa: B008 (frozen)
        """The path of this task, found once and shared by all explainers; a score alone counts its rows.

        `draws` are made at each level that is looked at; the path is then the task's, whoever asks.
        """
        if isinstance(self.path, tuple):
            return NoisePath.given(self.path)
        rule: Rule = self.path
        label = f"gef path {self.levels} {rule} {self.perturb} {key.seed}"
        root = Key(key.seed)

        def search() -> NoisePath:
            path: NoisePath = task.uncounted(
                lambda: find_path(task, self.levels, rule, self.perturb, draws, root)
            )
            return path

        found: NoisePath = task.calibrated(label, search)
        return found

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        # a score rests on its path, whoever searched it: its cost does not depend on who came first
        task.predictor.meter.add(self.basis(task, key))
        (found,) = self._outcomes(task, Company({self.name: explainer}), key).values()
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
    ) -> dict[str, Scores | Exception]:
        """Score several explainers in the same noisy worlds, each drawn and asked once for all of them.

        The rows of a noise path that was searched are in no single cost here, but in each one's provenance.
        """
        self.check(task)
        company = Company(explainers)
        for who in company:
            with company.at_work(who, task):
                explainers[who].check(task)
        with Question(task.predictor) as question:
            outcomes = self._outcomes(task, company, key / self.name)
        out: dict[str, Scores | Exception] = {}
        for who, explainer in explainers.items():
            found = outcomes[who]
            if isinstance(found, Exception):
                out[who] = found
                continue
            scores = self._scores(task, found, explainer.name, key, question, explainer.to_json())
            out[who] = replace(scores, cost=company.costs[who])
        return out

    def _outcomes(self, task: Task, company: Company, key: Key) -> dict[str, Outcome | Exception]:
        path = self.noise_path(task, key)
        # under input noise tokens move at their embeddings, so the unperturbed map is made there too
        where = task if self.perturb == "weights" else task.at_embeddings()
        company.first.update((who, FirstMaps(task)) for who in company)
        found = Walk(self, company, path, key).distortions(where)
        out: dict[str, Outcome | Exception] = dict(company.errors)
        for who, moved in found.items():
            if self.perturb == "weights" and moved.deaf:
                warnings.warn(DEAF, VeridicalWarning, stacklevel=2)
            nothing = self._nothing(moved.size)[:, None, None]
            explanation = torch.where(moved.explanation <= nothing, 0.0, moved.explanation)
            outcome = self._outcome(path, replace(moved, explanation=explanation))
            receipt = of_score(task, moved, self.perturb == "weights")
            flags = {CONSTANT: company.first[who].constant, **outcome.flags}
            out[who] = replace(outcome, flags=flags, notes={**outcome.notes, "receipt": receipt})
        return out

    def _nothing(self, size: Tensor) -> Tensor:
        """What counts as no movement for a map of this length: 1e-6 of it, as each form measures."""
        if self.form in ("fast", "arc") and self.distance == "cosine":
            return torch.full_like(size, ZERO**2 / 2)
        return (ZERO * size) ** {"fast": 1, "arc": 1, "jacobian": 2, "reference": 4}[self.form]

    def _outcome(self, path: NoisePath, found: Found) -> Outcome:
        noise = "weight noise sigma" if self.perturb == "weights" else "input noise sigma"
        return outcome_of(path, found, self.correlation, self.mean_then_correlate, noise)


def FastGEF(**settings: object) -> GEF:  # noqa: N802 (reads as the class it makes)
    """GEF in its fast form (Fast-GEF)."""
    return GEF(**{"form": "fast", **settings})  # type: ignore[arg-type]
