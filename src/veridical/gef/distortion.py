"""How far explanations move along the noise path: four forms of D_phi, with D_f beside each.

All forms share one signature: (clean, level, draw) -> Moved, where `clean` holds what is known of the
unperturbed world. Explanations are compared after division by their root mean square unless asked not to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from veridical.explainers import Explainer
from veridical.functional import cosine_distance, euclidean, rms_normalise, round_to_grid
from veridical.gef.batched_distances import Pending, Room
from veridical.gef.finite_checks import Watch
from veridical.gef.map_health import MapHealth
from veridical.gef.shared_worlds import SharedWorld
from veridical.gef.worlds import Perturbation, Worlds
from veridical.random.keyed import Key
from veridical.values.space import Space
from veridical.values.task import Task

Form = Literal["fast", "reference", "jacobian", "arc"]
Distance = Literal["euclidean", "cosine"]
ModelDistance = Literal["logit", "outputs"]
SMALL_STEP = 1e-3


def noise_key(key: Key, draw: int, level: int | None) -> Key:
    """The key of a world's noise: of a draw and level, or (level None) of the draw's one direction."""
    own = key / "noise" / draw
    return own if level is None else own / level


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything a distortion needs to know, the same for all levels and draws."""

    task: Task
    explainer: Explainer
    key: Key
    sigma_max: float = 1.0
    distance: Distance = "euclidean"
    model_distance: ModelDistance = "logit"
    normalise: bool = True
    same_direction: bool = False
    perturb: Perturbation = "weights"
    steps: int = 5
    output_draws: int = 5
    output_noise: float = 1e-3
    latest: SharedWorld = field(default_factory=SharedWorld)
    watch: Watch = field(default_factory=Watch)
    room: Room = field(default_factory=Room)
    redraws: bool = False
    """Whether two keys give two maps, declared or found."""

    def noise_key(self, draw: int, level: int) -> Key:
        """Noise is drawn afresh for every (draw, level); along one direction it is the draw's own."""
        return noise_key(self.key, draw, None if self.same_direction else level)

    def world(self, sigma: float, key: Key, step: float = 1.0) -> Task:
        """The task under noise of strength sigma, or a share `step` of the straight way there."""
        share = step * sigma / self.sigma_max
        return self.latest.world(
            (sigma, key, step),
            lambda: self.latest.around(self.task, self.perturb).at(step * sigma, key, share),
        )

    def explain(self, world: Task, *where: str | int) -> Tensor:
        """The map of a world (N, V) as it is compared, NaN where there is none (see `values`)."""
        return self.comparable(self.values(world, *where).double()[None])[0]

    def values(self, world: Task, *where: str | int) -> Tensor:
        """The map of a world (N, V) as the explainer gives it; `where` keys a stochastic one.

        Controls draw anew at every call; an optimisation starts from the same key in every world.
        """
        key = self._explainer_key
        for part in () if self.explainer.one_key else where:
            key = key / part
        return self.explainer.values_on(world, key)

    def pending(self, measure: Callable[[Tensor], Tensor]) -> Pending:
        """Maps to be measured when several are there: `measure` gets them as they are compared."""
        return Pending(self.room, lambda maps: measure(self.comparable(maps)), torch.float64)

    def comparable(self, values: Tensor) -> Tensor:
        """Maps of some worlds (worlds, N, V) in double precision, checked, and divided by their size."""
        if self.explainer.plain:
            self.watch.map(values, self.space.valid, self.explainer.name)
        return rms_normalise(values, where=self.space.valid) if self.normalise else values

    @cached_property
    def _explainer_key(self) -> Key:
        return self.key / "explainer"

    @cached_property
    def space(self) -> Space:
        """The features of the maps: the task's, or the explainer's own."""
        return self.explainer.space_of(self.task)

    @property
    def judged(self) -> Task:
        """Where the model's movement is read: at the samples, or at the rows of each class."""
        return self.task if self.task.members is None else self.task.members

    def outputs(self, world: Task) -> Tensor:
        """What a world's model says to the judged rows."""
        if self.task.members is None and (known := world.known("outputs")) is not None:
            found: Tensor = known  # the explainer computed them on its way
            return found
        return self.latest.outputs(world, lambda: self._asked(world))

    def _asked(self, world: Task) -> Tensor:
        rows = world if self.task.members is None else self.judged
        with world.session():
            return world.predictor.chunk(rows.inputs, rows.side)

    def per_sample(self, values: Tensor) -> Tensor:
        """Values of the judged rows (..., rows, any) as one a sample: a class has the mean over its rows."""
        if self.task.members is None:
            return values
        own = (self.task.targets[:, None] == self.judged.targets).double()
        return (own / own.sum(-1, keepdim=True)) @ values.double()

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """The distance between two maps; NaN where one of them is missing."""
        if self.distance == "euclidean":
            return euclidean(a, b, where=self.space.valid)
        apart = cosine_distance(a, b, where=self.space.valid)
        # to which a missing map beside one of zeros is as far as can be
        return torch.where((a.isnan() | b.isnan()).any(-1), torch.nan, apart)

    def model_distortion(self, outputs: Tensor) -> Tensor:
        """D_f of answers (rows, Z, C): |y_c - y_hat_c|, or the Euclidean distance over all outputs (N, Z).

        Equal answers tie.
        """
        clean = self.judged.outputs.to(outputs.dtype)[:, None].expand_as(outputs)
        if self.model_distance == "logit":
            place = self.judged.targets[:, None, None].expand(-1, outputs.shape[1], 1)
            clean, outputs = clean.gather(2, place), outputs.gather(2, place)
        pair = round_to_grid(torch.cat([clean, outputs], 2), self.task.predictor.rounding)
        width = clean.shape[2]
        return self.per_sample((pair[..., :width] - pair[..., width:]).square().sum(-1).sqrt())

    @cached_property
    def answers(self) -> Pending:
        """The answers by which the model's movement is judged, level by level and draw by draw."""
        return Pending(Room(), self._judge)

    def _judge(self, answers: Tensor) -> Tensor:
        return self.model_distortion(answers.transpose(0, 1)).mT


