"""What a study leaves behind: tables that any tool reads."""

import os

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import veridical as vd
from veridical import study as studies
from veridical.errors import FormatError, InputError
from veridical.models.cost import Cost
from veridical.study import Study
from veridical.study.cells import COLUMNS, from_parquet, to_parquet
from veridical.values.scores import Curve, Direction, Scores


def scores(start: int = 0) -> Scores:
    ids = torch.arange(start, start + 4)
    values = torch.tensor([0.1, float("nan"), -2.0, 1e-300], dtype=torch.float64)
    return Scores(
        values,
        Direction.LOWER,
        "m",
        ids,
        "e",
        {"no value": values.isnan(), "never": torch.zeros(4, dtype=torch.bool), "small": values < 0.5},
        Curve(torch.linspace(0, 1, 3, dtype=torch.float64), torch.rand(4, 3), "x", "y"),
        {"flat": torch.arange(4), "deep": torch.rand(4, 2, 3, dtype=torch.float64)},
        Cost(5, 6),
        {"seed": 3, "nested": {"a": [1, None]}},
    )


def equal(a: Scores, b: Scores) -> bool:
    same = torch.equal(a.values.nan_to_num(9), b.values.nan_to_num(9)) and torch.equal(a.ids, b.ids)
    same &= list(a.flags) == list(b.flags) and all(torch.equal(a.flags[r], b.flags[r]) for r in a.flags)
    same &= list(a.details) == list(b.details)
    same &= all(torch.equal(a.details[n], b.details[n]) for n in a.details)
    same &= all(a.details[n].dtype == b.details[n].dtype for n in a.details)
    same &= a.curve is not None and b.curve is not None and torch.equal(a.curve.y, b.curve.y)
    plain = ("direction", "metric", "explainer", "cost", "provenance")
    return bool(same) and all(getattr(a, name) == getattr(b, name) for name in plain)


LABELS = {"task": "t", "explainer": "=cmd()", "metric": "m", "seed": 7}


def test_scores_come_back_from_parquet(tmp_path):
    first = scores()
    content = to_parquet(first, LABELS, {"rows": 8})
    assert equal(from_parquet(content), first)
    assert to_parquet(first, LABELS, {"rows": 8}) == content
    assert not equal(from_parquet(to_parquet(scores(1), LABELS, {})), first)
    (tmp_path / "c.parquet").write_bytes(content)
    frame = pd.read_parquet(tmp_path / "c.parquet")
    assert list(frame.columns[:8]) == list(COLUMNS)
    assert [list(flags) for flags in frame["flags"]] == [["small"], ["no value"], ["small"], ["small"]]
    assert set(frame["seed"]) == {7}


def test_a_foreign_file_is_refused(tmp_path):
    pd.DataFrame({"value": [1.0]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="carries no checksum"):
        from_parquet((tmp_path / "x.parquet").read_bytes())
    with pytest.raises(FormatError, match="holds no study"):
        studies.open(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Study:
    where = tmp_path_factory.mktemp("study") / "it's here"
    study = {
        "tasks": [{"name": "known/linear", "samples": 6}],
        "explainers": [{"name": "gradient", "label": "=evil()"}, "random"],
        "metrics": ["sparseness", "complexity"],
        "shard_size": 3,
        "plan": {"rows": 8},
    }
    return studies.run(study, where, executor="in-process", progress=False)


def test_frames_summaries_and_scores(done):
    frame = done.frame()
    assert len(frame) == 24
    summary = done.summary()
    assert len(summary) == 4
    one = done["known/linear", "random", "complexity", 0]
    assert len(one) == 6
    task = vd.tasks.load("known/linear", 6)
    assert one.ids.tolist() == task.ids.tolist()
    want = vd.score("complexity", task, "random")
    assert torch.allclose(one.values, want.values)
    row = summary[(summary.explainer == "random") & (summary.metric == "complexity")].iloc[0]
    assert row["mean"] == pytest.approx(float(want.values.mean()))
    assert done.explanation("known/linear", "random", shard=1).ids.tolist() == task.ids[3:].tolist()
    with pytest.raises(InputError, match="has no cell"):
        done["known/linear", "random", "complexity", 4]


def test_exports(done, tmp_path):
    back = pd.read_csv(done.export(tmp_path / "x.csv"))
    assert set(back["explainer"]) == {"'=evil()", "random"}
    assert len(pd.read_parquet(done.export(tmp_path / "x.parquet"))) == 24
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        done.export(tmp_path / "x.xlsx")


def test_a_cell_tells_what_decided_it_and_nothing_of_when_and_where(done):
    path = next((done.store.folder / "cells").iterdir())
    text = pq.read_schema(path).metadata[b"veridical"].decode()
    assert '"version": 1' in text
    assert '"rows": 8' in text
    for private in (os.uname().nodename, str(done.store.folder), "seconds", f'"pid": {os.getpid()}'):
        assert private not in text
