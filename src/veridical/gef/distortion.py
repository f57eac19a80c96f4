"""How far explanations move along the noise path: four forms of D_phi, with D_f beside each.

All forms share one signature: (clean, level, draw) -> Moved, where `clean` holds what is known of the
unperturbed world. Explanations are compared after division by their root mean square unless asked not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from veridical.explainers import Explainer
from veridical.functional import cosine_distance, euclidean, rms_normalise, round_to_grid
from veridical.gef.together import SharedWorld
from veridical.gef.watch import Watch
from veridical.gef.worlds import Perturbation, Worlds, with_output_noise
from veridical.rng import Key
from veridical.space import Space
from veridical.task import Task

Form = Literal["fast", "reference", "jacobian", "arc"]
Distance = Literal["euclidean", "cosine"]
ModelDistance = Literal["logit", "outputs"]
SMALL_STEP = 1e-3


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

    def noise_key(self, draw: int, level: int) -> Key:
        """Noise is drawn afresh for every (draw, level); along one direction it is the draw's own."""
        own = self.key / "noise" / draw
        return own if self.same_direction else own / level

    def world(self, sigma: float, key: Key, step: float = 1.0) -> Task:
        """The task under noise of strength sigma, or a share `step` of the straight way there."""
        share = step * sigma / self.sigma_max
        return self.latest.world(
            (sigma, key, step),
            lambda: self.latest.around(self.task, self.perturb).at(step * sigma, key, share),
        )

    def explain(self, world: Task, *where: str | int) -> Tensor:
        """The map of a world (N, V), NaN where there is none; `where` keys a stochastic explainer.

        Controls draw anew at every call; an optimisation starts from the same key in every world.
        """
        key = self.key / "explainer"
        for part in () if self.explainer.one_key else where:
            key = key / part
        if type(self.explainer).__call__ is Explainer.__call__:
            values = self.explainer.maps(world, key).double()
            self.watch.map(values, self.space.valid, self.explainer.name)
        else:
            values = self.explainer(world, key).values.double()
        return rms_normalise(values, where=self.space.valid) if self.normalise else values

    @property
    def space(self) -> Space:
        """The features of the maps: the task's, or the explainer's own."""
        return self.explainer.space_of(self.task)

    @property
    def judged(self) -> Task:
        """Where the model's movement is read: at the samples, or at the rows of each class."""
        return self.task if self.task.members is None else self.task.members

    def outputs(self, world: Task) -> Tensor:
        """What a world's model says to the judged rows."""
        return self.latest.outputs(world, lambda: self._asked(world))

    def _asked(self, world: Task) -> Tensor:
        rows = world if self.task.members is None else self.judged
        with world.session():
            outputs = world.predictor.chunk(rows.inputs, rows.side)
        self.watch.outputs(outputs)
        return outputs

    def per_sample(self, values: Tensor) -> Tensor:
        """Values of the judged rows as one a sample: a class has the mean over its rows."""
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
        pair = round_to_grid(torch.cat([clean, outputs], 2))
        width = clean.shape[2]
        return self.per_sample((pair[..., :width] - pair[..., width:]).square().sum(-1).sqrt())

    def gathered(self, cells: Sequence[Moved]) -> Moved:
        """The levels of one draw, checked and measured together: apart, each would wait for the device."""
        self.watch.settle()

        def table(what: str) -> Tensor | None:
            parts = [getattr(cell, what) for cell in cells]
            return None if parts[0] is None else torch.stack(parts, 1)

        moved = torch.stack([cell.explanation for cell in cells], 1)
        model = self.model_distortion(torch.stack([cell.model for cell in cells], 1))
        return Moved(model, moved, table("fit"), table("in_span"))


@dataclass(frozen=True, eq=False)
class Moved:
    """What the model answers and how far the map moved at one level, and what the form says about itself.

    Of a whole draw: the distortions of model and explanation (N, Z).
    """

    model: Tensor
    explanation: Tensor
    fit: Tensor | None = None
    in_span: Tensor | None = None


def fast(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The distance between the maps of the clean and the perturbed world (GEF eq. 6)."""
    world = setting.world(sigma, setting.noise_key(draw, level))
    moved = setting.explain(world, draw, level)
    return Moved(setting.outputs(world), setting.between(clean, moved))


def arc(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The length of the explanation's own path as the weights walk straight to the noisy ones.

    sum_t ||e_t - e_{t-1}|| over `steps` steps; one key serves the whole path of a stochastic explainer.
    """
    before = _path_start(setting, draw, level, clean)
    length = torch.zeros(len(before), dtype=torch.float64, device=before.device)
    world = setting.task
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, setting.noise_key(draw, level), step=t / setting.steps)
        now = setting.explain(world, *_path_key(setting, draw, level, t))
        length = length + setting.between(before, now)
        before = now
    return Moved(setting.outputs(world), length)


