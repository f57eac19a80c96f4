"""Other packages' explainers as ours: captum's attributions, shap's explainers, zennit's composites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers.adapted_captum import CaptumExplainer
from veridical.explainers.adapted_shap import ShapExplainer
from veridical.explainers.adapter_parts import _Adapter, _label
from veridical.explainers.base import selected
from veridical.models.embeddings import EmbeddingView
from veridical.models.predictor import call
from veridical.values.task import Task


def from_captum(attribution: Any, **attribute_kwargs: Any) -> CaptumExplainer:
    """A captum attribution class, object, or function of a model that makes one, as an explainer.

    `attribute_kwargs` go to its `attribute`; targets and side inputs are passed by themselves. An object is
    copied and bound to the task's model, so that weight noise reaches it and its rows are counted.

    >>> from captum.attr import IntegratedGradients
    >>> from_captum(IntegratedGradients, n_steps=16).name
    'captum IntegratedGradients'
    """
    if not callable(attribution) and not hasattr(attribution, "attribute"):
        raise InputError(
            "from_captum takes a captum attribution class, object, or function of a model that makes one; "
            f"got {type(attribution).__name__}"
        )
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
        with task.session(grad=True), task.predictor.exposed() as model:
            module = model.module if isinstance(model, EmbeddingView) else model
            for parameter in module.parameters():
                parameter.requires_grad_(False)
            with self.composite.context(module):
                total = selected(call(model, x, task.side), task.targets).sum()
                (relevance,) = torch.autograd.grad(total, x)
        return relevance.detach()
