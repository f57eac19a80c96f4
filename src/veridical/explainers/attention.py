"""Explainers that read a transformer's attention weights: rollout, and attention times its gradient."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.explainers.base import Explainer, register, selected
from veridical.model.embeddings import EmbeddingView
from veridical.model.predictor import call
from veridical.random.keyed import Key
from veridical.values.task import Task

Reading = Literal["first", "mean", "last"]


@dataclass(frozen=True)
class _AttentionExplainer(Explainer):
    """Base: the model is run on a copy of its structure (weights shared) that uses eager attention.

    Fused attention never makes its weights, so Hugging Face models are switched to their eager
    implementation; the caller's model is not touched. `reading` says which row of the final matrix tells how
    much the answer draws on each token: the first place (BERT's), the mean over tokens, or the last (GPT's).
    """

    reading: Reading = "first"
    modalities: ClassVar[frozenset[str]] = frozenset({"text"})
    needs: ClassVar[frozenset[str]] = frozenset({"attention"})

    def __post_init__(self) -> None:
        if self.reading not in get_args(Reading):
            raise InputError(f"reading is one of {', '.join(get_args(Reading))}; got {self.reading!r}")

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        if _transformer(task.predictor.model) is None:
            return (
                "it reads the attention weights of a Hugging Face transformer (extra: pip install "
                "'veridical[text]'), and this model is none"
            )
        worked_on = self.prepared(task)[:1]
        found: list[Tensor] = task.uncounted(lambda: _run(worked_on, grad=False)[1])
        size = task.space.n_features
        if not found or any(tuple(a.shape[-2:]) != (size, size) for a in found):
            return (
                "the model gives no attention weights of tokens x tokens; load it with "
                "attn_implementation='eager'"
            )
        return None

    def prepared(self, task: Task) -> Task:
        return task.changed(predictor=task.predictor.with_model(_eager(task.predictor.model)))

    def _read(self, mixing: Tensor, task: Task) -> Tensor:
        """One row of the final (N, L, L) matrix a sample."""
        if self.reading == "first":
            return mixing[:, 0]
        if self.reading == "last":
            return mixing[torch.arange(len(mixing), device=mixing.device), _last_place(task)]
        valid = task.space.valid
        rows = torch.ones_like(mixing[..., 0]) if valid is None else valid.to(mixing)
        return (mixing * rows[..., None]).sum(1) / rows.sum(-1, keepdim=True)


@register
@dataclass(frozen=True)
class AttentionRollout(_AttentionExplainer):
    """Attention followed through the layers, with the residual path as the identity.

    The product over layers of (mean over heads of A_l + I) / 2, rows summing to 1 (Abnar and Zuidema 2020,
    eq. 1). It does not depend on the explained output.
    """

    name: ClassVar[str] = "attention_rollout"
    summary: ClassVar[str] = "attention followed through the layers"
    paper: ClassVar[str] = "Abnar and Zuidema 2020"

    def attribute(self, task: Task, key: Key) -> Tensor:
        _, weights = _run(task, grad=False)
        mixing = torch.eye(weights[0].shape[-1], dtype=torch.float64, device=task.device)
        for attention in weights:
            layer = attention.double().mean(1)
            layer = (layer + torch.eye(layer.shape[-1], dtype=layer.dtype, device=layer.device)) / 2
            mixing = layer / layer.sum(-1, keepdim=True) @ mixing
        return self._read(mixing, task).to(task.outputs.dtype)


@register
@dataclass(frozen=True)
class GradientXAttention(_AttentionExplainer):
    """Attention times its gradient, positive part, mean over heads, followed through the layers.

    R <- R + mean_h[(dy_c/dA_l * A_l)+] R from R = I (Chefer et al. 2021, "Generic attention-model
    explainability", eq. 5 and 6); what is left of the identity is taken off again.
    """

    name: ClassVar[str] = "gradient_x_attention"
    summary: ClassVar[str] = "attention times its gradient, followed through the layers"
    paper: ClassVar[str] = "Chefer et al. 2021"

    def attribute(self, task: Task, key: Key) -> Tensor:
        outputs, weights = _run(task, grad=True)
        with torch.enable_grad():
            slopes = torch.autograd.grad(selected(outputs, task.targets).sum(), weights)
        identity = torch.eye(weights[0].shape[-1], dtype=torch.float64, device=task.device)
        mixing = identity.expand(len(task), *identity.shape)
        for attention, slope in zip(weights, slopes, strict=True):
            layer = (attention.detach().double() * slope.double()).clamp(min=0).mean(1)
            mixing = mixing + layer @ mixing
        return self._read(mixing - identity, task).to(outputs.dtype)


def _transformer(model: nn.Module) -> nn.Module | None:
    """The part of a model that lets its attention be chosen, as Hugging Face's models do."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            return module
    return None


def _eager(model: nn.Module) -> nn.Module:
    """The model itself if its attention is eager; else a copy that shares its weights and is."""
    inner = _transformer(model)
    if inner is None or inner.config._attn_implementation == "eager":  # type: ignore[union-attr]
        return model
    if isinstance(model, EmbeddingView):
        return EmbeddingView(_eager(model.module), model.layer)
    shared: dict[int, Any] = {id(value): value for value in [*model.parameters(), *model.buffers()]}
    twin = copy.deepcopy(model, shared)
    part = _transformer(twin)
    switch = getattr(part, "set_attn_implementation", None)
    if switch is not None:
        switch("eager")
    else:
        part.config._attn_implementation = "eager"  # type: ignore[union-attr]
    return twin


def _run(task: Task, grad: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the attention weights (n, heads, L, L) of each layer in the order they were made."""
    with task.session(grad=grad) as model, _captured(model) as found:
        outputs = call(model, task.inputs, task.side)
    return outputs, found


@contextmanager
def _captured(model: nn.Module) -> Iterator[list[Tensor]]:
    found: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, answer: Any) -> None:
        for value in answer if isinstance(answer, tuple) else ():
            square = isinstance(value, Tensor) and value.dim() == 4 and value.shape[-1] == value.shape[-2]
            # an attention layer's wrapper hands the same weights on
            if square and not any(value is old for old in found):
                found.append(value)

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _last_place(task: Task) -> Tensor:
    """The place of each sample's last token that its attention mask lets through."""
    side = task.side if isinstance(task.side, dict) else {}
    places = torch.arange(task.inputs.shape[1], device=task.device)
    mask = side.get("attention_mask")
    if mask is None:
        return places[-1].expand(len(task))
    return torch.where(mask > 0, places, 0).amax(-1)
