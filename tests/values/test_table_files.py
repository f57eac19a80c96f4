"""Names that a spreadsheet would run are quoted; numbers are not."""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from veridical.values.table_files import quoted, write_csv


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-2", "@x", "\tx", "\rx"])
def test_formulas_are_quoted(text):
    assert quoted(text) == f"'{text}"


def test_a_table_keeps_its_numbers_and_plain_texts(tmp_path):
    frame = pd.DataFrame({"=name": ["=1+1", "plain"], "value": [-1.5, 2.0]})
    with write_csv(frame, tmp_path / "t.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["'=name", "value"], ["'=1+1", "-1.5"], ["plain", "2.0"]]
    assert list(frame.columns) == ["=name", "value"]
