"""Shared work appears once, and a content hash changes with what decides a result and with nothing else."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.study.user_code import Total
from veridical.errors import InputError
from veridical.metrics import Sparseness, registry
from veridical.study.plan import StudyPlan, make_plan
from veridical.study.study_file import read_study


def plan_of(study: dict[str, Any], allow_code: bool = False) -> StudyPlan:
    return make_plan(read_study(study), allow_code)


def hashes(study: dict[str, Any], allow_code: bool = False) -> dict[tuple[Any, ...], str]:
    jobs = plan_of(study, allow_code).cells()
    return {(*j.labels.values(), j.shard): j.hash for j in jobs}


def test_an_explanation_serves_every_metric_and_a_deterministic_one_every_seed(small):
    groups = list(plan_of(small).groups())
    explained = Counter((g.explain.task.label, g.explain.explainer.label) for g in groups)
    assert explained == {
        ("known/linear", "input_x_gradient"): 1,
        ("known/linear", "random"): 2,
        ("known/tiers", "input_x_gradient"): 1,
        ("known/tiers", "random"): 2,
    }
    cells = [job for group in groups for job in group.scores]
    assert len(cells) == len({job.hash for job in cells}) == 2 * 2 * 3 * 2
    assert all(job.needs == (group.explain.hash,) for group in groups for job in group.scores)


def test_a_metric_of_the_method_needs_no_map(small):
    small["metrics"] = ["max_sensitivity"]
    assert all(group.explain is None for group in plan_of(small).groups())


def test_a_preparation_appears_once_for_all_who_need_it(small):
    small["tasks"] = ["known/linear"]
    small["metrics"] = [
        "ffid_plus",
        "ffid_minus",
        "qge:ffid_plus",
        {"name": "fast_gef", "settings": {"draws": 2}},
    ]
    plan = plan_of(small)
    made = [job.facts["kind"] for job in plan.preparations()]
    assert sorted(made) == ["fine-tuned model", "noise path", "noise path"]
    needs = {job.metric.label: len(job.needs) for job in plan.cells()}
    assert needs == {"ffid_plus": 2, "ffid_minus": 2, "qge:ffid_plus": 2, "fast_gef (draws=2)": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"plan": {"rows": 32}},
        {"plan": {"rows": 64, "threads": 2}},
        {"tasks": [{"name": "known/linear", "samples": 11}, {"name": "known/tiers", "samples": 8}]},
        {"tasks": [{"name": n, "samples": 10, "fill": 0.5} for n in ("known/linear", "known/tiers")]},
        {"shard_size": 5},
    ],
)
def test_every_hash_follows_plan_and_content(small, change):
    assert not set(hashes(small).values()) & set(hashes({**small, **change}).values())


def test_a_new_seed_keeps_the_old_cells(small):
    before = hashes(small)
    assert before.items() <= hashes({**small, "seeds": [1, 0, 5]}).items()


def test_a_new_version_is_a_new_hash_and_a_new_label_is_not(small, monkeypatch):
    before = hashes(small)
    small["metrics"][0] = {"name": "sparseness", "label": "gini"}
    assert set(hashes(small).values()) == set(before.values())
    monkeypatch.setattr(Sparseness, "version", Sparseness.version + 1)
    changed = set(before.values()) ^ set(hashes(small).values())
    assert changed >= {v for k, v in before.items() if k[2] == "sparseness"}
    assert len(changed) == 2 * 8


def test_what_does_not_apply_is_set_aside_with_its_reason(small):
    small["metrics"] = ["sparseness", "irof"]
    small["explainers"].append("gradcam")
    plan = plan_of(small)
    assert {(s["task"], s["explainer"] or s["metric"]) for s in plan.skipped} == {
        (task, what) for task in ("known/linear", "known/tiers") for what in ("irof", "gradcam")
    }
    assert all(s["reason"] for s in plan.skipped)
    assert {(j.explainer.label, j.metric.label) for j in plan.cells()} == {
        ("input_x_gradient", "sparseness"),
        ("random", "sparseness"),
    }


def test_shards_cover_every_row_once_and_the_plan_grows_with_the_axes_only(small):
    small["tasks"] = [{"code": "tests.study.user_code:whole", "samples": 1003}]
    few = plan_of({**small, "shard_size": 500}, allow_code=True)
    many = plan_of({**small, "shard_size": 10}, allow_code=True)
    for plan in (few, many):
        parts = list(plan.parts(plan.tasks[0]))
        assert [row for part in parts for row in range(*part)] == list(range(1003))
    assert sum(1 for _ in many.cells()) == 101 * 12
    assert len(json.dumps(many.model_dump(mode="json"))) < len(json.dumps(few.model_dump(mode="json"))) + 10


def test_code_is_known_by_its_source(code, monkeypatch):
    plan = plan_of(code, allow_code=True)
    assert plan.uncached == []
    assert "tests.study.user_code" in plan.imports
    before = hashes(code, True)
    code["tasks"][0]["settings"] = {"shift": 1.0}
    assert not set(before.values()) & set(hashes(code, True).values())
    del code["tasks"][0]["settings"]
    code["explainers"][0]["settings"] = {"scale": -2.0}
    assert len(set(before.values()) & set(hashes(code, True).values())) == 1
    monkeypatch.setattr("veridical.study.resolve.source_digest", lambda module: None)
    assert plan_of(code, allow_code=True).uncached == ["whole", "flipped (scale=-2.0)", "total"]


def test_code_inside_a_wrapper_counts_too(code, monkeypatch):
    code["metrics"] = [{"name": "qge:total"}]
    monkeypatch.setitem(registry.makers, "total", Total)
    plan = plan_of(code, allow_code=True)
    assert plan.imports == ("tests.study.user_code",)
    assert "tests.study.user_code" in plan.metrics[0].content["sources"]


def test_wrong_code_is_told(code):
    for axis, path, said in (
        ("tasks", "tests.study.user_code:not_a_task", "gave a int, not a Task"),
        ("tasks", "tests.study.user_code:nowhere", "cannot be imported"),
        ("explainers", "tests.study.user_code:FEATURES", "not an explainer or a function"),
        ("metrics", "tests.study.user_code:not_a_task", "gave a int, not a metric"),
    ):
        with pytest.raises(InputError, match=said):
            plan_of({**code, axis: [{"code": path}]}, allow_code=True)
