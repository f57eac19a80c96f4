"""Relevance through attention and layer normalisation: their weights are taken as given.

Attention mixes values by weights p = softmax(q k'), and a layer norm divides by a spread; both are held
constant, so that each block is linear in what it carries and the epsilon rule applies (Ali et al. 2022,
"XAI for Transformers: better explanations through conservative propagation"). Queries and keys get none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from veridical.errors import NotApplicableError
from veridical.explainers.lrp_rules import pass_on, proportional, split_sum
from veridical.explainers.lrp_work import Work, multiplications

Dense = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class AttentionRules:
    """The rules of whole attention blocks, given the rule of a dense layer."""

    def __init__(self, dense: Dense, work: Work) -> None:
        self.dense, self.work = dense, work

    def __call__(self, node: fx.Node, module: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if module is None:
            return scaled_dot_product(*args, **kwargs)
        if isinstance(module, nn.TransformerEncoder):
            return self.encoder(module, *args, **kwargs)
        if isinstance(module, nn.TransformerEncoderLayer):
            return self.layer(module, *args, **kwargs)
        return self.multihead(module, *args, **kwargs)

    def encoder(
        self,
        stack: nn.TransformerEncoder,
        x: Tensor,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: Any = None,
    ) -> Tensor:
        """nn.TransformerEncoder: its layers in turn."""
        for layer in stack.layers:
            x = self.layer(layer, x, mask, src_key_padding_mask)
        return x if stack.norm is None else self.norm(stack.norm, [x], {})

    def layer(
        self,
        layer: Any,
        x: Tensor,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        """nn.TransformerEncoderLayer, in either order of norm and block."""

        def attend(h: Tensor) -> Tensor:
            return self.multihead(layer.self_attn, h, h, h, src_key_padding_mask, attn_mask=src_mask)[0]

        def feed(h: Tensor) -> Tensor:
            wide = self.dense(h, layer.linear1.weight, layer.linear1.bias)
            with torch.no_grad():
                active = layer.activation(wide.detach().clone())
            return self.dense(pass_on(active, wide), layer.linear2.weight, layer.linear2.bias)

        if layer.norm_first:
            x = split_sum([x, attend(self.norm(layer.norm1, [x], {}))])
            return split_sum([x, feed(self.norm(layer.norm2, [x], {}))])
        x = self.norm(layer.norm1, [split_sum([x, attend(x)])], {})
        return self.norm(layer.norm2, [split_sum([x, feed(x)])], {})

    def multihead(
        self,
        block: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """nn.MultiheadAttention: relevance goes through the values alone."""
        if block.bias_k is not None or block.add_zero_attn or block.in_proj_weight is None:
            raise NotApplicableError(
                "LRP has no rule for nn.MultiheadAttention with added keys or unequal key and value sizes"
            )
        if not block.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        wq, wk, wv = block.in_proj_weight.detach().chunk(3)
        biases = (None, None, None) if block.in_proj_bias is None else block.in_proj_bias.detach().chunk(3)
        heads = block.num_heads

        def split(t: Tensor) -> Tensor:
            return t.unflatten(-1, (heads, -1)).transpose(1, 2)

        with torch.no_grad():
            q, k = split(F.linear(query, wq, biases[0])), split(F.linear(key, wk, biases[1]))
            self.work.plain += multiplications(q, wq) + multiplications(k, wk)
            weights = _weights(q, k, _joined(attn_mask, key_padding_mask, len(query), heads))
        v = split(self.dense(value, wv, biases[2]))
        mixed = proportional(lambda t: weights @ t, v).transpose(1, 2).flatten(-2)
        out = self.dense(mixed, block.out_proj.weight, block.out_proj.bias)
        return out if block.batch_first else out.transpose(0, 1), weights.mean(1)

    def norm(self, module: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
        """A layer norm, as a module or as a function."""
        if module is None:
            return layer_norm(*args, **kwargs)
        return layer_norm(args[0], module.normalized_shape, module.weight, module.bias, module.eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm with its spread held constant: subtract the mean, scale, shift."""
    axes = tuple(range(-len(normalized_shape), 0))
    spread = torch.rsqrt(input.detach().var(axes, correction=0, keepdim=True) + eps)
    scale = spread if weight is None else spread * weight.detach()
    shift = None if bias is None else bias.detach()
    return proportional(lambda t: (t - t.mean(axes, keepdim=True)) * scale, input, shift)


def normalized(
    input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """A vector brought to length 1, its length held constant as the spread of a layer norm is."""
    length = input.detach().norm(p, dim, keepdim=True).clamp(min=eps)
    return proportional(lambda t: t / length, input)


def _joined(mask: Any, padding: Any, rows: int, heads: int) -> Tensor | None:
    """One mask to add to the scores, from a mask over pairs of places and one over padded places."""
    total = None
    for part, shape in ((mask, None), (padding, (rows, 1, 1, -1))):
        if part is None:
            continue
        added = (
            torch.zeros_like(part, dtype=torch.get_default_dtype()).masked_fill(part, -torch.inf)
            if (part.dtype == torch.bool)
            else part
        )
        if shape is not None:
            added = added.reshape(shape)
        elif added.dim() == 3:
            added = added.unflatten(0, (rows, heads))
        total = added if total is None else total + added
    return total


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores if mask is None else scores + mask.to(scores)).softmax(-1)


def scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Fused attention: relevance goes through the values, by weights held constant."""
    if enable_gqa:
        raise NotApplicableError("LRP has no rule for attention with grouped queries")
    with torch.no_grad():
        mask = attn_mask
        if is_causal:
            mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if mask is not None and mask.dtype == torch.bool:
            # here, unlike in nn.MultiheadAttention, True is for what may be attended to
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
        weights = _weights(query.detach(), key.detach(), mask, scale)
    return proportional(lambda t: weights @ t, value)
