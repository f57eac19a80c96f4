"""Which file a name is written in, found without importing any."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import veridical as vd
from veridical.core import name_index
from veridical.core.registry import Registry
from veridical.explainers import registry as explainers
from veridical.metrics import registry as metrics

METRIC = '''
from veridical.metrics.base import Metric, register

@register
class {cls}(Metric):
    """One."""

    {declared}

    def evaluate(self, task, explanation, key):
        """A value per sample."""


class Helper:
    name = "helper"
'''


@pytest.mark.parametrize("registry", [metrics, explainers], ids=["metrics", "explainers"])
def test_every_name_of_ours_is_declared_in_one_file_its_own(registry: Registry) -> None:
    for name in registry:
        maker = registry.maker(name)
        if maker.__module__.startswith("veridical."):
            found = [module for home in registry.homes for module in name_index.declaring(home, name)]
            assert found == [maker.__module__], name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package `somewhere` with a folder in it."""
    (tmp_path / "somewhere" / "deep").mkdir(parents=True)
    for folder in ("somewhere", "somewhere/deep"):
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (name_index.sources, name_index.registering, name_index.offering):
        cached.cache_clear()
    yield tmp_path / "somewhere"
    for name in [name for name in sys.modules if name.partition(".")[0] == "somewhere"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "declared",
    [
        'name: ClassVar[str] = "mine"',
        "name: ClassVar[str] = 'mine'",
        'name = "mine"',
        'name: "ClassVar[str]"="mine"  # so',
    ],
)
def test_names_are_read_in_every_way_they_are_written(package: Path, declared: str) -> None:
    (package / "deep" / "one.py").write_text(METRIC.format(cls="One", declared=declared))
    (package / "plain.py").write_text('class Plain:\n    name = "mine"\n')
    assert name_index.declaring("somewhere", "mine") == ["somewhere.deep.one"]
    assert name_index.declaring("somewhere", "min") == []
    assert name_index.offering("somewhere")["One"] == "somewhere.deep.one"
    assert "somewhere.deep.one" not in sys.modules


def test_a_name_in_two_files_is_offered_by_neither(package: Path) -> None:
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(
            "LIMIT: int = 3\ndef twice():\n    pass\ndef _hidden():\n    pass\n"
        )
    (package / "one.py").write_text("def twice():\n    pass\ndef once():\n    pass\nONCE = 1\n")
    offered = name_index.offering("somewhere")
    assert offered == {"once": "somewhere.one", "ONCE": "somewhere.one", "LIMIT": "somewhere.two"}


def test_a_name_that_is_computed_is_found_by_loading_what_registers(package: Path) -> None:
    (package / "one.py").write_text(
        "from tests_registry import register\nfor size in (1, 2):\n    pass\n"
        "@register\nclass One:\n    name = ''.join(['comp', 'uted'])\n"
    )
    (package / "other.py").write_text("raise RuntimeError('nothing registers here: never imported')\n")
    registry: Registry = Registry("thing", "veridical.tests.nothing", homes=("somewhere",))

    class Here:
        @staticmethod
        def register(cls: type) -> type:
            registry.add(cls.name, cls)
            return cls

    sys.modules["tests_registry"] = Here  # type: ignore[assignment]
    try:
        assert registry.maker("computed").__name__ == "One"
        assert list(registry) == ["computed"]
    finally:
        del sys.modules["tests_registry"]


def test_a_file_that_fails_says_so_each_time_it_is_needed(package: Path) -> None:
    (package / "broken.py").write_text("@register\nclass Broken:\n    name = 'broken'\n")
    registry: Registry = Registry("thing", "veridical.tests.nothing", homes=("somewhere",))
    for _ in range(2):
        with pytest.raises(NameError, match="register"):
            registry.make("broken")
        with pytest.raises(NameError, match="register"):
            list(registry)


def test_names_are_found_in_a_zip_file_too(tmp_path: Path) -> None:
    folder = Path(vd.__file__).parents[1]
    code = "import veridical as vd; print(len(vd.list_metrics()), vd.metrics.__module__); vd.gef.GEF"
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for path in sorted((folder / "veridical").rglob("*")):
            if path.suffix in (".py", ".csv"):
                file.write(path, path.relative_to(folder))
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path / "all.zip"), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(len(list(metrics))), "veridical.api"]


def test_settings_inside_others_are_found_before_their_file_is_loaded(package: Path) -> None:
    from veridical.core import settings

    (package / "one.py").write_text(
        "from dataclasses import dataclass\nfrom veridical.core.settings import Settings, revivable\n"
        "@revivable\n@dataclass(frozen=True)\nclass One(Settings):\n"
        "    size: int = 1\n    name = 'one of somewhere'\n"
    )
    homes, settings._HOMES = settings._HOMES, ("somewhere",)
    try:
        made = settings.revive([{"name": "one of somewhere", "size": 3}, {"name": "nobody's"}, {"name": 4}])
    finally:
        settings._HOMES = homes
        settings._TABLE.pop("one of somewhere", None)
    assert made[0].size == 3
    assert made[1:] == ({"name": "nobody's"}, {"name": 4})
