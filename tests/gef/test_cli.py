"""`veridical gef`: scores beside their ceiling, and pictures."""

import pandas as pd
import pytest
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["gef", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_scores_and_pictures_are_written(tmp_path):
    said = run(
        "-t", "digits", "-e", "gradient", "-e", "random", "-n", "16", "--draws", "2", "-o", str(tmp_path)
    )
    assert "ceiling" in said
    assert "noise path" in said
    frame = pd.read_csv(tmp_path / "gef.csv")
    means = frame.groupby("explainer")["score"].mean()
    direct = vd.score(vd.gef.FastGEF(draws=2), vd.tasks.load("digits", 16), "gradient").mean()
    assert means["gradient"] == pytest.approx(direct)
    assert means["gradient"] > means["random"] + 0.3
    assert {path.name for path in tmp_path.iterdir()} == {"gef.csv", "scores.png", "path.png"}


def test_iso_sigma_says_how_sure_it_is(tmp_path):
    said = run(
        "-t", "digits", "-e", "gradient", "-n", "8", "--iso-sigma", "--draws", "6", "-o", str(tmp_path)
    )
    assert "at fixed noise" in said
    assert "p = " in said


def test_draws_are_chosen_for_a_resolution(tmp_path):
    asked = ["-t", "digits", "-e", "gradient", "-n", "4", "--resolution", "0.9", "-o", str(tmp_path)]
    assert "with 5 draws 0.2" in run(*asked, "--iso-sigma")
    with pytest.raises(vd.errors.InputError, match="leave --draws out"):
        run(*asked)
