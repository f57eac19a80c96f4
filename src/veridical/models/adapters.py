"""Any model of rows as an `nn.Module`: torch modules, functions, scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.errors import InputError, ModelError, VeridicalError
from veridical.models.dataframes import FrameCodec, is_frame
from veridical.models.estimators import estimator_response, is_estimator, other_columns
from veridical.models.private_copy import Copier, private_copy

LOOKED_AT = 2048
"""Reference rows from which it is known what an estimator returns."""


class FunctionModel(nn.Module):
    """A plain function of torch tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class ArrayModel(nn.Module):
    """A function of numpy arrays (or data frames, when inputs came as one); it has no gradients."""

    def __init__(
        self, function: Callable[..., Any], codec: FrameCodec | None = None, estimator: Any = None
    ) -> None:
        super().__init__()
        self.function, self.codec, self.estimator = function, codec, estimator

    @property
    def hint(self) -> str:
        """What may be wrong where it does not run: columns that are not those it was fitted on."""
        return "" if self.codec is None else other_columns(self.estimator, self.codec.columns)

    def forward(self, x: Tensor, /, *side: Tensor, **named: Tensor) -> Tensor:
        rows = x.detach().cpu().numpy() if self.codec is None else self.codec.decode(x)
        extra = [value.detach().cpu().numpy() for value in side]
        by_name = {name: value.detach().cpu().numpy() for name, value in named.items()}
        returned = np.asarray(self.function(rows, *extra, **by_name))
        if returned.dtype.kind not in "fiub":
            raise ModelError(f"the model returned {returned.dtype} values; expected numbers")
        return torch.from_numpy(returned.astype(np.float64)).to(x.device)


def _estimator(
    model: Any, codec: FrameCodec | None, reference: Tensor, copier: Copier | None
) -> tuple[ArrayModel, str | None]:
    """A copy of an estimator as a module, and the head that it implies."""
    few = reference[:LOOKED_AT]
    rows: Any = few.detach().cpu().numpy() if codec is None else codec.decode(few)
    own = private_copy(model, copier)
    try:
        function, head = estimator_response(own, rows)
    except VeridicalError:
        raise
    except Exception as error:
        columns = other_columns(model, rows.columns) if is_frame(rows) else ""
        said = f"{type(model).__name__} fails on the reference rows: {error}"
        raise ModelError(f"{said} {columns}".rstrip()) from error
    return ArrayModel(function, codec, own), head


def readapted(model: Any, module: nn.Module, reference: Tensor, copier: Copier | None) -> nn.Module:
    """What runs an estimator as it is now; a function needs nothing."""
    if isinstance(module, ArrayModel) and is_estimator(model):
        return _estimator(model, module.codec, reference, copier)[0]
    return module


def adapt(
    model: Any,
    evaluate: Callable[[Any, Tensor], Tensor],
    first_row: Tensor,
    codec: FrameCodec | None,
    reference: Tensor,
    copier: Copier | None = None,
) -> tuple[nn.Module, bool, str | None]:
    """Turn a user's model into (module, differentiable, head it implies).

    `evaluate(model, rows)` calls it with the side inputs of the first row and reads its outputs; `reference`
    rows show what an estimator returns.
    """
    if isinstance(model, nn.Module):
        if codec is not None:
            raise InputError(
                "inputs are a data frame but the model is a torch module; pass a tensor of numbers"
            )
        return model, not getattr(model, "no_gradient", ""), None
    if is_estimator(model):
        adapted, head = _estimator(model, codec, reference, copier)
        return adapted, False, head
    if not callable(model):
        raise InputError(
            f"a model is a torch module, a scikit-learn estimator or a function of a batch of rows; "
            f"got {type(model).__name__}"
        )
    if codec is not None:
        return ArrayModel(model, codec), False, None
    # a function does not say what it takes, so it is tried: a tensor with a gradient first, since numpy's
    # functions take bare tensors too
    row, floats = first_row.detach().clone(), first_row.is_floating_point()
    ways = ((FunctionModel(model), floats), (ArrayModel(model), False), (FunctionModel(model), False))
    for module, wants_gradient in ways:
        try:
            with torch.set_grad_enabled(wants_gradient):
                returned = evaluate(module, row.requires_grad_(wants_gradient).clone())
        except Exception:
            continue
        return module, isinstance(module, FunctionModel) and (returned.requires_grad or not floats), None
    return ArrayModel(model), False, None
