"""Explainers that read a transformer's attention weights: rollout, and attention times its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from veridical.core.facts import fact
from veridical.errors import InputError, NotApplicableError
from veridical.explainers.base import Explainer, register, selected
from veridical.explainers.cam import last_maps
from veridical.explainers.layout import (
    as_features,
    asks_prompts,
    at_logits,
    passes,
    places,
    pooled,
    reading_places,
    resized,
    spatial_size,
)
from veridical.explainers.trace.decompose import BLOCKS
from veridical.explainers.trace.operations import KINDS, plain_name
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.models.predictor import call
from veridical.values.task import Task

Reading = Literal["auto", "first", "mean", "last"]


class AttentionWeights(TorchFunctionMode):
    """Keeps the attention weights (rows, heads, L, L) that a model makes while it runs.

    Fused attention never makes its weights, so it is written out; the module is not touched.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = plain_name(func)
        if KINDS.get(name) == "attention":
            with self:
                return BLOCKS[name](*args, **(kwargs or {}))
        value = func(*args, **(kwargs or {}))
        square = name == "softmax" and value.dim() == 4 and value.shape[-1] == value.shape[-2]
        if square and len(value) == self.rows:
            if torch.is_grad_enabled() and not value.requires_grad:
                value.requires_grad_(True)
            self.found.append(value)
        return value


@dataclass(frozen=True)
class AttentionExplainer(Explainer):
    """Base: attention weights of Hugging Face's models, nn.MultiheadAttention, or attention written out.

    `reading` says which row of the final matrix shows how much the output draws on each token. By default the
    rows are those that the output reads of the last layer, by its gradient: the first token (BERT, ViT),
    the last one (GPT, Llama) or all of them ("mean"); the provenance says which; anything else is refused.
    On images the tokens of the patches are laid over the input. On prompts the rows are those at which the
    judged tokens of the answer are predicted, and the values of a unit's tokens are added up.
    """

    reading: Reading = "auto"
    """The tokens whose row is read: "first", "last", "mean" over all; "auto": those the output reads."""
    modalities: ClassVar[frozenset[str]] = frozenset({"text", "image", "series", "units"})
    needs: ClassVar[frozenset[str]] = frozenset({"attention"})

    def __post_init__(self) -> None:
        if self.reading not in get_args(Reading):
            raise InputError(f"reading is one of {', '.join(get_args(Reading))}; got {self.reading!r}")

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        if not task.predictor.differentiable and not asks_prompts(task):
            return "it reads the attention weights of a torch module, and this model is a plain function"
        if task.modality == "units" and not asks_prompts(task):
            return "attention is between tokens; the units of this task are inside the model"
        return _refusal(task.reference, self)

    def _refusal(self, task: Task) -> str | None:
        task = task[: task.predictor.rows]  # the first chunk shows what is there
        found = task.uncounted(lambda: run(task, grad=False)[1])
        sizes = {tuple(a.shape[-2:]) for a in found}
        if not found:
            return (
                "the model makes no attention weights of tokens x tokens for every sample (there is no "
                "attention, it stays within windows, or it is computed by a kernel of its own)"
            )
        places = next(iter(sizes))[0]
        if len(sizes) > 1 or (task.modality != "image" and places != _tokens(task)):
            return f"its attention is over {sorted(sizes)} tokens, and the task has {_tokens(task)}"
        if task.modality == "image" and _extra(task, places) is None:
            return (
                f"the {places} tokens of its attention are not the patches that a convolution cuts, "
                "at most 2 others before them"
            )
        self._stated(task)
        return None

    def _prepared(self, task: Task) -> Task:
        return at_logits(task)

    def _stated(self, task: Task) -> dict[str, Any]:
        if task.modality == "units":
            return {"reading": "where the answer is predicted"}
        if self.reading != "auto":
            return {"reading": self.reading}
        return {"reading": _rows_read(task.reference)}

    def _read(self, mixing: Tensor, task: Task) -> Tensor:
        """One row of the final (N, L, L) matrix per sample."""
        reading = self._stated(task)["reading"]
        if reading == "first":
            return mixing[:, 0]
        if reading == "last":
            return mixing[torch.arange(len(mixing), device=mixing.device), _last_place(task, mixing.shape[1])]
        rows = torch.ones_like(mixing[..., 0])
        if task.modality == "units":
            rows = reading_places(task).to(mixing)
        elif task.modality == "text" and task.space.valid is not None:
            rows = task.space.valid.to(mixing)
        return (mixing * rows[..., None]).sum(1) / rows.sum(-1, keepdim=True)

    def _laid(self, tokens: Tensor, task: Task) -> Tensor:
        """One value per token (n, L) as a map of the task."""
        if task.modality == "text":
            return tokens
        if task.modality == "units":
            return pooled(tokens, task)
        if task.modality == "series":
            return as_features(task, tokens)
        extra = _extra(task, tokens.shape[1])
        small = tokens[:, extra:].unflatten(1, (1, *last_maps(task).grid))
        return as_features(task, resized(small, spatial_size(task))[:, 0])


