"""Perturbed worlds: the task under weight or input noise, and with noise on its outputs."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from veridical import rng
from veridical.errors import InputError
from veridical.rng import Key
from veridical.task import Task

Perturbation = Literal["weights", "input"]


def disturbed(
    task: Task,
    sigma: float,
    key: Key,
    perturb: Perturbation = "weights",
    step: float = 1.0,
    share: float = 0.0,
) -> Task:
    """The task a share `step` of the way to noise of strength sigma (a standard deviation).

    Weight noise multiplies, N(1, sigma^2); input noise adds N(0, sigma^2), on text at its embeddings. `share`
    says how far along a path this is, for explainers that are told.
    """
    if perturb == "weights":
        world = task.with_noise(sigma, key, step=step)
    elif perturb == "input":
        at = task.at_embeddings()
        noise = rng.normal(key / "input", at.ids, 0, at.inputs[0].numel(), at.inputs.dtype)
        world = at.with_inputs(at.inputs + step * sigma * noise.reshape(at.inputs.shape))
    else:
        raise InputError(f"perturb is 'weights' or 'input', got {perturb!r}")
    return world._derive(noise_share=share) if share else world


class OutputNoise(nn.Module):
    """The child with N(0, spread^2) added to every output; one draw a distinct input row.

    The noise is keyed by the row's own bits, so it does not depend on the batch the row travels in.
    """

    def __init__(self, module: nn.Module, output: Any, spread: float, key: Key) -> None:
        super().__init__()
        self.module = module
        self._output = output
        self._spread = spread
        self._key = key

    def forward(self, x: Tensor, *side: Any, **named: Any) -> Tensor:
        outputs: Tensor = self._output(self.module(x, *side, **named))
        noise = rng.normal(self._key, rng.content_ids(x), 0, outputs.shape[1], outputs.dtype)
        return outputs + self._spread * noise


def with_output_noise(task: Task, spread: float, key: Key) -> Task:
    """The same task whose model answers with noise on its outputs."""
    predictor = task.predictor
    noisy = OutputNoise(predictor.model, predictor.output, spread, key)
    return task.with_module(noisy, output=_as_is)


def _as_is(answer: Any) -> Tensor:
    outputs: Tensor = answer
    return outputs
