"""Settings go to JSON and come back equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from veridical.core.settings import Settings, holds_code
from veridical.errors import InputError
from veridical.perturb.fills import Blur, Custom, Fill, Marginal


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
