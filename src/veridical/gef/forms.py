"""How far an explanation moves along the noise path, in four forms, with how far the model moves beside it.

A form is a function of (run, sigma, draw, level): it explains the perturbed models of one level and gives how
far model and explanation moved there (`Moved`). `fast` and `arc` compare maps, `reference` follows the
authors' program, `jacobian` pulls the energy back through a fitted response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError
from veridical.explainers import Explainer
from veridical.functional import cosine_distance, euclidean, has_spread, rms_normalise, round_to_grid
from veridical.gef.map_checks import MapChecks
from veridical.gef.perturbed_model import PerturbedModels, with_output_noise
from veridical.models.context import Context
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.gef.metric import GEF

Form = Literal["fast", "reference", "jacobian", "arc"]
LOWEST = 1e-4
"""The weakest noise on the way to a level, in the reference form."""
UNMOVED = 1e-5
"""Of the largest value of a map: what rounding may change."""
SMALL_STEP = 1e-3
"""Noise of the models around a point of the path, in the jacobian form."""
MANY_OUTPUTS = 20
"""With more outputs than this the jacobian form follows the explained one alone."""


@dataclass(frozen=True, eq=False)
class Moved:
    """How far model and maps moved at one level, one number per sample (N,)."""

    model: Tensor
    """How far the model moved."""
    explanation: Tensor
    """How far the explanation moved."""
    fit: Tensor | None = None
    """R^2 of the fitted response of the map to the outputs, `jacobian` only."""
    in_span: Tensor | None = None
    """The share of the step that lies in the span of the outputs seen, `jacobian` only."""


@dataclass(eq=False)
class Run:
    """One explainer along the path, on some samples: its maps under every perturbed model."""

    metric: GEF
    """Its settings."""
    task: Task
    """The unperturbed task."""
    explainer: Explainer
    """The explainer that is scored."""
    key: Key
    """Decides all noise and all draws of the explainer."""
    sigma_max: float
    """The strongest noise of the path."""
    models: PerturbedModels
    """The perturbed models, shared by all explainers."""
    checks: MapChecks
    """What explaining a few samples again showed."""
    moved: list[Moved] = field(default_factory=list)
    """What the form found at the levels so far, those of one draw after the other."""
    reads_outputs: bool | None = None
    """Whether noise on the outputs changes a map, once that was tried (`reference`)."""
    products: tuple[Tensor, Tensor] | None = None
    """Sum and count of the products of a draw so far (`reference`)."""

    def __post_init__(self) -> None:
        self._not_finite = torch.zeros(len(self.task), dtype=torch.bool, device=self.task.device)
        clean = self.values(self.task, "clean")
        self.constant = ~has_spread(clean, self.space.valid) & ~clean.isnan().any(-1)
        self.clean = self.comparable(clean.detach().to(torch.float64, copy=True))

    # --- perturbed models and their maps -----------------------------------------------------------------

    def noise_key(self, draw: int, level: int) -> Key:
        """Noise is drawn afresh for every (draw, level); along one direction it is the draw's own."""
        own = self.key / "noise" / draw
        return own if self.metric.same_direction else own / level

    def model(self, sigma: float, key: Key, step: float = 1.0) -> Task:
        """The task under noise of strength sigma, or a share `step` of the straight way there."""
        return self.models.at(step * sigma, key, step * sigma / self.sigma_max)

    def explain(self, task: Task, *where: str | int) -> Tensor:
        """The map of a perturbed model (N, V) as it is compared, NaN where there is none (see `values`)."""
        # copied: it may be the very weights of the perturbed model, which move on
        return self.comparable(self.values(task, *where).detach().to(torch.float64, copy=True))

    def values(self, task: Task, *where: str | int, models: PerturbedModels | None = None) -> Tensor:
        """The map of a perturbed model (N, V) as the explainer gives it; `where` keys a stochastic one.

        Controls draw anew at every call; an optimisation starts from the same key everywhere. Outputs that
        the explainer computed on its way are noted in `models`.
        """
        key = self.key / "explainer"
        for part in () if self.explainer._one_key else where:
            key = key / part
        context = Context(key)
        values = self.explainer._values_on(task, context)
        if task.members is None:
            (models or self.models).note_outputs(task, context.memo.found(task, "outputs"))
        return values

    def path_key(self, draw: int, level: int, *where: int) -> tuple[str | int, ...]:
        """One key for the whole path of a stochastic explainer; controls redraw at every call."""
        path: tuple[str | int, ...] = ("path", draw, level)
        return (*path, *where) if self.explainer.control else path

    def comparable(self, values: Tensor) -> Tensor:
        """Maps (..., N, V) in double precision, noted where not finite, and divided by their size."""
        valid = self.space.valid
        kept = values if valid is None else torch.where(valid, values, 0.0)
        absent = values.isnan() if valid is None else values.isnan() | ~valid
        # a sum is finite just where all of its terms are; NaN throughout says that a sample has no map
        wrong = ~kept.sum(-1).isfinite() & ~absent.all(-1)
        self._not_finite = self._not_finite | wrong.reshape(-1, len(self.task)).any(0)
        return rms_normalise(values, where=valid) if self.metric.normalise else values

    def check_finite(self) -> None:
        """Refuse maps that were not finite, but for samples whose outputs are not: they are dropped."""
        dropped = torch.stack([~each.model.isfinite() for each in self.moved]).any(0)
        wrong = (self._not_finite & ~dropped).nonzero()[:, 0].tolist()
        if wrong:
            raise InputError(
                f"the map of '{self.explainer.name}' is NaN or infinite in samples {wrong[:5]}; "
                "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
            )

    @cached_property
    def space(self) -> Space:
        """The features of the maps: the task's, or the explainer's own."""
        return self.explainer._space_of(self.task)

    @property
    def sizes(self) -> Tensor:
        """The length of the unperturbed maps (N,)."""
        if self.metric.normalise:
            return self.space.counts(len(self.task)).double().sqrt().to(self.task.device)
        return self.clean.square().sum(-1).sqrt()

    # --- outputs and distances ---------------------------------------------------------------------------

    @property
    def rows(self) -> Task:
        """Where the model's movement is read: at the samples, or at the rows of each class."""
        return self.task if self.task.members is None else self.task.members

    def outputs(self, task: Task) -> Tensor:
        """The outputs of a perturbed model at these rows."""
        return self.models.outputs(task, self.task.members)

    def per_sample(self, values: Tensor) -> Tensor:
        """Values of the rows (..., rows, any), one per sample: a class has the mean over its rows."""
        if self.task.members is None:
            return values
        own = (self.task.targets[:, None] == self.rows.targets).double()
        return (own / own.sum(-1, keepdim=True)) @ values.double()

    def model_distance(self, outputs: Tensor) -> Tensor:
        """D_f at one level: |y_c - y_hat_c|, or the Euclidean distance over all outputs (N,).

        Equal outputs tie.
        """
        outputs, clean = outputs.detach(), self.rows.outputs.to(outputs.dtype)
        if self.metric.model_distance == "logit":
            place = self.rows.targets[:, None]
            clean, outputs = clean.gather(1, place), outputs.gather(1, place)
        pair = round_to_grid(torch.cat([clean, outputs], 1), self.task.predictor.rounding)
        width = clean.shape[1]
        moved = (pair[:, :width] - pair[:, width:]).square().sum(-1, keepdim=True).sqrt()
        return self.per_sample(moved)[:, 0]

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """The distance between two maps; NaN where one of them is missing."""
        own, valid = self.metric.distance, self.space.valid
        if own == "euclidean":
            return euclidean(a, b, where=valid)
        if isinstance(own, str):
            apart = cosine_distance(a, b, where=valid)
        else:
            a, b = (each if valid is None else torch.where(valid, each, 0.0) for each in (a, b))
            apart = own(a, b).double()
            if apart.shape != a.shape[:1]:
                raise ShapeError(
                    f"distance={own!r} gave {tuple(apart.shape)} for two sets of maps {tuple(a.shape)}; it "
                    f"gives one number per sample, ({len(a)},)"
                )
        # to which a missing map beside one of zeros is as far as can be
        return torch.where((a.isnan() | b.isnan()).any(-1), torch.nan, apart)


