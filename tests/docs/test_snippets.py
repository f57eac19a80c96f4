"""Every Python snippet of the README and the documentation runs, page by page."""

import re
import sys
import types
from pathlib import Path

import pytest

from veridical.explainers import registry as explainers
from veridical.metrics import registry as metrics

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.extras
@pytest.mark.parametrize("page", [p for p in PAGES if SNIPPET.search(p.read_text())], ids=lambda p: p.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # a module of its own, so that classes of a snippet can be pickled as those of a user's script can
    module = types.ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)
    for registry in (explainers, metrics):  # what a page registers is gone after it
        list(registry)
        monkeypatch.setattr(registry, "makers", dict(registry.makers))
    for number, match in enumerate(SNIPPET.finditer(page.read_text()), 1):
        exec(compile(match[1], f"{page.name} snippet {number}", "exec", dont_inherit=True), module.__dict__)
