"""A folder that others can check by one checksum, and whose page is made again without the model."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sklearn
import torch
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import veridical as vd
import veridical.cli.report
from veridical.auditing import Audit
from veridical.cli.app import app
from veridical.errors import FormatError, InputError
from veridical.report.audit import write_folder
from veridical.report.rendering import read, render, save
from veridical.report.verification import model_name, verify_report

runner = CliRunner()


@pytest.fixture(scope="module")
def small_audit() -> Audit:
    return vd.audit(vd.tasks.load("known/linear", 24), explainers=["gradient", "input_x_gradient"], seed=0)


@pytest.fixture(scope="module")
def written(small_audit: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("audit") / "report"
    write_folder(small_audit, where)
    return where


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "audit"))


def test_the_checksum_stands_on_the_page_and_holds(folder: Path, small_audit: Audit, tmp_path: Path) -> None:
    checksum = json.loads((folder / "report.json").read_text())["checksums"]["all"]
    assert checksum in (folder / "index.html").read_text()
    assert verify_report(folder) == []
    # the same audit has the same checksum, whenever and wherever it is written
    write_folder(small_audit, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "report.json").read_text())["checksums"]["all"] == checksum
    assert "samples.csv" in [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("name", ["audit.json", "ranking.csv", "scores.csv", "samples.csv", "index.html"])
def test_a_changed_or_missing_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    text = path.read_text()
    path.write_text(text.replace("gradient", "gradiend", 1))
    assert name in verify_report(folder)[0]
    path.unlink()
    problems = verify_report(folder)
    assert f"{name} is missing" in problems[0]
    # the page comes from report.json, everything else from the audit alone; no study is named
    assert ("veridical report" if name == "index.html" else "run the audit again") in problems[-1]
    assert "resume" not in "".join(problems)


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_the_maps_for_a_later_check_are_verified_too(folder: Path, damage: str) -> None:
    path = folder / "baseline.safetensors"
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    problems = verify_report(folder)
    assert ("is missing" if damage == "gone" else "is damaged") in problems[0]
    assert "run the audit again" in problems[1]


def test_what_is_not_of_the_audit_is_named_and_no_fault(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    told = runner.invoke(app, ["verify", str(folder)])
    assert told.exit_code == 0
    assert told.output.startswith("not of this audit: notes.txt\n")


@pytest.mark.parametrize(("old", "new"), [('"format": 1', '"format": 2'), ('"format": 1', '"format": [')])
def test_a_report_that_is_damaged_or_of_a_newer_version_is_a_finding(
    folder: Path, old: str, new: str
) -> None:
    path = folder / "report.json"
    path.write_text(path.read_text().replace(old, new, 1))
    told = runner.invoke(app, ["verify", str(folder)])
    assert told.exit_code == 1
    assert "report.json" in told.output
    assert "copy the whole folder again" in told.output


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("settings", "seed", 99), ("verdict", "headline", "Use random"), ("identity", "model", "another")],
)
def test_a_changed_report_has_another_checksum(folder: Path, part: str, name: str, value: Any) -> None:
    contents = json.loads((folder / "report.json").read_text())
    contents[part][name] = value
    (folder / "report.json").write_text(json.dumps(contents))
    told = runner.invoke(app, ["verify", str(folder)])
    assert told.exit_code == 1
    assert "report.json was changed" in told.output


def test_a_report_of_odd_content_is_a_finding_and_no_page(folder: Path) -> None:
    whole = json.loads((folder / "report.json").read_text())
    for name in whole:
        if name in ("kind", "checksums", "version"):
            continue
        (folder / "report.json").write_text(json.dumps({**whole, name: 3}))
        assert verify_report(folder), name
        with suppress(FormatError):
            render(read(folder))
    (folder / "report.json").write_text(json.dumps({**whole, "format": "x"}))
    assert "which format" in verify_report(folder)[0]


@pytest.mark.parametrize("left", ["no checksums", "nothing"])
def test_a_report_that_cannot_be_checked_is_told(folder: Path, left: str) -> None:
    path = folder / "report.json"
    contents = json.loads(path.read_text())
    del contents["checksums"]
    path.write_text(json.dumps(contents))
    if left == "nothing":
        path.unlink()
    problem = verify_report(folder)[0]
    assert ("without a checksum" if left == "no checksums" else "report.json is missing") in problem


def test_a_study_and_a_report_in_one_folder_are_both_checked(folder: Path) -> None:
    study = {"tasks": ["known/linear"], "samples": 3, "explainers": ["random"], "metrics": ["sparseness"]}
    vd.study.run(study, folder, executor="in-process", progress=False)
    assert runner.invoke(app, ["verify", str(folder)]).exit_code == 0
    next((folder / "cells").iterdir()).write_bytes(b"x")
    told = runner.invoke(app, ["verify", str(folder)])
    assert told.exit_code == 1
    assert "resume makes it again" in told.output


@pytest.mark.parametrize(("format", "page"), [("html", "index.html"), ("md", "out/a.md")])
def test_pages_are_drawn_again_from_the_contents(
    shown: dict[str, Any], tmp_path: Path, format: str, page: str
) -> None:
    save(shown, tmp_path / "report.json")
    where = [] if format == "html" else ["-o", str(tmp_path / page)]
    result = runner.invoke(app, ["report", str(tmp_path), "--format", format, *where])
    assert result.exit_code == 0, result.output
    assert (tmp_path / page).read_text() == render(shown, format)


def test_mistakes_are_told(tmp_path: Path) -> None:
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    (tmp_path / "report.json").write_text(json.dumps({"kind": "audit", "format": 1}))
    result = runner.invoke(app, ["report", str(tmp_path), "-f", "pdf"])
    assert isinstance(result.exception, InputError)


def test_a_model_goes_by_its_own_class_and_library() -> None:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).numpy()
    trees = DecisionTreeClassifier(max_depth=2).fit(rows, rows[:, 0] > 0)
    assert model_name(vd.Task(trees, rows)) == f"DecisionTreeClassifier, sklearn {sklearn.__version__}"
    assert model_name(vd.Task(torch.nn.Linear(3, 2), rows)) == f"Linear, torch {torch.__version__}"
    assert model_name(vd.Task(lambda x: x[:, :2], rows)) == "function <lambda>"
