"""What GEF says of scores that were joined, and where a reader is told that the noise was not whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import veridical as vd
from veridical.gef import IsoSigma
from veridical.gef.iso_gef import joined_provenance, joined_scores

SENTENCE = "The weight noise behind GEF is not whole"
METRIC = IsoSigma(path=(0.1, 0.4, 0.8), draws=6)


def test_the_evidence_of_shards_is_that_of_the_whole() -> None:
    task = vd.tasks.load("digits")[:6]
    whole, *parts = (vd.score(METRIC, rows, "gradient") for rows in (task, task[:2], task[2:]))
    found = joined_scores(parts)
    torch.testing.assert_close(found.values, whole.values)
    own, expected = (dict(each.provenance["iso_sigma"]) for each in (found, whole))
    assert own.pop("interval") == pytest.approx(expected.pop("interval"), abs=1e-9)
    assert own == pytest.approx(expected, abs=1e-9)
    assert parts[0].provenance["iso_sigma"]["mean"] != pytest.approx(found.values.mean())


def test_without_distortions_no_evidence_is_claimed() -> None:
    scores = vd.score(METRIC, vd.tasks.load("digits")[:2], "gradient")
    assert "iso_sigma" not in joined_provenance([scores, scores], {})
    assert scores.provenance["iso_sigma"], "the parts keep their own"


def test_one_shard_that_is_not_whole_makes_the_log_so() -> None:
    scores = vd.score(vd.gef.FastGEF(path=(0.1, 0.4, 0.8), draws=2), vd.tasks.load("digits")[:2], "gradient")
    log = scores.provenance["perturbation_log"]
    other = {**log, "whole": False, "text": "half of it", "models_dropped": 3}
    changed = vd.Scores(
        scores.values,
        scores.direction,
        "fast_gef",
        scores.ids,
        provenance={**scores.provenance, "perturbation_log": other},
    )
    found = joined_provenance([scores, changed], {})["perturbation_log"]
    assert (found["whole"], found["text"], found["models_dropped"]) == (False, "half of it", 3)


@pytest.fixture
def something_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def left_out(_model: torch.nn.Module) -> Iterator[tuple[str, tuple[str, int]]]:
        yield "a.list", ("torch does not know it", 7)

    monkeypatch.setattr("veridical.gef.perturbation_log.left_out", left_out)


@pytest.mark.usefixtures("something_left_out")
def test_the_page_of_an_evaluation_says_so(tmp_path: Path) -> None:
    metric = vd.gef.FastGEF(path=(0.1, 0.4, 0.8), draws=1)
    found = vd.evaluate(vd.tasks.load("known/linear")[:3], ["gradient", "random"], [metric])
    assert found.report(tmp_path / "page.html").read_text().count(SENTENCE) == 1
