"""A shap explainer as an explainer of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import NotApplicableError, ShapeError
from veridical.explainers.adapter_parts import _Adapter, _label, _short, seeded_numpy
from veridical.values.task import Task


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
        with seeded_numpy(key / int(task.draw_ids[0])):
            if "model" in named:
                with task.session(grad=True), task.predictor.exposed() as model:
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