# --- the forms ------------------------------------------------------------------------------------------


def fast(run: Run, sigma: float, draw: int, level: int) -> Moved:
    """The distance between the maps of the unperturbed and the perturbed model (GEF eq. 6)."""
    model = run.model(sigma, run.noise_key(draw, level))
    moved = run.between(run.clean, run.explain(model, draw, level))
    return Moved(run.model_distance(run.outputs(model)), moved)


def arc(run: Run, sigma: float, draw: int, level: int) -> Moved:
    """The length of the explanation's own path as the weights go straight to the noisy ones.

    sum_t ||e_t - e_{t-1}|| over `steps` steps; one key serves the whole path of a stochastic explainer.
    """
    before = run.clean
    if run.checks.redraws:
        before = run.explain(run.task, *run.path_key(draw, level, 0))
    model, noise, steps = run.task, run.noise_key(draw, level), run.metric.steps
    length = torch.zeros(len(model), dtype=torch.float64, device=model.device)
    for t in range(1, steps + 1):
        model = run.model(sigma, noise, step=t / steps)
        here = run.explain(model, *run.path_key(draw, level, t))
        length, before = length + run.between(before, here), here
    return Moved(run.model_distance(run.outputs(model)), length)


def reference(run: Run, sigma: float, draw: int, level: int) -> Moved:
    """GEF as its authors programmed it: a running mean over levels of (de . j)^2.

    de = e - e_t for a fresh draw at each of T noise strengths from 1e-4 to the level's; j the mean of
    e - e_tk over K copies of that model with N(0, s) added to its output. Where the explainer reads no output
    values and is deterministic, every e_tk equals e_t, and the mean is that of ||de||^4.
    """
    clean, noise = run.clean, run.noise_key(draw, level)
    if level == 0 or run.products is None:
        run.products = clean.new_zeros(len(clean)), clean.new_zeros(len(clean))
    total, count = run.products
    for t, strength in enumerate(strengths(sigma, run.metric.steps)):
        model = run.model(strength, noise / "step" / t)
        if run.reads_outputs is None:
            run.reads_outputs = _reads_outputs(run, model)
        change = towards = clean - run.explain(model, draw, level, t)
        if run.reads_outputs:
            towards = _mean_change(run, model, change, draw, level, t)
        product = (change * towards).sum(-1).square()
        # a missing map joins no mean
        total, count = total + product.nan_to_num(0.0), count + ~product.isnan()
    run.products = total, count
    mean = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
    return Moved(run.model_distance(run.outputs(run.model(sigma, noise))), mean)


