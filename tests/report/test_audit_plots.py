"""Matplotlib pictures of a verdict."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from veridical.audit import Audit
from veridical.audit.plots import plot_critical_difference, plot_ranking
from veridical.errors import InputError


def test_ranking_puts_the_best_on_top(audited: Audit) -> None:
    ax = audited.plot(Figure().subplots())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[-1] == audited.best
    assert names[0].endswith("(control)")
    marks = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [mark.get_xdata()[0] for mark in reversed(marks)] == [p.score for p in audited.verdict.places]


def test_critical_difference_names_everybody(audited: Audit) -> None:
    ax = plot_critical_difference(audited.verdict, Figure().subplots())
    text = "\n".join(t.get_text() for t in ax.texts)
    for place in audited.verdict.places:
        assert f"{place.mean_rank:.2f}" in text
        assert place.explainer in text
    assert f"CD {audited.verdict.critical_difference:.2f}" in text


def test_no_ranking_is_refused(audited: Audit) -> None:
    places = tuple(replace(p, score=float("nan"), mean_rank=float("nan")) for p in audited.verdict.places)
    for draw in (plot_ranking, plot_critical_difference):
        with pytest.raises(InputError, match="no ranking"):
            draw(replace(audited.verdict, places=places), Figure().subplots())
