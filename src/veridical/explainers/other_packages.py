"""Objects of other packages where an explainer or a finished map is expected: captum, shap, lime, pandas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.explainers.adapter_parts import seeded_numpy, seeded_torch
from veridical.explainers.adapters import from_captum
from veridical.explainers.base import Explainer
from veridical.models.dataframes import as_pandas, is_frame
from veridical.values.task import Task


def adapted(thing: Any) -> Explainer | None:
    """An explainer of ours around one of another package; None where it is nothing of the kind."""
    kind = thing if isinstance(thing, type) else type(thing)
    package = kind.__module__.partition(".")[0]
    if package == "captum" and hasattr(thing, "attribute"):
        return from_captum(thing)  # a class as well: it is set up on the task's model
    if kind is thing:
        return None
    if package == "shap" and (hasattr(thing, "shap_values") or hasattr(thing, "explain_row")):
        return BoundExplainer(thing)
    if package == "lime" and hasattr(thing, "explain_instance"):
        return BoundExplainer(thing)
    return None


@dataclass(frozen=True, eq=False)
class BoundExplainer(Explainer):
    """An explainer of shap or lime as its maker set it up: it asks its own model, whose rows are not counted.

    It can be judged by its maps, not by how they move with the model's weights: for that give `from_shap` a
    function that makes it for a model.
    """

    bound: Any = None
    """The other package's explainer."""
    stochastic: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{type(self.bound).__module__.partition('.')[0]} {type(self.bound).__name__}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "settings": "as its maker set it up"}

    def why_not(self, task: Task) -> str | None:
        if task.side:
            return "it asks the model about rows alone, and this task has side inputs"
        if task.reference is not task:
            return (
                "it is bound to its own model and does not move with the task's; give "
                "vd.explainers.from_shap a function (predict, background) -> explainer instead"
            )
        return super().why_not(task)

    def attribute(self, task: Task, key: Key) -> Tensor:
        with torch.enable_grad(), seeded_torch(key), seeded_numpy(key):
            return self._maps_of(task)

    def _maps_of(self, task: Task) -> Tensor:
        rows = _rows(task)
        if hasattr(self.bound, "explain_instance"):
            return torch.stack([self._by_lime(task, row, n) for n, row in enumerate(np.asarray(rows))])
        if hasattr(self.bound, "shap_values"):
            torches = _is_of_torch(self.bound)
            found = self.bound.shap_values(task.inputs.clone() if torches else rows)
            values = np.stack(found, -1) if isinstance(found, list) else np.asarray(found)
        else:
            values = np.asarray(self.bound(rows).values)
        return explained_output(values, task, self.name)

    def _by_lime(self, task: Task, row: Any, sample: int) -> Tensor:
        def probabilities(some: Any) -> Any:
            given = torch.as_tensor(np.asarray(some)).to(task.inputs)
            return task.probabilities(task.predictor.outputs(given)).cpu().numpy()

        target = int(task.targets[sample])
        told = self.bound.explain_instance(row, probabilities, labels=(target,), num_features=len(row))
        values = torch.zeros(len(row), dtype=torch.float64)
        for feature, weight in told.as_map()[target]:
            values[feature] = weight
        return values


def _is_of_torch(bound: Any) -> bool:
    return type(bound).__name__ in ("GradientExplainer", "DeepExplainer")


def _rows(task: Task) -> Any:
    """The rows as the model's own package knows them: a data frame where the task came from one."""
    codec = getattr(task.predictor.source.module, "codec", None)
    return task.inputs.cpu().numpy() if codec is None else codec.decode(task.inputs)


def explained_output(values: Any, task: Task, name: str) -> Tensor:
    """Values (N, ...) or (N, ..., outputs) as those of the explained output."""
    found = torch.as_tensor(np.asarray(values, dtype=np.float64))
    if found.dim() == task.inputs.dim() + 1:
        if found.shape[-1] != task.n_outputs:
            raise InputError(
                f"'{name}' gave values for {found.shape[-1]} outputs, the task's model has {task.n_outputs}"
            )
        target = task.targets.cpu().view(-1, *[1] * (found.dim() - 1)).expand(*found.shape[:-1], 1)
        return found.gather(-1, target)[..., 0].to(task.device)
    if task.n_outputs == 2 and task.head == "binary" and found.shape == task.inputs.shape:
        # of the one margin that such models have: it speaks for the second class and against the first
        sign = (2 * task.targets.cpu() - 1).view(-1, *[1] * (found.dim() - 1))
        found = found * sign
    return found.to(task.device)


def finished(thing: Any, task: Task) -> Tensor | None:
    """Maps from a data frame of attributions or a `shap.Explanation`; None where it is neither."""
    thing = as_pandas(thing)
    if is_frame(thing):
        return task.values(_by_name(thing, task), "the data frame of attributions")
    if type(thing).__module__.startswith("shap") and hasattr(thing, "base_values"):
        _same_rows(thing, task)
        return task.values(explained_output(thing.values, task, "shap.Explanation"), "shap.Explanation")
    return None


def _by_name(frame: Any, task: Task) -> Any:
    names = None if task.space.names is None else [str(name) for name in task.space.names]
    given = [str(name) for name in frame.columns]
    if names is None or not set(names) & set(given):
        if all(isinstance(name, int | np.integer) for name in frame.columns):
            return frame.to_numpy(dtype=np.float64)
        raise NotApplicableError(
            f"the columns of these attributions ({given[:4]}...) are not the task's features; give an array "
            "in the order of the features"
        )
    if sorted(names) != sorted(given):
        odd = sorted(set(names) ^ set(given))
        raise InputError(f"attributions and task do not have the same columns: {odd[:6]}")
    by_name = dict(zip(given, frame.columns, strict=True))
    return frame[[by_name[name] for name in names]].to_numpy(dtype=np.float64)


def _same_rows(explanation: Any, task: Task) -> None:
    """Refuse values of other rows than the task's, where the explanation says which it explains."""
    try:
        data = np.asarray(explanation.data, dtype=np.float64)
    except (TypeError, ValueError):
        return
    own = task.inputs.detach().cpu().double().numpy()
    if data.shape == own.shape and not np.allclose(data, own, equal_nan=True):
        raise InputError("this shap.Explanation explains other rows than the task's, or in another order")
