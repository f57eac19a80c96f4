"""What every form of GEF shares: worlds, maps as they are compared, answers as they are judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.functional import cosine_distance, euclidean, rms_normalise, round_to_grid
from veridical.gef.finite_checks import Watch
from veridical.gef.shared_worlds import SharedWorld
from veridical.gef.worlds import Perturbation
from veridical.values.space import Space
from veridical.values.task import Task

Distance = Literal["euclidean", "cosine"]
ModelDistance = Literal["logit", "outputs"]


def noise_key(key: Key, draw: int, level: int | None) -> Key:
    """The key of a world's noise: of a draw and level, or (level None) of the draw's one direction."""
    own = key / "noise" / draw
    return own if level is None else own / level


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything a distortion needs to know, the same for all levels and draws."""

    task: Task
    """The unperturbed task."""
    explainer: Explainer
    """Who is judged."""
    key: Key
    """Decides all noise and all draws of the explainer."""
    sigma_max: float = 1.0
    """The strongest noise of the path."""
    distance: Distance = "euclidean"
    """Between two maps."""
    model_distance: ModelDistance = "logit"
    """How far the model moved: at the explained output, or over all outputs."""
    normalise: bool = True
    """Whether maps are divided by their root mean square before they are compared."""
    same_direction: bool = False
    """Whether one draw of noise is scaled over all levels."""
    perturb: Perturbation = "weights"
    """What gets the noise."""
    steps: int = 5
    """Steps on the way to a level."""
    output_draws: int = 5
    """Copies of each model with noise on its outputs."""
    output_noise: float = 1e-3
    """Standard deviation of that noise."""
    latest: SharedWorld = field(default_factory=SharedWorld)
    """The world that all explainers meet at present."""
    watch: Watch = field(default_factory=Watch)
    """Remembers maps that are not finite."""
    model_moved: list[Tensor] = field(default_factory=list)
    """How far the model moved at the levels met so far, those of one draw after the other."""
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
        # copied: it may be the very weights of its world, which move on
        return self.comparable(self.values(world, *where).detach().to(torch.float64, copy=True))

    def values(self, world: Task, *where: str | int) -> Tensor:
        """The map of a world (N, V) as the explainer gives it; `where` keys a stochastic one.

        Controls draw anew at every call; an optimisation starts from the same key in every world.
        """
        key = self._explainer_key
        for part in () if self.explainer.one_key else where:
            key = key / part
        return self.explainer.values_on(world, key)

    def comparable(self, values: Tensor) -> Tensor:
        """Maps (..., N, V) in double precision, checked, and divided by their size."""
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
        """Values of the judged rows (..., rows, any), one per sample: a class has the mean over its rows."""
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

    def path_key(self, draw: int, level: int, *where: int) -> tuple[str | int, ...]:
        """One key for the whole path of a stochastic explainer; controls redraw at every call."""
        path: tuple[str | int, ...] = ("path", draw, level)
        return (*path, *where) if self.explainer.control else path

    def judge(self, outputs: Tensor) -> None:
        """Note how far the model moved at one level, by its answers there."""
        self.model_moved.append(self.model_distortion(outputs.detach()[:, None])[:, 0])
