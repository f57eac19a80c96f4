"""The task under weight or input noise, and with noise on its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.models.weights import Noise, NoiseSource, Noisy
from veridical.values.task import Task

Perturbation = Literal["weights", "input"]


class PerturbedModels:
    """The perturbed models around one task; the latest is kept, for all explainers that are given it.

    Weight noise multiplies, N(1, sigma^2); input noise adds N(0, sigma^2), on text at its embeddings. A draw
    of noise is scaled to every strength that is wanted.

    Parameters
    ----------
    task : Task
        The unperturbed task.
    perturb : {"weights", "input"}
        What gets the noise.
    noise : callable, optional
        Weight noise by key, in place of a source of its own.
    """

    def __init__(
        self, task: Task, perturb: Perturbation = "weights", noise: Callable[[Key], Noise] | None = None
    ) -> None:
        if perturb not in ("weights", "input"):
            raise InputError(f"perturb is 'weights' or 'input', got {perturb!r}")
        if perturb == "input" and task.modality == "units":
            raise NotApplicableError("a unit is on or off and takes no noise; say perturb='weights'")
        self.perturb: Perturbation = perturb
        self.task = task if perturb == "weights" else task.at_embeddings()
        self.noise: Callable[[Key], Noise] | None = None
        if perturb == "weights":
            self.noise = noise or NoiseSource(task.predictor.source.module)
        self._latest: tuple[tuple[float, Key, float], Task] | None = None
        self._outputs: Tensor | None = None

    def at(self, size: float, key: Key, share: float = 0.0) -> Task:
        """The task under noise of a standard deviation.

        Parameters
        ----------
        size : float
            The standard deviation.
        key : Key
            Decides the draw.
        share : float
            How far along a path this is, for explainers that take it.
        """
        name = (size, key, share)
        if self._latest is None or self._latest[0] != name:
            self._latest, self._outputs = (name, self._perturbed(size, key, share)), None
        return self._latest[1]

    def outputs(self, task: Task, rows: Task | None = None) -> Tensor:
        """The outputs of a perturbed task, at its own inputs or those of other rows; of the latest once."""
        if rows is None and task.known_outputs is not None:
            return task.known_outputs
        if self._latest is None or task is not self._latest[1]:
            return _outputs(task, rows)
        if self._outputs is None:
            self._outputs = _outputs(task, rows)
        return self._outputs

    def note_outputs(self, task: Task, outputs: Tensor | None) -> None:
        """Take the outputs of the latest perturbed task that an explainer computed on its way to a map."""
        if self._outputs is None and self._latest is not None and task is self._latest[1]:
            self._outputs = outputs

    def _perturbed(self, size: float, key: Key, share: float) -> Task:
        share = share or self.task.noise_share
        if self.noise is not None:
            weights = Noisy(self.noise, key, size, self.task.predictor.weights)
            return self.task.changed(predictor=self.task.predictor.with_weights(weights), noise_share=share)
        inputs = self.task.inputs
        drawn = keyed.normal(key / "input", self.task.draw_ids, 0, inputs[0].numel(), inputs.dtype)
        return self.task.changed(inputs=inputs + size * drawn.reshape(inputs.shape), noise_share=share)


def _outputs(task: Task, rows: Task | None) -> Tensor:
    own = rows or task
    with task.session():
        return task.predictor.chunk(own.inputs, own.side)


@dataclass(frozen=True)
class OutputNoise:
    """Adds N(0, spread^2) to every output; one draw per distinct input row.

    The noise is keyed by the row's own bits, so it does not depend on the batch the row is in.
    """

    spread: float
    """Standard deviation of the noise."""
    key: Key
    """Decides the draw, together with the row."""

    def __call__(self, x: Tensor, outputs: Tensor) -> Tensor:
        noise = keyed.normal(self.key, keyed.content_ids(x), 0, outputs.shape[1], outputs.dtype)
        return outputs + self.spread * noise


def with_output_noise(task: Task, spread: float, key: Key) -> Task:
    """The same task whose model has noise on its outputs."""
    return task.changed(predictor=replace(task.predictor, after=OutputNoise(spread, key)))
