"""Write `veridical/core/names.py`: which module has which metric, explainer, class and function.

python -m scripts.renew_names            writes the table
python -m scripts.renew_names --check    fails where it would write another one
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import veridical as vd
from veridical.core import names
from veridical.explainers.base import registry as explainers
from veridical.metrics.base import registry as metrics

PACKAGES = ("explainers", "metrics", "gef", "qge", "fidelity")
"""Where metrics and explainers lie; the first two offer their classes and functions by name, too."""


def table() -> dict[str, tuple[str, str]]:
    """The registered names and the public classes and functions of every module that has any."""
    registered: dict[str, set[str]] = {}
    for package in PACKAGES:
        home = import_module(f"veridical.{package}")
        for info in walk_packages(home.__path__, f"{home.__name__}."):
            import_module(info.name)
            registered[info.name] = set()
    for registry in (metrics, explainers):
        for name, maker in {**registry.makers, **registry.prefixes}.items():
            if maker.__module__ in registered:
                registered[maker.__module__].add(name)
    found = {}
    for module, own in sorted(registered.items()):
        offered = _public(module) if module.split(".")[1] in PACKAGES[:2] else []
        if own or offered:
            found[module] = " ".join(sorted(own)), " ".join(sorted(offered))
    return found


def _public(module: str) -> list[str]:
    return [
        name
        for name, value in vars(import_module(module)).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
        and value.__name__ == name
        and not name.startswith("_")
    ]


def written(found: dict[str, tuple[str, str]]) -> str:
    """The text of the module."""
    lines = ["TABLE: dict[str, tuple[str, str]] = {"]
    for module, (own, offered) in found.items():
        lines.append(f'    "{module}": ("{own}", "{offered}"),')
    head = (names.__doc__ or "").strip()
    imports = "from __future__ import annotations\n\n# ruff: noqa: E501\n# fmt: off"
    return "\n".join([f'"""{head}\n"""', "", imports, "", *lines, "}", ""])


def main() -> None:
    """Write the table, or compare it."""
    path, found = Path(vd.__file__).parent / "core" / "names.py", table()
    changed = sorted({module for module, _ in found.items() ^ names.TABLE.items()})
    if "--check" in sys.argv:
        if changed:
            raise SystemExit("core/names.py is out of date; run python -m scripts.renew_names")
        return
    path.write_text(written(found))
    print(f"{path} was renewed: {', '.join(changed)}" if changed else f"{path} is up to date")


if __name__ == "__main__":
    main()
