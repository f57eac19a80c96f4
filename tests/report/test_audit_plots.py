"""Matplotlib pictures of a verdict."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from veridical.auditing import Audit
from veridical.auditing.result import plot_ranking
from veridical.errors import InputError


def test_ranking_puts_the_best_on_top(audited: Audit) -> None:
    ax = audited.plot(Figure().subplots())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[-1] == audited.ranking[0].explainer
    assert names[0].endswith("(control)")
    marks = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [mark.get_xdata()[0] for mark in reversed(marks)] == [
        p.score for p in audited.verdict.places if p.score == p.score
    ]


def test_no_ranking_is_refused(audited: Audit) -> None:
    places = tuple(replace(p, score=float("nan")) for p in audited.verdict.places)
    with pytest.raises(InputError, match="no ranking"):
        plot_ranking(replace(audited.verdict, places=places), Figure().subplots())
