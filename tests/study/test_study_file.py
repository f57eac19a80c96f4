"""A study file is plain data, and a mistake in it is told with its line."""

import re
from pathlib import Path

import pytest

from veridical.errors import InputError
from veridical.study.plan import make_plan
from veridical.study.study_file import expand, parse_study, read_study

GOOD = """\
name: one
tasks: [known/linear]
explainers:
  - gradient
  - name: integrated_gradients
    label: IG
    settings: {baseline: 0.0}
    grid:
      steps: [4, 8]
metrics:
  - sparseness
seeds: [0, 1]
"""


def lines(text: str) -> list[tuple[int, str]]:
    """The (line, message) pairs of the error that reading a text raises."""
    with pytest.raises(InputError) as caught:
        parse_study(text, "s.yaml")
    found = [re.match(r"s\.yaml:(\d+): (.*)", line) for line in str(caught.value).splitlines()]
    return [(int(m[1]), m[2]) for m in found if m is not None]


def test_a_grid_has_every_point_under_its_own_label():
    grid = expand(parse_study(GOOD))
    assert [c.label for c in grid["explainers"]] == ["gradient", "IG (steps=4)", "IG (steps=8)"]
    assert grid["explainers"][2].settings == {"baseline": 0.0, "steps": 8}


def test_without_a_label_all_settings_are_in_the_name():
    text = GOOD.replace("    label: IG\n", "").replace("baseline: 0.0", "baseline: 0.5")
    assert expand(parse_study(text))["explainers"][1].label == "integrated_gradients (baseline=0.5, steps=4)"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("seeds: [0, 1]", "sedes: [0, 1]", 12, "sedes: there is no such key"),
        ("seeds: [0, 1]", "seeds: [0, x]", 12, "seeds.1: "),
        ("seeds: [0, 1]", "seeds: [0, 0]", 1, "seeds must differ"),
        ("    label: IG", "    lable: IG", 6, "explainers.1.lable: there is no such key"),
        ("      steps: [4, 8]", "      steps: 4", 9, "explainers.1.grid.steps: "),
        ("      steps: [4, 8]", "      steps: []", 9, "explainers.1.grid.steps: "),
        ("  - name: integrated_gradients", "  - code: not a path", 5, "explainers.1.code: "),
        ("  - name: integrated_gradients", "  - label2: x", 5, "explainers.1.label2: there is no such key"),
        ("{baseline: 0.0}", "{steps: 3}", 5, "steps is in settings and in grid"),
        ("metrics:\n  - sparseness", "metrics: []", 10, "metrics: "),
        ("tasks: [known/linear]", "tasks: [{name: known/linear, samples: 0}]", 2, "tasks.0.samples: "),
        ("name: one", "plan: {rows: 12}", 1, "plan.rows: "),
    ],
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, message: str):
    assert old in GOOD
    found = lines(GOOD.replace(old, new))
    assert any(at == line and message in said for at, said in found), found


def test_a_missing_part_is_told():
    assert lines("name: x\n") == [
        (1, f"{axis}: must be given") for axis in ("tasks", "explainers", "metrics")
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tasks: [a\nmetrics: b", 2),
        ("tasks: [a]\ntasks: [b]\n", 2),
        ("- just\n- a list\n", 1),
        ("tasks: !!python/object/apply:os.system ['true']\n", 1),
    ],
)
def test_what_is_not_a_study_is_refused_with_its_line(text: str, line: int):
    assert lines(text)[0][0] == line


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("  - gradient", "  - gradeint", 4, "did you mean 'gradient'"),
        ("steps: [4, 8]", "stps: [4, 8]", 5, "does not take"),
        ("  - sparseness", "  - {name: sparseness, settings: {p: 1}}", 11, "does not take"),
        ("known/linear", "known/liner", 2, "did you mean 'known/linear'"),
        ("  - gradient", "  - {code: 'os:getcwd'}", 4, "--allow-code"),
        ("  - sparseness", "  - {code: 'os:getcwd'}", 11, "--allow-code"),
        ("known/linear", "{code: 'os:getcwd'}", 2, "--allow-code"),
        (
            "  - gradient",
            "  - {name: integrated_gradients, settings: {baseline: 0.0, steps: 4}}",
            5,
            "is the same as",
        ),
        ("  - gradient", "  - {name: gradient, label: IG (steps=4)}", 5, "is there already"),
    ],
)
def test_names_and_settings_are_checked_with_their_line(old: str, new: str, line: int, message: str):
    with pytest.raises(InputError) as caught:
        make_plan(parse_study(GOOD.replace(old, new), "s.yaml"))
    assert str(caught.value).startswith(f"s.yaml:{line}: ")
    assert message in str(caught.value)


def test_a_missing_file_and_plain_data(tmp_path):
    with pytest.raises(InputError, match="there is no study file"):
        read_study(tmp_path / "no.yaml")
    data = {"tasks": ["digits"], "explainers": ["gradient"], "metrics": ["sparseness"]}
    assert parse_study(read_study(data).text).spec == read_study(data).spec
    with pytest.raises(InputError, match=r"^study: seeds"):
        read_study({**data, "seeds": []})


def test_the_example_can_be_read():
    grid = expand(read_study(Path(__file__).resolve().parents[2] / "examples" / "study.yaml"))
    assert [choice.label for choice in grid["explainers"]][1:3] == ["IG (steps=8)", "IG (steps=32)"]
