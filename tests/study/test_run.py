"""Running: the same bytes wherever it is done, nothing twice, and a cell that breaks breaks nothing else."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import veridical as vd
from veridical import study as studies
from veridical.errors import InputError
from veridical.study import worker

HERE = "tests.study.user_code"


def run(study: dict[str, Any], folder: Any, executor: Any = "in-process", **options: Any) -> Any:
    return studies.run(study, folder, executor=executor, progress=False, **options)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a study that must not depend on when and where it was made."""
    kinds = ("cells", "explanations", "prepared")
    return {
        f"{k}/{p.name}": p.read_bytes() for k in kinds for p in sorted((folder / k).glob("*")) if p.is_file()
    }


class Seen(list[dict[str, Any]]):
    """Keeps every line of the log."""

    def __call__(self, line: dict[str, Any]) -> None:
        self.append(line)

    def jobs(self, what: str) -> list[str]:
        return [f"{line['kind']} {line['metric']}" for line in self if line["event"] == what]


def test_processes_give_the_bytes_of_one_process(small, tmp_path):
    # a noise path and a fine-tuned model are handed from worker to worker
    small |= {"tasks": small["tasks"][:1], "seeds": [1], "shard_size": 5}
    gef = {"name": "fast_gef", "settings": {"draws": 2, "levels": 4, "form": "fast"}}
    small["metrics"] = ["sparseness", {"name": "ffid_plus", "settings": {"draws": 4}}, gef]
    one = run(small, tmp_path / "one")
    assert one.status().complete, one.failures[0].traceback
    two = run(small, tmp_path / "two", executor="processes")
    assert two.status().complete
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert len(list((tmp_path / "one" / "prepared").iterdir())) == 2
    assert len({line["pid"] for line in two.timings}) == 2


def test_scores_are_those_of_the_plain_verbs(small, tmp_path):
    study = run(small, tmp_path)
    task = vd.tasks.load("known/tiers", 9).with_plan(vd.Plan(rows=64, threads=1))
    for seed in (0, 1):
        want = vd.score("sensitivity_n", task, "random", seed=seed, draws=6)
        got = study["known/tiers", "random", "sensitivity_n (draws=6)", seed]
        assert torch.equal(got.values, want.values)
        assert got.cost == want.cost
        assert got.flagged == want.flagged
        assert got.curve is not None
        assert want.curve is not None
        assert torch.equal(got.curve.y, want.curve.y)


def test_a_second_run_computes_only_what_changed(small, tmp_path):
    run(small, tmp_path)
    seen = Seen()
    run(small, tmp_path, watch=seen)
    assert [line["event"] for line in seen] == ["planned", "finished"]
    small["metrics"][2]["settings"]["draws"] = 7
    seen = Seen()
    study = run(small, tmp_path, watch=seen)
    # every explanation is there, so only the changed metric is asked
    assert len(seen.jobs("done")) == 8
    assert set(seen.jobs("done")) == {"score sensitivity_n (draws=7)"}
    assert study.status().stale == 8
    assert study.status().complete


def test_new_labels_compute_nothing_and_reach_the_files(small, tmp_path):
    before = run(small, tmp_path)["known/linear", "random", "sparseness", 0]
    small["metrics"][0] = {"name": "sparseness", "label": "gini"}
    seen = Seen()
    study = run(small, tmp_path, watch=seen)
    assert seen.jobs("started") == []
    assert torch.equal(study["known/linear", "random", "gini", 0].values, before.values)
    assert "sparseness" not in set(study.frame()["metric"])


def test_shards_agree_with_the_whole(small, tmp_path):
    small["tasks"], small["seeds"] = small["tasks"][:1], [1]
    small["metrics"].append({"name": "fast_gef", "settings": {"draws": 2, "levels": 4, "form": "fast"}})
    whole = run(small, tmp_path / "whole")
    parts = run({**small, "shard_size": 4}, tmp_path / "parts")
    assert len(list((tmp_path / "parts" / "cells").iterdir())) == 3 * 8
    for name in whole:
        a, b = whole[name], parts[name]
        assert torch.equal(a.ids, b.ids)
        # explanations and responses are asked in other chunks, so last bits may differ
        assert torch.allclose(a.values, b.values, atol=1e-4, equal_nan=True), name
        # every part of a score rests on the noise path, and counts the rows of its search
        shared = 2 * a.provenance["path"]["rows"] if "path" in a.provenance else 0
        assert b.cost == vd.models.Cost(a.cost.forward + shared, a.cost.backward), name


def test_a_cell_that_raises_is_recorded_and_the_rest_goes_on(code, tmp_path):
    code["metrics"] += [{"code": f"{HERE}:Breaks"}, "sparseness"]
    study = run(code, tmp_path, allow_code=True)
    assert study.status().failed == 2
    assert study.status().done == 4
    failure = study.failures[0]
    assert failure.name == ("whole", "flipped", "breaks", 0)
    assert failure.error == "ValueError: it had to be"
    assert "in evaluate" in failure.traceback
    with pytest.raises(InputError, match="it had to be"):
        study["whole", "gradient", "breaks", 0]
    seen = Seen()
    studies.resume(tmp_path, executor="in-process", allow_code=True, watch=seen, progress=False)
    assert len(seen.jobs("failed")) == len(seen.jobs("started")) == 2


