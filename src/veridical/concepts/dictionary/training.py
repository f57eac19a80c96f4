"""Train a dictionary on a stream of activations; a run that was stopped goes on where it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.concepts.dictionary.checkpoint import Checkpoint
from veridical.concepts.dictionary.dictionary import Dictionary
from veridical.concepts.dictionary.recipes import Recipe
from veridical.concepts.dictionary.run import Run
from veridical.concepts.dictionary.stream import Stream
from veridical.core.key import Key, as_key
from veridical.core.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Trained:
    """A dictionary and how it came about."""

    dictionary: Dictionary
    recipe: Recipe
    losses: Tensor
    """The loss at every step, of rows scaled to a mean square of 1."""
    dead: Tensor
    """Which atoms were never active in the last eighth of training."""
    seed: int | Key = 0

    def plot(self, ax: Axes | None = None) -> Axes:
        """The loss curve."""
        from veridical.plots import axes

        ax = axes(ax)
        ax.plot(range(1, len(self.losses) + 1), self.losses.tolist(), lw=0.8)
        ax.set(xlabel="step", ylabel="loss", yscale="log", title=self.recipe.name)
        return ax


def train(
    rows: Any,
    recipe: Recipe,
    seed: int | Key = 0,
    *,
    checkpoint: str | Path | None = None,
    every: int = 500,
    atoms: Tensor | None = None,
    progress: bool | None = None,
) -> Trained:
    """Train a dictionary on rows (n, D): an array, or a `Stream` of shards.

    `checkpoint` names a file (.safetensors) that is written `every` so many steps; if it is there, and
    of the same run, training goes on from it, and ends with the same bits as a run that was never stopped.
    `atoms` (width, D) are where encoder and decoder begin; they are drawn otherwise.
    """
    stream, key = Stream.of(rows), as_key(seed)
    run = Run(stream, recipe, key, atoms)
    store = None if checkpoint is None else Checkpoint(Path(checkpoint), recipe, key)
    begin = 0 if store is None else store.restore(run.state())
    run.resume(begin)
    steps = range(begin, recipe.steps)
    with torch.enable_grad():
        for step in track(steps, f"training {recipe.width} atoms", progress):
            run.step(step)
            if store is not None and ((step + 1) % every == 0 or step + 1 == recipe.steps):
                store.save(run.state(), step + 1)
    return Trained(run.dictionary(), recipe, run.losses.cpu(), ~run.fired, seed)
