"""The table of default rows holds what the explainers declare, and nothing that nobody would wait for."""

from pathlib import Path

import pytest

from benchmarks.defaults import BEGIN, DIGITS, END, FEATURES, PHOTO, TABLE, TEXT, ours, task_of
from veridical.explainers import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "understand" / "explainers.md"
CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().partition(BEGIN)[2].partition(END)[0].splitlines()
    if line.startswith("|")
]
ROWS = {cells[0].strip("`"): dict(zip(FEATURES, cells[2:], strict=True)) for cells in CELLS[2:]}
MOST = {PHOTO: 2_000, TEXT: 5_200, TABLE: 51_200, DIGITS: 700}
"""Of one sample: some seconds of a ResNet-50 or a BERT on two cores."""


@pytest.fixture(scope="module")
def tasks() -> dict[str, object]:
    return {kind: task_of(kind) for kind in FEATURES}


@pytest.mark.parametrize("kind", FEATURES)
def test_the_table_says_what_explainers_declare(kind: str, tasks) -> None:
    named = 0
    for name in registry:
        explainer = registry.make(name)
        if explainer.control or explainer.inapplicable_reason(tasks[kind]) is not None:
            continue
        declared = explainer._declared(tasks[kind]).forward
        assert declared <= MOST[kind], name
        if name in ROWS:
            named += 1
            assert ROWS[name][kind] == f"{declared:,}", name
    assert named >= 10


def test_rows_are_counted_not_declared(tasks) -> None:
    assert ours("sobol", tasks[DIGITS]) == 8 * 65
    assert ours("permutation_importance", tasks[PHOTO]) == 4 * 196
    assert ours("attention_rollout", tasks[DIGITS]) is None
