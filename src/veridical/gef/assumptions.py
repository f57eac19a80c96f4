"""Do the assumptions hold that robustness, sensitivity and faithfulness metrics make about a model?

Appendix A.5 of the GEF paper: each family of metrics perturbs something and takes for granted how the model
answers. Here the model is watched alone; no explanation is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.gef.noise_path import NoisePath
from veridical.gef.path import find_path
from veridical.gef.watched import Kind, Watched, watch_layers, watch_masking, watch_noise
from veridical.models.cost import Cost
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

KEEPING = 0.95
"""The share of classes that is kept where noise is called weak."""


@dataclass(frozen=True, eq=False, repr=False)
class Assumptions:
    """How often the assumptions of perturbation metrics fail for a model, and the distortions behind that.

    Monotonicity fails where more perturbation moved the model less (`Watched.not_monotone`).
    """

    noise: Watched
    """Under noise on the inputs."""
    layers: tuple[Watched, ...]
    """Under randomised layers, top-down and bottom-up."""
    masking: tuple[Watched, ...]
    """Under masking, by patch and fill."""
    robustness_fails: Tensor
    """Where a class changes at a level at which at least 95% keep theirs (N, draws, levels)."""
    sensitivity_fails: Tensor
    """Where the class is the same after all layers were randomised (N, draws)."""
    path: NoisePath
    """The levels of the input noise."""
    chance: float
    """How often a class would be the same by luck."""
    ids: Tensor
    """The samples."""
    cost: Cost
    """Rows asked."""

    @property
    def watched(self) -> tuple[Watched, ...]:
        return (self.noise, *self.layers, *self.masking)

    @property
    def robust_levels(self) -> int:
        """Levels of noise at which, in some draw, at least 95% of the classes are kept."""
        kept = 1 - self.noise.changed.double().mean(0)
        return int((kept >= KEEPING).any(0).sum())

    def to_frame(self) -> pd.DataFrame:
        """One row per perturbation and assumption: how many of the cases fail."""
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

    Input noise in `levels` levels up to chance, looked for with `search_draws` draws per level; layers
    randomised one after the other from the output down and from the input up, or in `layer_steps` groups;
    features masked cumulatively in random order in `mask_steps` steps, in `patches` on images, filled with
    the smallest, the largest and the mean value of each channel or column of the reference rows.
    """
    if task.head in ("regression", "generation"):
        raise NotApplicableError(f"a {task.head} has no class that could change or stay")
    if task.members is not None:
        raise NotApplicableError("the samples of this task are classes; give the task of its inputs")
    if not any(p.is_floating_point() for p in task.predictor.model.parameters()):
        raise NotApplicableError("the model has no weights that torch can see, so no layer can be randomised")
    if levels < 2 or draws < 1 or mask_steps < 2:
        raise InputError(f"at least 2 levels, 1 draw and 2 mask steps, got {levels}, {draws}, {mask_steps}")
    key = Key(seed) / "assumptions"
    before = task.predictor.meter.cost
    path = find_path(task, levels, perturb="input", draws=search_draws, key=key)
    noise = watch_noise(task, path, draws, key / "noise")
    kept = 1 - noise.changed.double().mean(0)
    layers = tuple(
        watch_layers(task, order, draws, key / "layers", layer_steps) for order in ("top_down", "bottom_up")
    )
    masking = tuple(watch_masking(task, patches, mask_steps, draws, key / "masking"))
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
