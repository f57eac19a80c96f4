"""Sessions: a model ready to be asked, as its plan says, and everything put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from veridical.model.predictor import CountedModel, Plan, Predictor

_NOTHING = nullcontext()


@dataclass(frozen=True, eq=False)
class Held:
    """The modules that a thread's sessions keep in eval mode, by their ids."""

    modules: dict[int, nn.Module]
    recurrent: bool

    @classmethod
    def of(cls, model: nn.Module, outer: Held | None) -> Held:
        """Every module of a model once, and those that are held already."""
        if outer is not None and id(model) in outer.modules:
            return outer
        seen = {} if outer is None else outer.modules
        # without the names that torch's own walk makes: they cost more than a small model's layer
        found, ahead = {id(model): model}, [model]
        while ahead:
            for child in ahead.pop()._modules.values():
                if child is not None and id(child) not in found and id(child) not in seen:
                    found[id(child)] = child
                    ahead.append(child)
        recurrent = any(isinstance(module, nn.RNNBase) for module in found.values())
        return cls({**seen, **found}, recurrent or (outer is not None and outer.recurrent))


class Session(AbstractContextManager["CountedModel"]):
    """A predictor's model made ready, for as long as the block lasts; written for blocks that are short."""

    def __init__(self, predictor: Predictor, grad: bool | None) -> None:
        self._predictor, self._grad = predictor, grad

    def __enter__(self) -> CountedModel:
        predictor, grad = self._predictor, self._grad
        opened, self._thread = predictor._open, get_ident()
        self._outer = outer = opened.get(self._thread)
        held = Held.of(predictor.model, outer)
        # what an outer session holds of this very model is left as it is found
        self._modules = () if held is outer else held.modules.values()
        self._training = [module for module in self._modules if module.training]
        self._graded = torch.is_grad_enabled()
        # cuDNN refuses the backward pass of a recurrent layer in eval mode
        self._no_cudnn = bool(grad) and held.recurrent and torch.backends.cudnn.enabled
        self._planned = _as_planned(predictor.plan, predictor.device.type) if outer is None else _NOTHING
        self._planned.__enter__()
        opened[self._thread] = held
        for module in self._training:
            module.training = False
        if self._no_cudnn:
            torch.backends.cudnn.enabled = False
        if grad is not None:
            torch.set_grad_enabled(grad)
        return predictor.view

    def __exit__(self, *error: Any) -> None:
        opened = self._predictor._open
        if self._grad is not None:
            torch.set_grad_enabled(self._graded)
        if self._outer is None:
            del opened[self._thread]
        else:
            opened[self._thread] = self._outer
        if self._no_cudnn:
            torch.backends.cudnn.enabled = True
        for module in self._modules:
            if module.training:
                module.training = False
        for module in self._training:
            module.training = True
        self._planned.__exit__(*error)


@contextmanager
def _as_planned(plan: Plan, kind: str) -> Iterator[None]:
    """The plan's threads and precision on a kind of device, and back as it was."""
    threads = torch.get_num_threads()
    try:
        if plan.threads is not None and plan.threads != threads:
            torch.set_num_threads(plan.threads)
        with _float32_products(plan.tf32) if kind == "cuda" else _NOTHING, _precision(plan.autocast, kind):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _precision(autocast: str | None, kind: str) -> AbstractContextManager[None]:
    """The plan's autocast; where it asks for none, that of a caller is kept out."""
    if autocast is not None:
        return torch.autocast(kind, dtype=getattr(torch, autocast))
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING


@contextmanager
def _float32_products(tf32: bool) -> Iterator[None]:
    """TF32 on or off in CUDA's float32 products, and back as it was.

    By the settings that have been there since torch 2.9: once a user has touched those, reading the older
    `allow_tf32` raises.
    """
    cudnn: Any = torch.backends.cudnn
    kinds = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "tf32" if tf32 else "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision
