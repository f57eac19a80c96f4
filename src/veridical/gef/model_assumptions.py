"""Do the assumptions hold that robustness, sensitivity and faithfulness metrics make about a model?

Appendix A.5 of the GEF paper: each family of metrics perturbs something and takes for granted how the model
responds. Here the model is observed alone; no explanation is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, Positive, Share
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.functional import round_to_grid
from veridical.gef.noise_path import NoisePath, find_path
from veridical.gef.perturbed_model import PerturbedModels
from veridical.models.cost import Cost
from veridical.models.randomised_layers import cascade, randomised
from veridical.perturb.fills import Fill, as_fill
from veridical.perturb.probe import probe
from veridical.perturb.rules import RankThreshold, step_counts
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["noise", "layers", "masking"]
KEEPING = 0.95
"""The share of classes that is kept where noise is called weak, unless a strength says what is."""


@dataclass(frozen=True, eq=False)
class Response:
    """How the model's outputs moved under one kind of perturbation, weakest first."""

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


@dataclass(frozen=True, eq=False, repr=False)
class Assumptions:
    """How often the assumptions of perturbation metrics fail for a model, and the distortions behind that.

    Monotonicity fails where more perturbation moved the model less (`Response.not_monotone`).
    """

    noise: Response
    """Under noise on the inputs."""
    layers: tuple[Response, ...]
    """Under randomised layers, top-down and bottom-up."""
    masking: tuple[Response, ...]
    """Under masking, by patch and fill."""
    path: NoisePath
    """The levels of the input noise."""
    chance: float
    """How often a class would be the same by luck."""
    cost: Cost
    """Rows asked."""
    alpha: float | None = None
    """Noise is weak up to this strength; None: where enough classes are kept."""
    epsilon: float | None = None
    """The model moved where D_f is beyond this; None: where the class is another one."""
    keeping: float = KEEPING
    """The share of classes that is kept under weak noise."""

    def moved(self, response: Response) -> Tensor:
        """Where the model moved (N, draws, levels)."""
        return response.changed if self.epsilon is None else response.distortion > self.epsilon

    @property
    def weak(self) -> Tensor:
        """At which levels of which draws (draws, levels) the noise is weak."""
        if self.alpha is None:
            return 1 - self.noise.changed.double().mean(0) >= self.keeping
        few = torch.tensor([level <= self.alpha for level in self.noise.levels])
        return few.to(self.noise.changed.device).expand(self.noise.changed.shape[1:])

    @property
    def responses(self) -> tuple[Response, ...]:
        return (self.noise, *self.layers, *self.masking)

    @property
    def robustness_fails(self) -> Tensor:
        """Assumption 1: where the model moved although the noise is weak (N, draws, levels)."""
        return self.moved(self.noise) & self.weak

    @property
    def sensitivity_fails(self) -> Tensor:
        """Assumption 2: where the model did not move although all layers were randomised (N, draws)."""
        return ~self.moved(self.layers[0])[..., -1]

    def to_frame(self) -> pd.DataFrame:
        """One row per perturbation and assumption: how many of the cases fail."""
        import pandas as pd

        rows = [("robustness", "noise", self.noise.label, self.robustness_fails.any(-1))]
        rows.append(("sensitivity", "layers", "all layers randomised", self.sensitivity_fails))
        rows += [("monotonicity", w.kind, w.label, w.not_monotone) for w in self.responses]
        counted = [(*what, int(f.sum()), f.numel(), float(f.double().mean())) for *what, f in rows]
        names = ["assumption", "perturbation", "setting", "failing", "of", "share"]
        return pd.DataFrame(counted, columns=names)

    def __repr__(self) -> str:
        moved = "a class changes" if self.epsilon is None else f"D_f is beyond {self.epsilon:g}"
        weak = f"at which at least {self.keeping:.0%} keep theirs"
        weak = weak if self.alpha is None else f"of {self.alpha:g} or less"
        head = (
            f"Assumptions about a model, observed on {len(self.noise.changed)} samples. Robustness fails "
            f"where {moved} at a noise level {weak}, sensitivity where that is not so after all layers were "
            f"randomised (a class stays by luck alone in {self.chance:.1%}), "
            "monotonicity where more perturbation moved the model less:"
        )
        return f"{head}\n{self.to_frame().round(3).to_string(index=False)}"


