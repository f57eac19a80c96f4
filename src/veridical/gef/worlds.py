"""Perturbed worlds: the task under weight or input noise, and with noise on its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.gef.noise_prefetch import NoiseAhead
from veridical.models.weights import Noise, NoiseSource, Noisy
from veridical.values.task import Task

Perturbation = Literal["weights", "input"]


class Worlds:
    """The worlds around one task. A draw of noise is scaled to every strength that is asked for.

    Weight noise multiplies, N(1, sigma^2); input noise adds N(0, sigma^2), on text at its embeddings.
    `draw` gives weight noise by key, where something else than the model's own source is wanted.
    """

    def __init__(
        self, task: Task, perturb: Perturbation = "weights", draw: Callable[[Key], Noise] | None = None
    ) -> None:
        if perturb not in ("weights", "input"):
            raise InputError(f"perturb is 'weights' or 'input', got {perturb!r}")
        if perturb == "input" and task.modality == "units":
            raise NotApplicableError("a unit is on or off and takes no noise; say perturb='weights'")
        self.origin = task
        self.task = task if perturb == "weights" else task.at_embeddings()
        self._draw: Callable[[Key], Noise] | None = None
        if perturb == "weights":
            self._draw = draw or NoiseSource(task.predictor.source.module)

    @contextmanager
    def ahead(self, keys: Iterable[Key]) -> Iterator[None]:
        """Draw the weight noise of these keys while the model works, where that pays (`NoiseAhead`)."""
        own = self._draw
        if not isinstance(own, NoiseSource):
            yield
            return
        with NoiseAhead(own, keys) as self._draw:
            try:
                yield
            finally:
                self._draw = own

    def at(self, size: float, key: Key, share: float = 0.0) -> Task:
        """The task under noise of strength `size` (a standard deviation).

        `share` says how far along a path this is, for explainers that are told.
        """
        share = share or self.task.noise_share
        if self._draw is not None:
            weights = Noisy(self._draw, key, size, self.task.predictor.weights)
            return self.task.changed(predictor=self.task.predictor.with_weights(weights), noise_share=share)
        inputs = self.task.inputs
        drawn = keyed.normal(key / "input", self.task.draw_ids, 0, inputs[0].numel(), inputs.dtype)
        return self.task.changed(inputs=inputs + size * drawn.reshape(inputs.shape), noise_share=share)


@dataclass(frozen=True)
class OutputNoise:
    """Adds N(0, spread^2) to every output; one draw per distinct input row.

    The noise is keyed by the row's own bits, so it does not depend on the batch the row travels in.
    """

    spread: float
    """Standard deviation of the noise."""
    key: Key
    """Decides the draw, together with the row."""

    def __call__(self, x: Tensor, outputs: Tensor) -> Tensor:
        noise = keyed.normal(self.key, keyed.content_ids(x), 0, outputs.shape[1], outputs.dtype)
        return outputs + self.spread * noise


def with_output_noise(task: Task, spread: float, key: Key) -> Task:
    """The same task whose model answers with noise on its outputs."""
    return task.changed(predictor=replace(task.predictor, after=OutputNoise(spread, key)))
