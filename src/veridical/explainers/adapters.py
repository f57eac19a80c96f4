"""Other packages' explainers as ours: captum's attributions, shap's explainers, zennit's composites."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError, ShapeError
from veridical.explainers.base import Explainer, selected
from veridical.model.embeddings import EmbeddingView
from veridical.model.predictor import call
from veridical.random.keyed import Key
from veridical.values.task import Task


def from_captum(attribution: Any, **attribute_kwargs: Any) -> CaptumExplainer:
    """A captum attribution class, object, or function of a model that makes one, as an explainer.

    `attribute_kwargs` go to its `attribute`; targets and side inputs are passed by themselves. An object is
    copied and bound to the task's model, so that weight noise reaches it and its rows are counted.

    >>> from captum.attr import IntegratedGradients
    >>> from_captum(IntegratedGradients, n_steps=16).name
    'captum IntegratedGradients'
    """
    return CaptumExplainer(attribution, attribute_kwargs)


def from_shap(make: Callable[..., Any], **call_kwargs: Any) -> ShapExplainer:
    """A shap explainer from `make(predict, background)`; `call_kwargs` go to its call.

    `predict` takes a matrix of flattened rows and gives the outputs (rows, outputs); `background` is the
    task's reference rows, flattened, or None. If `make` names an argument `model`, it gets the torch module.
    """
    return ShapExplainer(make, call_kwargs)


def from_zennit(composite: Any) -> ZennitExplainer:
    """A zennit composite (or anything with `context(module)`), as an explainer."""
    if not hasattr(composite, "context"):
        raise InputError(f"a composite has a method context(module); {type(composite).__name__} has none")
    return ZennitExplainer(composite)


@dataclass(frozen=True)
class _Adapter(Explainer):
    """What the adapters share: settings that hold objects are written down as text."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "settings": self._described()}

    def _described(self) -> str:
        return ""


@dataclass(frozen=True, eq=False)
class CaptumExplainer(_Adapter):
    """A captum method on the task's model.

    Methods that draw random numbers draw from torch's global generator, once per batch: it is seeded by the
    key and put back, so the same plan gives the same map, but another plan another draw.
    """

    attribution: Any = None
    """A captum class, or an object of one, which is set up again on the task's model."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Named arguments handed to captum's `attribute`."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"captum {_label(self.attribution)}"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        from captum.attr._utils.attribution import PerturbationAttribution

        kind = self.attribution if isinstance(self.attribution, type) else type(self.attribution)
        return frozenset() if issubclass(kind, PerturbationAttribution) else frozenset({"gradient"})

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        label = _label(self.attribution)
        return any(word in label for word in ("Shap", "Lime", "NoiseTunnel", "Sampling"))

    def _described(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self.kwargs.items())

    def rows_per_sample(self, task: Task) -> int:
        if "internal_batch_size" in self.kwargs:
            return 1
        steps = self.kwargs.get("n_steps", self.kwargs.get("nt_samples"))
        if steps is None and "IntegratedGradients" in _label(self.attribution):
            steps = 50  # captum's own default
        return int(steps or 1)

    def attribute(self, task: Task, key: Key) -> Tensor:
        names = list(task.side) if isinstance(task.side, dict) else []
        extra = tuple(task.side.values()) if isinstance(task.side, dict) else task.side
        lent = task.predictor.lent()
        with task.session(grad=True), lent as model, seeded_torch(key / int(task.ids[0])):
            method = self._bound(_ByPosition(model, names) if names else model)
            kwargs = dict(self.kwargs)
            accepted = inspect.signature(method.attribute).parameters
            passes_on = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
            if "target" in accepted or passes_on:
                kwargs.setdefault("target", task.targets)
            if extra and ("additional_forward_args" in accepted or passes_on):
                kwargs.setdefault("additional_forward_args", extra)
            rows = task.inputs.detach().clone().requires_grad_("gradient" in self.needs)
            maps = method.attribute(rows, **kwargs)
        if isinstance(maps, tuple) and len(maps) == 1:
            maps = maps[0]
        if not isinstance(maps, Tensor):
            raise ShapeError(f"'{self.name}' gave a {type(maps).__name__}; expected one tensor of maps")
        return _over_inputs(maps.detach(), task, self.name)

    def _bound(self, model: nn.Module) -> Any:
        if isinstance(self.attribution, type) or not hasattr(self.attribution, "attribute"):
            return self.attribution(model)
        return _rebound(self.attribution, model)


def _rebound(attribution: Any, model: nn.Module) -> Any:
    """A copy of a captum object, and of the objects it wraps, that asks this model instead of its own."""
    twin = copy.copy(attribution)
    for name in ("forward_func", "model"):
        if hasattr(twin, name):
            setattr(twin, name, model)
    for name, value in vars(attribution).items():
        if hasattr(value, "attribute") and hasattr(value, "forward_func"):
            setattr(twin, name, _rebound(value, model))
    return twin


class _ByPosition(nn.Module):
    """The counted model with its named side inputs given by position, as captum passes them."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, x: Tensor, *values: Any) -> Tensor:
        answer: Tensor = self.module(x, **dict(zip(self.names, values, strict=True)))
        return answer