@register
@dataclass(frozen=True)
class AttentionRollout(AttentionExplainer):
    """Attention followed through the layers, with the residual path as the identity.

    The product over layers of (mean over heads of A_l + I) / 2, rows summing to 1 (Abnar and Zuidema 2020,
    eq. 1). It does not depend on the explained output.
    """

    name: ClassVar[str] = "attention_rollout"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "attention followed through the layers"
    paper: ClassVar[str] = "Abnar and Zuidema 2020"

    def attribute(self, task: Task, context: Context) -> Tensor:
        _, weights = run(task, grad=False)
        mixing = torch.eye(weights[0].shape[-1], dtype=torch.float64, device=task.device)
        for attention in weights:
            layer = attention.double().mean(1)
            layer = (layer + torch.eye(layer.shape[-1], dtype=layer.dtype, device=layer.device)) / 2
            mixing = layer / layer.sum(-1, keepdim=True) @ mixing
        return self._laid(self._read(mixing, task), task).to(task.outputs.dtype)


@register
@dataclass(frozen=True)
class GradientXAttention(AttentionExplainer):
    """Attention times its gradient, positive part, mean over heads, followed through the layers.

    R <- R + mean_h[(dy_c/dA_l * A_l)+] R from R = I (Chefer et al. 2021, "Generic attention-model
    explainability", eq. 5 and 6); what is left of the identity is taken off again.
    """

    name: ClassVar[str] = "gradient_x_attention"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "attention times its gradient, followed through the layers"
    paper: ClassVar[str] = "Chefer et al. 2021"

    def _declared(self, task: Task) -> Cost:
        rows = super()._declared(task).forward
        return Cost(rows, rows)

    def attribute(self, task: Task, context: Context) -> Tensor:
        outputs, weights = run(task, grad=True)
        with torch.enable_grad():
            slopes = torch.autograd.grad(selected(outputs, task.targets).sum(), weights)
        identity = torch.eye(weights[0].shape[-1], dtype=torch.float64, device=task.device)
        mixing = identity.expand(len(task), *identity.shape)
        for attention, slope in zip(weights, slopes, strict=True):
            layer = (attention.detach().double() * slope.double()).clamp(min=0).mean(1)
            mixing = mixing + layer @ mixing
        return self._laid(self._read(mixing - identity, task), task).to(outputs.dtype)


def run(task: Task, grad: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the attention weights (n, heads, L, L) of each layer in the order they were made."""
    with task.session(grad=grad) as model, AttentionWeights(len(task)) as weights:
        outputs = call(model, task.inputs, task.side)
    # what a foil of its own pass draws on comes behind
    count = len(weights.found) // passes(task)
    return outputs, weights.found[:count]


def _read_of(task: Task) -> str:
    """Which tokens of the last layer the output reads: those whose attention its gradient goes through."""
    outputs, weights = run(task, grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(selected(outputs, task.targets).sum(), weights[-1])
    read = slope.abs().amax((1, 3)) > 0
    places = torch.arange(read.shape[1], device=read.device)
    if not bool(read[:, 1:].any()) and bool(read.any()):
        return "first"
    if bool((read == (places == _last_place(task, len(places))[:, None])).all()):
        return "last"
    valid = task.space.valid if task.modality == "text" else None
    if bool((read if valid is None else read | ~valid).all()):
        return "mean"
    seen = read[0].nonzero().reshape(-1).tolist()
    raise NotApplicableError(
        f"the output reads the last layer at tokens {seen}, which is neither the first, the last nor all of "
        "them; say which row to read with reading=..."
    )


def _tokens(task: Task) -> int:
    if task.modality == "units":
        return places(task)
    return task.space.n_features if task.modality == "text" else spatial_size(task)[0]


def _extra(task: Task, places: int) -> int | None:
    """How many tokens stand before those of the patches, or None if the tokens are no patches."""
    seen = last_maps(task)
    count = torch.Size(seen.grid).numel()
    return places - count if seen.grid and 0 <= places - count <= 2 and not seen.behind else None


def _last_place(task: Task, places: int) -> Tensor:
    """The place of each sample's last token that its attention mask lets through."""
    side = task.side if isinstance(task.side, dict) else {}
    at = torch.arange(places, device=task.device)
    mask = side.get("attention_mask")
    if mask is None:
        return at[-1].expand(len(task))
    return torch.where(mask > 0, at, 0).amax(-1)


@fact
def _refusal(task: Task, explainer: AttentionExplainer) -> str | None:
    """Why an explainer by attention does not work on a task, tried on two samples."""
    try:
        return explainer._refusal(at_logits(task[: min(2, len(task))]))
    except NotApplicableError as error:
        return str(error)


@fact
def _rows_read(task: Task) -> str:
    few = task[: min(2, len(task))]
    found: str = few.uncounted(lambda: _read_of(few))
    return found
