"""What travels and what is told: plain data, a bar at a terminal, lines of JSON for machines."""

import io
import json
import pickle

from veridical import study as studies
from veridical.study.bar import Bar
from veridical.study.logs import JsonLog

JOB = studies.Job(
    "score", "ab12", "t", (3, 9), 1, "e", "m", ("cd", "ef"), {"kind": "x"}, {"gpus": 0.5, "memory_mib": 100}
)


def test_what_travels_is_plain_data():
    context = studies.Context("/f", True, ("a", "b"), 2, {"cpus": 1.0})
    result = studies.Result("ab12", "failed", 1.5, 3, 4, "h", 9, "E: e", "trace", ("w",))
    for thing in (JOB, context, result):
        assert type(thing).from_json(json.loads(json.dumps(thing.to_json()))) == thing
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert JOB.samples == 6
    assert str(JOB) == "score t / e / m / seed 1, rows 3 to 9"


def test_a_bar_shows_cells_pace_and_time_left(small, tmp_path, capsys):
    studies.run(small, tmp_path / "a", executor="in-process", watchers=[Bar(True)], progress=False)
    shown = capsys.readouterr().err
    assert "24/24" in shown
    assert "evaluations/s" in shown
    assert "0:00:00 left" in shown


def test_nothing_is_shown_when_nobody_looks(small, tmp_path, capsys):
    studies.run(small, tmp_path, executor="in-process")
    assert capsys.readouterr() == ("", "")


def test_a_log_has_a_line_an_event(small, tmp_path):
    stream = io.StringIO()
    studies.run(small, tmp_path, executor="in-process", watchers=[JsonLog(stream)], progress=False)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0]["event"] == "planned"
    assert lines[0]["left"] == lines[0]["cells"] == 24
    scored = [line for line in lines if line["event"] == "done" and line["kind"] == "score"]
    assert [line["left"] for line in scored] == list(range(23, -1, -1))
    assert all(line["evaluations_per_second"] > 0 for line in scored)
    assert lines[-1]["event"] == "finished"