def test_cells_fall_with_the_explanation_they_rest_on(code, tmp_path):
    code["explainers"][0]["settings"] = {"nonsense": 1}
    code["metrics"].append("sparseness")
    study = run(code, tmp_path, allow_code=True)
    assert study.status().failed == 2
    assert "nonsense" in study.failures[0].error
    del code["explainers"][0]["settings"]
    assert run(code, tmp_path, allow_code=True).status().complete


def test_code_whose_source_cannot_be_found_is_computed_every_time(code, tmp_path, monkeypatch):
    monkeypatch.setattr("veridical.study.resolve.source_digest", lambda module: None)
    first = run(code, tmp_path, allow_code=True)
    assert first.plan.uncached == ["whole", "flipped", "total"]
    seen = Seen()
    run(code, tmp_path, allow_code=True, watch=seen)
    assert len(seen.jobs("done")) == 2 + 2  # both cells, and the maps, which are not to be trusted


def test_a_task_of_a_bare_function_works(code, tmp_path):
    code["tasks"] = [{"code": f"{HERE}:of_function"}]
    assert run(code, tmp_path, allow_code=True).status().complete


def test_explanations_are_dropped_when_not_wanted_and_made_again_when_gone(small, tmp_path):
    small["keep_explanations"] = False
    first = run(small, tmp_path)
    assert list((tmp_path / "explanations").iterdir()) == []
    before = content(tmp_path)
    some = sorted((tmp_path / "cells").iterdir())[::2]
    for path in some:
        path.unlink()
    assert not first.status().complete
    assert run(small, tmp_path).status().complete
    assert content(tmp_path) == before


def test_a_task_that_changed_under_the_plan_is_refused(small, tmp_path, monkeypatch):
    load = worker.load_task

    def other(choice: Any, *how: Any) -> vd.Task:
        task = load(choice, *how)
        return task.with_inputs(task.inputs + 1) if choice.label == "known/linear" else task

    monkeypatch.setattr(worker, "load_task", other)
    study = run(small, tmp_path)
    assert study.status().failed == 12
    assert all("is another here" in failure.error for failure in study.failures)


def test_a_cell_that_takes_too_long_is_ended_and_nothing_else_waits(small, tmp_path):
    slow = {"code": f"{HERE}:Slow", "settings": {"seconds": 600.0}}
    small |= {"metrics": [slow, "sparseness"], "limits": {"seconds": 5.0}, "seeds": [0]}
    small |= {"tasks": small["tasks"][:1], "explainers": ["gradient"]}
    began = time.monotonic()
    made = run(small, tmp_path, "processes", workers=1, allow_code=True)
    assert time.monotonic() - began < 300
    assert [failure.error for failure in made.failures] == ["it took longer than 5 s (limits: seconds)"]
    assert (made.status().done, made.status().failed) == (1, 1)
    # the bound decides no score: with more time the cell is made, and the other is not made again
    small |= {"metrics": [{**slow, "settings": {"seconds": 0.01}}, "sparseness"], "limits": {"seconds": 60.0}}
    with pytest.warns(vd.errors.VeridicalWarning, match="not watched in this process"):
        assert run(small, tmp_path, allow_code=True).status().complete


def test_what_was_registered_in_a_script_stays_in_its_process(code, small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "veridical.study.resolve.inside", lambda part: iter([type("X", (), {"__module__": "__main__"})()])
    )
    with pytest.raises(InputError, match="script or notebook"):
        run(small, tmp_path, executor="processes")
    with pytest.raises(InputError, match="executor is"):
        run(small, tmp_path, executor="elsewhere")
    with pytest.raises(InputError, match="needs a folder"):
        run(small, None)


def test_nothing_to_compute_is_told(small, tmp_path):
    small["metrics"] = ["irof"]
    with pytest.raises(InputError, match=r"not one cell .* irof on known/linear"):
        run(small, tmp_path)


def test_interrupting_keeps_what_is_finished(small, tmp_path, monkeypatch):
    real, asked = worker.carry_out, []

    def impatient(work: worker.Work) -> worker.Result:
        asked.append(work)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return real(work)

    monkeypatch.setattr(worker, "carry_out", impatient)
    study = run(small, tmp_path)
    assert 0 < study.status().done < 24
    assert torch.get_num_threads() == 1
    monkeypatch.undo()
    assert studies.resume(tmp_path, executor="in-process", progress=False).status().complete


@pytest.mark.parametrize("version", [2, 99])
def test_a_folder_of_another_version_is_refused_and_left_alone(small, tmp_path, version):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(small))
    (tmp_path / "plan.json").write_text(f'{{"format": {version}, "kind": "current plan"}}')
    for again in (
        lambda: run(small, tmp_path),
        lambda: studies.resume(tmp_path),
        lambda: studies.open(tmp_path),
    ):
        with pytest.raises(vd.errors.FormatError, match="study of another version"):
            again()
    assert "another version" in studies.verify(tmp_path).problems[0]
