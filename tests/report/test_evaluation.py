"""The evaluation page: the same look as a report, self-contained and escaped."""

from pathlib import Path

import pytest
import torch

import veridical as vd
from tests.report.audits import SCRIPT, hostile
from tests.report.pages import Page, dangers
from veridical.report.evaluation import contents, write_evaluation
from veridical.report.rendering import render
from veridical.testing import MODALITIES, tiny_task


def written(tmp_path: Path, task: vd.Task, explainers: object, metrics: list[str]) -> str:
    table = vd.evaluate(task, explainers, metrics)  # type: ignore[arg-type]
    return table.report(tmp_path / "page.html").read_text()


@pytest.mark.parametrize("modality", MODALITIES)
def test_page_of_every_kind_of_input(modality: str) -> None:
    named = {SCRIPT: "gradient", "random": "random"}
    shown = contents(vd.evaluate(tiny_task(modality), named, ["pixel_flipping", "sparseness"]))
    assert dangers(render(hostile(shown))) == []
    page = render(shown)
    seen = Page(page)
    assert len(seen.named("article")) == 6
    assert seen.text.count("random") > 6
    assert dangers(page) == []
    drawn = {"image": "img", "text": "p"}.get(modality, "svg")
    assert len(seen.named(drawn)) >= 12


def test_failures_are_shown_with_their_traceback(tmp_path: Path) -> None:
    def breaks(model: object, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ValueError("no map today")

    with pytest.warns(vd.errors.VeridicalWarning):
        page = written(tmp_path, tiny_task("table"), ["gradient", breaks], ["sparseness"])
    assert "What failed" in page
    assert "no map today" in page
    assert "Traceback" in page


def test_markdown(tmp_path: Path) -> None:
    table = vd.evaluate(tiny_task("table"), {"a|b": "gradient"}, ["sparseness"])
    text = write_evaluation(table, tmp_path / "page.md", "md").read_text()
    assert r"| a\|b |" in text
    assert "sparseness (higher is better)" in text


def test_nothing_scored_is_still_a_page(tmp_path: Path) -> None:
    """An evaluation that was interrupted at once has no scores at all."""
    empty = vd.Evaluation(tiny_task("table"), {}, {}, [], True, 0)
    page = empty.report(tmp_path / "page.html").read_text()
    assert "Interrupted" in page
    assert dangers(page) == []
