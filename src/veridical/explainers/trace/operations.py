"""What kind of operation a torch function is: rules are stated for kinds, not for names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

KINDS: dict[str, str] = {
    name: kind
    for kind, names in {
        "linear": "linear conv1d conv2d conv3d",
        "transposed": "conv_transpose1d conv_transpose2d conv_transpose3d",
        "addmm": "addmm",
        "norm": "layer_norm group_norm instance_norm rms_norm normalize",
        "attention": "scaled_dot_product_attention multi_head_attention_forward",
        "recurrent": "lstm gru rnn_tanh rnn_relu",
        "gate": "sigmoid hardsigmoid",
        "activation": "relu relu6 leaky_relu prelu elu selu celu gelu silu mish tanh hardtanh hardswish "
        "softplus softsign tanhshrink logsigmoid log_sigmoid clamp clamp_min clamp_max threshold rrelu",
        "structure": "flatten view reshape permute transpose squeeze unsqueeze contiguous cat concat "
        "stack chunk split tensor_split unbind getitem narrow select index_select expand expand_as repeat "
        "clone concatenate to float double half bfloat16 t swapaxes movedim roll flip unflatten view_as "
        "reshape_as T mT dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout pad type "
        "type_as pixel_shuffle pixel_unshuffle channel_shuffle gather setitem where repeat_interleave unfold "
        "unsafe_chunk unsafe_split split_with_sizes take_along_dim swapdims moveaxis ravel broadcast_to "
        "tril triu diagonal fill copy zero",
        "maximum": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d amax max",
        "average": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d mean sum interpolate upsample neg masked_fill cumsum fold",
        "batch_norm": "batch_norm",
        "sum": "add iadd radd sub isub rsub subtract",
        "product": "mul imul rmul multiply truediv div true_divide itruediv divide rdiv rtruediv",
        "matmul": "matmul bmm mm rmatmul mv einsum dot",
        "softmax": "softmax log_softmax",
        "elementwise": "pow square sqrt rsqrt exp exp2 expm1 log log1p log2 reciprocal abs sin cos erf rpow",
        "spread": "var std norm vector_norm",
        "compare": "gt ge lt le eq ne",
    }.items()
    for name in names.split()
}
_REDUCING = frozenset({"max", "amax", "mean", "sum"})
NO_RULE = "this operation has no stated rule"
POSITIVE = frozenset({"relu", "relu6", "sigmoid", "hardsigmoid", "softplus"})
"""Functions whose values are at least 0 whatever goes in."""
TURNING = frozenset({"sub", "isub", "rsub", "subtract", "neg", "pad", "interpolate", "upsample"})
"""Sums, averages and moves that can give negative values although all that goes in is at least 0."""
FACTS = frozenset(
    """
    shape size dim ndim dtype device numel layout is_cuda is_nested is_leaf is_sparse is_quantized
    is_floating_point is_complex requires_grad grad_fn stride element_size storage_offset is_contiguous
    nelement len is_mps is_meta get_device grad names is_mkldnn is_xla is_cpu untyped_storage data_ptr
    version is_inference hash repr format register_hook
    """.split()
)
"""Facts of a tensor that are read without reading its values."""

NEW = frozenset(
    """
    zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty
    new_tensor
    """.split()
)
"""What makes a tensor like another without reading its values."""
LIKE = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})
"""What lays out its first tensor as another one is: a mask beside an activation stays a constant."""

# pooling functions that choose between two bodies at run time all carry the same name
_POOLS: dict[Any, str] = {
    getattr(F, f"{kind}_pool{axes}d"): f"{kind}_pool{axes}d"
    for kind in ("max", "adaptive_max")
    for axes in (1, 2, 3)
} | {torch.flatten: "flatten"}


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def only_tensors(value: Any) -> bool:
    """Whether there is nothing but tensors in a nest: no numbers that were read of one."""
    if isinstance(value, tuple | list):
        return all(map(only_tensors, value))
    return value is None or isinstance(value, Tensor)


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same nest with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list):
        return [mapped(change, part) for part in value]
    if type(value) is tuple:
        return tuple(mapped(change, part) for part in value)
    if isinstance(value, dict):
        return {name: mapped(change, part) for name, part in value.items()}
    return value


def plain_name(function: Any) -> str:
    """The plain name of a torch function, method, operator or attribute as it is called."""
    if function in _POOLS:
        return _POOLS[function]
    name = str(getattr(function, "__name__", function))
    if name == "__get__":
        name = str(function.__self__.__name__)
    # torch.ops.aten.relu.default is called as torch.relu is; norms and such take their arguments otherwise
    before, dot, _ = name.partition(".")
    if dot and KINDS.get(before.strip("_")) not in (None, "batch_norm", "norm", "attention", "recurrent"):
        name = before
    return name.strip("_")


def kind_of(name: str, args: Any = (), kwargs: Any = None) -> str:
    """The kind of an operation by its plain name, or the reason why there is none."""
    if name == "masked_fill" and args and args[2:] not in ((0,), (0.0,)):
        return "only masked_fill with 0 has a stated rule"
    if name in _REDUCING and len(args) == 1 and (kwargs or {}).get("dim") is None:
        return f"a {name} over the whole batch mixes samples"
    if name == "max" and len(args) == 2 and isinstance(args[1], Tensor):
        return NO_RULE
    return KINDS.get(name, NO_RULE)


def bound(name: str, args: Any, kwargs: Any, which: str) -> float | None:
    """The number that an operation keeps its outputs above ("low") or below ("high"), if it is one."""
    if name not in _BOUNDING:
        return None
    at, *names = _BOUNDING[name][which]
    found = args[at] if 0 < at < len(args) else next((kwargs[n] for n in names if n in kwargs), None)
    return found if isinstance(found, int | float) else None


_CLAMP = {"low": (1, "min"), "high": (2, "max")}
_BOUNDING: dict[str, dict[str, tuple[Any, ...]]] = {
    "clamp": _CLAMP,
    "clip": _CLAMP,
    "clamp_min": {"low": (1, "min"), "high": (0,)},
    "hardtanh": {"low": (1, "min_val"), "high": (2, "max_val")},
    "clamp_max": {"low": (0,), "high": (1, "max")},
}
"""Where bounds stand: ReLU6 by another name has 0 below; 0 above gives what a rectifier takes away."""


def overwritten(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The tensor that a call writes its result into, or None if it makes a new one."""
    name = str(getattr(func, "__name__", "")).partition(".")[0]
    in_place = name in _OPERATORS or (name.endswith("_") and not name.endswith("__"))
    at = _INPLACE_AT.get(name, len(args))
    in_place = in_place or kwargs.get("inplace") is True or (at < len(args) and args[at] is True)
    first = args[0] if args else kwargs.get("input")
    return first if in_place and isinstance(first, Tensor) else None


_OPERATORS = frozenset(
    f"__{name}__" for name in ["setitem", "iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior", "ixor"]
)


_INPLACE_AT = {
    "relu": 1, "relu6": 1, "leaky_relu": 2, "elu": 2, "selu": 1, "celu": 2, "silu": 1, "mish": 1,
    "hardtanh": 3, "hardswish": 1, "hardsigmoid": 1, "threshold": 3, "rrelu": 4, "dropout": 3,
    "alpha_dropout": 3, "feature_dropout": 3,
}  # fmt: skip