@dataclass(frozen=True, eq=False)
class ShapExplainer(_Adapter):
    """A shap explainer on the task's model, for the explained output of each sample."""

    make: Callable[..., Any] = len  # always replaced by the caller's
    """Makes shap's explainer: a class, or a function of the model and its background rows."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Named arguments handed to shap when it explains."""
    stochastic: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"shap {_label(self.make)}"

    def _described(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self.kwargs.items())

    def attribute(self, task: Task, key: Key) -> Tensor:
        if task.side:
            raise NotApplicableError(
                f"'{self.name}' asks the model about rows alone; this task has side inputs"
            )
        shape = task.inputs.shape[1:]

        def predict(rows: Any) -> Any:
            tensor = torch.as_tensor(np.asarray(rows)).to(device=task.device, dtype=task.inputs.dtype)
            return task.predictor.outputs(tensor.reshape(-1, *shape)).detach().cpu().numpy()

        rows = task.inputs.reshape(len(task), -1)
        background = None if task.train is None else task.train.reshape(len(task.train), -1).cpu().numpy()
        named = inspect.signature(self.make).parameters
        with seeded_numpy(key / int(task.ids[0])):
            if "model" in named:
                with task.session(grad=True), task.predictor.lent() as model:
                    answer = _shap_values(
                        self.make(model=model, background=task.train), task.inputs, self.kwargs
                    )
            else:
                answer = _shap_values(self.make(predict, background), rows.cpu().numpy(), self.kwargs)
        values = torch.as_tensor(np.asarray(answer)).to(task.device, task.outputs.dtype)
        if values.numel() == rows.numel():
            return values.reshape(task.inputs.shape)
        if values.numel() == rows.numel() * task.n_outputs:
            flat = values.reshape(*rows.shape, task.n_outputs)
            chosen = flat.gather(-1, task.targets[:, None, None].expand(-1, flat.shape[1], 1))
            return chosen.reshape(task.inputs.shape)
        raise ShapeError(
            f"'{self.name}' gave values of shape {tuple(values.shape)} for {len(task)} rows of "
            f"{tuple(shape)} and {task.n_outputs} outputs"
        )


def _shap_values(explainer: Any, rows: Any, kwargs: dict[str, Any]) -> Any:
    """Values (rows, features[, outputs]) from either of shap's two interfaces."""
    if hasattr(explainer, "shap_values"):
        values = explainer.shap_values(rows, **kwargs)
    else:
        values = explainer(rows, **kwargs).values
    return np.stack(values, -1) if isinstance(values, list) else values


@dataclass(frozen=True, eq=False)
class ZennitExplainer(_Adapter):
    """The gradient of the explained output while a composite's rules stand in for the layers' own.

    Relevance starts at 1 for the explained output and 0 for the others, as with a one-hot `attr_output` in
    zennit. Its rules exchange the parameters of a layer for others in the backward pass; all of it happens on
    a private copy.
    """

    composite: Any = None
    """The zennit composite whose rules replace the gradients of layers."""
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"zennit {_label(self.composite)}"

    def attribute(self, task: Task, key: Key) -> Tensor:
        x = task.inputs.detach().clone().requires_grad_(True)
        with task.session(grad=True), task.predictor.lent() as model:
            module = model.module if isinstance(model, EmbeddingView) else model
            for parameter in module.parameters():
                parameter.requires_grad_(False)
            with self.composite.context(module):
                total = selected(call(model, x, task.side), task.targets).sum()
                (relevance,) = torch.autograd.grad(total, x)
        return relevance.detach()


def _over_inputs(maps: Tensor, task: Task, name: str) -> Tensor:
    """Maps of a layer (n, 1, h, w) come back at the size of the image."""
    if maps.dim() == 4 and task.inputs.dim() == 4 and maps.shape[1] == 1 and maps.shape != task.inputs.shape:
        size = tuple(task.inputs.shape[-2:])
        if tuple(maps.shape[-2:]) != size:
            maps = nn.functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)
        return maps.expand_as(task.inputs) / task.inputs.shape[1]
    return maps


def _label(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


def _short(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


@contextmanager
def seeded_torch(key: Key) -> Iterator[None]:
    """Seed torch's global generators for code that draws from them, and put them back."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key.state & (2**63 - 1))
        yield


@contextmanager
def seeded_numpy(key: Key) -> Iterator[None]:
    """For code that draws from numpy's global generator: seed it, then put it back."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(key.state & 0xFFFFFFFF)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
