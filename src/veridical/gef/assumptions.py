"""Do the assumptions hold that robustness, sensitivity and faithfulness metrics make about a model?

Appendix A.5 of the GEF paper: each family of metrics perturbs something and takes for granted how the model
answers. Here the model is watched alone; no explanation is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from veridical.errors import InputError, NotApplicableError
from veridical.functional import round_to_grid
from veridical.gef.path import NoisePath, find_path
from veridical.gef.worlds import Worlds
from veridical.masking.fills import Constant, Fill
from veridical.masking.probe import probe
from veridical.masking.rules import RankThreshold, step_counts
from veridical.model.cost import Cost
from veridical.model.randomised_layers import cascade, randomised
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

KEEPING = 0.95
Kind = Literal["noise", "layers", "masking"]


@dataclass(frozen=True, eq=False)
class Watched:
    """How far the model moved, D_f (N, draws, levels), under one kind of perturbation, weakest first.

    `changed` tells where the predicted class is another one.
    """

    kind: Kind
    label: str
    levels: tuple[float, ...]
    distortion: Tensor
    changed: Tensor

    @property
    def not_monotone(self) -> Tensor:
        """(N, draws): whether some D_f^{z+1} < D_f^z."""
        return (self.distortion.diff(dim=-1) < 0).any(-1)


@dataclass(frozen=True, eq=False, repr=False)
class Assumptions:
    """How often the assumptions of perturbation metrics fail for a model, and the distortions behind that.

    `robustness_fails` (N, draws, levels) where a class changes at a level at which at least 95% keep theirs;
    `sensitivity_fails` (N, draws) where the class is the same after all layers were randomised;
    `Watched.not_monotone` where more perturbation moved the model less.
    """

    noise: Watched
    layers: tuple[Watched, ...]
    masking: tuple[Watched, ...]
    robustness_fails: Tensor
    sensitivity_fails: Tensor
    path: NoisePath
    chance: float
    ids: Tensor
    cost: Cost

    @property
    def watched(self) -> tuple[Watched, ...]:
        return (self.noise, *self.layers, *self.masking)

    @property
    def robust_levels(self) -> int:
        """Levels of noise at which, in some draw, at least 95% of the classes are kept."""
        kept = 1 - self.noise.changed.double().mean(0)
        return int((kept >= KEEPING).any(0).sum())

    def to_frame(self) -> pd.DataFrame:
        """One row a perturbation and assumption: how many of the cases fail."""
        import pandas as pd

        def row(assumption: str, kind: str, what: str, fails: Tensor) -> dict[str, object]:
            return {
                "assumption": assumption,
                "perturbation": kind,
                "setting": what,
                "failing": int(fails.sum()),
                "of": fails.numel(),
                "share": float(fails.double().mean()),
            }

        rows = [row("robustness", "noise", self.noise.label, self.robustness_fails.any(-1))]
        rows.append(row("sensitivity", "layers", "all layers randomised", self.sensitivity_fails))
        rows += [row("monotonicity", w.kind, w.label, w.not_monotone) for w in self.watched]
        return pd.DataFrame(rows)

    def plot(self, kind: Kind = "noise", ax: Axes | None = None, samples: int = 0) -> Axes:
        """D_f over one kind of perturbation (figures A.3, A.4); `samples` > 0 draws single ones (A.5)."""
        from veridical.gef.plots import plot_watched

        chosen = [w for w in self.watched if w.kind == kind]
        if not chosen:
            raise InputError(f"kind is 'noise', 'layers' or 'masking', got {kind!r}")
        return plot_watched(chosen, ax, samples)

    def __repr__(self) -> str:
        count = f"{self.robust_levels} of {len(self.noise.levels)} levels"
        robust, sensitive = self.robustness_fails.any(-1).double(), self.sensitivity_fails.double()
        masking = torch.stack([w.not_monotone.double().mean() for w in self.masking])
        return "\n".join(
            (
                f"Assumptions about a model, watched on {len(self.ids)} samples:",
                f"  robustness fails for {robust.mean():.1%} of samples: their class changes at a noise "
                f"level where at least 95% keep theirs ({count} are such)",
                f"  sensitivity fails for {sensitive.mean():.1%}: the class is the same after all layers "
                f"were randomised (by luck alone {self.chance:.1%} would be)",
                f"  monotonicity fails for {masking.min():.1%} to {masking.max():.1%} under cumulative "
                f"masking in random order, by patch and fill, for "
                f"{self.noise.not_monotone.double().mean():.1%} under input noise",
            )
        )


def assumptions(
    task: Task,
    levels: int = 10,
    draws: int = 5,
    patches: Sequence[int] = (1, 2, 4, 8),
    mask_steps: int = 10,
    seed: int = 0,
    search_draws: int = 20,
    layer_steps: int | None = None,
) -> Assumptions:
    """Watch a model under the perturbations that metrics use, and count where their assumptions fail.

    Input noise in `levels` levels up to chance, looked for with `search_draws` draws a level; layers
    randomised one after the other from the output down and from the input up, or in `layer_steps` groups;
    features masked cumulatively in random order in `mask_steps` steps, in `patches` on images, filled with
    the smallest, the largest and the mean value of the reference rows.
    """
    if task.head == "regression":
        raise NotApplicableError("a regression has no class that could change or stay")
    if task.members is not None:
        raise NotApplicableError("the samples of this task are classes; give the task of its inputs")
    if not any(p.is_floating_point() for p in task.predictor.model.parameters()):
        raise NotApplicableError("the model has no weights that torch can see, so no layer can be randomised")
    if levels < 2 or draws < 1 or mask_steps < 2:
        raise InputError(f"at least 2 levels, 1 draw and 2 mask steps, got {levels}, {draws}, {mask_steps}")
    key = Key(seed) / "assumptions"
    before = task.predictor.meter.cost
    path = find_path(task, levels, perturb="input", draws=search_draws, key=key)
    noise = _watch_noise(task, path, draws, key / "noise")
    kept = 1 - noise.changed.double().mean(0)
    layers = tuple(
        _watch_layers(task, order, draws, key / "layers", layer_steps) for order in ("top_down", "bottom_up")
    )
    masking = tuple(_watch_masking(task, patches, mask_steps, draws, key / "masking"))
    return Assumptions(
        noise,
        layers,
        masking,
        noise.changed & (kept >= KEEPING),
        ~layers[0].changed[..., -1],
        path,
        1 / task.n_outputs,
        task.ids,
        task.predictor.meter.cost - before,
    )


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


def _watch_noise(task: Task, path: NoisePath, draws: int, key: Key) -> Watched:
    worlds = Worlds(task, "input")

    def cell(draw: int, level: int) -> tuple[Tensor, Tensor]:
        world = worlds.at(path.levels[level], key / draw / level)
        return _moved(task, world.predictor.outputs(world.inputs, world.side))

    cells = [[cell(draw, level) for level in range(len(path.levels))] for draw in range(draws)]
    return _watched("noise", f"N(0, s^2), s up to {path.sigma_max:g}", path.levels, cells)


def _watch_layers(
    task: Task, order: Literal["top_down", "bottom_up"], draws: int, key: Key, groups: int | None
) -> Watched:
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


def _watch_masking(task: Task, patches: Sequence[int], steps: int, draws: int, key: Key) -> list[Watched]:
    rows = task.inputs if task.train is None else task.train
    fills: dict[str, Fill] = {"the task's fill": task.fill}
    if rows.is_floating_point():
        values = {"black": rows.min(), "white": rows.max(), "mean": rows.mean()}
        fills = {name: Constant(float(value)) for name, value in values.items()}
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
                first = keyed.random_ranks(key / draw, on.ids, 0, space.n_features, space.valid)
                answers = probe(
                    on, RankThreshold(first, counts), response="logit", fill=fill, key=key, all_outputs=True
                )
                cells.append(
                    [_moved(on, answers[:, m].to(on.outputs.dtype)) for m in range(answers.shape[1])]
                )
            shares = [(m + 1) / len(cells[0]) for m in range(len(cells[0]))]
            out.append(_watched("masking", f"{where}, {filled}", shares, cells))
    return out
