"""The page of a study: every task, means over seeds, failures; also of one that has only begun."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import veridical.cli.report
from tests.report.audits import hostile
from tests.report.pages import Page, dangers
from veridical import study as studies
from veridical.cli.app import app
from veridical.models.cost import Cost
from veridical.report.rendering import render
from veridical.report.study import contents, over_seeds
from veridical.values.scores import Curve, Direction, Scores

SMALL = {
    "name": "small </script>",
    "tasks": [{"name": "known/linear", "samples": 6}, {"name": "known/tiers", "samples": 5}],
    "explainers": ["input_x_gradient", "random"],
    "metrics": ["sparseness", "pixel_flipping"],
    "seeds": [0, 1],
    "plan": {"rows": 64},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("study")
    studies.run(SMALL, where, executor="in-process", progress=False)
    return where


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Any]:
    return contents(studies.open(folder))


def test_every_task_has_its_table(shown: dict[str, Any], folder: Path) -> None:
    page = render(shown)
    assert dangers(page) == []
    assert dangers(render(hostile(shown))) == []
    tables = [a["data-name"] for a in Page(page).named("table") if "heat" in (a["class"] or "")]
    assert tables == ["scores on known/linear", "scores on known/tiers"]
    study = studies.open(folder)
    pair = [study["known/linear", "random", "sparseness", seed].mean() for seed in (0, 1)]
    cell = shown["tasks"][0]["table"][1]["cells"][0]
    assert cell["mean"] == pytest.approx(sum(pair) / 2, rel=1e-6)
    assert "8 of 8 cells" not in page, "16 cells: two tasks, explainers, metrics and seeds"
    assert "16 of 16 cells done" in page


def test_ranks_over_tasks(shown: dict[str, Any], folder: Path) -> None:
    found = studies.open(folder).across().set_index(["metric", "explainer"])
    own, noise = (found.loc["pixel_flipping", who] for who in ("input_x_gradient", "random"))
    assert (own.mean_rank, own.best_in, own.tasks) == (1.0, 2, 2)
    assert noise.mean_rank == 2.0
    cells = [studies.open(folder)["known/tiers", "random", "pixel_flipping", seed].mean() for seed in (0, 1)]
    assert noise["known/tiers"] == pytest.approx(sum(cells) / 2)
    assert [row["explainer"] for row in shown["across"]["pixel_flipping"]] == ["input_x_gradient", "random"]
    assert "Across 2 tasks" in render(shown)


def test_markdown_has_a_table_a_task(shown: dict[str, Any]) -> None:
    text = render(shown, "md")
    assert text.count("| random |") == 2
    assert text.startswith(r"# Study small \</script\>")


def test_command_finds_the_study_by_itself(folder: Path, tmp_path: Path) -> None:
    assert veridical.cli.report.report
    result = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert "16 of 16 cells done" in (tmp_path / "page.html").read_text()


def one(values: list[float], flags: list[bool]) -> Scores:
    curve = Curve(torch.tensor([0.0, 1.0]), torch.tensor([[v, 2 * v] for v in values]), "x", "y")
    return Scores(
        torch.tensor(values),
        Direction.HIGHER,
        "m",
        torch.arange(len(values)),
        flags={"odd": torch.tensor(flags)},
        curve=curve,
        cost=Cost(3, 1),
    )


def test_means_over_seeds_keep_flags_and_add_costs() -> None:
    found = over_seeds([one([1.0, 2.0], [True, False]), one([3.0, float("nan")], [False, False])])
    assert found.values.tolist() == [2.0, 2.0]
    # a value that is none never goes without a reason
    assert found.flagged == {"odd": 1, "has no value": 1}
    assert found.cost == Cost(6, 2)
    assert found.curve is not None
    assert found.curve.y.tolist() == [[2.0, 4.0], [2.0, 4.0]]