@checked
def assumptions(
    task: Task,
    levels: Count = 10,
    draws: Count = 5,
    patches: Sequence[Count] = (1, 2, 4, 8),
    mask_steps: Count = 10,
    seed: int = 0,
    search_draws: Count = 400,
    layer_steps: Count | None = None,
    alpha: Positive | None = None,
    epsilon: Positive | None = None,
    keeping: Share = KEEPING,
) -> Assumptions:
    """Observe a model under the perturbations that metrics use, and count where their assumptions fail.

    Input noise in `levels` levels up to chance, looked for with at most `search_draws` draws; layers
    randomised one after the other from the output down and from the input up, or in `layer_steps` groups;
    features masked cumulatively in random order in `mask_steps` steps, in `patches` on images, filled with
    the smallest, the largest and the mean value of each channel or column of the reference rows.

    Parameters
    ----------
    task : Task
        A classifier.
    levels : int
        Levels of input noise.
    draws : int
        Draws at each level.
    patches : sequence of int
        Sides of the patches that are masked on images.
    mask_steps : int
        Steps in which features are masked.
    seed : int
        Seed of all draws.
    search_draws : int
        Most draws while the path is looked for.
    layer_steps : int, optional
        Groups in which layers are randomised; by default one by one.
    alpha : float, optional
        Strength of noise up to which a model should stay (Definition 2); by default where most classes are
        kept.
    epsilon : float, optional
        D_f beyond which the model moved (Assumptions 1 and 2); by default where the class is another one.
    keeping : float
        The share of classes that is kept under weak noise, where no `alpha` is given.

    Returns
    -------
    Assumptions
        What was observed, and how often each assumption failed.

    Raises
    ------
    NotApplicableError
        Where no class can change, or the model has no weights.
    """
    if task.head in ("regression", "generation"):
        raise NotApplicableError(f"a {task.head} has no class that could change or stay")
    if task.members is not None:
        raise NotApplicableError("the samples of this task are classes; give the task of its inputs")
    if not any(p.is_floating_point() for p in task.predictor.model.parameters()):
        raise NotApplicableError("the model has no weights that torch can see, so no layer can be randomised")
    if levels < 2 or mask_steps < 2:
        raise InputError(f"at least 2 levels and 2 mask steps, got {levels} and {mask_steps}")
    key = Key(seed) / "assumptions"
    before = task.predictor.meter.cost
    path = find_path(task, levels, perturb="input", draws=search_draws, key=key)
    noise = under_noise(task, path, draws, key / "noise")
    layers = tuple(
        under_layers(task, order, draws, key / "layers", layer_steps) for order in ("top_down", "bottom_up")
    )
    masking = tuple(under_masking(task, patches, mask_steps, draws, key / "masking"))
    cost = task.predictor.meter.cost - before
    chance = 1 / task.n_outputs
    return Assumptions(noise, layers, masking, path, chance, cost, alpha, epsilon, keeping)


# --- the three kinds of perturbation --------------------------------------------------


def _per_channel(values: Tensor, x: Tensor, removed: Tensor) -> Tensor:
    """One value (C,) per channel of an image or column of a table: black is not one number for all."""
    return torch.where(removed, values.to(x).reshape(-1, *[1] * (x.dim() - 2)), x)


def _moved(task: Task, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """|y_c - y_hat_c| and whether the class is another one, for outputs (N, C)."""
    place = task.targets[:, None]
    both = torch.cat([task.outputs.gather(1, place), outputs.gather(1, place)], 1)
    pair = round_to_grid(both, task.predictor.rounding)
    return (pair[:, 0] - pair[:, 1]).abs(), outputs.argmax(-1) != task.predictions


def _response(
    kind: Kind, label: str, levels: Sequence[float], cells: list[list[tuple[Tensor, Tensor]]]
) -> Response:
    distortion, changed = (
        torch.stack([torch.stack([cell[part] for cell in draw], -1) for draw in cells], 1) for part in (0, 1)
    )
    return Response(kind, label, tuple(levels), distortion, changed)


def under_noise(task: Task, path: NoisePath, draws: int, key: Key) -> Response:
    """Noise on the inputs, at each level of a path."""
    models = PerturbedModels(task, "input")

    def cell(draw: int, level: int) -> tuple[Tensor, Tensor]:
        noisy = models.at(path.levels[level], key / draw / level)
        return _moved(task, noisy.predictor.outputs(noisy.inputs, noisy.side))

    cells = [[cell(draw, level) for level in range(len(path.levels))] for draw in range(draws)]
    return _response("noise", f"N(0, s^2), s up to {path.sigma_max:g}", path.levels, cells)


def under_layers(
    task: Task, order: Literal["top_down", "bottom_up"], draws: int, key: Key, groups: int | None
) -> Response:
    """Layers randomised one after the other, or in groups."""
    model = task.predictor.unwrapped
    all_steps = cascade(model, order)
    count = min(groups or len(all_steps), len(all_steps))
    steps = [all_steps[len(all_steps) * (i + 1) // count - 1] for i in range(count)]

    def cell(draw: int, names: list[str]) -> tuple[Tensor, Tensor]:
        # a layer's new weights depend on the draw and its name alone: both orders end at the same model
        other = task.with_weights(randomised(model, names, key / draw))
        return _moved(task, other.predictor.outputs(other.inputs, other.side))

    cells = [[cell(draw, names) for names in steps] for draw in range(draws)]
    shares = [len(names) / len(all_steps) for names in steps]
    return _response("layers", order.replace("_", " "), shares, cells)


def under_masking(task: Task, patches: Sequence[int], steps: int, draws: int, key: Key) -> list[Response]:
    """Features masked one after the other in random order, by patch and fill."""
    rows = task.inputs if task.train is None else task.train
    fills: dict[str, Fill] = {"the task's fill": task.fill}
    if rows.is_floating_point():
        by_channel = rows.movedim(1, 0).flatten(1)
        values = {"black": by_channel.amin(1), "white": by_channel.amax(1), "mean": by_channel.mean(1)}
        fills = {name: as_fill(partial(_per_channel, value)) for name, value in values.items()}
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
                outputs = probe(
                    on, RankThreshold(first, counts), response="logit", fill=fill, key=key, all_outputs=True
                )
                cells.append([_moved(on, each.to(on.outputs.dtype)) for each in outputs.unbind(1)])
            shares = [(m + 1) / len(cells[0]) for m in range(len(cells[0]))]
            out.append(_response("masking", f"{where}, {filled}", shares, cells))
    return out