def strengths(sigma: float, steps: int) -> list[float]:
    """The noise strengths on the way to a level, in the reference form: evenly spaced from 1e-4."""
    shares = [t / (steps - 1) if steps > 1 else 1.0 for t in range(steps)]
    return [LOWEST + (sigma - LOWEST) * share for share in shares]


def _reads_outputs(run: Run, model: Task) -> bool:
    """Whether noise on the outputs can change a map at all: it is tried, whatever the explainer says."""
    if run.checks.redraws:
        return True
    noisy = with_output_noise(model, run.metric.output_noise, run.key / "reaches")
    # on another task: outputs that are not counted must not be found there later
    there, here = (run.task.uncounted(partial(run.values, at.changed())) for at in (noisy, model))
    apart, size = ((each.nan_to_num().abs().amax()) for each in (there - here, here))
    return bool(apart > UNMOVED * size)


def _mean_change(run: Run, model: Task, change: Tensor, draw: int, level: int, t: int) -> Tensor:
    total = torch.zeros_like(change)
    for k in range(run.metric.output_draws):
        key = run.key / "output" / draw / level / t / k
        noisy = with_output_noise(model, run.metric.output_noise, key)
        total = total + (run.clean - run.explain(noisy, draw, level, t, k))
    return total / run.metric.output_draws