def jacobian(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The energy T sum_t ||J_t dy_t||^2 along the same path (GEF eq. 12-13, dimensions made consistent).

    J_t is the minimum-norm least-squares response of the map to the outputs over K weight perturbations
    N(1, 1e-3^2) around theta_t, so J_t dy = dE^T a with dY^T a = dy: no V x C matrix is ever formed.
    """
    task = setting.task
    narrow = task.n_outputs > 20
    count = 5 if narrow else max(5, 2 * task.n_outputs)
    energy = torch.zeros(len(task), dtype=torch.float64, device=task.device)
    fits, spans = [], []
    before = setting.per_sample(setting.judged.outputs.double())
    answers = setting.judged.outputs
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, setting.noise_key(draw, level), step=t / setting.steps)
        answers = setting.outputs(world)
        outputs = setting.per_sample(answers.double())
        here = setting.explain(world, *_path_key(setting, draw, level, t))
        moved_outputs, moved_maps = [], []
        around = Worlds(world, setting.perturb)
        for k in range(count):
            key = setting.noise_key(draw, level) / "jacobian" / t / k
            near = around.at(SMALL_STEP, key)
            moved_outputs.append(setting.per_sample(setting.outputs(near).double()) - outputs)
            maps = setting.explain(near, *_path_key(setting, draw, level, t, k))
            moved_maps.append(maps - here)
        response = torch.stack(moved_outputs, 1)
        step = outputs - before
        if narrow:
            response, step = (_own(task, value) for value in (response, step))
        length, fit, in_span = least_squares_step(response, torch.stack(moved_maps, 1), step)
        energy = energy + length.square()
        fits.append(fit)
        spans.append(in_span)
        before = outputs
    return Moved(
        answers,
        setting.steps * energy,
        torch.stack(fits).mean(0),
        torch.stack(spans).mean(0),
    )


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


class RunningReference:
    """GEF as its authors programmed it: a running mean over levels of (de . j)^2.

    de = e - e_t for a fresh draw at each of T noise strengths from 1e-4 to the level's; j the mean of
    e - e_tk over K copies of that model with N(0, s) added to its output. Where the explainer reads no output
    values and is deterministic, every e_tk equals e_t, and the mean is that of ||de||^4.
    """

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}
        self.reached: bool | None = None

    def __call__(self, setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
        low = 1e-4
        nothing = torch.zeros(len(clean), dtype=torch.float64, device=clean.device)
        total, count = self.sums.get(draw, nothing), self.counts.get(draw, nothing)
        for t in range(setting.steps):
            share = t / (setting.steps - 1) if setting.steps > 1 else 1.0
            strength = low + (sigma - low) * share
            world = setting.world(strength, setting.noise_key(draw, level) / "step" / t)
            change = clean - setting.explain(world, draw, level, t)
            towards = self._mean_change(setting, world, clean, change, draw, level, t)
            product = (change * towards).sum(-1).square()
            # a missing map joins no mean
            total, count = total + product.nan_to_num(0.0), count + ~product.isnan()
        self.sums[draw], self.counts[draw] = total, count
        world = setting.world(sigma, setting.noise_key(draw, level))
        moved = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
        return Moved(setting.outputs(world), moved)

    def _reaches(self, setting: Setting, world: Task) -> bool:
        """Whether noise on the outputs can change a map at all."""
        explainer = setting.explainer
        if explainer.stochastic or not explainer.reads_outputs:
            return explainer.stochastic
        # LRP hands back what the model's own graph computes; noise behind that graph is no part of it
        return explainer.why_not(with_output_noise(world, setting.output_noise, setting.key)) is None

    def _mean_change(
        self, setting: Setting, world: Task, clean: Tensor, change: Tensor, draw: int, level: int, t: int
    ) -> Tensor:
        if self.reached is None:
            self.reached = self._reaches(setting, world)
        if not self.reached:
            return change
        total = torch.zeros_like(change)
        for k in range(setting.output_draws):
            key = setting.key / "output" / draw / level / t / k
            noisy = with_output_noise(world, setting.output_noise, key)
            total = total + (clean - setting.explain(noisy, draw, level, t, k))
        return total / setting.output_draws


def _path_key(setting: Setting, draw: int, level: int, *where: int) -> tuple[str | int, ...]:
    """One key for the whole path of a stochastic explainer; controls redraw at every call."""
    path: tuple[str | int, ...] = ("path", draw, level)
    return (*path, *where) if setting.explainer.control else path


def _path_start(setting: Setting, draw: int, level: int, clean: Tensor) -> Tensor:
    if not setting.explainer.stochastic:
        return clean
    return setting.explain(setting.task, *_path_key(setting, draw, level, 0))


def _own(task: Task, values: Tensor) -> Tensor:
    """Keep the explained output only, as one column."""
    place = task.targets.reshape(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, place)
