"""Perturbed worlds: the task under weight or input noise, and with noise on its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from veridical.errors import InputError
from veridical.model.noisy_copy import Layout, Noise, Room
from veridical.model.predictor import Predictor
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.task import Task

Perturbation = Literal["weights", "input"]


class Worlds:
    """The worlds around one task. Noise is drawn once a key, and scaled to every strength asked for.

    Weight noise multiplies, N(1, sigma^2); input noise adds N(0, sigma^2), on text at its embeddings.
    `draw` gives weight noise by key, where something else than the layout's own way is wanted; `layout` is
    that of the task's model, where it has been made.
    Under weight noise one model moves on from world to world: each lasts until the next is asked for.
    """

    def __init__(
        self,
        task: Task,
        perturb: Perturbation = "weights",
        draw: Callable[[Key], Noise] | None = None,
        layout: Layout | None = None,
    ) -> None:
        if perturb not in ("weights", "input"):
            raise InputError(f"perturb is 'weights' or 'input', got {perturb!r}")
        self.origin = task
        self.task = task if perturb == "weights" else task.at_embeddings()
        self._layout = (layout or Layout.of(task.predictor.model)) if perturb == "weights" else None
        self._draw = draw
        self._last: tuple[Key, Noise] | None = None
        self._moving: tuple[Layout, Predictor] | None = None
        self._room: Room | None = None
        # what a GPU may still be fetching is not drawn over
        if self._layout is not None and draw is None and not any(v.is_cuda for v in self._layout.values):
            self._room = self._layout.room()

    def at(self, size: float, key: Key, share: float = 0.0) -> Task:
        """The task under noise of strength `size` (a standard deviation).

        `share` says how far along a path this is, for explainers that are told.
        """
        if self._last is None or self._last[0] != key:
            self._last = key, self._noise(key)
        noise = self._last[1]
        if self._layout is not None:
            predictor = self._moved(self._layout, noise, size)
            # what `with_module` makes, with the share in the same step
            return self.task._derive(
                model=predictor.model,
                predictor=predictor,
                _targets=self.task.targets,
                noise_share=share or self.task.noise_share,
            )
        world = self.task.with_inputs(self.task.inputs + size * noise[0])
        return world._derive(noise_share=share) if share else world

    def _moved(self, layout: Layout, noise: Noise, size: float) -> Predictor:
        """Who answers in the world of this noise: the model of the world before, with other weights."""
        if self._moving is not None:
            moving, predictor = self._moving
            layout.moved(noise, size, moving)
            return predictor
        moved = layout.moved(noise, size)
        view = moved.view()
        predictor = self.task.predictor.with_model(view)
        # compiled code has its weights inside, as a copy
        self._moving = None if view.scripted else (moved, predictor)
        return predictor

    def _noise(self, key: Key) -> Noise:
        if self._layout is not None:
            return self._layout.noise(key, self._room) if self._draw is None else self._draw(key)
        inputs = self.task.inputs
        drawn = keyed.normal(key / "input", self.task.ids, 0, inputs[0].numel(), inputs.dtype)
        return (drawn.reshape(inputs.shape),)


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
        noise = keyed.normal(self._key, keyed.content_ids(x), 0, outputs.shape[1], outputs.dtype)
        return outputs + self._spread * noise


def with_output_noise(task: Task, spread: float, key: Key) -> Task:
    """The same task whose model answers with noise on its outputs."""
    predictor = task.predictor
    noisy = OutputNoise(predictor.model, predictor.output, spread, key)
    return task.with_module(noisy, output=_as_is)


def _as_is(answer: Any) -> Tensor:
    outputs: Tensor = answer
    return outputs