@dataclass(frozen=True, eq=False)
class Moved:
    """How far the map moved at one level (N,), and what the form says about itself."""

    explanation: Tensor | None = None
    fit: Tensor | None = None
    in_span: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """Distortions (N, M, Z), the length of the unperturbed maps (N,), and what the jacobian form reports.

    `deaf` where the model never moved, `whole` where no map is missing and every answer finite.
    """

    model: Tensor
    explanation: Tensor
    size: Tensor
    deaf: bool
    whole: bool
    health: MapHealth
    fit: Tensor | None = None
    in_span: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        """What was found of some samples after the other."""
        names = ("model", "explanation", "size", "fit", "in_span")
        present = [name for name in names if getattr(parts[0], name) is not None]
        return cls(
            deaf=all(part.deaf for part in parts),
            whole=all(part.whole for part in parts),
            health=replace(
                parts[0].health,
                draws=any(part.health.draws for part in parts),
                repeats=all(part.health.repeats for part in parts),
                rounding=torch.cat([part.health.rounding for part in parts]),
            ),
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in present},
        )


class Fast:
    """The distance between the maps of the clean and the perturbed world (GEF eq. 6), told at the end."""

    def __init__(self) -> None:
        self._pending: Pending | None = None

    def __call__(self, setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
        if self._pending is None:
            self._pending = setting.pending(lambda maps: setting.between(clean.expand_as(maps), maps))
        world = setting.world(sigma, setting.noise_key(draw, level))
        self._pending.add(setting.values(world, draw, level))
        setting.answers.add(setting.outputs(world))
        return Moved()

    def moved(self) -> Tensor | None:
        """The distances (levels, N), those of one draw after the other."""
        return None if self._pending is None else self._pending.all()


def arc(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The length of the explanation's own path as the weights walk straight to the noisy ones.

    sum_t ||e_t - e_{t-1}|| over `steps` steps; one key serves the whole path of a stochastic explainer.
    """
    before = _path_start(setting, draw, level, clean)

    def onwards(maps: Tensor) -> Tensor:
        nonlocal before
        from_here, before = torch.cat([before[None], maps[:-1]]), maps[-1].clone()
        return setting.between(from_here, maps)

    steps, world, noise = setting.pending(onwards), setting.task, setting.noise_key(draw, level)
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, noise, step=t / setting.steps)
        steps.add(setting.values(world, *_path_key(setting, draw, level, t)))
    setting.answers.add(setting.outputs(world))
    return Moved(steps.all().cumsum(0)[-1])


def jacobian(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The energy T sum_t ||J_t dy_t||^2 along the same path (GEF eq. 12-13, dimensions made consistent).

    J_t is the minimum-norm least-squares response of the map to the outputs over K weight perturbations
    N(1, 1e-3^2) around theta_t, so J_t dy = dE^T a with dY^T a = dy: no V x C matrix is ever formed.
    """
    task = setting.task
    narrow = task.n_outputs > 20
    count = neighbours(task)
    energy = torch.zeros(len(task), dtype=torch.float64, device=task.device)
    fits, spans = [], []
    before = setting.per_sample(setting.judged.outputs.double())
    answers, noise = setting.judged.outputs, setting.noise_key(draw, level)
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, noise, step=t / setting.steps)
        first = setting.values(world, *_path_key(setting, draw, level, t))
        answers = setting.outputs(world)
        outputs = setting.per_sample(answers.double())
        maps = setting.room.of(1 + count, first, torch.float64)
        maps[0] = first
        near_answers = answers.new_empty(count, *answers.shape)
        around = Worlds(world, setting.perturb, setting.latest.draw)
        for k in range(count):
            near = around.at(SMALL_STEP, near_key(noise, t, k))
            maps[1 + k] = setting.values(near, *_path_key(setting, draw, level, t, k))
            near_answers[k] = setting.outputs(near)
        response = setting.per_sample(near_answers.double()).transpose(0, 1) - outputs[:, None]
        step = outputs - before
        if narrow:
            response, step = (_own(task, value) for value in (response, step))
        here, *around_here = setting.comparable(maps)
        moved = torch.stack(around_here, 1).sub_(here[:, None])
        # answers that are not finite fit nothing, and their draw is dropped
        broken = ~torch.cat([response.flatten(1), step], 1).isfinite().all(1)
        response, step = (v.nan_to_num(0.0, 0.0, 0.0) for v in (response, step))
        length, fit, in_span = least_squares_step(response, moved, step)
        energy = energy + torch.where(broken, torch.nan, length.square())
        fits.append(fit)
        spans.append(in_span)
        before = outputs
    setting.answers.add(answers)
    return Moved(
        setting.steps * energy,
        torch.stack(fits).mean(0),
        torch.stack(spans).mean(0),
    )


def neighbours(task: Task) -> int:
    """How many perturbations around a point show how the map responds to the outputs."""
    return 5 if task.n_outputs > 20 else max(5, 2 * task.n_outputs)


def near_key(key: Key, t: int, k: int) -> Key:
    """The key of the noise around the t-th step of a path."""
    return key / "jacobian" / t / k


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


def _path_key(setting: Setting, draw: int, level: int, *where: int) -> tuple[str | int, ...]:
    """One key for the whole path of a stochastic explainer; controls redraw at every call."""
    path: tuple[str | int, ...] = ("path", draw, level)
    return (*path, *where) if setting.explainer.control else path


def _path_start(setting: Setting, draw: int, level: int, clean: Tensor) -> Tensor:
    if not setting.redraws:
        return clean
    return setting.explain(setting.task, *_path_key(setting, draw, level, 0))


def _own(task: Task, values: Tensor) -> Tensor:
    """Keep the explained output only, as one column."""
    place = task.targets.reshape(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, place)
