"""Python code that comes with a model: refused unless the user said that it may run."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from veridical.errors import InputError


def check_allowed(what: str, why: str, allow_code: bool) -> None:
    """Refuse to run code that nobody allowed, and say why it would run."""
    if not allow_code:
        raise InputError(
            f"{what} is refused: {why}. If you trust where it comes from, say so with --allow-code "
            "(allow_code=True in Python)"
        )


def import_attribute(path: str, allow_code: bool = False) -> Any:
    """What `module:name` or `file.py:name` stands for. Importing runs the module, so it must be allowed.

    A module is looked for among the installed ones and in the current folder.
    """
    module_name, colon, name = path.rpartition(":")
    if not colon or not module_name or not name:
        raise InputError(f"an architecture is given as module:function or file.py:function, got '{path}'")
    check_allowed(f"'{path}'", "importing it runs the Python code of that module", allow_code)
    module = _from_file(Path(module_name)) if module_name.endswith(".py") else _by_name(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise InputError(f"'{module_name}' has no '{name}'; it has {', '.join(sorted(public)[:20])}")
        found = getattr(found, part)
    return found


def _by_name(name: str) -> Any:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # the module's own code may raise anything
        raise InputError(f"the module '{name}' cannot be imported: {error!r}") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # registered while it runs, so that its dataclasses find their module
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise InputError(f"{path} cannot be imported: {error!r}") from error
    return module
