"""How a model is run: rows per chunk, memory, precision and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from veridical.core.allowed import Count
from veridical.core.settings import check_settings
from veridical.errors import InputError

MIN_ROWS = 8


def most_rows(place: torch.device) -> int:
    """Rows per chunk beyond which nothing is gained; a GPU needs more to hide the cost of starting work."""
    return 16384 if place.type == "cuda" else 4096


def memory_budget(place: torch.device) -> int:
    """MiB that the activations of one chunk may take, unless the plan says otherwise."""
    return 4096 if place.type == "cuda" else 64


Precision = Literal["float32", "tf32"]


@dataclass(frozen=True)
class Plan:
    """How a model is run. Part of the settings: the same plan on the same machine gives the same bits.

    On a GPU that holds of outputs; cuDNN's gradients of convolutions differ in their last bits from one time
    to the next, unless `torch.backends.cudnn.deterministic` is set, which takes up to a sixth longer.
    """

    rows: Count | None = None
    """Rows per chunk: a multiple of 8, to which fewer rows are padded, 1, 2 or 4 if a row is expensive, and
    none is padded. None lets one measured forward pass choose the power of two whose activations fit in
    `budget_mib`. It never follows free memory."""
    budget_mib: Count | None = None
    """Memory for the activations of one chunk; None is 64 on a CPU, 4096 on a GPU."""
    precision: Precision | None = None
    """How a GPU multiplies float32: "float32" insists on IEEE products, "tf32" on TF32 ones; None runs the
    model as the caller's torch is set up to run it."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Lower precision inside the model: "bfloat16" or "float16". An autocast that is open around a call is
    not let in; set it here."""
    channels_last: bool = False
    """Whether images are laid out channels last."""
    threads: Count | None = None
    """Threads of a CPU that torch may use; None leaves it as it is."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.rows is not None and self.rows % MIN_ROWS and self.rows not in (1, 2, 4):
            raise InputError(
                f"a plan has 1, 2, 4 or a multiple of {MIN_ROWS} rows per chunk, got {self.rows}"
            )


def uses_tf32(model: nn.Module, plan: Plan) -> bool:
    """Whether a GPU multiplies float32 as TF32 in this model: as the plan says, else as torch is set.

    By torch's defaults convolutions and recurrent layers do, products of matrices do not.
    """
    if plan.precision is not None:
        return plan.precision == "tf32"
    cudnn: Any = torch.backends.cudnn
    kinds = [(torch.backends.cuda.matmul, nn.Module), (cudnn.conv, _ConvNd), (cudnn.rnn, nn.RNNBase)]
    shortened = tuple(layer for kind, layer in kinds if kind.fp32_precision == "tf32")
    floats = any(p.dtype == torch.float32 for p in model.parameters())
    return floats and bool(shortened) and any(isinstance(m, shortened) for m in model.modules())


@contextmanager
def float32_products(precision: Precision) -> Iterator[None]:
    """How CUDA multiplies float32, and back as it was.

    By the settings that have been there since torch 2.9: once a user has touched those, reading the older
    `allow_tf32` raises.
    """
    cudnn: Any = torch.backends.cudnn
    kinds = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for kind, was in zip(kinds, before, strict=True):
            kind.fp32_precision = was
