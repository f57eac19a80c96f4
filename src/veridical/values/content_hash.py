"""A digest of a model and tensors, by which results are found again."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from veridical.models.adapters import ArrayModel


def hash_tensors(tensors: Mapping[str, Tensor | None]) -> hashlib.blake2b:
    """A hash fed with tensors by name, their shapes and types included."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous()
            digest.update(f"{name}{tuple(array.shape)}{array.dtype}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest


def content_digest(model: nn.Module, tensors: Mapping[str, Tensor | None], about: Any) -> str:
    """Hash the model's structure and weights, the tensors, and plain facts about them."""
    digest = hash_tensors(
        {**tensors, **{f"weight/{name}": value for name, value in model.state_dict().items()}}
    )
    digest.update(repr((type(model).__qualname__, repr(model), about)).encode())
    if isinstance(model, ArrayModel) and model.estimator is not None:
        digest.update(pickle.dumps(model.estimator))
    if isinstance(model, ArrayModel):
        # a function that runs a stored model says itself which
        digest.update(getattr(model.function, "content_digest", b""))
    return digest.hexdigest()
