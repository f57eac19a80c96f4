"""Running: the same bytes wherever it is done, nothing twice, and a cell that breaks breaks nothing else."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import veridical as vd
from veridical import study as studies
from veridical.errors import InputError, StudyError
from veridical.study import worker_state
from veridical.study.events import Event
from veridical.study.executors import _Worker
from veridical.study.folder import Folder
from veridical.study.plan import read_plan, write_plan

HERE = "tests.study.user_code"


def run(study: dict[str, Any], folder: Any, executor: Any = "in-process", **options: Any) -> Any:
    return studies.run(study, folder, executor=executor, progress=False, **options)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a study that must not depend on when and where it was made."""
    kinds = ("cells", "explanations", "prepared")
    return {
        f"{k}/{p.name}": p.read_bytes() for k in kinds for p in sorted((folder / k).glob("*")) if p.is_file()
    }


class Seen(list[Event]):
    """A watcher that keeps what it is told."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def jobs(self, what: str) -> list[str]:
        return [str(event.job) for event in self if event.what == what]


def test_processes_give_the_bytes_of_one_process(small, tmp_path):
    # a noise path and a fine-tuned model are handed from worker to worker
    small |= {"tasks": small["tasks"][:1], "seeds": [1], "shards": 2}
    gef = {"name": "gef", "settings": {"draws": 2, "levels": 4, "form": "fast"}}
    small["metrics"] = ["sparseness", {"name": "ffid_plus", "settings": {"draws": 4}}, gef]
    one = run(small, tmp_path / "one")
    assert one.status().complete, one.failures[0].traceback
    two = run(small, tmp_path / "two", executor=studies.LocalProcesses(2))
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
    run(small, tmp_path, watchers=[seen])
    assert [event.what for event in seen] == ["planned", "finished"]
    small["metrics"][2]["settings"]["draws"] = 7
    seen = Seen()
    study = run(small, tmp_path, watchers=[seen])
    # every explanation is there, so only the changed metric is asked
    assert len(seen.jobs("done")) == 8
    assert all("draws=7" in job for job in seen.jobs("done"))
    assert study.status().stale == 8
    assert study.status().complete


def test_new_labels_compute_nothing_and_reach_the_files(small, tmp_path):
    before = run(small, tmp_path).scores("known/linear", "random", "sparseness")
    small["metrics"][0] = {"name": "sparseness", "label": "gini"}
    seen = Seen()
    study = run(small, tmp_path, watchers=[seen])
    assert seen.jobs("started") == []
    assert torch.equal(study.scores("known/linear", "random", "gini").values, before.values)
    assert "sparseness" not in set(study.frame()["metric"])


def test_shards_agree_with_the_whole(small, tmp_path):
    small["tasks"], small["seeds"] = small["tasks"][:1], [1]
    small["metrics"].append({"name": "gef", "settings": {"draws": 2, "levels": 4, "form": "fast"}})
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
    assert failure.name == ("whole", "flipped", "Breaks", 0)
    assert failure.error == "ValueError: it had to be"
    assert "in evaluate" in failure.traceback
    assert study.sql("select count(*) n from failures where error like '%had to be'")["n"][0] == 2
    with pytest.raises(InputError, match="it had to be"):
        study.scores(explainer="gradient", metric="Breaks")
    seen = Seen()
    studies.resume(tmp_path, executor="in-process", allow_code=True, watchers=[seen], progress=False)
    assert len(seen.jobs("failed")) == len(seen.jobs("started")) == 2


def test_cells_fall_with_the_explanation_they_rest_on(code, tmp_path):
    code["explainers"][0]["settings"] = {"nonsense": 1}
    code["metrics"].append("sparseness")
    study = run(code, tmp_path, allow_code=True)
    assert study.status().failed == 2
    assert {f.step for f in study.failures} == {"before"}
    assert "nonsense" in study.failures[0].error
    del code["explainers"][0]["settings"]
    assert run(code, tmp_path, allow_code=True).status().complete


def test_a_worker_that_dies_is_replaced_and_its_cell_tried_again(code, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    code["metrics"].append({"code": f"{HERE}:Dies", "settings": {"folder": str(deaths)}})
    seen = Seen()
    study = run(code, tmp_path / "s", studies.LocalProcesses(1), allow_code=True, watchers=[seen])
    assert study.status().complete
    assert len(seen.jobs("lost")) == 1


def test_a_cell_that_kills_every_worker_is_a_failure(small, tmp_path):
    class Fatal(studies.InProcess):
        def wait(self) -> list[studies.Result]:
            if self._jobs[0].metric == "sparseness":
                return [studies.Result(self._jobs.pop(0).address, "lost", error="the worker died")]
            return super().wait()

    small["tasks"], small["seeds"] = small["tasks"][:1], [0]
    seen = Seen()
    study = run(small, tmp_path, executor=Fatal(), watchers=[seen])
    assert study.status().done == 4
    assert [f.error for f in study.failures] == ["the worker died, 3 times"] * 2
    assert len(seen.jobs("lost")) == 6


def test_a_study_in_memory(small, tmp_path):
    url = f"memory://{tmp_path.name}"
    study = run(small, url)
    assert study.status().complete
    assert len(study.frame()) == 6 * 2 * (10 + 9)
    assert study.sql("select count(*) n from scores")["n"][0] == 6 * 2 * (10 + 9)
    local = run(small, tmp_path / "local")
    for name, data in content(tmp_path / "local").items():
        assert study.folder.read(name) == data
    assert studies.open(url).status() == study.status()
    assert local.status().done == study.status().done
    with pytest.raises(InputError, match="in-process"):
        run(small, f"memory://{tmp_path.name}2", executor="processes")


def test_code_whose_source_cannot_be_found_is_computed_every_time(code, tmp_path, monkeypatch):
    monkeypatch.setattr("veridical.study.resolve.source_digest", lambda module: None)
    first = run(code, tmp_path, allow_code=True)
    assert first.plan.uncached() == ["flipped", "Total"]
    seen = Seen()
    run(code, tmp_path, allow_code=True, watchers=[seen])
    assert len(seen.jobs("done")) == 2 + 1  # both cells, and the map that is not to be trusted


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


def test_a_broken_explanation_file_is_made_again(small, tmp_path):
    run(small, tmp_path)
    before = content(tmp_path)
    for path in (tmp_path / "explanations").iterdir():
        path.write_bytes(b"half")
    for path in (tmp_path / "cells").iterdir():
        path.unlink()
    assert run(small, tmp_path).status().complete
    assert content(tmp_path) == before


def test_a_task_that_changed_under_the_plan_is_refused(small, tmp_path, monkeypatch):
    class Meddling(studies.InProcess):
        def start(self, context: studies.Context) -> None:
            super().start(context)
            load = worker_state.load_task

            def other(choice: Any, **named: Any) -> vd.Task:
                task = load(choice, **named)
                return task.with_inputs(task.inputs + 1) if choice.label == "known/linear" else task

            monkeypatch.setattr(worker_state, "load_task", other)

    study = run(small, tmp_path, executor=Meddling())
    assert study.status().failed == 12
    assert all("is another here" in failure.error for failure in study.failures)


def test_a_worker_that_answers_nonsense_is_lost_and_not_waited_for(small, tmp_path):
    """As one of another version does, where the package was changed under a running study."""
    run(small, tmp_path)
    job = next(read_plan(Folder(tmp_path)).cells())
    for answer in ('{"odd": 1}', "not JSON", "[]"):
        words = [
            sys.executable,
            "-c",
            f"import time\nprint('ready')\nprint({answer!r}, flush=True)\ntime.sleep(99)",
        ]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        executor = studies.LocalProcesses(1)
        executor._listen(_Worker(process, job))
        _, result = executor._ended.get(timeout=1)
        assert (result.address, result.status) == (job.address, "lost")


def test_workers_that_die_before_they_begin_do_not_tell_against_a_job(small, tmp_path):
    class Unlucky(studies.InProcess):
        deaths = 0

        def wait(self) -> list[studies.Result]:
            if self.deaths < 5:
                self.deaths += 1
                return [studies.Result(self._jobs.pop(0).address, "lost", error="killed", begun=False)]
            return super().wait()

    assert run(small, tmp_path, executor=Unlucky()).status().complete


def test_a_job_of_another_plan_is_refused(small, tmp_path):
    class Mixing(studies.InProcess):
        def start(self, context: studies.Context) -> None:
            folder = Folder(tmp_path)
            plan = read_plan(folder)
            other = replace(plan, tasks=(replace(plan.tasks[0], digest="0" * 32), *plan.tasks[1:]))
            write_plan(other, folder)
            super().start(replace(context, plan=other.digest))
            write_plan(plan, folder)

    study = run(small, tmp_path, executor=Mixing())
    assert study.status().failed == study.status().done == 12
    assert all("is not of the plan" in failure.error for failure in study.failures)


def test_workers_read_the_plan_of_their_own_run(small, tmp_path):
    class Overtaken(studies.InProcess):
        def start(self, context: studies.Context) -> None:
            folder = Folder(tmp_path)
            plan = read_plan(folder)
            own = f"plans/{plan.digest}.json"
            kept = folder.read(own)
            write_plan(replace(plan, tasks=(replace(plan.tasks[0], digest="0" * 32),)), folder)
            folder.write(own, kept)
            super().start(context)
            write_plan(plan, folder)

    assert run(small, tmp_path, executor=Overtaken()).status().complete


def test_workers_that_never_work_end_the_study(small, tmp_path):
    class Hopeless(studies.InProcess):
        def wait(self) -> list[studies.Result]:
            return [studies.Result(self._jobs.pop(0).address, "lost", error="no such luck")]

    with pytest.raises(StudyError, match="no such luck"):
        run(small, tmp_path, executor=Hopeless())


def test_what_was_registered_in_a_script_stays_in_its_process(small, tmp_path, monkeypatch):
    context = studies.Context(str(tmp_path), imports=("__main__",))
    with pytest.raises(InputError, match="script or notebook"):
        studies.LocalProcesses(1).start(context)
    with pytest.raises(InputError, match="workers is a whole number from 1"):
        studies.LocalProcesses(0)
    with pytest.raises(InputError, match="executor is"):
        run(small, tmp_path, executor="elsewhere")
    with pytest.raises(InputError, match="needs a folder"):
        run(small, None)


def test_nothing_to_compute_is_told(small, tmp_path):
    small["metrics"] = ["irof"]
    with pytest.raises(InputError, match=r"not one cell .* irof on known/linear"):
        run(small, tmp_path)


def test_interrupting_keeps_what_is_finished(small, tmp_path):
    class Impatient(studies.InProcess):
        left = 5

        def wait(self) -> list[studies.Result]:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().wait()

    study = run(small, tmp_path, executor=Impatient())
    assert 0 < study.status().done < 24
    assert torch.get_num_threads() == 1
    assert studies.resume(tmp_path, executor="in-process", progress=False).status().complete
