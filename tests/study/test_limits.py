"""A cell that takes more time or memory than it may is a failure on record, and nothing else waits."""

import threading
import time
import warnings

import pytest

from veridical import study as studies
from veridical.errors import InputError
from veridical.study import executors
from veridical.study.limits import LimitReached, resident_mib, within
from veridical.study.study_file import read_study

HERE = "tests.study.user_code"


def study(metric, limits):
    return {
        "tasks": [{"name": "known/linear", "samples": 3}],
        "explainers": ["gradient"],
        "metrics": [metric, "sparseness"],
        "plan": {"rows": 8},
        "limits": limits,
    }


@pytest.mark.parametrize("executor", ["in-process", "processes"])
def test_a_cell_that_sleeps_is_ended(tmp_path, executor):
    slow = {"code": f"{HERE}:Slow", "settings": {"seconds": 600.0}}
    began = time.monotonic()
    made = studies.run(
        study(slow, {"seconds": 5.0}), tmp_path, executor=executor, workers=1, allow_code=True, progress=False
    )
    assert time.monotonic() - began < 300
    assert [failure.error for failure in made.failures] == ["it took longer than 5 s (limits: seconds)"]
    assert (made.status().done, made.status().failed) == (1, 1)
    # the bound decides no score: with more time the cell is made, and the other is not made again
    again = study({**slow, "settings": {"seconds": 0.01}}, {"seconds": 60.0})
    assert studies.run(again, tmp_path, executor=executor, workers=1, allow_code=True).status().complete


def test_a_cell_that_takes_the_memory_is_ended(tmp_path):
    limit = int(resident_mib()) + 200
    made = studies.run(
        study({"code": f"{HERE}:Greedy"}, {"memory_mib": limit}),
        tmp_path,
        executor="in-process",
        allow_code=True,
        progress=False,
    )
    assert "limits: memory_mib" in made.failures[0].error
    assert made.status().done == 1


@pytest.mark.slow
def test_a_worker_that_does_not_hear_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "GRACE_SECONDS", 1.0)
    began = time.monotonic()
    made = studies.run(
        study({"code": f"{HERE}:Greedy", "settings": {"deaf": True}}, {"seconds": 2.0}),
        tmp_path,
        executor=studies.LocalProcesses(1),
        allow_code=True,
        progress=False,
    )
    assert time.monotonic() - began < 300
    assert "took longer than 2 s" in made.failures[0].error
    assert made.status().done == 1


def test_no_handler_of_the_users_holds_a_limit_up():
    began = time.monotonic()

    def stubborn():
        with within({"seconds": 0.2}):
            while time.monotonic() - began < 120:
                try:
                    time.sleep(0.01)
                except Exception:
                    continue

    with pytest.raises(LimitReached):
        stubborn()
    assert time.monotonic() - began < 60
    with within({}):
        pass


def test_elsewhere_than_in_the_main_thread_it_is_said():
    told = []

    def work():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with within({"seconds": 1.0}):
                told.extend(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "not watched" in str(told[0].message)


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"seconds": "a"}, {"memory_mib": -1}, {"hours": 1}])
def test_limits_are_checked(limits):
    with pytest.raises(InputError, match="limits"):
        read_study(study("complexity", limits))
