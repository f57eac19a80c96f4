"""Metrics with a fine-tuned model of their own: one copy, under the noise of each world.

Fine-tuning again in every world would measure the fine-tuning. So the copy made for the unperturbed model
goes along, and noise meets its weights by the same relative draws as those of the model itself. Where tokens
are seen at their embeddings, so are those of the copy, if it knows a missing one as zeros, as it is there (a
network that leaves out padding by its ids still sees a place).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.metrics import FFid, Fidelity
from veridical.metrics.base import AnyMetric
from veridical.perturb.fills import Token
from veridical.values.task import Task


def settled(metric: AnyMetric, task: Task) -> AnyMetric:
    """The metric with its fine-tuned model made, once, for the unperturbed task."""
    if isinstance(metric, FFid) and metric.finetuned is None:
        return replace(metric, finetuned=metric.artefact(task))
    return metric


def carry(metric: AnyMetric, clean: Task, world: Task, perturb: Callable[[Task], Task]) -> None:
    """Let the world know the metric's fine-tuned model as the same noise leaves it."""
    artefact: Any = metric.finetuned if isinstance(metric, Fidelity) else None
    if not isinstance(artefact, Finetuned):
        return
    digest = artefact.header["weights"]
    world.cached("weights digest", lambda: digest)
    copy = artefact.on(clean)
    if world.inputs.dtype == clean.inputs.dtype or _misses_zeros(copy):
        world.cached(f"finetuned {artefact.path}", lambda: perturb(copy))


def _misses_zeros(copy: Task) -> bool:
    """Whether the token that stands for a missing one is all zeros, as a missing embedding is."""
    if not isinstance(copy.fill, Token):
        return False
    missing = copy.with_inputs(torch.full_like(copy.inputs, copy.fill.token_id))
    return not bool(missing.at_embeddings().inputs.any())
