"""An audit that evaluates many rows says so before it evaluates them, with what lowers it."""

from __future__ import annotations

import warnings

import pytest

import veridical as vd
from veridical.errors import VeridicalWarning


class StoppedError(Exception):
    """Raised where the work would begin."""


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_given: object, **_named: object) -> None:
        raise StoppedError

    monkeypatch.setattr("veridical.auditing.run.check_model", stop)


def test_many_rows_are_said_first() -> None:
    task = vd.tasks.load("breast_cancer_logistic")[:64]
    said = r"up to about [\d,]+ rows of the model for 2 explainers on 64 samples; effort='glance'"
    with pytest.warns(VeridicalWarning, match=said), pytest.raises(StoppedError):
        vd.audit(task, explainers=["lime", "occlusion"])


def test_few_rows_are_not() -> None:
    task = vd.tasks.load("digits")[:24]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StoppedError):
            vd.audit(task, explainers=["saliency"], samples=24, effort="glance")
