"""Names of models, features and methods that hold commands to a terminal: no text or page keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.auditing import EFFORTS
from veridical.errors import visible
from veridical.report.audit import write_folder

HOSTILE = "\x1b[31mRED\u202e\x9b\u2066|<img src=x>"
FAST = replace(
    EFFORTS["glance"], gef_draws=0, standing_samples=0, meta_samples=0, training_rows=0, flip_steps=3
)


@pytest.fixture(scope="module")
def task() -> vd.Task:
    space = vd.Space.columns(6, names=[f"{HOSTILE}{number}" for number in range(6)])
    rows = torch.randn(24, 6)
    return vd.Task(nn.Linear(6, 3), rows, train=rows, space=space, name=HOSTILE)


def methods() -> dict[str, str]:
    return {HOSTILE: "gradient", "b": "saliency"}


METRIC = {HOSTILE: "sparseness"}
TEXTS: dict[str, Callable[[vd.Task], list[Any]]] = {
    "task": lambda task: [task, task.space.feature_name(0)],
    "explanation": lambda task: [vd.explain("gradient", task)],
    "renamed": lambda task: [replace(vd.score("sparseness", task, "gradient"), explainer=HOSTILE)],
    "evaluation": lambda task: [
        (made := vd.evaluate(task, methods(), METRIC, progress=False)),
        *(made.to_markdown(), made.to_latex(), made._repr_html_(), made.to_frame().to_string()),
    ],
    "meta": lambda task: [
        (made := vd.meta.meta_evaluate(task, METRIC, methods(), draws=1, iterations=1, progress=False)),
        made._repr_html_(),
    ],
    "damage": lambda task: [vd.meta.planted_damage(task, METRIC, progress=False)],
    "concepts": lambda task: [
        (made := vd.concepts.compare(task, {HOSTILE: vd.concepts.PCA(2)})),
        *made.judgements.values(),
    ],
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_no_text_or_page_holds_a_command(name: str, task: vd.Task) -> None:
    for text in TEXTS[name](task):
        assert str(text) == visible(str(text))


@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_an_audit_and_its_folder_hold_none(task: vd.Task, tmp_path: Path) -> None:
    found = vd.audit(task, explainers=methods(), effort=FAST, concepts=(), progress=False)
    for text in (found, found.ranking, found.verdict, found.checks, found._repr_html_(), *found.sentences):
        assert str(text) == visible(str(text))
    write_folder(found, tmp_path / "audit")
    found.evaluation.report(tmp_path / "audit" / "evaluation.html")
    pages = [
        path for path in (tmp_path / "audit").rglob("*") if path.suffix in (".html", ".json", ".csv", ".md")
    ]
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text()
        assert text == visible(text), page.name
        assert page.suffix != ".html" or "<img src=x" not in text


@pytest.mark.parametrize(
    "call",
    [
        lambda task: vd.explain(HOSTILE, task),
        lambda task: vd.score(HOSTILE, task, "gradient"),
        lambda task: vd.audit(task, explainers=[HOSTILE]),
        lambda task: vd.tasks.load(HOSTILE),
        lambda task: vd.study.run(HOSTILE),
        lambda task: vd.data.load_task(HOSTILE, HOSTILE),
        lambda task: vd.evaluate(task, "gradient", "sparseness").report(f"/dev/null/{HOSTILE}.html"),
    ],
)
def test_messages_of_errors_hold_none(call: Callable[[vd.Task], Any], task: vd.Task) -> None:
    with pytest.raises(vd.errors.VeridicalError) as caught:
        call(task)
    assert str(caught.value) == visible(str(caught.value))
