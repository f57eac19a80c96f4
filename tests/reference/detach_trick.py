"""Relevance by another road: a model whose held parts are detached, so that input times gradient is LRP-0.

Activations become z * [f(z) / z], spreads of norms and attention weights become constants, a product with an
activation is split in two halves; torch's own functions are replaced while the body runs. Nothing of the
package is used.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def identity_rule(f: Any) -> Any:
    def run(z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kwargs.pop("inplace", None)
        y = f(z.detach().clone(), *args, **kwargs)
        safe = torch.where(z.detach() == 0, torch.ones_like(z), z.detach())
        return z * (y / safe).detach()

    return run


def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    spread = (x.detach().var(axes, correction=0, keepdim=True) + eps).sqrt()
    y = (x - x.mean(axes, keepdim=True)) / spread
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    y = layer_norm(x.reshape(len(x), groups, -1), (x[0].numel() // groups,), eps=eps).reshape(x.shape)
    shape = (1, -1, *[1] * (x.dim() - 2))
    return y * weight.view(shape) + bias.view(shape)


@contextmanager
def detached() -> Iterator[None]:
    sdpa, mha, softmax = F.scaled_dot_product_attention, F.multi_head_attention_forward, F.softmax
    tanh = torch.tanh
    patches: list[Any] = [
        mock.patch.object(F, name, identity_rule(getattr(F, name)))
        for name in ("relu", "relu6", "hardtanh", "gelu", "silu")
    ]
    patches += [
        mock.patch.object(F, "layer_norm", layer_norm),
        mock.patch.object(F, "group_norm", group_norm),
        mock.patch.object(F, "softmax", lambda *a, **k: softmax(*a, **k).detach()),
        mock.patch.object(nn.Tanh, "forward", lambda self, x: identity_rule(tanh)(x)),
        mock.patch.object(torch, "tanh", identity_rule(tanh)),
        mock.patch.object(nn.Sigmoid, "forward", lambda self, x: torch.sigmoid(x).detach()),
        mock.patch.object(F, "scaled_dot_product_attention",
                          lambda q, k, v, *a, **w: sdpa(q.detach(), k.detach(), v, *a, **w)),
        mock.patch.object(F, "multi_head_attention_forward",
                          lambda q, k, v, *a, **w: mha(q.detach(), k.detach(), v.clone(), *a, **w)),
    ]  # fmt: skip
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        for patch in _hugging_face():
            stack.enter_context(patch)
        yield


def _hugging_face() -> list[Any]:
    try:
        from transformers.activations import GELUActivation, NewGELUActivation
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
    except ImportError:
        return []

    def rms(self: Any, x: Tensor) -> Tensor:
        spread = x.detach().float().pow(2).mean(-1, keepdim=True).add(self.variance_epsilon).rsqrt()
        return self.weight * (x * spread).to(x.dtype)

    def mlp(self: Any, x: Tensor) -> Tensor:
        gate, up = F.silu(self.gate_proj(x)), self.up_proj(x)
        return self.down_proj((gate * up.detach() + gate.detach() * up) / 2)

    return [
        mock.patch.object(LlamaRMSNorm, "forward", rms),
        mock.patch.object(LlamaMLP, "forward", mlp),
        *(
            mock.patch.object(kind, "forward", identity_rule_of(kind.forward))
            for kind in (GELUActivation, NewGELUActivation)
        ),
    ]


def identity_rule_of(method: Any) -> Any:
    return lambda self, z: identity_rule(lambda x: method(self, x))(z)


def relevance(task: Any) -> Tensor:
    """Input times gradient of the explained output, with held parts detached, as the task's features."""
    at = task.at_embeddings()
    x = at.inputs.detach().clone().requires_grad_(True)
    model = at.predictor.model
    for value in model.parameters():
        value.requires_grad_(False)
    with detached():
        answer = model(x, **at.side) if isinstance(at.side, dict) else model(x, *at.side)
        outputs = getattr(answer, "logits", answer)
        total = outputs.gather(1, task.targets[:, None]).sum()
        (slope,) = torch.autograd.grad(total, x)
    torch.testing.assert_close(outputs.detach(), task.outputs)
    return at.values((x * slope).detach())


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, high: float, everywhere: bool) -> Tensor:
        ctx.save_for_backward(torch.ones_like(z) if everywhere else (z > 0) & (z < high))
        return z.clamp(0, high)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        return above.clamp(min=0) * ctx.saved_tensors[0], None, None


def guided(task: Any, everywhere: bool = False) -> Tensor:
    """Guided backpropagation by replacing torch's rectifiers; `everywhere`: deconvolution."""
    at = task.at_embeddings()
    x = at.inputs.detach().clone().requires_grad_(True)
    free = lambda z, *a, **k: _Guided.apply(z, float("inf"), everywhere)  # noqa: E731
    six = lambda z, *a, **k: _Guided.apply(z, 6.0, everywhere)  # noqa: E731
    with mock.patch.object(F, "relu", free), mock.patch.object(F, "hardtanh", six):
        model = at.predictor.model
        # an encoder layer has taken hold of its rectifier when it was made
        for layer in model.modules():
            if isinstance(layer, nn.TransformerEncoderLayer):
                layer.activation = free
        answer = model(x, **at.side) if isinstance(at.side, dict) else model(x, *at.side)
        outputs = getattr(answer, "logits", answer)
        (slope,) = torch.autograd.grad(outputs.gather(1, task.targets[:, None]).sum(), x)
    return at.values(slope.detach())


def _only_raising(function: Any) -> Any:
    """A linear map whose answer goes back to its raising contributions alone, scaled to what it is."""
    flat = function is F.linear

    def run(a: Tensor, w: Tensor, b: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        w = w.detach()
        up = function(a.clamp(min=0), w.clamp(min=0), None, *args, **kwargs)
        up = up + function(a.clamp(max=0), w.clamp(max=0), None, *args, **kwargs)
        y = function(a.detach(), w, b, *args, **kwargs)
        shape = (-1,) if flat else (-1, *[1] * (y.dim() - 2))
        below = up.detach() if b is None else up.detach() + b.detach().clamp(min=0).view(shape)
        none = below == 0  # nothing raises it: nothing goes back
        scale = torch.where(none, torch.zeros_like(y), y / torch.where(none, torch.ones_like(y), below))
        given = up * scale
        return given + (y - given).detach()

    return run


def z_plus(task: Any) -> Tensor:
    """LRP-z+ of a network of convolutions, batch norms, rectifiers and pools, norms folded by torch.fx."""
    from torch.fx.experimental.optimization import fuse

    model = fuse(task.predictor.model)
    x = task.inputs.detach().clone().requires_grad_(True)
    with ExitStack() as stack:
        stack.enter_context(detached())
        for name in ("linear", "conv1d", "conv2d", "conv_transpose2d"):
            stack.enter_context(mock.patch.object(F, name, _only_raising(getattr(F, name))))
        outputs = model(x)
        (slope,) = torch.autograd.grad(outputs.gather(1, task.targets[:, None]).sum(), x)
    torch.testing.assert_close(outputs.detach(), task.outputs)
    return task.values((x * slope).detach())
