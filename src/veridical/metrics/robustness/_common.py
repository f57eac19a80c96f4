"""What the robustness metrics share: neighbours, the maps made again at them, and what else changes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ShapeError, unknown_name
from veridical.explainers.input_noise import movable, reference_range, touched, uniform_draws, why_no_noise
from veridical.functional import rms_normalise
from veridical.metrics import Count, Direction, Explainer, ExplainerMetric, Key, Outcome, Positive, Task
from veridical.metrics.re_explaining import Maps, explained_variants, explaining, stacked
from veridical.models.context import Context
from veridical.models.predictor import check_finite


@dataclass(frozen=True)
class NeighbourMetric(ExplainerMetric):
    """Base of metrics that explain `draws` neighbours x + u of every input.

    As many draws as fit one chunk are explained in one batched call. u is uniform on [-radius, radius] in
    every element; token ids are moved at their embeddings.
    """

    draws: Count = 10
    """Neighbours per sample."""
    radius: Positive = 0.1
    """The most that any element moves; see `in_ranges` for its unit."""
    in_ranges: bool = False
    """Whether the radius is in units of each element's range over the reference rows, not of the input."""
    normalise: bool = True
    """Whether maps are divided by their root mean square before they are compared."""
    version: ClassVar[int] = 2

    def inapplicable_reason(self, task: Task) -> str | None:
        if self.in_ranges and task.train is None:
            return "in_ranges takes each element's range from reference rows; give the task train=..."
        return super().inapplicable_reason(task) or why_no_noise(task)

    def neighbours(self, task: Task, key: Key, which: range) -> Task:
        """The movable task at some neighbours, one copy of all samples after the other; 0 is itself."""
        if which == range(1):
            return task
        inputs = self._near(task, key, range(max(0, which.start - 1), which.stop - 1))
        return stacked(task, len(which), inputs if which.start else torch.cat([task.inputs, inputs]))

    def _near(self, task: Task, key: Key, draws: range) -> Tensor:
        reach = self.radius * reference_range(task) if self.in_ranges else self.radius
        return (task.inputs + reach * uniform_draws(task, key / "neighbour", draws)).flatten(0, 1)

    def pairs(
        self, task: Task, explainer: Explainer, context: Context, compare: Callable[..., Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """`explained_pairs` of the samples and their neighbours."""
        start = movable(task)
        variants = partial(self.neighbours, start, context.key)
        return explained_pairs(start, explainer, context, variants, self.draws, self.normalise, compare)


def comparable(values: Tensor, valid: Tensor | None, normalise: bool) -> Tensor:
    """Maps (..., N, V) in float64, over their root mean square or not; 0 at features that do not exist."""
    if normalise:
        return rms_normalise(values, where=valid)
    values = values.double()
    return values if valid is None else values.masked_fill(~valid, 0.0)


def explained_pairs(
    task: Task,
    explainer: Explainer,
    context: Context,
    variants: Callable[[range], Task],
    count: int,
    normalise: bool,
    compare: Callable[..., Tensor],
    first_number: int = 0,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The clean maps (N, V), `compare(near task, clean maps, near maps)` for every variant (N, count), flags.

    As many variants as fit a chunk are explained together: the near task holds k times the samples, the maps
    are (k, N, V), and `compare` gives (k, N).
    """
    rows = []
    with explaining(explainer, context, task) as explain:
        for which, near, values in explained_variants(
            explain, explainer, task, count, variants, context.key, first_number
        ):
            maps = comparable(values, task.space.valid, normalise)
            if not which.start:
                clean, flags = maps[0], map_flags(explain, len(task))
                maps, near = maps[1:], near[len(task) :] if len(which) > 1 else near
            if len(maps):
                rows.append(compare(near, clean, maps))
    return clean, torch.cat(rows).T.contiguous(), flags


def distance(before: Tensor, after: Tensor) -> Tensor:
    """Euclidean distance of rows that are float64 and 0 where features do not exist, as `maps` gives them."""
    return torch.linalg.vector_norm(before - after, dim=-1)


def map_flags(explain: Maps, count: int) -> dict[str, Tensor]:
    """Why the first `count` of the maps made last cannot be compared with anything."""
    zeros = explain.largest[:count] == 0
    return {"the map is all zeros": zeros, "no explanation": explain.missing[:count]}


def worst(table: Tensor) -> Tensor:
    """The largest entry of each row of distances that is a number; NaN where none is."""
    largest = table.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1)
    return largest.masked_fill_(largest == -torch.inf, torch.nan)


def nan_where_any(values: Tensor, flags: dict[str, Tensor]) -> Tensor:
    """`values` with NaN where one of the flags is raised."""
    any_raised = torch.stack([*flags.values()]).any(0)
    return values.masked_fill(any_raised, torch.nan)


def relative_change(before: Tensor, after: Tensor, epsilon: float) -> Tensor:
    """‖(before - after) / (before + epsilon sign(before))‖ of each row, with sign(0) = 1, in float64."""
    before, after = before.double(), after.double()
    away = torch.where(before < 0, -epsilon, epsilon)
    return torch.linalg.vector_norm((before - after).div_(before + away), dim=-1)


def unchecked_outputs(task: Task) -> Tensor:
    """All outputs (N, C), counted; to check them would wait for a GPU at every draw."""
    with task.session():
        return task.predictor.chunk(task.inputs, task.side)


def same_prediction(task: Task, before: Tensor, after: Tensor) -> Tensor:
    """Whether two sets of outputs (N, C) and (..., N, C) predict alike: one class, or all labels.

    A regression always does.
    """
    if task.head == "regression":
        return torch.ones(after.shape[:-1], dtype=torch.bool, device=before.device)
    if task.head == "multilabel":
        return ((before > 0) == (after > 0)).all(-1)
    return before.argmax(-1) == after.argmax(-1)


@dataclass(frozen=True)
class RelativeStability(NeighbourMetric):
    """max over draws of relative change of the map / max(change of something else, epsilon).

    The map's change is ‖(e - e') / (e + epsilon sign(e))‖ with sign(0) = 1. Draws that change the
    prediction are left out; where all do, the sample is NaN. A subclass says what else is read.
    """

    epsilon: Positive = 1e-6
    """Added to divisors, with their sign, and their smallest size."""
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.LOWER
    assumes: ClassVar[str] = "an explanation may change as much, relatively, as what it explains"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def reading(self, task: Task, clean: bool) -> tuple[Tensor, Tensor]:
        """What the map's change is held against (N, K), and the outputs (N, C), which the caller checks."""
        outputs = task.outputs if clean else unchecked_outputs(task)
        return outputs, outputs

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        """How far the reading moved (N,)."""
        return relative_change(before, after, self.epsilon)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        start = movable(task)
        before, clean_outputs = self.reading(start, True)
        kept: list[Tensor] = []
        sizes: list[Tensor] = []

        def ratio(near: Task, clean: Tensor, after: Tensor) -> Tensor:
            parts = self.reading(near, False)
            # NaN and infinity both show in the largest size, which is checked when all is done
            distinct = parts if parts[0] is not parts[1] else parts[:1]
            sizes.extend(torch.linalg.vector_norm(part, torch.inf, -1) for part in distinct)
            reading, outputs = (part.unflatten(0, (-1, len(start))) for part in parts)
            same = same_prediction(task, clean_outputs, outputs)
            kept.append(same)
            change = relative_change(clean, after, self.epsilon)
            moved = self.moved(before, reading).clamp(min=self.epsilon)
            return torch.where(same, change / moved, torch.nan)

        _, table, flags = self.pairs(start, explainer, context, ratio)
        check_finite(torch.cat(sizes).unflatten(0, (-1, len(start))).T)
        share = torch.cat(kept).double().mean(0)
        flags["every draw changed the prediction"] = share == 0
        values = nan_where_any(worst(table), flags)
        return Outcome(values, flags, details={"draws": table, "share of draws kept": share})


def flat_inputs(task: Task) -> Tensor:
    """Inputs as rows, 0 at elements that noise never touches."""
    return torch.where(touched(task), task.inputs, 0).flatten(1)


def why_no_layer(task: Task, layer: str | None) -> str | None:
    """Why no representation can be read from this model, or None if one can."""
    names = dict(task.predictor.unwrapped.named_modules())
    if layer is not None:
        return None if layer in names else str(unknown_name("layer", layer, [n for n in names if n]))
    if any(isinstance(m, nn.Linear) for m in names.values()):
        return None
    return "it reads the input of the last nn.Linear layer and the model has none; name one with layer=..."


def representations(task: Task, layer: str | None = None) -> tuple[Tensor, Tensor]:
    """(N, K) activations and (N, C) outputs from one counted pass, which the caller checks.

    The activations are the output of the named layer or, with None, what goes into the linear layer that
    is called last.
    """
    module, seen = task.predictor.unwrapped, list[Tensor]()

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen[:] = [inputs[0]]

    def after(_module: nn.Module, _inputs: Any, made: Any) -> None:
        seen[:] = [made[0] if isinstance(made, tuple | list) else made]

    def joined(made: Any) -> Tensor:
        """Activations and outputs side by side, so that one (rows, columns) tensor carries both."""
        outputs = task.predictor.output(made)
        if not seen:
            raise InputError(
                "the model never called the layer whose activations are read; name it by layer=..."
            )
        if len(seen[0]) != len(outputs):
            raise ShapeError(
                f"the layer's activations have shape {tuple(seen[0].shape)} for {len(outputs)} rows; "
                "their first axis must count samples"
            )
        return torch.cat([seen.pop().flatten(1).to(outputs.dtype), outputs], 1)

    if layer is None:
        linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
        hooks = [m.register_forward_pre_hook(before) for m in linear]
    else:
        hooks = [module.get_submodule(layer).register_forward_hook(after)]
    reader = task.predictor.wrapped(lambda model: model, joined)
    try:
        with reader.session():
            both = reader.chunk(task.inputs, task.side)
    finally:
        for hook in hooks:
            hook.remove()
    return both[:, : -task.n_outputs], both[:, -task.n_outputs :]
