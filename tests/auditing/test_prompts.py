"""Prompts are audited like all else, and what their scores cannot show stands beside them."""

import sys
from dataclasses import replace

import pytest

import veridical as vd
from veridical.auditing import EFFORTS, audit
from veridical.auditing.effort import effort_of
from veridical.report.audit import contents

FAST = replace(EFFORTS["glance"], name="fast", samples=64, meta_samples=0, gef_draws=0, standing_samples=0)


@pytest.mark.slow
def test_prompts_are_audited_and_told_what_is_known_beside_their_scores():
    task = vd.tasks.load("known/prompt")
    names = ["occlusion", "exact_shapley", "gradient"]
    result = audit(task, explainers=names, effort=FAST, samples=40)
    assert result.best in names[:2]
    assert not result.verdict["gradient"].trusted  # attention is saturated where all gates are open
    assert result.prompts is not None
    assert len(result.prompts.response) == 40
    assert not bool(result.prompts.remembered.any())
    assert result.to_json()["prompts"]["compared"] == "off='fill' and off='drop'"
    told = contents(result)
    assert "on another model: the size of the input" in str(told["evidence"]["columns"])
    assert "class" not in str([told["evidence"]["columns"], told["first_page"]])
    shown = told["gallery"]
    assert shown["kind"] == "prompt"
    assert shown["items"][0]["alone"] is not None
    assert any("with all units off" in line for line in shown["beside"])


def test_a_large_language_model_is_not_asked_for_gef_unasked(monkeypatch):
    task = vd.tasks.load("known/prompt", samples=2)
    assert effort_of("standard", task).gef_draws == EFFORTS["standard"].gef_draws
    monkeypatch.setattr(sys.modules[effort_of.__module__], "HEAVY_PARAMETERS", 10)
    assert effort_of("standard", task).gef_draws == 0
    assert effort_of("standard", vd.tasks.load("known/linear", samples=2)).gef_draws > 0
