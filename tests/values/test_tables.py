"""Tables of scores as people paste them."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest
import torch

import veridical as vd
from veridical.errors import InputError, StorageError
from veridical.values.scores import Direction, Scores
from veridical.values.tables import (
    check_table_path,
    check_writable,
    csv_text,
    quoted,
    score_table,
    write_csv,
    write_table,
)


def scores(values: list[float], way: Direction = Direction.HIGHER, metric: str = "a_b") -> Scores:
    return Scores(torch.tensor(values), way, metric, torch.arange(len(values)))


def table():
    low = Direction.LOWER
    return score_table(
        {
            ("x&y", "a_b"): scores([0.1, 0.2, 0.3]),
            ("z", "a_b"): scores([0.5, 0.6, 0.7]),
            ("x&y", "c"): scores([1.0, 2.0, 3.0], low, "c"),
            ("z", "c"): scores([5.0, 6.0, 7.0], low, "c"),
        }
    )


def test_markdown_says_direction_interval_and_best() -> None:
    lines = table().markdown().splitlines()
    assert lines[0] == "| explainer | a_b ↑ | c ↓ |"
    assert lines[2].startswith("| x&y | 0.20 [0.1")
    assert "**2.0 [1" in lines[2]
    assert lines[3].startswith("| z | **0.60 [0.5")
    assert "| 6.0 [5" in lines[3]


def test_latex_is_escaped() -> None:
    text = table().latex()
    assert r"a\_b $\uparrow$ & c $\downarrow$ \\" in text
    assert r"x\&y & 0.20 [" in text
    assert r"\textbf{0.60 [" in text
    assert text.count(r"\\") == 3


def test_text_lines_up() -> None:
    assert len({len(line.rstrip(" *")) > 0 for line in table().text().splitlines()}) == 1
    assert table().text().count("*") == 2


def test_no_best_where_all_are_equal_or_alone() -> None:
    alone = score_table({("x", "m"): scores([1.0, 2.0])})
    equal = score_table({("x", "m"): scores([1.0, 2.0]), ("y", "m"): scores([1.0, 2.0])})
    assert "*" not in alone.text()
    assert "*" not in equal.text()


def test_a_cell_that_failed_and_one_without_value_are_told() -> None:
    found = score_table({("x", "m"): scores([1.0, 2.0]), ("y", "n"): scores([torch.nan, torch.nan])})
    assert "failed" in found.text()
    assert "no value" in found.text()


def test_an_evaluation_can_be_pasted() -> None:
    task = vd.Task(torch.nn.Linear(4, 3), torch.rand(6, 4))
    result = vd.evaluate(task, ["gradient", "random"], ["pixel_flipping", "sparseness"])
    assert result.to_latex().startswith(r"\begin{tabular}{lrr}")
    assert "pixel_flipping ↓" in result.to_markdown()
    assert "↓" in repr(result)


def test_a_noise_path_stands_beside_the_table_it_decided() -> None:
    rows = torch.rand(6, 4)
    for given, said in (({}, ", found on these samples"), ({"train": rows}, "fitted path")):
        task = vd.Task(torch.nn.Linear(4, 3), rows, **given)
        text = repr(vd.evaluate(task, "gradient", {"g": "fast_gef"}, progress=False))
        assert f"g: {vd.score('fast_gef', task, 'gradient').noise}" in text
        assert said in text
        assert ("no reference rows" in text) == (not given)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".md", ".tex"])
def test_a_file_is_what_its_name_says(tmp_path, suffix) -> None:
    result = vd.evaluate(vd.Task(torch.nn.Linear(4, 3), torch.rand(6, 4)), ["gradient"], ["sparseness"])
    path = write_table(result.to_frame(), tmp_path / f"table{suffix}", score_table(result.scores))
    begins = {".csv": b"explainer,", ".parquet": b"PAR1", ".md": b"| explainer", ".tex": rb"\begin{tabular}"}
    assert path.read_bytes().startswith(begins[suffix])


def test_paths_are_refused_before_the_work(tmp_path) -> None:
    with pytest.raises(InputError, match=r"written as \.csv, \.parquet, \.md, \.tex; 'x\.pdf' says none"):
        check_table_path(tmp_path / "x.pdf")
    with pytest.raises(StorageError, match="is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="no folder"):
        check_writable(tmp_path / "file" / "x.csv")


def test_a_table_keeps_its_numbers_and_plain_texts(tmp_path):
    frame = pd.DataFrame({"=name": ["=1+1", "plain"], "value": [-1.5, 2.0]})
    with write_csv(frame, tmp_path / "t.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["'=name", "value"], ["'=1+1", "-1.5"], ["plain", "2.0"]]
    assert list(frame.columns) == ["=name", "value"]


@pytest.mark.parametrize(
    "text",
    [
        "=cmd()",
        "=1",
        "+1",
        "-1",
        "@x",
        " =1",
        "\n=1",
        "\t=1",
        "\r=1",
        "＝1",
        "＋1",
        " ＠x",
        "\u200b=1",
        "\xa0=1",
    ],
)
def test_no_text_begins_a_formula(text: str, tmp_path: Path) -> None:
    assert quoted(text) == f"'{text}"
    back = pd.read_csv(write_csv(pd.DataFrame({text: [text]}), tmp_path / "x.csv"))
    assert str(back.columns[0]).startswith("'")
    assert str(back.iloc[0, 0]).startswith("'")


@pytest.mark.parametrize("text", ["", "a=1", "plain", " plain", "ü"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert quoted(text) == text


def test_names_of_strangers_are_no_commands_links_or_rows():
    evil = "\x1b[31mred\nnext | <img src=x> [a](b) \u202e"
    shown = score_table({(evil, "m"): scores([0.1, 0.2])})
    for text in (shown.text(), shown.markdown(), shown.latex()):
        assert not {"\x1b", "\u202e"} & set(text)
        assert "red next" in text
    assert "<img" not in shown.markdown()
    assert "\\[a](b)" in shown.markdown()
    assert "\x1b" not in csv_text(pd.DataFrame({evil: [evil]}))
