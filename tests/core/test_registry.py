"""Names: ours, a user's, another package's."""

from __future__ import annotations

import pytest

from veridical.core import registry as module
from veridical.core.registry import Catalogue, Registry
from veridical.errors import InputError, UnknownNameError, VeridicalWarning


class Thing:
    def __init__(self, size: int = 1) -> None:
        if size < 0:
            raise TypeError("negative")
        self.size = size


class Other:
    pass


def full() -> Registry:
    registry: Registry = Registry("thing", "veridical.tests.nothing")
    registry.add("thing", Thing)
    registry.add("other", Other)
    return registry


def test_make_maker_and_names() -> None:
    registry = full()
    assert registry.make("thing", size=4).size == 4
    assert registry.maker("thing") is Thing
    assert list(registry) == ["other", "thing"]
    assert "thing" in registry
    assert "nothing" not in registry


def test_unknown_names_suggest_the_nearest_and_list_all() -> None:
    for ask in (full().make, full().maker):
        with pytest.raises(
            UnknownNameError, match=r"no thing is called 'thnig'; did you mean 'thing'\? Known: other"
        ):
            ask("thnig")
        with pytest.raises(UnknownNameError, match=r"called 'zzz'\. Known: other, thing"):
            ask("zzz")
    assert issubclass(UnknownNameError, LookupError)


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match=r"thing 'thing' does not take 'colour'.* It takes: size"):
        full().make("thing", colour=1)


def test_prefixes_wrap() -> None:
    registry = full()
    registry.add_prefix("twice", lambda thing: (thing, thing))
    first, second = registry.make("twice:thing", size=3)
    assert first is second
    assert first.size == 3
    assert isinstance(registry.make("twice:twice:thing")[0], tuple)
    with pytest.raises(UnknownNameError, match="thing prefix is called 'thrice'"):
        registry.make("thrice:thing")


def test_a_name_is_taken_once_unless_the_same_thing_is_defined_anew() -> None:
    registry = full()
    registry.add("thing", Thing)
    again = type("Thing", (), {"__module__": Thing.__module__, "__qualname__": Thing.__qualname__})
    registry.add("thing", again)
    assert registry.maker("thing") is again
    with pytest.raises(InputError, match=r"thing 'thing' is registered already, by .*choose another name"):
        registry.add("thing", Other)
    registry.add("thing", Other, replace=True)
    assert registry.maker("thing") is Other
    for bad in ("", "a:b"):
        with pytest.raises(InputError, match="a name without ':'"):
            registry.add(bad, Thing)


class Point:
    value = "package:thing"

    def __init__(self, name: str, broken: bool = False) -> None:
        self.name, self.broken = name, broken

    def load(self) -> type:
        if self.broken:
            raise ImportError("no module named package")
        return Other


def test_entry_points_are_read_once_and_a_broken_one_takes_no_other_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def points(group: str) -> list[Point]:
        asked.append(group)
        return [Point("broken", True), Point("fine"), Point("thing")]

    monkeypatch.setattr(module, "entry_points", points)
    registry = full()
    with pytest.warns(VeridicalWarning, match="thing 'broken' of package:thing could not be loaded"):
        assert list(registry) == ["fine", "other", "thing"]
    assert registry.maker("thing") is Thing
    assert isinstance(registry.make("fine"), Other)
    assert asked == ["veridical.tests.nothing"]


def test_catalogues_print_as_tables() -> None:
    catalogue = Catalogue(a="first", bcd="second")
    assert repr(catalogue) == "a    first\nbcd  second"
    assert catalogue["a"] == "first"
    assert repr(Catalogue()) == ""