def jacobian(run: Run, sigma: float, draw: int, level: int) -> Moved:
    """The energy T sum_t ||J_t dy_t||^2 along the same path (GEF eq. 12-13, dimensions made consistent).

    J_t is the minimum-norm least-squares response of the map to the outputs over K weight perturbations
    N(1, 1e-3^2) around theta_t, at least two for each output (of more than 20 outputs the explained one alone
    is followed, by K), so J_t dy = dE^T a with dY^T a = dy: no V x C matrix is ever formed.
    """
    task, steps = run.task, run.metric.steps
    one_output = task.n_outputs > MANY_OUTPUTS or task.head == "generation"
    count = run.metric.output_draws
    if task.n_outputs <= MANY_OUTPUTS:
        count = max(count, 2 * task.n_outputs)
    energy = torch.zeros(len(task), dtype=torch.float64, device=task.device)
    fits, spans = [], []
    before = run.per_sample(run.rows.outputs.double())
    outputs, noise = run.rows.outputs, run.noise_key(draw, level)
    for t in range(1, steps + 1):
        model = run.model(sigma, noise, step=t / steps)
        first = run.values(model, *run.path_key(draw, level, t))
        outputs = run.outputs(model)
        here = run.per_sample(outputs.double())
        maps = first.new_empty(1 + count, *first.shape, dtype=torch.float64)
        maps[0] = first
        near_outputs = outputs.new_empty(count, *outputs.shape)
        around = PerturbedModels(model, run.models.perturb, run.models.noise)
        for k in range(count):
            near = around.at(SMALL_STEP, noise / "jacobian" / t / k)
            maps[1 + k] = run.values(near, *run.path_key(draw, level, t, k), models=around)
            near_outputs[k] = around.outputs(near, task.members)
        response = run.per_sample(near_outputs.double()).transpose(0, 1) - here[:, None]
        step = here - before
        if one_output:
            response, step = (_explained_output(task, value) for value in (response, step))
        centre, *others = run.comparable(maps)
        moved = torch.stack(others, 1).sub_(centre[:, None])
        # outputs that are not finite fit nothing, and their draw is dropped
        broken = ~torch.cat([response.flatten(1), step], 1).isfinite().all(1)
        response, step = (v.nan_to_num(0.0, 0.0, 0.0) for v in (response, step))
        length, fit, in_span = least_squares_step(response, moved, step)
        energy = energy + torch.where(broken, torch.nan, length.square())
        fits.append(fit)
        spans.append(in_span)
        before = here
    fit, in_span = torch.stack(fits).mean(0), torch.stack(spans).mean(0)
    return Moved(run.model_distance(outputs), steps * energy, fit, in_span)


def least_squares_step(outputs: Tensor, maps: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """||J step|| for the minimum-norm J with maps (N, K, V) ~ outputs (N, K, C) J^T; its fit and its reach.

    The fit is the R^2 of each perturbation predicted from the others; the reach is the share of ||step||^2
    inside the span of the outputs seen.
    """
    inverse = torch.linalg.pinv(outputs, rtol=1e-9)
    weights = (inverse.mT @ step[..., None])[..., 0]
    gram = maps @ maps.mT
    length = (weights[:, None] @ gram @ weights[..., None])[:, 0, 0].clamp(min=0).sqrt()
    hat = outputs @ inverse
    rest = torch.eye(hat.shape[-1], dtype=hat.dtype, device=hat.device) - hat
    alone = 1 - hat.diagonal(dim1=-2, dim2=-1)
    left_out = rest / alone.clamp(min=1e-12)[..., None]
    missed = (left_out @ gram @ left_out.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    total = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    fit = torch.where(total > 0, 1 - missed / total.clamp(min=1e-300), torch.nan)
    reached = (outputs.mT @ weights[..., None])[..., 0]
    whole = step.square().sum(-1)
    in_span = torch.where(whole > 0, reached.square().sum(-1) / whole.clamp(min=1e-300), torch.nan)
    return length, fit, in_span


def _explained_output(task: Task, values: Tensor) -> Tensor:
    """Keep the explained output only, as one column."""
    place = task.targets.reshape(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, place)


FORMS: dict[str, Callable[[Run, float, int, int], Moved]] = {
    "fast": fast,
    "reference": reference,
    "jacobian": jacobian,
    "arc": arc,
}
