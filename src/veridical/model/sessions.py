"""Sessions: a model ready to be asked, as its plan says, and everything put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

if TYPE_CHECKING:
    from veridical.model.plan import Plan, Precision
    from veridical.model.predictor import CountedModel, Predictor

_NOTHING = nullcontext()


class Session(AbstractContextManager["CountedModel"]):
    """A predictor's private copy made ready, for as long as the block lasts; written for short blocks.

    The first session of a thread looks whether the caller's model has changed, unless it is part of a
    question, which has.
    """

    def __init__(self, predictor: Predictor, grad: bool | None) -> None:
        self._predictor, self._grad = predictor, grad

    def __enter__(self) -> CountedModel:
        predictor = self._predictor
        own = predictor.source.here()
        self._planned: AbstractContextManager[None] = _NOTHING
        if not own.sessions:
            if not own.questions:
                predictor.source.check()
            own.look()
            self._planned = _as_planned(predictor.plan, predictor.device.type)
        own.load(predictor.weights)
        self._planned.__enter__()
        self._own, self._graded = own, torch.is_grad_enabled()
        own.sessions += 1
        if self._grad is not None:
            torch.set_grad_enabled(self._grad)
        return predictor.view

    def __exit__(self, *error: Any) -> None:
        if self._grad is not None:
            torch.set_grad_enabled(self._graded)
        self._own.sessions -= 1
        self._planned.__exit__(*error)


@contextmanager
def _as_planned(plan: Plan, kind: str) -> Iterator[None]:
    """The plan's threads and precision on a kind of device, and back as it was."""
    threads = torch.get_num_threads()
    precision = _NOTHING if plan.precision is None or kind != "cuda" else _float32_products(plan.precision)
    try:
        if plan.threads is not None and plan.threads != threads:
            torch.set_num_threads(plan.threads)
        with precision, _autocast(plan.autocast, kind):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _autocast(wanted: str | None, kind: str) -> AbstractContextManager[None]:
    """The plan's autocast; where it asks for none, that of a caller is kept out."""
    if wanted is not None:
        return torch.autocast(kind, dtype=getattr(torch, wanted))
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING


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
def _float32_products(precision: Precision) -> Iterator[None]:
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
