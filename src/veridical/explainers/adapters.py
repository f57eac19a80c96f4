"""Explainers of other packages, a user's own function, and finished maps: captum, shap, zennit, lime, pandas.

None of these packages is imported before it is used.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, ShapeError, check_arity
from veridical.explainers.base import Explainer, selected
from veridical.explainers.layout import resized
from veridical.functional.devices import random_states
from veridical.models.context import Context
from veridical.models.dataframes import as_pandas, is_frame
from veridical.models.embeddings import EmbeddingView
from veridical.models.predictor import call
from veridical.values.explanation import Explanation
from veridical.values.task import Task


@dataclass(frozen=True)
class _Adapter(Explainer):
    """What the adapters share: settings that hold objects are written down as text."""

    kwargs: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Named arguments handed to the other package when it explains."""

    def to_json(self) -> dict[str, Any]:
        described = ", ".join(f"{name}={_short(value)}" for name, value in self.kwargs.items())
        return {"name": self.name, "version": self.version, "settings": described}


def _label(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


def _short(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Seed the global generators of torch and numpy for code that draws from them, and put them back."""
    before = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=random_states()):
        torch.manual_seed(key.state & (2**63 - 1))
        np.random.seed(key.state & 0xFFFFFFFF)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


# --- a user's function ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionExplainer(Explainer):
    """A user's function `function(model, inputs, targets) -> maps` as an explainer.

    The function gets a private copy of the model, whose calls are counted and whose weights are those of the
    task (perturbed ones under weight noise), and rows that fit one chunk. Side inputs and `key` are passed
    only if its signature names them. The global generators of torch and numpy are seeded for it, so that the
    same seed gives the same maps.
    """

    function: Callable[..., Any] = len  # always replaced by the caller's
    """The caller's function."""
    label: str = ""
    """Name in results; empty takes the function's own."""
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label or getattr(self.function, "__name__", type(self.function).__name__)

    def attribute(self, task: Task, context: Context) -> Tensor:
        offered: dict[str, Any] = {"key": context.key}
        if isinstance(task.side, dict):
            offered |= task.side
        else:
            offered["side"] = task.side
        try:
            named = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            named = {}  # type: ignore[assignment]
        extra = {name: value for name, value in offered.items() if name in named}
        check_arity(self.function, 3, extra, "an explainer is a function (model, inputs, targets) -> maps")
        own = context.key / int(task.draw_ids[0])
        exposed = task.predictor.exposed()
        with task.session(grad=True), exposed as model, seeded(own):
            # a copy: users take gradients of what they get, or write into it
            maps = self.function(model, task.inputs.clone(), task.targets, **extra)
        return task.values(maps, f"the map of '{self.name}'")


# --- captum -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CaptumExplainer(_Adapter):
    """A captum method on the task's model.

    Methods that draw random numbers draw from torch's global generator, once per batch: it is seeded by the
    key and put back, so the same plan gives the same map, but another plan another draw.
    """

    attribution: Any = None
    """A captum class, or an object of one, which is set up again on the task's model."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"captum {_label(self.attribution)}"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        kind = self.attribution if isinstance(self.attribution, type) else type(self.attribution)
        perturbs = any(base.__name__ == "PerturbationAttribution" for base in kind.__mro__)
        return frozenset() if perturbs else frozenset({"gradient"})

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        label = _label(self.attribution)
        return any(word in label for word in ("Shap", "Lime", "NoiseTunnel", "Sampling", "Permutation"))

    def rows_per_sample(self, task: Task) -> int:
        if "internal_batch_size" in self.kwargs:
            return 1
        steps = self.kwargs.get("n_steps", self.kwargs.get("nt_samples"))
        if steps is None and "IntegratedGradients" in _label(self.attribution):
            steps = 50  # captum's own default
        return int(steps or 1)

    def attribute(self, task: Task, context: Context) -> Tensor:
        names = list(task.side) if isinstance(task.side, dict) else []
        extra = tuple(task.side.values()) if isinstance(task.side, dict) else task.side
        exposed = task.predictor.exposed()
        with task.session(grad=True), exposed as model, seeded(context.key / int(task.draw_ids[0])):
            method = self._bound(_ByPosition(model, names) if names else model)
            kwargs = dict(self.kwargs)
            accepted = inspect.signature(method.attribute).parameters
            passes_on = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
            if "target" in accepted or passes_on:
                kwargs.setdefault("target", task.targets)
            if extra and ("additional_forward_args" in accepted or passes_on):
                kwargs.setdefault("additional_forward_args", extra)
            wanted = accepted.get("baselines")
            if wanted is not None and wanted.default is wanted.empty and "baselines" not in kwargs:
                if task.train is None:
                    raise NotApplicableError(
                        f"'{self.name}' needs baselines; give the task train=... or baselines=..."
                    )
                kwargs["baselines"] = task.train
            if "internal_batch_size" in accepted and self.rows_per_sample(task) > task.predictor.rows:
                kwargs["internal_batch_size"] = task.predictor.rows
            rows = task.inputs.detach().clone().requires_grad_("gradient" in self.needs)
            maps = method.attribute(rows, **kwargs)
        if isinstance(maps, tuple) and len(maps) == 1:
            maps = maps[0]
        if not isinstance(maps, Tensor):
            raise ShapeError(f"'{self.name}' gave a {type(maps).__name__}; expected one tensor of maps")
        maps, shape = maps.detach(), task.inputs.shape
        if maps.dim() == 4 and len(shape) == 4 and maps.shape[1] == 1 and maps.shape != shape:
            # the maps of a layer (n, 1, h, w) come back at the size of the image
            return resized(maps, list(shape[-2:])).expand(shape) / shape[1]
        return maps

    def _bound(self, model: nn.Module) -> Any:
        if isinstance(self.attribution, type) or not hasattr(self.attribution, "attribute"):
            return self.attribution(model)
        return _rebound(self.attribution, model)


def _rebound(attribution: Any, model: nn.Module) -> Any:
    """A copy of a captum object, and of the objects it wraps, bound to this model."""
    bound, own = copy.copy(attribution), getattr(attribution, "forward_func", None)
    if isinstance(own, nn.Module) and isinstance(getattr(attribution, "layer", None), nn.Module):
        at = next(name for name, layer in own.named_modules() if layer is attribution.layer)
        named = dict(model.named_modules())
        bound.layer = named[at if at in named else f"module.{at}"]
    for name in ("forward_func", "model"):
        if hasattr(bound, name):
            setattr(bound, name, model)
    for name, value in vars(attribution).items():
        if hasattr(value, "attribute") and hasattr(value, "forward_func"):
            setattr(bound, name, _rebound(value, model))
    return bound


class _ByPosition(nn.Module):
    """The counted model with its named side inputs given by position, as captum passes them."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, x: Tensor, *values: Any) -> Tensor:
        outputs: Tensor = self.module(x, **dict(zip(self.names, values, strict=True)))
        return outputs


# --- shap -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShapExplainer(_Adapter):
    """A shap explainer on the task's model, for the explained output of each sample."""

    make: Callable[..., Any] = len  # always replaced by the caller's
    """Makes shap's explainer: a class, or a function of the model and its background rows."""
    stochastic: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"shap {_label(self.make)}"

    def attribute(self, task: Task, context: Context) -> Tensor:
        if task.side:
            raise NotApplicableError(
                f"'{self.name}' evaluates the model on rows alone; this task has side inputs"
            )
        inputs, train = task.inputs, task.train

        def predict(rows: Any) -> Any:
            tensor = torch.as_tensor(np.asarray(rows)).to(inputs)
            return task.predictor.outputs(tensor.reshape(-1, *inputs.shape[1:])).detach().cpu().numpy()

        check_arity(self.make, 2, {}, "from_shap takes a function (predict, background) -> explainer")
        with seeded(context.key / int(task.draw_ids[0])):
            if "model" in inspect.signature(self.make).parameters:
                with task.session(grad=True), task.predictor.exposed() as model:
                    values = _shap_values(self.make(model, train), inputs, self.kwargs)
            else:
                made = self.make(predict, None if train is None else train.flatten(1).cpu().numpy())
                values = _shap_values(made, inputs.flatten(1).cpu().numpy(), self.kwargs)
        return explained_output(values, task, self.name).to(task.outputs.dtype)


def _shap_values(explainer: Any, rows: Any, kwargs: dict[str, Any]) -> Any:
    """Values (rows, features[, outputs]) from either of shap's two interfaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LightGBM binary classifier with TreeExplainer")  # at every call
        if hasattr(explainer, "shap_values"):
            values = explainer.shap_values(rows, **kwargs)
        else:
            values = explainer(rows, **kwargs).values
    return np.stack(values, -1) if isinstance(values, list) else values


# --- zennit -----------------------------------------------------------------------------------------------


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

    def attribute(self, task: Task, context: Context) -> Tensor:
        x = task.inputs.detach().clone().requires_grad_(True)
        with task.session(grad=True), task.predictor.exposed() as model:
            module = model.module if isinstance(model, EmbeddingView) else model
            for parameter in module.parameters():
                parameter.requires_grad_(False)
            with self.composite.context(module):
                total = selected(call(model, x, task.side), task.targets).sum()
                (relevance,) = torch.autograd.grad(total, x)
        return relevance.detach()


# --- makers -----------------------------------------------------------------------------------------------


def from_captum(attribution: Any, **attribute_kwargs: Any) -> CaptumExplainer:
    """Make an explainer of a captum attribution.

    Parameters
    ----------
    attribution : type, object or callable
        A captum attribution class, an object of one, or a function of a model that makes one. An object is
        copied and bound to the task's model, so that weight noise reaches it and its rows are counted.
    **attribute_kwargs
        Named arguments of its `attribute`; targets and side inputs are passed by themselves.

    Returns
    -------
    CaptumExplainer
        To be used wherever an explainer is.

    Raises
    ------
    InputError
        If it is none of these.

    Examples
    --------
    >>> from captum.attr import IntegratedGradients
    >>> from_captum(IntegratedGradients, n_steps=16).name
    'captum IntegratedGradients'
    """
    if not callable(attribution) and not hasattr(attribution, "attribute"):
        raise InputError(
            "from_captum takes a captum attribution class, object, or function of a model that makes one; "
            f"got {type(attribution).__name__}"
        )
    return CaptumExplainer(attribution, kwargs=attribute_kwargs)


def from_shap(make: Callable[..., Any], **call_kwargs: Any) -> ShapExplainer:
    """Make an explainer of one of shap's.

    Parameters
    ----------
    make : callable
        `make(predict, background)` gives shap's explainer. `predict` takes a matrix of flattened rows and
        gives the outputs (rows, outputs); `background` is the task's reference rows, flattened, or None. If
        `make` names an argument `model`, it gets the torch module instead of `predict`.
    **call_kwargs
        Named arguments handed to shap when it explains.

    Returns
    -------
    ShapExplainer
        To be used wherever an explainer is.
    """
    return ShapExplainer(make, kwargs=call_kwargs)


def from_zennit(composite: Any) -> ZennitExplainer:
    """Make an explainer of a zennit composite.

    Parameters
    ----------
    composite : object
        A zennit composite, or anything with a method `context(module)`.

    Returns
    -------
    ZennitExplainer
        To be used wherever an explainer is.

    Raises
    ------
    InputError
        If the composite has no method `context`.
    """
    if not hasattr(composite, "context"):
        raise InputError(f"a composite has a method context(module); {type(composite).__name__} has none")
    return ZennitExplainer(composite)


# --- objects as their maker set them up -------------------------------------------------------------------


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
class OfOneModel(Explainer):
    """What explains one model alone: an object that another package set up, or finished maps."""

    home: Any = field(default=None, kw_only=True)
    """The snapshot of the model that it explains, known once it has met a task; None: any unperturbed one."""

    def at_home(self, task: Task) -> Self:
        """The same for the model of this task."""
        return replace(self, home=task.predictor.source)

    def _is_home(self, task: Task) -> bool:
        found = task.predictor
        return found.weights is None and (self.home is None or found.source is self.home)


@dataclass(frozen=True, eq=False)
class BoundExplainer(OfOneModel):
    """An explainer of shap or lime as its maker set it up: it uses its own model, whose rows are not counted.

    A `shap.TreeExplainer` is set up anew, in the same way, for another estimator of trees. The others are
    scored by their maps, not by how these move with the model: for that give `from_shap` a function.
    """

    bound: Any = None
    """The other package's explainer."""
    stochastic: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{type(self.bound).__module__.partition('.')[0]} {type(self.bound).__name__}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "settings": "as its maker set it up"}

    @property
    def one_model(self) -> str:  # type: ignore[override]
        if type(self.bound).__name__ == "TreeExplainer":
            return ""
        return (
            "it is bound to its own model and does not move with the task's; give "
            "vd.explainers.from_shap a function (predict, background) -> explainer instead"
        )

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.side:
            return "it evaluates the model on rows alone, and this task has side inputs"
        movable = not self.one_model and getattr(task.predictor.source.module, "estimator", None) is not None
        if not self._is_home(task) and not (movable and task.predictor.weights is None):
            return self.one_model or "it reads trees, and this model has none"
        return super().inapplicable_reason(task)

    def _for(self, task: Task) -> Any:
        """The other package's explainer of this task's model."""
        if self._is_home(task):
            return self.bound
        how = {"feature_perturbation": self.bound.feature_perturbation}
        how["model_output"] = self.bound.model.model_output
        return type(self.bound)(task.predictor.source.module.estimator, self.bound.data, **how)

    def attribute(self, task: Task, context: Context) -> Tensor:
        # the rows as the model's own package knows them: a data frame where the task came from one
        codec = getattr(task.predictor.source.module, "codec", None)
        rows = task.inputs.cpu().numpy() if codec is None else codec.decode(task.inputs)
        if type(self.bound).__name__ in ("GradientExplainer", "DeepExplainer"):
            rows = task.inputs.clone()
        with torch.enable_grad(), seeded(context.key):
            if hasattr(self.bound, "explain_instance"):
                return torch.stack([self._by_lime(task, row, n) for n, row in enumerate(np.asarray(rows))])
            return explained_output(_shap_values(self._for(task), rows, {}), task, self.name)

    def _by_lime(self, task: Task, row: Any, sample: int) -> Tensor:
        def probabilities(some: Any) -> Any:
            given = torch.as_tensor(np.asarray(some)).to(task.inputs)
            return task.probabilities(task.predictor.outputs(given)).cpu().numpy()

        target = int(task.targets[sample])
        found = self.bound.explain_instance(row, probabilities, labels=(target,), num_features=len(row))
        values = torch.zeros(len(row), dtype=torch.float64)
        for feature, weight in found.as_map()[target]:
            values[feature] = weight
        return values


@dataclass(frozen=True, eq=False)
class FinishedMaps(OfOneModel):
    """Maps that are there already, as an explainer of the samples and outputs they were made for."""

    made: Explanation | None = None
    """The maps."""
    one_model: ClassVar[str] = "its maps are finished, so it cannot be asked for those of another model"

    @property
    def name(self) -> str:  # type: ignore[override]
        return "given" if self.made is None else self.made.explainer

    def to_json(self) -> dict[str, Any]:
        assert self.made is not None
        digest = hashlib.sha256(self.made.values.detach().cpu().numpy().tobytes()).hexdigest()
        return {"name": self.name, "version": self.version, "settings": f"finished maps {digest[:16]}"}

    def at_home(self, task: Task) -> Self:
        made = None if self.made is None else self.made.matching(task)
        return replace(self, home=task.predictor.source, made=made)

    def rows_per_sample(self, task: Task) -> int:
        return 0

    def inapplicable_reason(self, task: Task) -> str | None:
        if not self._is_home(task):
            return self.one_model
        rows, made = self._rows(task), self.made
        if made is None or rows is None or not torch.equal(made.draw_ids.cpu()[rows], task.draw_ids.cpu()):
            return "its maps are finished, and they explain other inputs than these"
        if not torch.equal(made.targets.cpu()[rows], task.targets.cpu()):
            return (
                "its maps are finished, and explain other outputs than the task does; take "
                "task.with_targets(explanation.targets)"
            )
        return None

    def _rows(self, task: Task) -> list[int] | None:
        """Which of the maps those of this task's samples are; None where one is missing."""
        assert self.made is not None
        place = {name: row for row, name in enumerate(self.made.ids.tolist())}
        found = [place.get(name) for name in task.ids.tolist()]
        return None if None in found else found  # type: ignore[return-value]

    def attribute(self, task: Task, context: Context) -> Tensor:
        reason = self.inapplicable_reason(task)
        if reason is not None or self.made is None:
            raise NotApplicableError(f"'{self.name}': {reason}")
        return self.made.values[self._rows(task)].to(task.device)


def explained_output(values: Any, task: Task, name: str) -> Tensor:
    """Values (N, ...) or (N, ..., outputs) as those of the explained output, in the shape of the inputs."""
    found, like = torch.as_tensor(np.asarray(values, dtype=np.float64)).to(task.device), task.inputs
    per_row = (-1, *[1] * (like.dim() - 1))
    if found.numel() == like.numel():
        found = found.reshape(like.shape)
        if task.n_outputs == 2 and task.head == "binary":
            # of the one margin that such models have: it speaks for the second class and against the first
            found = found * (2 * task.targets - 1).view(per_row)
        return found
    if found.numel() != like.numel() * task.n_outputs:
        raise ShapeError(
            f"'{name}' gave values of shape {tuple(found.shape)} for {len(task)} rows of "
            f"{tuple(like.shape[1:])} and {task.n_outputs} outputs"
        )
    found = found.reshape(*like.shape, task.n_outputs)
    return found.gather(-1, task.targets.view(*per_row, 1).expand(*like.shape, 1))[..., 0]


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
