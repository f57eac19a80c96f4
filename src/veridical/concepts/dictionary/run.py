"""One training run: everything that moves, step by step."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from veridical.concepts.dictionary.dictionary import Dictionary
from veridical.concepts.dictionary.recipes import BatchTopK, Recipe, TopK
from veridical.concepts.dictionary.stream import Stream
from veridical.core.key import Key, normal
from veridical.errors import ShapeError
from veridical.functional.devices import on_host

WIDE = 1024
"""From this width on TopK's active atoms are gathered: a product with a matrix of zeros would cost more."""


class Run:
    """Everything that moves while a dictionary is trained."""

    def __init__(self, stream: Stream, recipe: Recipe, key: Key, given: Tensor | None) -> None:
        first = stream.shard(0)
        place, dimension, width = first.device, first.shape[1], recipe.width
        self.stream, self.recipe, self.key = stream, recipe, key
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
        frozen = [self.encoder, self.bias] if recipe.frozen == "encoder" else []
        frozen = [self.decoder] if recipe.frozen == "decoder" else frozen
        every = (self.encoder, self.bias, self.decoder, self.centre)
        learned = [t.requires_grad_(True) for t in every if not any(t is f for f in frozen)]
        self.optimiser = torch.optim.Adam(learned, lr=recipe.rate, fused=not on_host(place))
        self.decay = torch.optim.lr_scheduler.LambdaLR(self.optimiser, self._rate)
        self.losses = torch.zeros(recipe.steps, device=place)
        self.fired = torch.zeros(width, dtype=torch.bool, device=place)
        self.least = torch.zeros((), dtype=torch.float64, device=place)
        self.looks = {recipe.steps * i // 16 for i in range(1, 9)}
        self.last_look = recipe.steps - recipe.steps // 8

    def _rate(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.recipe.steps)))

    def step(self, step: int) -> None:
        """One step of Adam, atoms back to length 1, dead atoms brought back now and then."""
        recipe = self.recipe
        batch = self.stream.batch(self.key, step, recipe.batch) / self.scale
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
        self.decay.step()
        with torch.no_grad():
            self.losses[step] = loss.detach()
            if recipe.frozen != "decoder":
                self.decoder /= self.decoder.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            self._look(step, fired, left.detach())
            if isinstance(recipe, BatchTopK) and step >= recipe.steps - max(1, recipe.steps // 4):
                self.least += recipe.least(before.detach().clamp(min=0))

    def _look(self, step: int, fired: Tensor, left: Tensor) -> None:
        self.fired |= fired
        if step in self.looks and self.recipe.revive and self.recipe.frozen is None:
            revive(self.optimiser, [self.encoder, self.bias, self.decoder], ~self.fired, left)
            self.fired.zero_()
        elif step == self.last_look and step + 1 < self.recipe.steps:
            self.fired.zero_()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that moves, by name: what a checkpoint holds."""
        held = {name: getattr(self, name) for name in ("encoder", "bias", "decoder", "centre")}
        out = dict(held)
        for name, tensor in held.items():
            if tensor.requires_grad:
                # the moments exist from the first step on; a run that goes on needs them before
                moments = self.optimiser.state[tensor]
                if not moments:
                    count = torch.zeros((), device=tensor.device)
                    moments.update(step=count, exp_avg=torch.zeros_like(tensor))
                    moments.update(exp_avg_sq=torch.zeros_like(tensor))
                out |= {f"{name} {what}": value for what, value in moments.items()}
        return out | {"losses": self.losses, "fired": self.fired, "least": self.least}

    def resume(self, step: int) -> None:
        """Set the learning rate as it is before this step."""
        self.decay.last_epoch = step
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * self._rate(step)

    def dictionary(self) -> Dictionary:
        """The dictionary as it is now, of rows as they were given."""
        plain = [t.detach().clone() for t in (self.encoder, self.bias, self.decoder, self.centre)]
        encoder, bias, decoder, centre = plain
        parts = (encoder, bias * self.scale, decoder, centre * self.scale)
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
