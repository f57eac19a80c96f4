"""What was audited and how to do it again: digests of weights, data and ids, versions, the call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from veridical.auditing import Audit
from veridical.models.inner_units import Switched
from veridical.models.prompts import PromptModel
from veridical.values.content_hash import content_digest
from veridical.values.task import Task


def identity(audit: Audit) -> dict[str, Any]:
    """Digests of everything an answer is about, and the call that repeats it."""
    task = audit.task
    return {
        "model": type(callers_module(task)).__name__,
        "parameters": sum(p.numel() for p in task.predictor.source.module.parameters()),
        "digests": {
            "weights": content_digest(task.predictor.model, {}, ""),
            "samples": digest_of({"inputs": task.inputs, "labels": task.labels}),
            "reference rows": None if task.train is None else digest_of({"train": task.train}),
            "sample ids": digest_of({"ids": task.ids}),
            "task": task.content_hash(),
        },
        "ids": task.ids.cpu().tolist()[:200],
        "versions": dict(audit.versions),
        "call": audit.call,
        "kind": task.modality,
    }


def callers_module(task: Task) -> nn.Module:
    """The model as its owner knows it: without what holds the prompts, or the switches inside it."""
    module = task.predictor.source.module
    while isinstance(module, PromptModel | Switched):
        module = module.model if isinstance(module, PromptModel) else module.module
    return module


def digest_of(tensors: Mapping[str, Tensor | None]) -> str:
    """One digest of tensors by name, their shapes and types included."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        if value is not None:
            array = value.detach().cpu().contiguous()
            digest.update(f"{name}{tuple(array.shape)}{array.dtype}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
