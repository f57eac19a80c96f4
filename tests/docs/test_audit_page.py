"""The table of efforts in the how-to is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

from veridical.audit import EFFORTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"


def test_the_efforts_on_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == list(EFFORTS)
    for name, rest in rows:
        samples, _, gef, removal, meta = (cell.strip() for cell in rest.split("|"))
        effort = EFFORTS[name]
        assert int(samples.replace(",", "")) == effort.samples
        assert int(gef) == effort.gef_draws
        assert int(removal) == effort.removal_draws
        said = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", meta)]
        expected = [effort.meta_samples, effort.meta_explainers, effort.meta_draws]
        assert said == expected + ([effort.meta_iterations] if effort.meta_iterations > 1 else [])
