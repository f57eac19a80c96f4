"""A model watched under the perturbations that metrics use: input noise, randomised layers, masking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.functional import round_to_grid
from veridical.gef.noise_path import NoisePath
from veridical.gef.worlds import Worlds
from veridical.models.randomised_layers import cascade, randomised
from veridical.perturb.fills import Fill
from veridical.perturb.probe import probe
from veridical.perturb.rules import RankThreshold, step_counts
from veridical.values.space import Space
from veridical.values.task import Task

Kind = Literal["noise", "layers", "masking"]


@dataclass(frozen=True, eq=False)
class Watched:
    """How the model answered to one kind of perturbation, weakest first."""

    kind: Kind
    """What was perturbed."""
    label: str
    """In words."""
    levels: tuple[float, ...]
    """How strongly."""
    distortion: Tensor
    """How far the explained output moved, D_f (N, draws, levels)."""
    changed: Tensor
    """Where the predicted class is another one (N, draws, levels)."""

    @property
    def not_monotone(self) -> Tensor:
        """(N, draws): whether some D_f^{z+1} < D_f^z."""
        return (self.distortion.diff(dim=-1) < 0).any(-1)


@dataclass(frozen=True, eq=False)
class PerChannel(Fill):
    """One value per channel of an image or column of a table: black is not one number for all of them."""

    values: Tensor
    """The values (C,)."""
    name: ClassVar[str] = "per channel"
    drawn: ClassVar[bool] = False

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        shape = (1, 1, -1, *[1] * (x.dim() - 2))
        return self.values.to(x).reshape(shape).expand(1, 1, *x.shape[1:])


def _moved(task: Task, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """|y_c - y_hat_c| and whether the class is another one, for outputs (N, C)."""
    place = task.targets[:, None]
    both = torch.cat([task.outputs.gather(1, place), outputs.gather(1, place)], 1)
    pair = round_to_grid(both, task.predictor.rounding)
    return (pair[:, 0] - pair[:, 1]).abs(), outputs.argmax(-1) != task.predictions


def _watched(
    kind: Kind, label: str, levels: Sequence[float], cells: list[list[tuple[Tensor, Tensor]]]
) -> Watched:
    distortion = torch.stack([torch.stack([cell[0] for cell in draw], -1) for draw in cells], 1)
    changed = torch.stack([torch.stack([cell[1] for cell in draw], -1) for draw in cells], 1)
    return Watched(kind, label, tuple(levels), distortion, changed)


def watch_noise(task: Task, path: NoisePath, draws: int, key: Key) -> Watched:
    """Noise on the inputs, at each level of a path."""
    worlds = Worlds(task, "input")

    def cell(draw: int, level: int) -> tuple[Tensor, Tensor]:
        world = worlds.at(path.levels[level], key / draw / level)
        return _moved(task, world.predictor.outputs(world.inputs, world.side))

    cells = [[cell(draw, level) for level in range(len(path.levels))] for draw in range(draws)]
    return _watched("noise", f"N(0, s^2), s up to {path.sigma_max:g}", path.levels, cells)


def watch_layers(
    task: Task, order: Literal["top_down", "bottom_up"], draws: int, key: Key, groups: int | None
) -> Watched:
    """Layers randomised one after the other, or in groups."""
    model = task.predictor.unwrapped
    all_steps = cascade(model, order)
    count = min(groups or len(all_steps), len(all_steps))
    steps = [all_steps[len(all_steps) * (i + 1) // count - 1] for i in range(count)]

    def cell(draw: int, names: list[str]) -> tuple[Tensor, Tensor]:
        # a layer's new weights depend on the draw and its name alone: both orders end at the same model
        world = task.with_weights(randomised(model, names, key / draw))
        return _moved(task, world.predictor.outputs(world.inputs, world.side))

    cells = [[cell(draw, names) for names in steps] for draw in range(draws)]
    shares = [len(names) / len(all_steps) for names in steps]
    return _watched("layers", order.replace("_", " "), shares, cells)


def watch_masking(task: Task, patches: Sequence[int], steps: int, draws: int, key: Key) -> list[Watched]:
    """Features masked one after the other in random order, by patch and fill."""
    rows = task.inputs if task.train is None else task.train
    fills: dict[str, Fill] = {"the task's fill": task.fill}
    if rows.is_floating_point():
        by_channel = rows.movedim(1, 0).flatten(1)
        values = {"black": by_channel.amin(1), "white": by_channel.amax(1), "mean": by_channel.mean(1)}
        fills = {name: PerChannel(value) for name, value in values.items()}
    spaces = {"one feature at a time": task.space}
    if task.modality == "image":
        shape = tuple(task.inputs.shape[1:])
        # one patch over the whole image would leave nothing to accumulate
        spaces = {f"patches of {n}": Space.patches(shape, n) for n in patches if 2 * n <= max(shape[1:])}
    out = []
    for where, space in spaces.items():
        on = task.with_space(space)
        for filled, fill in fills.items():
            counts = step_counts(on, min(steps, space.n_features))
            cells = []
            for draw in range(draws):
                first = keyed.random_ranks(key / draw, on.draw_ids, 0, space.n_features, space.valid)
                answers = probe(
                    on, RankThreshold(first, counts), response="logit", fill=fill, key=key, all_outputs=True
                )
                cells.append(
                    [_moved(on, answers[:, m].to(on.outputs.dtype)) for m in range(answers.shape[1])]
                )
            shares = [(m + 1) / len(cells[0]) for m in range(len(cells[0]))]
            out.append(_watched("masking", f"{where}, {filled}", shares, cells))
    return out
