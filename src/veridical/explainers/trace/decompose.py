"""Blocks written as the operations they consist of, so that a rule for each of those covers the block."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.errors import NotApplicableError


def standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x less its mean, over its spread."""
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes_behind: int = 0) -> Tensor:
    """x times a weight plus a bias, both over the channels."""
    for values, join in ((weight, torch.mul), (bias, torch.add)):
        if values is not None:
            x = join(x, values.reshape(*values.shape, *[1] * axes_behind))
    return x


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm."""
    return affine(standardised(input, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group norm: standardised over the channels of a group and all places."""
    apart = input.reshape(len(input), num_groups, -1)
    return affine(standardised(apart, (-1,), eps).reshape(input.shape), weight, bias, input.dim() - 2)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Instance norm: every channel by itself, or by its running statistics."""
    if not use_input_stats:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return group_norm(input, input.shape[1], weight, bias, eps)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """RMS norm: divided by the root of the mean square."""
    axes = tuple(range(-len(normalized_shape), 0))
    small = torch.finfo(input.dtype).eps if eps is None else eps
    return affine(input * torch.rsqrt((input * input).mean(axes, keepdim=True) + small), weight, None)


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Tensor:
    """The length of a vector."""
    if p not in (None, "fro", 2) or dim is None:
        raise NotApplicableError(f"only a length by squares along an axis has a stated rule; p is {p}")
    return torch.sqrt((input * input).sum(dim, keepdim=keepdim))


def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """The same under its newer name."""
    return norm(x, ord, dim, keepdim)


def var(input: Tensor, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
    """The variance along an axis."""
    if dim is None or isinstance(dim, bool):
        raise NotApplicableError("a variance over the whole batch mixes samples")
    centred = input - input.mean(dim, keepdim=True)
    squares = (centred * centred).sum(dim, keepdim=keepdim)
    count = input.numel() // max(1, squares.numel())
    return squares / (count - correction)


def std(input: Tensor, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
    """The deviation along an axis."""
    return torch.sqrt(var(input, dim, correction=correction, keepdim=keepdim))


def normalize(
    input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """A vector brought to length 1."""
    if p != 2.0:
        raise NotApplicableError(f"only the length by squares has a stated rule, and p is {p}")
    return input / torch.sqrt((input * input).sum(dim, keepdim=True)).clamp(min=eps)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Fused attention, written out."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    some = None
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        # padding before a text sees nothing, and gives zero where a softmax of nothing would be 0/0
        some = attn_mask.any(-1, keepdim=True)
        attn_mask = attn_mask | ~some
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # here, unlike in nn.MultiheadAttention, True is for what may be attended to
        attn_mask = _forbidding(~attn_mask, query.dtype)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    weights = torch.softmax(scores if attn_mask is None else scores + attn_mask, -1)
    return (weights if some is None else weights * some) @ value


def multi_head_attention_forward(*args: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention on (places, rows, size), as torch calls it."""
    bound = signature(F.multi_head_attention_forward).bind(*args, **named)
    bound.apply_defaults()
    of = SimpleNamespace(**bound.arguments)
    added = (of.bias_k, of.bias_v, of.static_k, of.static_v)
    if any(v is not None for v in added) or of.add_zero_attn or of.query.dim() != 3:
        raise NotApplicableError("nn.MultiheadAttention with added or static keys has no stated rule")
    weights = (of.q_proj_weight, of.k_proj_weight, of.v_proj_weight)
    if not of.use_separate_proj_weight:
        weights = of.in_proj_weight.chunk(3)
    biases = (None, None, None) if of.in_proj_bias is None else of.in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(t.transpose(0, 1), w, b).unflatten(-1, (of.num_heads, -1)).transpose(1, 2)
        for t, w, b in zip((of.query, of.key, of.value), weights, biases, strict=True)
    )
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    rows = of.query.shape[1]
    for mask, shape in ((of.attn_mask, None), (of.key_padding_mask, (rows, 1, 1, -1))):
        if mask is not None:
            each = _forbidding(mask, q.dtype) if mask.dtype == torch.bool else mask
            if shape is None and each.dim() == 3:
                each = each.unflatten(0, (rows, of.num_heads))
            scores = scores + (each if shape is None else each.reshape(shape))
    mixing = torch.softmax(scores, -1)
    mixed = (mixing @ v).transpose(1, 2).flatten(-2)
    out = F.linear(mixed, of.out_proj_weight, of.out_proj_bias).transpose(0, 1)
    if not of.need_weights:
        return out, None
    return out, mixing.mean(1) if of.average_attn_weights else mixing


def _forbidding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def recurrent(kind: str, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """nn.LSTM, nn.GRU or nn.RNN, step by step."""
    if isinstance(args[1], Tensor) and args[1].dtype == torch.int64:
        raise NotApplicableError(
            "a recurrent layer on a packed sequence has no stated rule; pass padded ones"
        )
    x, state, weights, biased, layers, _, _, both_ways, batch_first = args
    states = state if kind == "lstm" else (state,)
    x = x.transpose(0, 1) if batch_first else x
    each, ends = 4 if biased else 2, []
    if len(weights) != each * layers * (2 if both_ways else 1):
        raise NotApplicableError("a recurrent layer with projections has no stated rule")
    step = {"lstm": _lstm, "gru": _gru}.get(kind, _plain(torch.relu if kind == "rnn_relu" else torch.tanh))
    at = 0
    for _layer in range(layers):
        ways = []
        for backward in (False, True)[: 2 if both_ways else 1]:
            w_in, w_back, *b = weights[at * each : (at + 1) * each]
            b_in, b_back = b if b else (None, None)
            now, outputs = tuple(s[at] for s in states), []
            given = F.linear(x, w_in, b_in)
            for t in reversed(range(len(x))) if backward else range(len(x)):
                now = step(given[t], now, w_back, b_back)
                outputs.append(now[0])
            ways.append(torch.stack(outputs[::-1] if backward else outputs))
            ends.append(now)
            at += 1
        x = torch.cat(ways, -1) if both_ways else ways[0]
    last = tuple(torch.stack(part) for part in zip(*ends, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *last)


State = tuple[Tensor, ...]


def _lstm(given: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    h, c = state
    enter, forget, new, out = (given + F.linear(h, w, b)).chunk(4, -1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(c), c


def _gru(given: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    (h,) = state
    (r, z, n), (hr, hz, hn) = given.chunk(3, -1), F.linear(h, w, b).chunk(3, -1)
    kept = torch.sigmoid(z + hz)
    new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return ((1 - kept) * new + kept * h,)


def _plain(activation: Any) -> Any:
    return lambda given, state, w, b: (activation(given + F.linear(state[0], w, b)),)


BLOCKS = {
    each.__name__: each
    for each in (
        *(layer_norm, group_norm, instance_norm, rms_norm, normalize, norm, vector_norm, var, std),
        *(scaled_dot_product_attention, multi_head_attention_forward),
    )
}
"""Blocks by the plain name of the function that computes them."""
