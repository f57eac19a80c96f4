"""Which rule of relevance propagation a node of a traced graph falls under."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn import functional as F

_MODULES: list[tuple[tuple[type[nn.Module], ...], str]] = [
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), "linear"),
    ((nn.modules.batchnorm._BatchNorm,), "batch_norm"),
    ((nn.LayerNorm,), "layer_norm"),
    ((nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder), "attention"),
    ((nn.Sigmoid, nn.Hardsigmoid), "gate"),
    (
        (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
        "activation",
    ),
    (
        (nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid),
        "activation",
    ),
    (
        (nn.Identity, nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd, nn.PixelShuffle),
        "structure",
    ),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.ZeroPad1d, nn.ZeroPad2d), "structure"),
    ((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d), "structure"),
    ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Upsample), "pool"),
    ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), "pool"),
    ((nn.Softmax,), "softmax"),
]

_NAMES: dict[str, str] = {
    name: kind
    for kind, names in {
        "linear": "linear conv1d conv2d conv3d",
        "layer_norm": "layer_norm",
        "attention": "scaled_dot_product_attention",
        "gate": "sigmoid sigmoid_ hardsigmoid",
        "activation": "relu relu_ relu6 leaky_relu leaky_relu_ elu elu_ selu celu gelu silu mish tanh tanh_ "
        "hardtanh hardswish softplus softsign tanhshrink logsigmoid clamp clamp_ clamp_min",
        "structure": "flatten view reshape permute transpose squeeze unsqueeze contiguous cat concat "
        "stack chunk split tensor_split unbind getitem narrow select index_select expand expand_as repeat "
        "clone concatenate to float double half t swapaxes movedim roll flip unflatten view_as reshape_as "
        "T mT dropout dropout1d dropout2d max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
        "adaptive_max_pool2d amax pad pixel_shuffle type_as gather max",
        "pool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
        " mean sum interpolate neg masked_fill",
        "batch_norm": "batch_norm",
        "length": "normalize",
        "sum": "add add_ iadd radd sub sub_ isub rsub",
        "product": "mul mul_ imul rmul multiply truediv div div_ true_divide itruediv",
        "matmul": "matmul bmm mm",
        "softmax": "softmax",
    }.items()
    for name in names.split()
}
_POSITIVE_MODULES = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Hardsigmoid, nn.Softplus)
POSITIVE = frozenset({"relu", "relu_", "relu6", "sigmoid", "sigmoid_", "hardsigmoid", "softplus"})
"""Functions whose values are at least 0 whatever goes in."""
TURNING = frozenset({"sub", "sub_", "isub", "rsub", "neg", "pad", "interpolate"})
"""Sums, pools and moves that can give negative values although all that goes in is at least 0."""


def name_of(node: fx.Node) -> str:
    """The plain name of what a node calls."""
    if node.op == "call_module" or isinstance(node.target, str):
        return str(node.target)
    if node.target in _POOLS:
        return _POOLS[node.target]
    return str(getattr(node.target, "__name__", node.target)).lstrip("_")


def kind_of(node: fx.Node, module: nn.Module | None) -> str:
    """The kind of rule, or the reason why there is none."""
    if module is not None:
        for types, of_module in _MODULES:
            if isinstance(module, types):
                return of_module
        return "this layer has no stated rule"
    if node.target is getattr:
        return "structure"
    if node.op == "call_function" and node.target is operator.getitem:
        return "structure"
    if node.op not in ("call_function", "call_method"):
        return node.op
    kind = _NAMES.get(name_of(node))
    if kind is None and node.op == "call_method" and str(node.target) in ("size", "dim", "numel", "type"):
        return "structure"
    return _limited(name_of(node), node.args, node.kwargs) or kind or "this operation has no stated rule"


def plain_name(function: Any) -> str:
    """The plain name of a torch function, method, operator or attribute as it is called."""
    if function in _POOLS:
        return _POOLS[function]
    name = str(getattr(function, "__name__", function))
    if name == "__get__":
        name = str(function.__self__.__name__)
    return name.strip("_")


def kind_of_call(name: str, args: Any, kwargs: Any) -> str:
    """The kind of rule of a function call by its plain name, or the reason why there is none."""
    return _limited(name, args, kwargs) or _NAMES.get(name) or "this operation has no stated rule"


def _limited(name: str, args: Any, kwargs: Any) -> str | None:
    """Why a rule that there is does not cover this call, or None if it does."""
    if name == "masked_fill" and args and args[2:] not in ((0,), (0.0,)):
        return "only masked_fill with 0 has a stated rule"
    if name == "max" and len(args) == 1 and "dim" not in kwargs:
        return "a maximum over the whole batch mixes samples"
    return None


def is_positive(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the node's values are at least 0 whatever goes in."""
    if module is not None:
        return isinstance(module, _POSITIVE_MODULES)
    return name_of(node) in POSITIVE


def may_work_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an activation may write into its own input."""
    if module is not None:
        return bool(getattr(module, "inplace", False))
    return name_of(node).endswith("_") or True in node.args or True in node.kwargs.values()


def may_turn_negative(node: fx.Node) -> bool:
    """Whether a sum, pool or move can give negative values although all that goes in is at least 0."""
    return name_of(node) in TURNING


# pooling functions that choose between two bodies at run time all carry the same name
_POOLS: dict[Any, str] = {
    getattr(F, name): name
    for name in ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d")
} | {torch.flatten: "flatten"}


def is_explained(value: Any) -> bool:
    """Whether a value depends on the explained input."""
    return isinstance(value, Tensor) and value.requires_grad


def explained(value: Any) -> bool:
    """The same of all that a value holds."""
    if isinstance(value, Tensor):
        return value.requires_grad
    found = False

    def look(leaf: Any) -> Any:
        nonlocal found
        found = found or is_explained(leaf)
        return leaf

    map_aggregate(value, look)
    return found
