"""Train a sparse dictionary on activations; a run that was stopped goes on where it was."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from veridical.concepts.dictionary import Dictionary, read_weights
from veridical.core.allowed import Count, NotNegative, Positive
from veridical.core.files import write_file
from veridical.core.key import Key, as_key, integers, normal
from veridical.core.progress import track
from veridical.core.settings import Settings
from veridical.errors import FormatError, InputError, ShapeError
from veridical.functional.devices import on_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Recipe(Settings):
    """What all dictionaries share: Adam on the squared error, atoms of length 1 after every step.

    Atoms that were not active since the last check start anew along what is worst explained, eight times in
    the first half of training (Bricken et al. 2023).
    """

    width: Count = 512
    """Atoms of the dictionary."""
    steps: Count = 2000
    """Steps of training."""
    batch: Count = 512
    """Rows in a step, drawn with replacement."""
    rate: Positive = 1e-3
    """Adam's learning rate at the start; it falls to 0 along a cosine."""
    frozen: Literal["encoder", "decoder"] | None = None
    """Which half stays as it was drawn, which makes a random control of the dictionary."""
    revive: bool = True
    """Whether atoms that are never active start anew; a frozen half forbids it."""
    activation: ClassVar[str] = ""
    """What makes codes of the encoder's outputs."""
    active: ClassVar[int | None] = None
    """Atoms that are active, where a number says so."""

    def __post_init__(self) -> None:
        if self.active is not None and self.active > self.width:
            raise InputError(f"{self.active} active atoms of a dictionary that has {self.width}")

    def codes(self, before: Tensor) -> Tensor:
        """Codes (B, atoms) of a batch from the encoder's outputs."""
        raise TypeError("a Recipe is ReLU, TopK or BatchTopK")

    def penalty(self, codes: Tensor, dimension: int) -> Tensor | None:
        """What joins the squared error; None for nothing."""
        return None


@dataclass(frozen=True)
class ReLU(Recipe):
    """Codes are what is positive, and an L1 penalty keeps them sparse."""

    name: ClassVar[str] = "relu"
    activation: ClassVar[str] = "relu"
    sparsity: NotNegative = 1e-2
    """Weight of the L1 penalty on codes."""

    def codes(self, before: Tensor) -> Tensor:
        return before.clamp(min=0)

    def penalty(self, codes: Tensor, dimension: int) -> Tensor | None:
        return self.sparsity * codes.sum(-1).mean() / dimension


