"""Models that answer probabilities, turned back to the scale on which answers are logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from veridical.errors import VeridicalWarning
from veridical.models.output_heads import PROBABILITIES
from veridical.models.predictor import Output, plain_output
from veridical.values.task import Task

SMALLEST = 1e-12
CLOSE = 1e-3


def log_probabilities(answer: object) -> Tensor:
    """The logarithm of a model's probabilities: their softmax is what the model said."""
    return plain_output(answer).clamp(min=SMALLEST).log()


def log_odds(answer: object) -> Tensor:
    """The logit of a single probability."""
    return torch.logit(plain_output(answer), eps=1e-7)


def on_logit_scale(make: Callable[..., Task]) -> Task:
    """The task `make()` gives, made again with `output=` if its model answers probabilities.

    A task reads outputs as logits. Probabilities read so would be squeezed by a second softmax, and every
    response with them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROBABILITIES, VeridicalWarning)
        task = make()
    output = probability_output(task)
    if output is None:
        return task
    warnings.warn(
        "the model answers probabilities; they are read on the scale of logits (as their logarithms), so "
        "that responses are those probabilities and not a second softmax of them",
        VeridicalWarning,
        stacklevel=3,
    )
    return make(output=output)


def probability_output(task: Task) -> Output | None:
    """The output function a model of probabilities needs; None for a model of logits."""
    outputs = task.outputs
    if task.head == "multiclass":
        sums = outputs.sum(1)
        each = bool((outputs >= -CLOSE).all()) and bool((sums - 1).abs().max() < CLOSE)
        return log_probabilities if each else None
    if task.head == "binary":
        single = outputs[:, 1]
        # logits of many samples are neither all positive nor all below one
        between = bool(((single >= 0) & (single <= 1)).all()) and len(task) >= 8
        return log_odds if between else None
    return None
