"""Sets larger than memory: only a shard or two is ever there, however many there are."""

import weakref
from typing import Any

import torch

import veridical as vd
from tests.study.user_code import ranged
from veridical import study as studies
from veridical.study import worker
from veridical.study.estimate import estimate
from veridical.study.plan import make_plan
from veridical.study.resolve import load_task
from veridical.study.study_file import read_study


def spec(samples: int) -> dict[str, object]:
    return {
        "tasks": [{"code": "tests.study.user_code:ranged", "samples": samples}],
        "explainers": ["gradient"],
        "metrics": ["sparseness"],
        "shard_size": 50,
        "plan": {"rows": 64},
        "keep_explanations": False,
    }


def test_memory_does_not_grow_with_the_set(tmp_path, monkeypatch):
    loaded: list[weakref.ref[torch.Tensor]] = []

    def load(*args: Any, **named: Any) -> vd.Task:
        task = load_task(*args, **named)
        loaded.append(weakref.ref(task.inputs))
        return task

    monkeypatch.setattr(worker, "load_task", load)
    alive: list[int] = []

    def watch(line: dict[str, Any]) -> None:
        alive.append(sum(len(rows) for ref in loaded if (rows := ref()) is not None))

    most = []
    for samples in (150, 325):
        loaded.clear(), alive.clear()
        study = studies.run(
            spec(samples), tmp_path / str(samples), executor="in-process", allow_code=True, watch=watch
        )
        assert study.status().complete
        assert len(loaded) == -(-samples // 50)
        most.append(max(alive))
    assert most[1] <= most[0] <= 100
    scores = study.scores()
    assert scores.ids.tolist() == list(range(325))
    whole = vd.score("sparseness", ranged(0, 325), "gradient")
    assert torch.allclose(scores.values, whole.values)


def test_an_estimate_knows_cells_evaluations_and_what_is_there(tmp_path):
    data = {
        **spec(200),
        "metrics": ["sparseness", "pixel_flipping", {"name": "fast_gef", "settings": {"draws": 2}}],
    }
    plan = make_plan(read_study(data), allow_code=True)
    found = estimate(plan, allow_code=True)
    assert found.cells == 12
    assert found.preparations == 1
    assert found.measured == found.combinations == 4
    assert found.seconds > 0
    study = studies.run(data, tmp_path, executor="in-process", allow_code=True)
    real = sum(sum(study.scores(metric=m.label).cost.__dict__.values()) for m in plan.metrics)
    real += 200 * 2  # the explanations: a row forward and one backward each
    # the search for a noise path is a preparation, which every one of the four shards counts as its own
    real -= 4 * study.scores(metric=plan.metrics[2].label).provenance["path"]["rows"]
    assert abs(found.evaluations - real) / real < 0.05
    there = {job.hash for job in plan.cells()}
    assert estimate(plan, there, allow_code=True).evaluations == 0
    hurried = estimate(plan, allow_code=True, budget_seconds=0.0)
    assert hurried.measured == 0
