"""The table of efforts in the how-to is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

from veridical.auditing import EFFORTS
from veridical.auditing.effort import ALL, ON_HEAVY

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"


def test_the_efforts_on_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == list(EFFORTS)
    for name, rest in rows:
        samples, budget, heavy = (cell.strip() for cell in rest.split("|"))
        assert int(samples.replace(",", "")) == EFFORTS[name].samples
        assert budget == (
            "any" if EFFORTS[name].budget == ALL else f"{EFFORTS[name].budget // 10**6} million"
        )
        if name in ON_HEAVY:
            light = ON_HEAVY[name]
            assert heavy.startswith(f"{light.samples} samples, {light.budget:,} rows")