@dataclass(frozen=True)
class TopK(Recipe):
    """The largest `active` codes of every row stay (Gao et al. 2025)."""

    name: ClassVar[str] = "topk"
    activation: ClassVar[str] = "topk"
    active: Count = 8  # type: ignore[misc]
    """Atoms that are active in a row."""

    def codes(self, before: Tensor) -> Tensor:
        values, kept = self.largest(before)
        return torch.zeros_like(before).scatter(-1, kept, values)

    def largest(self, before: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that stay (B, active), and of which atoms they are."""
        found = before.topk(self.active, -1)
        return found.values.clamp(min=0), found.indices


@dataclass(frozen=True)
class BatchTopK(Recipe):
    """The largest `active` x rows codes of a batch stay (Bussmann et al. 2024).

    The trained dictionary is a JumpReLU: its threshold is the smallest code that stayed, averaged over the
    last quarter of training, so that codes of a row depend on no other row.
    """

    name: ClassVar[str] = "batchtopk"
    activation: ClassVar[str] = "batchtopk"
    active: Count = 8  # type: ignore[misc]
    """Atoms that are active in a row, on average over a batch."""

    def codes(self, before: Tensor) -> Tensor:
        positive = before.clamp(min=0)
        return positive * (positive >= self.least(positive))

    def least(self, positive: Tensor) -> Tensor:
        """The smallest code that stays in this batch."""
        return positive.detach().flatten().topk(self.active * len(positive)).values[-1]


_MEASURED = 2**20
"""Rows, from the first on, that tell the scale of a set and where its centre is."""


def checked(rows: Any) -> Tensor:
    """Rows (n, D) as they lie in memory, or in the file that an array is mapped from."""
    whole = torch.as_tensor(rows).detach()
    if whole.dim() != 2 or not len(whole):
        raise ShapeError(f"activations have shape {tuple(whole.shape)}; expected rows (n, dimensions)")
    if not all(bool(torch.isfinite(part).all()) for part in whole.split(_MEASURED)):
        raise InputError("the activations have NaN or infinite values")
    return whole


WIDE = 1024
"""From this width on TopK's active atoms are gathered: a product with a matrix of zeros would cost more."""


_MOVING = ("encoder", "bias", "decoder", "centre", "losses", "fired", "least")


class Run:
    """Everything that moves while a dictionary is trained."""

    def __init__(self, rows: Tensor, recipe: Recipe, key: Key, given: Tensor | None) -> None:
        first = rows[:_MEASURED].float()
        place, dimension, width = first.device, first.shape[1], recipe.width
        self.rows, self.recipe, self.key = rows, recipe, key
        self.name = json.dumps({"recipe": recipe.to_json(), "key": [key.seed, *key.path]})
        # a constant row has no scale; any would do
        self.scale = first.square().mean().sqrt().clamp(min=1e-12)
        ids = torch.arange(width, device=place)
        if given is not None and given.shape != (width, dimension):
            raise ShapeError(f"atoms have shape {tuple(given.shape)}; expected ({width}, {dimension})")
        drawn = normalize(normal(key / "atoms", ids, 0, dimension), dim=-1)
        self.encoder = (drawn if given is None else normalize(given.to(drawn), dim=-1)).clone()
        self.decoder = self.encoder.clone()
        self.bias = torch.zeros(width, device=place)
        self.centre = (first / self.scale).mean(0).clone()
        halves = {"encoder": [self.encoder, self.bias], "decoder": [self.decoder]}
        moving = [t for half, each in halves.items() if half != recipe.frozen for t in each]
        learned = [t.requires_grad_(True) for t in (*moving, self.centre)]
        self.optimiser = torch.optim.Adam(learned, lr=recipe.rate, fused=not on_host(place))
        self.losses = torch.zeros(recipe.steps, device=place)
        self.fired = torch.zeros(width, dtype=torch.bool, device=place)
        self.least = torch.zeros((), dtype=torch.float64, device=place)
        self.revive_at = {recipe.steps * i // 16 for i in range(1, 9)}
        self.count_dead_from = recipe.steps - recipe.steps // 8

    def batch(self, step: int) -> Tensor:
        """The rows of a step, which the key and the step alone decide."""
        one = torch.zeros(1, dtype=torch.int64, device=self.rows.device)
        size, count = min(self.recipe.batch, len(self.rows)), len(self.rows)
        return self.rows[integers(self.key / "batches", one, step, size, count)[0]].float()

    def step(self, step: int) -> None:
        """One step of Adam, atoms back to length 1, dead atoms brought back now and then."""
        recipe = self.recipe
        rate = recipe.rate * 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
        self.optimiser.param_groups[0]["lr"] = rate
        batch = self.batch(step) / self.scale
        if isinstance(recipe, TopK) and recipe.width >= WIDE:
            # the centre's gradient through the encoder is one vector's product, not the batch's
            here = self.centre.detach()
            offset = self.bias - self.encoder @ (self.centre - here)
            values, kept = recipe.largest((batch - here) @ self.encoder.T + offset)
            rebuilt = embedding_bag(kept, self.decoder, per_sample_weights=values, mode="sum")
            hits = torch.zeros_like(self.bias).index_add_(0, kept.flatten(), (values > 0).float().flatten())
            fired, penalty = hits > 0, None
        else:
            before = (batch - self.centre) @ self.encoder.T + self.bias
            codes = recipe.codes(before)
            rebuilt = codes @ self.decoder
            fired = (codes != 0).any(0)
            penalty = recipe.penalty(codes, batch.shape[1])
        left = batch - rebuilt - self.centre
        loss = left.square().mean()
        loss = loss if penalty is None else loss + penalty
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            self.losses[step] = loss.detach()
            if recipe.frozen != "decoder":
                self.decoder /= self.decoder.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            self._count_active(step, fired, left.detach())
            if isinstance(recipe, BatchTopK) and step >= recipe.steps - max(1, recipe.steps // 4):
                self.least += recipe.least(before.detach().clamp(min=0))

    def _count_active(self, step: int, fired: Tensor, left: Tensor) -> None:
        self.fired |= fired
        if step in self.revive_at and self.recipe.revive and self.recipe.frozen is None:
            revive(self.optimiser, [self.encoder, self.bias, self.decoder], ~self.fired, left)
            self.fired.zero_()
        elif step == self.count_dead_from and step + 1 < self.recipe.steps:
            self.fired.zero_()

    def save(self, path: Path, step: int) -> None:
        """Write everything that moves, as it is before this step; the old file is replaced at once."""
        held = io.BytesIO()
        tensors = {name: getattr(self, name) for name in _MOVING}
        about = {"run": self.name, "step": step}
        torch.save({**about, "tensors": tensors, "optimiser": self.optimiser.state_dict()}, held)
        write_file(path, held.getvalue())

    def restore(self, path: Path) -> int:
        """Take everything from a file; the step to go on with."""
        held = read_weights(path, self.bias.device)
        if held.get("run") != self.name:
            raise FormatError(f"{path} holds another run ({held.get('run')}); this one is {self.name}")
        with torch.no_grad():
            for name in _MOVING:
                getattr(self, name).copy_(held["tensors"][name])
        self.optimiser.load_state_dict(held["optimiser"])
        return int(held["step"])

    def dictionary(self) -> Dictionary:
        """The dictionary as it is now, of rows as they were given."""
        plain = [getattr(self, name).detach().clone() for name in _MOVING[:4]]
        parts = (plain[0], plain[1] * self.scale, plain[2], plain[3] * self.scale)
        if isinstance(self.recipe, BatchTopK):
            least = self.least / max(1, self.recipe.steps // 4) * self.scale
            threshold = least.float().expand(self.recipe.width).clone()
            return Dictionary(*parts, "jumprelu", None, threshold)
        return Dictionary(*parts, self.recipe.activation, self.recipe.active)  # type: ignore[arg-type]


def revive(optimiser: torch.optim.Optimizer, learned: list[Tensor], dead: Tensor, left: Tensor) -> None:
    """Point dead atoms along the rows that are explained worst, and let their steps start anew."""
    rows = left[left.norm(dim=-1).argsort(descending=True)[: int(dead.sum())]]
    which = dead.nonzero()[: len(rows), 0]
    along = normalize(rows, dim=-1)
    encoder, bias, decoder = learned
    encoder[which], decoder[which], bias[which] = along, along, 0.0
    for tensor in learned:
        for held in optimiser.state[tensor].values():
            if held.shape == tensor.shape:
                held[which] = 0


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
    """Train a sparse dictionary.

    Parameters
    ----------
    rows
        Activations (n, D). An array that is mapped from a file, as `numpy.load(path, mmap_mode="c")` gives,
        is read batch by batch and may be larger than memory.
    recipe
        `TopK`, `BatchTopK` or `ReLU`.
    seed
        Keys the first atoms and the batches.
    checkpoint
        A file (.pt); if it is there, and of the same run, training goes on from it, and ends with
        the same bits as a run that was never stopped.
    every
        Steps between two writings of the checkpoint.
    atoms
        Where encoder and decoder begin (width, D); drawn otherwise.
    progress
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    Trained
        The dictionary, the loss of every step, and which atoms are dead.

    Raises
    ------
    FormatError
        The checkpoint is of another run, or damaged.
    InputError
        Activations have NaN or infinite values.
    """
    run = Run(checked(rows), recipe, as_key(seed), atoms)
    path = None if checkpoint is None else Path(checkpoint)
    begin = run.restore(path) if path is not None and path.is_file() else 0
    with torch.enable_grad():
        for step in track(range(begin, recipe.steps), f"training {recipe.width} atoms", progress):
            run.step(step)
            if path is not None and ((step + 1) % every == 0 or step + 1 == recipe.steps):
                run.save(path, step + 1)
    return Trained(run.dictionary(), recipe, run.losses.cpu(), ~run.fired, seed)
