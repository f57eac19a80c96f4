"""A stand-in for zennit, which needs torchvision: its composites' interface and ways, written anew.

What an adapter meets: `register(module)`, `remove()`, `handles` and `context(module)`; hooks around every
leaf that mark its inputs and outputs by an identity with a backward hook; rules that run the leaf again in
the backward pass with other parameters, put there by `load_state_dict(assign=True)` and put back after.
"""

from contextlib import contextmanager

import torch
from torch import nn


class Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def pushed(z: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    return z + epsilon * ((z == 0).to(z) + z.sign())


@contextmanager
def parameters(layer: nn.Module, change):
    """The layer with changed parameters; afterwards it holds new objects with the old values."""
    before = {name: value.data for name, value in layer.named_parameters(recurse=False)}
    try:
        layer.load_state_dict({n: change(n, v) for n, v in before.items()}, strict=False, assign=True)
        yield layer
    finally:
        layer.load_state_dict(before, strict=False, assign=True)


def passed(_layer, _a, R):
    return R


def epsilon(layer, a, R):
    return share(layer, [(a, lambda _n, v: v)], R)


def z_plus(layer, a, R):
    up = (a.clamp(min=0), lambda _n, v: v.clamp(min=0))
    down = (a.clamp(max=0), lambda n, v: torch.zeros_like(v) if n == "bias" else v.clamp(max=0))
    return share(layer, [up, down], R)


def share(layer, terms, R):
    inputs, outputs = [], []
    for a, change in terms:
        a = a.detach().requires_grad_()
        with parameters(layer, change) as changed, torch.enable_grad():
            outputs.append(changed.forward(a))
        inputs.append(a)
    grads = torch.autograd.grad(outputs, inputs, [R / pushed(sum(outputs).detach())] * len(outputs))
    return sum(a.detach() * g for a, g in zip(inputs, grads, strict=True))


class EpsilonPlus:
    """z+ for convolutions, epsilon for linear layers, activations pass."""

    rules = ((nn.modules.conv._ConvNd, z_plus), (nn.Linear, epsilon), (nn.ReLU, passed))

    def __init__(self) -> None:
        self.handles: list = []

    def register(self, module: nn.Module) -> None:
        for layer in module.modules():
            rule = next((r for kind, r in self.rules if isinstance(layer, kind)), None)
            if rule is not None:
                self._hook(layer, rule)

    def _hook(self, layer: nn.Module, rule) -> None:
        stored = {}

        def before(_layer, args, kwargs):
            marked = Mark.apply(args[0])
            marked.grad_fn.register_hook(lambda _i, _o: (rule(layer, stored["a"], stored["R"]),))
            stored["a"] = args[0].detach()
            return (marked.clone(), *args[1:]), kwargs

        def after(_layer, _args, _kwargs, output):
            marked = Mark.apply(output)
            marked.grad_fn.register_hook(lambda _i, o: stored.__setitem__("R", o[0]))
            return marked.clone()

        self.handles += [
            layer.register_forward_pre_hook(before, with_kwargs=True),
            layer.register_forward_hook(after, with_kwargs=True),
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    @contextmanager
    def context(self, module: nn.Module):
        self.register(module)
        try:
            yield module
        finally:
            self.remove()
