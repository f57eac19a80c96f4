"""Every number that can be set declares its bounds, holds them, and is refused in one form outside them."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import veridical as vd
from veridical.core.allowed import LARGE, LARGEST, MANY, Between, Count, Index, Value, Within
from veridical.core.settings import Settings, why_not
from veridical.errors import InputError, MemoryLimitError
from veridical.explainers.base import registry as explainers
from veridical.explainers.transforms import Transform
from veridical.gef.codes import LayerCodes
from veridical.metrics.base import registry as metrics
from veridical.qge.gap import Relative
from veridical.study.spec import Strict

for module in pkgutil.walk_packages(vd.__path__, "veridical."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def descendants(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)


OTHERS = (vd.Plan,)
CLASSES = sorted(
    {cls for cls in descendants(Settings) if dataclasses.is_dataclass(cls) and "veridical" in cls.__module__}
    | set(OTHERS),
    key=lambda cls: (cls.__module__, cls.__qualname__),
)


def numbers(declared: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each int or float inside a declared type, with what is said of it."""
    if declared in (int, float):
        yield declared, ()
    elif get_origin(declared) is Annotated:
        inner, *said = get_args(declared)
        for kind, more in numbers(inner):
            yield kind, (*said, *more)
    elif get_origin(declared) is not Literal:
        for inner in get_args(declared):
            yield from numbers(inner)


def settings() -> Iterator[Any]:
    for cls in CLASSES:
        hints = get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            if field.init and not field.name.startswith("_") and list(numbers(hints[field.name])):
                yield pytest.param(cls, field.name, hints[field.name], id=f"{cls.__name__}.{field.name}")


FIELDS = list(settings())
NEEDED: dict[type, dict[str, Any]] = {
    LayerCodes: {"encoder": len, "layer": "0", "width": 3},
    Transform: {"explainer": "gradient"},
    Relative: {"metric": "sparseness"},
}
"""What some classes cannot be made without."""


def test_there_are_many_of_them() -> None:
    assert len(FIELDS) > 200
    assert {"GEF.levels", "Lime.ridge", "Road.shares", "Plan.rows"} <= {field.id for field in FIELDS}


@pytest.mark.parametrize(("cls", "name", "declared"), FIELDS)
def test_every_number_declares_its_bounds_and_keeps_them(cls: type, name: str, declared: Any) -> None:
    for kind, said in numbers(declared):
        bounds = [bound for bound in said if isinstance(bound, Within)]
        assert bounds, (
            f"{cls.__name__}.{name}: say what it may be with a type of "
            "veridical.core.allowed, such as Count, "
            "Share, Positive or Annotated[int, Within(2, MANY)]"
        )
        for bound in bounds:
            assert -math.inf < bound.least < bound.most < math.inf
            for wrong in outside(kind, bound):
                value = (wrong,) if get_origin(declared) is tuple or "tuple" in str(declared) else wrong
                refused(cls, name, declared, value)
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    if field.default is not dataclasses.MISSING:
        assert why_not(field.default, declared) is None


def outside(kind: type, bound: Within) -> list[Any]:
    step = 1 if kind is int else max(abs(bound.most), 1.0) * 1e-6
    return [bound.least - step, bound.most + step, *bound.without, math.nan, math.inf, True, "7"]


def refused(cls: Any, name: str, declared: Any, value: Any) -> None:
    assert why_not(value, declared) is not None
    with pytest.raises(InputError):
        cls(**{**next((given for base, given in NEEDED.items() if issubclass(cls, base)), {}), name: value})


def test_study_files_bound_every_number() -> None:
    """The same of a study file, whose types are pydantic's."""
    seen = 0
    for cls in descendants(Strict):
        assert issubclass(cls, BaseModel)
        for name, field in cls.model_fields.items():
            hint = get_type_hints(cls, include_extras=True)[name]
            if not list(numbers(hint)):
                continue
            seen += 1
            adapter = TypeAdapter(hint)
            for wrong in (-(10**40), 10**40, 1e300, -1e300, math.inf, math.nan):
                given = [wrong] if "list" in str(hint) else wrong
                with pytest.raises(ValidationError):
                    adapter.validate_python(given, strict=True)
            if field.default is not None and not field.is_required():
                adapter.validate_python(field.default)
    assert seen >= 12


def test_the_form_of_a_refusal() -> None:
    with pytest.raises(InputError) as told:
        metrics.make("rfid_plus", draws=0)
    assert str(told.value) == "RFid: draws is a whole number from 1 to 10000000, got 0"
    with pytest.raises(InputError, match=r"keep is a finite number above 0 and below 1, got 1$"):
        explainers.make("rise", keep=1)
    with pytest.raises(InputError, match="each part of it a finite number above 0 and below 1"):
        metrics.make("road", shares=(0.1, 2.0))
    with pytest.raises(InputError, match=r"from -1e\+38 to 1e\+38 or one of 'mean', got 'x'"):
        explainers.make("integrated_gradients", baseline="x")
    with pytest.raises(InputError, match="a whole number from 1 to 10000000 or None, got 'a'"):
        vd.Plan(rows="a")


def test_how_bounds_are_said() -> None:
    assert str(Within(0, 1)) == "from 0 to 1"
    assert str(Within(0, 1, without=(0,))) == "above 0 and at most 1"
    assert str(Within(0, 1, without=(1,))) == "at least 0 and below 1"
    assert str(Within(-2, 2, without=(0,))) == "from -2 to 2, but not 0"


def test_what_counts_as_a_number() -> None:
    for good in (1, MANY, np.int8(3)):
        assert why_not(good, Count) is None
    for bad in (0, MANY + 1, 1.0, True, np.bool_(True), "1", None, math.nan, 2**70):
        assert why_not(bad, Count) == "a whole number from 1 to 10000000"
    assert why_not(LARGEST, Index) is None
    assert why_not(LARGEST + 1, Index) is not None
    for good in (0.5, np.float32(0.25)):
        assert why_not(good, Between) is None
    assert why_not(-LARGE, Value) is None
    assert why_not(np.inf, Value) is not None
    assert why_not(None, Count | None) is None


def test_a_class_of_somebody_else_need_not_declare_bounds() -> None:
    @dataclasses.dataclass(frozen=True)
    class Free(Settings):
        size: int = -3

    assert Free(-5).size == -5


def test_no_explainer_or_metric_takes_more_than_anybody_can_wait_for() -> None:
    asked = 0
    for registry in (explainers, metrics):
        for name in registry:
            made = registry.maker(name)
            hints = get_type_hints(made, include_extras=True)
            whole = [f.name for f in dataclasses.fields(made) if "int" in str(hints[f.name])]
            for setting in whole:
                with pytest.raises(InputError):
                    registry.make(name, **{setting: 10**12})
            asked += len(whole)
    assert asked > 60


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory: tried to allocate")])
def test_where_memory_ends_it_is_said(error: Exception) -> None:
    def greedy(model: Any, inputs: Any, targets: Any) -> Any:
        raise error

    task = vd.Task(lambda x: x, np.eye(3))
    with pytest.raises(MemoryLimitError, match="needs more memory than there is; ask for fewer draws"):
        vd.explain(greedy, task)
