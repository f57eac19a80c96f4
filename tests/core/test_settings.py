"""Settings: JSON and back, bounds that every number declares, and a sentence under each field."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import veridical as vd
from veridical.auditing.effort import Effort
from veridical.core.allowed import LARGE, LARGEST, MANY, Between, Count, Index, Value, Within
from veridical.core.settings import Settings, holds_code, mismatch
from veridical.errors import InputError, MemoryLimitError
from veridical.explainers.base import registry as explainers
from veridical.explainers.transforms import Transform
from veridical.gef.codes import LayerCodes
from veridical.metrics.base import registry as metrics
from veridical.perturb.fills import Blur, Custom, Fill, Marginal
from veridical.qge.gap import Relative
from veridical.study import spec


@dataclass(frozen=True)
class Toy(Settings):
    size: int = 3
    levels: tuple[float, ...] = (0.1, 0.2)
    fill: Fill | None = None
    fills: tuple[Fill, ...] = ()
    rule: Callable[[int], int] | None = None
    name: ClassVar[str] = "toy"
    version: ClassVar[int] = 4


@pytest.mark.parametrize(
    "toy", [Toy(), Toy(size=7, levels=()), Toy(fill=Blur(2.0), fills=(Marginal(2), Blur(1.0)))]
)
def test_round_trip_through_text(toy: Toy) -> None:
    data = json.loads(json.dumps(toy.to_json()))
    assert data["name"] == "toy"
    assert data["version"] == 4
    assert Toy.from_json(data) == toy


def test_numpy_numbers_become_plain() -> None:
    toy = Toy(size=np.int64(5), levels=(np.float32(0.5),))
    assert json.loads(json.dumps(toy.to_json()))["size"] == 5
    assert Toy.from_json(toy.to_json()) == Toy(5, (0.5,))


def test_functions_are_named() -> None:
    assert Toy(rule=abs).to_json()["rule"] == "builtins:abs"


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InputError, match=r"Toy has no setting sizes; it has \['fill'"):
        Toy.from_json({"name": "toy", "sizes": 3})


def test_code_is_found_wherever_it_lies() -> None:
    assert not holds_code(Toy(fill=Blur(2.0), fills=(Marginal(),)))
    assert holds_code(Toy(rule=abs))
    assert holds_code(Toy(fill=Custom(lambda x, removed: x)))
    assert holds_code(Toy(fills=(Blur(), Custom(lambda x, removed: x))))


for module in pkgutil.walk_packages(vd.__path__, "veridical."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def descendants(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)


OTHERS = (vd.Plan,)
SPEC = [cls for cls in descendants(spec.Frozen) if cls.__module__ == spec.__name__]
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
        assert mismatch(field.default, declared) is None


def outside(kind: type, bound: Within) -> list[Any]:
    step = 1 if kind is int else max(abs(bound.most), 1.0) * 1e-6
    return [bound.least - step, bound.most + step, *bound.without, math.nan, math.inf, True, "7"]


def refused(cls: Any, name: str, declared: Any, value: Any) -> None:
    assert mismatch(value, declared) is not None
    with pytest.raises(InputError):
        cls(**{**next((given for base, given in NEEDED.items() if issubclass(cls, base)), {}), name: value})


def test_study_files_bound_every_number() -> None:
    """The same of a study file, whose types are pydantic's."""
    seen = 0
    for cls in SPEC:
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
    assert seen >= 10


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


def test_what_counts_as_a_number() -> None:
    for good in (1, MANY, np.int8(3)):
        assert mismatch(good, Count) is None
    for bad in (0, MANY + 1, 1.0, True, np.bool_(True), "1", None, math.nan, 2**70):
        assert mismatch(bad, Count) == "a whole number from 1 to 10000000"
    assert mismatch(LARGEST, Index) is None
    assert mismatch(LARGEST + 1, Index) is not None
    for good in (0.5, np.float32(0.25)):
        assert mismatch(good, Between) is None
    assert mismatch(-LARGE, Value) is None
    assert mismatch(np.inf, Value) is not None
    assert mismatch(None, Count | None) is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory: tried to allocate")])
def test_where_memory_ends_it_is_said(error: Exception) -> None:
    def greedy(model: Any, inputs: Any, targets: Any) -> Any:
        raise error

    task = vd.Task(lambda x: x, np.eye(3))
    with pytest.raises(MemoryLimitError, match="needs more memory than there is; ask for fewer draws"):
        vd.explain(greedy, task)


@pytest.mark.parametrize("cls", [*CLASSES, Effort, *SPEC], ids=lambda cls: cls.__name__)
def test_every_setting_is_explained(cls: type) -> None:
    """Under each field stands a sentence that says what it is."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    fields = [
        (line, after) for line, after in pairwise([*body, ast.Pass()]) if isinstance(line, ast.AnnAssign)
    ]
    for line, after in fields:
        if "ClassVar" not in ast.unparse(line.annotation):
            said = after.value.value if isinstance(after, ast.Expr) else ""
            assert str(said).rstrip().endswith("."), f"say under {ast.unparse(line.target)} what it is"
