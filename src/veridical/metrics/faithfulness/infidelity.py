"""Infidelity: how badly a map predicts the change of the response under perturbations of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.errors import InputError, NotApplicableError
from veridical.functional import round_to_grid
from veridical.functional._rows import numbers_on
from veridical.metrics import Count, Metric, Outcome, Positive, register
from veridical.metrics.faithfulness._common import existing_values, responses_and_sums, sized_subsets
from veridical.metrics.types import Context, Direction, Explanation, Fill, Key, Response, Task
from veridical.models.predictor import check_finite, repeat_side, take_side
from veridical.perturb.fills import fill_state
from veridical.perturb.probe import blocks
from veridical.perturb.rules import MaskRule


def expected_square(predicted: Tensor, change: Tensor, optimal: bool, where: Tensor | None = None) -> Tensor:
    """E[(I.e - (y(x) - y(x - I)))^2] over the draws (N, M) that count, all unless `where` says which.

    The map is first scaled to its best if `optimal`.
    """
    if where is not None:
        # both are 0 where a draw does not count, so that it adds nothing
        predicted, change = predicted * where, change * where
    count = predicted.shape[-1] if where is None else where.sum(-1)
    if optimal:
        power = predicted.square().sum(-1, keepdim=True)
        best = (predicted * change).sum(-1, keepdim=True) / torch.where(power == 0, 1.0, power)
        predicted = predicted * best
    return (predicted - change).square().sum(-1) / count


@dataclass(frozen=True, eq=False)
class RandomSquares:
    """Mask m removes one square of `side` x `side` pixels at a keyed place, wholly inside the image."""

    key: Key
    ids: Tensor
    shape: tuple[int, int]
    side: int
    count: int
    _first: Tensor = field(init=False)
    """The upper left corners (2, N, count, 1)."""

    def __post_init__(self) -> None:
        draws = torch.arange(self.count, device=self.ids.device)
        corner = keyed.uniform(self.key / "corner", self.ids, draws, 2, torch.float64)
        steps = [size - min(self.side, size) + 1 for size in self.shape]
        free = numbers_on(corner.device, steps, torch.int64)
        object.__setattr__(self, "_first", (corner * free).floor().long().movedim(-1, 0)[..., None])

    def removed(self, samples: slice, masks: slice) -> Tensor:
        inside = []
        for size, first in zip(self.shape, self._first[:, samples, masks], strict=True):
            way = torch.arange(size, device=first.device) - first
            inside.append((way >= 0) & (way < self.side))
        return (inside[0][..., :, None] & inside[1][..., None, :]).flatten(-2)


@register
@dataclass(frozen=True)
class Infidelity(Metric):
    """E over perturbations I of (I.e - (y(x) - y(x - I)))^2 (Yeh et al., definition 2.1).

    `perturbation="removal"` fills a random square of `patch` x `patch` pixels (or, where features are no
    pixels, a random tenth of them), each time in the untouched input; I is what the fill took away.
    `"noise"` draws I from N(0, `noise`^2), one number per feature.

    `scaling="none"` is the definition; `"optimal"` first multiplies each map by the factor that suits it
    best, as in the authors' own experiments and in Captum with `normalize=True`, so that maps are scored
    whatever their scale. `units` says what a map states: "gradient" the slope of the response (I.e is
    sum_i I_i e_i), or "contribution" what a feature adds to it (a removed set S predicts sum_{i in S} e_i;
    this is Captum's division of I by the input for methods that multiply by it). Where a feature has
    several elements, I_i is their mean.
    """

    draws: Count = 100
    """Perturbations per sample."""
    perturbation: Literal["removal", "noise"] = "removal"
    """What is done to the input: "removal" of a part, or "noise" on all of it."""
    patch: Count = 4
    """Side of the square that is removed, in pixels."""
    noise: Positive = 0.2
    """Standard deviation of the noise, in units of the input."""
    scaling: Literal["none", "optimal"] = "none"
    """"none", or "optimal" to multiply each map by the factor that suits it best."""
    units: Literal["gradient", "contribution"] = "gradient"
    """What a map states: the "gradient" of the response, or the "contribution" of each feature."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "infidelity"
    version: ClassVar[int] = 3
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "How badly does the map predict changes of the response?"
    assumes: ClassVar[str] = "the map states slopes (or contributions) in the units of the response"
    misleads: ClassVar[str] = "on maps in other units, unless scaling='optimal'"
    paper: ClassVar[str] = "Yeh et al. 2019, definition 2.1"

    def __post_init__(self) -> None:
        if self.perturbation == "noise" and self.units == "contribution":
            raise InputError("a contribution predicts removals, not noise; use units='gradient'")

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is None and self.perturbation == "noise" and task.modality == "units":
            return "a unit is on or off and takes no noise; use perturbation='removal'"
        by_value = self.perturbation == "noise" or self.units == "gradient"
        if reason is None and by_value and not task.inputs.is_floating_point():
            return "token ids have no differences; use units='contribution' with perturbation='removal'"
        return reason

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        if self.perturbation == "noise":
            predicted, change, there = *self._under_noise(task, explanation, context.key), None
        else:
            predicted, change, there = self._under_removal(task, explanation, context)
        still = (change == 0).all(-1)
        silent = (predicted == 0).all(-1)
        values = expected_square(predicted, change, self.scaling == "optimal", there)
        both = still & silent
        return Outcome(
            values.masked_fill(both, torch.nan),
            flags={
                "nothing to predict: neither map nor response moves": both,
                "map is zero under every perturbation": silent & ~both,
            },
        )

    def _under_removal(
        self, task: Task, explanation: Explanation, context: Context
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        fill, key = self.fill or task.fill, context.key
        weights = existing_values(explanation)
        if self.units == "gradient":
            weights = weights * self._taken_away(task, fill, key)
        rule, there = self._rule(task, key)
        responses, sums = responses_and_sums(self, task, rule, weights, context)
        return sums, responses[:, :1] - responses[:, 1:], there

    def _rule(self, task: Task, key: Key) -> tuple[MaskRule, Tensor | None]:
        space = task.space
        if space.kind == "pixel":
            height, width = space.input_shape[-2:]
            return RandomSquares(key, task.draw_ids, (height, width), self.patch, self.draws), None
        sizes: Tensor | int = max(1, round(space.n_features / 10))
        if space.valid is not None:
            sizes = (space.counts(len(task))[:, None] / 10).round().long().clamp(min=1)
        return sized_subsets(task, key, self.draws, sizes)

    @staticmethod
    def _taken_away(task: Task, fill: Fill, key: Key) -> Tensor:
        """What removing a feature subtracts from the input (N, V): the mean over its elements."""
        if fill.looks_at_mask:
            raise NotApplicableError(
                f"infidelity needs a fill whose value does not depend on the mask, not '{fill.name}'"
            )
        state = fill_state(task, fill)
        background = fill.background(state, task.inputs, task.draw_ids, key.of("fill")).double().mean(1)
        return task.space.pool(task.inputs.double() - background, "mean")

    def _under_noise(self, task: Task, explanation: Explanation, key: Key) -> tuple[Tensor, Tensor]:
        """Evaluate the model at x - I for normal I, in blocks as `probe` does for masks."""
        samples, count = len(task), task.space.n_features
        weights = existing_values(explanation)
        dtype = task.inputs.dtype
        found = torch.empty(samples, self.draws, dtype=task.outputs.dtype, device=task.device)
        predicted = torch.empty(samples, self.draws, dtype=torch.float64, device=task.device)
        with task.session():
            for rows, columns in blocks(samples, self.draws, task.predictor.rows):
                across = columns.stop - columns.start
                draws = torch.arange(columns.start, columns.stop, device=task.device)
                moved = (
                    keyed.normal(key / "noise", task.draw_ids[rows], draws, count, torch.float64) * self.noise
                )
                if task.space.valid is not None:
                    moved = moved * task.space.valid[rows, None]
                predicted[rows, columns] = (moved @ weights[rows, :, None])[..., 0]
                laid = task.space.expand(moved.to(dtype), rows)
                x = (task.inputs[rows, None] - laid).flatten(0, 1)
                side = repeat_side(take_side(task.side, rows), across)
                responses = task.respond(task.predictor.chunk(x, side), self.response)
                target = task.targets[rows].repeat_interleave(across)
                found[rows, columns] = responses.gather(1, target[:, None]).view(-1, across)
        check_finite(found)
        clean = task.respond(task.outputs, self.response).gather(1, task.targets[:, None])
        responses = round_to_grid(torch.cat([clean.to(found.dtype), found], 1), task.predictor.rounding)
        return predicted, responses[:, :1] - responses[:, 1:]
