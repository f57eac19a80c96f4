"""A pytest fixture: a test that fails where explanations that were trusted no longer hold.

pytest imports this module in every run, whatever is tested, so it stands beside the package and loads
nothing of it until the fixture is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from veridical.auditing import Recheck


@pytest.fixture
def veridical_check() -> Callable[..., Recheck]:
    """Call it with the audit before and the task now: it fails on a finding, and skips what is not decided.

    `def test_explanations(veridical_check): veridical_check("audit", task)`
    """

    def run(old: Any, task: Any, **settings: Any) -> Recheck:
        import veridical as vd

        found: Recheck = vd.check(Path(old) if isinstance(old, str) else old, task, **settings)
        if found.status == 1:
            pytest.fail("\n".join(found.sentences), pytrace=False)
        if found.status == 3:
            pytest.skip(" ".join(found.sentences))
        return found

    return run
