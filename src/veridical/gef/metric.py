"""GEF: does the explanation move as the model moves, under weight noise?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.allowed import Count, NotNegative, Positive
from veridical.errors import InputError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers.first_maps import FirstMaps
from veridical.gef import noise_prefetch
from veridical.gef.distortion import (
    Distance,
    Fast,
    Form,
    Found,
    ModelDistance,
    Moved,
    Setting,
    arc,
    jacobian,
    near_key,
    neighbours,
    noise_key,
)
from veridical.gef.map_health import MapHealth, map_health
from veridical.gef.outcome import FEWEST, outcome_of
from veridical.gef.path import NoisePath, Rule, find_path
from veridical.gef.receipt import receipt_of
from veridical.gef.reference_form import RunningReference, step_key
from veridical.gef.shared_worlds import Company, SharedWorld
from veridical.gef.worlds import Perturbation
from veridical.metrics.base import CONSTANT, ExplainerMetric, Outcome, register
from veridical.model.embeddings import embedding_layer
from veridical.model.predictor import memory_budget
from veridical.model.weights import NoiseSource
from veridical.random.keyed import Key
from veridical.values.scores import Direction, Scores
from veridical.values.task import Task

BLOCK_BYTES = 2**22
"""Bytes of maps held at once for each MiB that a chunk's activations may take on the device."""
ZERO = 1e-6
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

        `draws` are made a level when it is looked for; it is then the task's, whoever asks.
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
        task.predictor.meter.here.forward += self.noise_path(task, key).rows
        (found,) = self._outcomes(task, Company({self.name: explainer}), key).values()
        if isinstance(found, Exception):
            raise found
        return found

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
        with task.predictor.question(later=False) as question:  # a mistake is one explainer's
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
        found = self._distortions(where, company, path, key)
        out: dict[str, Outcome | Exception] = dict(company.errors)
        for who, moved in found.items():
            if self.perturb == "weights" and moved.deaf:
                warnings.warn(DEAF, VeridicalWarning, stacklevel=2)
            nothing = self._nothing(moved.size)[:, None, None]
            explanation = torch.where(moved.explanation <= nothing, 0.0, moved.explanation)
            outcome = self._outcome(path, replace(moved, explanation=explanation))
            flags = {CONSTANT: company.first[who].constant, **outcome.flags}
            out[who] = replace(outcome, flags=flags, notes={**outcome.notes, **self._receipt(task, moved)})
        return out

    def _receipt(self, task: Task, found: Found) -> dict[str, Any]:
        """What noise reached, how many worlds were dropped, and what a second look at the maps found."""
        lost = (~found.model.isfinite()).any(0)
        health = found.health
        receipt: dict[str, Any] = {
            "worlds": lost.numel(),
            "worlds_dropped": int(lost.sum()),
            "float64_apart": None if math.isnan(health.apart) else health.apart,
            "float64_unchecked": health.why_not,
            "redraws": health.draws,
            "repeats": health.repeats,
        }
        if self.perturb == "weights":
            receipt |= receipt_of(task).to_json()
        return {"receipt": receipt}

    def _nothing(self, size: Tensor) -> Tensor:
        """What counts as no movement for a map of this length: 1e-6 of it, as each form measures."""
        if self.form in ("fast", "arc") and self.distance == "cosine":
            return torch.full_like(size, ZERO**2 / 2)
        return (ZERO * size) ** {"fast": 1, "arc": 1, "jacobian": 2, "reference": 4}[self.form]

    def _outcome(self, path: NoisePath, found: Found) -> Outcome:
        noise = "weight noise sigma" if self.perturb == "weights" else "input noise sigma"
        return outcome_of(path, found, self.correlation, self.mean_then_correlate, noise)

    def _distortions(self, task: Task, company: Company, path: NoisePath, key: Key) -> dict[str, Found]:
        """Distortions (N, M, Z), some samples at a time so that memory does not grow with their number."""
        widths = [company.members[who].space_of(task).n_features for who in company]
        room = BLOCK_BYTES * memory_budget(task.device)
        # of all the clean maps and those that wait, and what one is at work on
        maps = 2 * sum(widths) + (7 if self.form == "jacobian" else 2) * max(widths, default=0)
        size = max(1, room // (8 * max(1, maps)))
        source = None
        if self.perturb == "weights":
            source = task.cached("weight noise", lambda: NoiseSource(task.predictor.source.module))
        if size >= len(task):
            return self._block(task, company, path, key, source)
        starts = range(0, len(task), size)
        parts = [self._block(task[at : at + size], company, path, key, source) for at in starts]
        return {who: Found.joined([part[who] for part in parts]) for who in company}

    def _block(
        self, task: Task, company: Company, path: NoisePath, key: Key, source: NoiseSource | None
    ) -> dict[str, Found]:
        # one session around those of all worlds, unless an explainer would meet it that opens none itself
        plain = all(company.members[who].plain for who in company)
        with task.predictor.session(grad=None) if plain else nullcontext():
            if source is None:
                return self._walk(task, company, path, key, SharedWorld())
            with noise_prefetch.NoiseAhead(source, self._noise_keys(task, path, key)) as draw:
                return self._walk(task, company, path, key, SharedWorld(draw))

    def _noise_keys(self, task: Task, path: NoisePath, key: Key) -> Iterator[Key]:
        """The keys of weight noise in the order in which the form asks for them."""
        last = None
        for draw in range(self.draws):
            for z in range(len(path.levels)):
                own = noise_key(key, draw, None if self.same_direction else z)
                if self.form == "reference":
                    yield from (step_key(own, t) for t in range(self.steps))
                if own != last:
                    yield own
                last = own
                if self.form == "jacobian":
                    for t in range(1, self.steps + 1):
                        yield from (near_key(own, t, k) for k in range(neighbours(task)))

    def _walk(
        self, task: Task, company: Company, path: NoisePath, key: Key, latest: SharedWorld
    ) -> dict[str, Found]:
        forms: dict[str, Callable[..., Moved]] = {"arc": arc, "jacobian": jacobian}
        making: dict[str, Callable[[], Callable[..., Moved]]] = {
            "fast": Fast,
            "reference": RunningReference,
        }
        settings: dict[str, Setting] = {}
        clean: dict[str, Tensor] = {}
        cells: dict[str, list[Moved]] = {who: [] for who in company}
        measures = {who: forms.get(self.form) or making[self.form]() for who in company}
        health: dict[str, MapHealth] = {}
        for who in company:
            with company.at_work(who, task):
                settings[who] = self._setting(task, company.members[who], path, key, latest)
                health[who] = map_health(task, company.members[who], key / "explainer")
                settings[who] = replace(settings[who], redraws=health[who].draws)
                clean[who] = settings[who].explain(task, "clean")
        for draw in range(self.draws):
            for z, sigma in enumerate(path.levels):
                for who in company:
                    with company.at_work(who, task):
                        cells[who].append(measures[who](settings[who], sigma, draw, z, clean[who]))
        found: dict[str, Found] = {}
        for who in company:
            with company.at_work(who, task):
                found[who] = self._found(settings[who], measures[who], cells[who], clean[who], health[who])
        return found

    def _setting(
        self, task: Task, explainer: Explainer, path: NoisePath, key: Key, latest: SharedWorld
    ) -> Setting:
        return Setting(
            task,
            explainer,
            key,
            path.sigma_max,
            self.distance,
            self.model_distance,
            self.normalise,
            self.same_direction,
            self.perturb,
            self.steps,
            self.output_draws,
            self.output_noise,
            latest,
        )

    def _found(
        self,
        setting: Setting,
        measure: Callable[..., Moved],
        cells: list[Moved],
        clean: Tensor,
        health: MapHealth,
    ) -> Found:
        task = setting.task

        def table(values: Tensor) -> Tensor:
            return values.unflatten(0, (self.draws, -1)).permute(2, 0, 1).contiguous()

        def told(what: str) -> Tensor:
            return table(torch.stack([getattr(cell, what) for cell in cells]))

        model = table(setting.answers.all())
        moved = measure.moved() if isinstance(measure, Fast | RunningReference) else None
        explanation = told("explanation") if moved is None else table(moved)
        lost = ~model.isfinite()
        deaf, gaps = setting.watch.settle(
            (model == 0).all(), (explanation.isnan() | lost).any(), excused=lost.any(-1).any(-1)
        )
        if self.normalise:
            length = setting.space.counts(len(task)).double().sqrt().to(task.device)
        else:
            length = clean.square().sum(-1).sqrt()
        if self.form != "jacobian":
            return Found(model, explanation, length, deaf, not gaps, health)
        fit, in_span = (told(what).nanmean((1, 2)) for what in ("fit", "in_span"))
        return Found(model, explanation, length, deaf, not gaps, health, fit, in_span)


def FastGEF(**settings: object) -> GEF:  # noqa: N802 (reads as the class it makes)
    """GEF in its fast form (Fast-GEF)."""
    return GEF(**{"form": "fast", **settings})  # type: ignore[arg-type]
