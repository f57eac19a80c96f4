"""Jobs: done once, kept in a folder, done elsewhere, and the same in every way."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
import torch

import veridical as vd
from tests.auditing.test_audit import TINY
from veridical.auditing import audit, jobs
from veridical.auditing.candidates import choose_metrics
from veridical.auditing.elimination import candidates
from veridical.auditing.forecast import CostEstimate, cost_of_scores
from veridical.auditing.jobs import Job, JobRunner
from veridical.explainers import as_explainer
from veridical.metrics import registry

FAST = replace(TINY, gef_draws=0, standing_samples=0, meta_samples=0)
METHODS = ["saliency", "input_x_gradient", "occlusion"]


def frame(result):
    return result.to_frame()


def test_a_run_that_was_ended_goes_on_where_it_stopped(tmp_path, monkeypatch):
    task = vd.tasks.load("known/linear")
    whole = audit(task, explainers=METHODS, effort=FAST, samples=32, concepts=())
    real, done = jobs.carry_out, []

    def until(job, seed, *memo):
        if len(done) == 9:
            raise KeyboardInterrupt
        done.append(job)
        return real(job, seed, *memo)

    monkeypatch.setattr(jobs, "carry_out", until)
    with pytest.raises(KeyboardInterrupt):
        audit(task, explainers=METHODS, effort=FAST, samples=32, concepts=(), folder=tmp_path)
    monkeypatch.setattr(jobs, "carry_out", lambda job, *rest: done.append(job) or real(job, *rest))
    again = audit(task, explainers=METHODS, effort=FAST, samples=32, concepts=(), folder=tmp_path)
    assert again.kept == 9
    assert frame(again).equals(frame(whole))
    third = audit(task, explainers=METHODS, effort=FAST, samples=32, concepts=(), folder=tmp_path)
    assert third.kept == len(done)
    assert third.sentences == whole.sentences


def test_another_seed_task_or_setting_finds_nothing(tmp_path):
    task = vd.tasks.load("known/linear")[:8]
    metrics = {"sparseness": registry.make("sparseness")}
    job = Job("a", as_explainer("saliency"), metrics, task, task, "here")
    JobRunner(0, tmp_path, "x").do([job], "")
    assert len(list(tmp_path.iterdir())) == 1
    for runner, asked in (
        (JobRunner(1, tmp_path, "x"), job),
        (JobRunner(0, tmp_path, "y"), job),
        (JobRunner(0, tmp_path, "x"), replace(job, place="there")),
        (JobRunner(0, tmp_path, "x"), replace(job, explainer=as_explainer("gradient"))),
        (JobRunner(0, tmp_path, "x"), replace(job, draw=1)),
    ):
        runner.do([asked], "")
        assert runner.found == 0
    same = JobRunner(0, tmp_path, "x")
    same.do([job], "")
    assert same.found == 1


def test_a_damaged_file_is_done_again(tmp_path):
    task = vd.tasks.load("known/linear")[:8]
    job = Job("a", as_explainer("saliency"), {"sparseness": registry.make("sparseness")}, task, task, "here")
    first = JobRunner(0, tmp_path).do([job], "")[0]
    for file in tmp_path.rglob("0.safetensors"):
        file.write_bytes(file.read_bytes()[:-3])
    jobs = JobRunner(0, tmp_path)
    again = jobs.do([job], "")[0]
    assert jobs.found == 0
    assert torch.equal(again.scores["sparseness"].values, first.scores["sparseness"].values)


def test_a_changed_function_is_noticed(tmp_path):
    task = vd.tasks.load("known/linear")[:8]
    metrics = {"sparseness": registry.make("sparseness")}

    def job(factor):
        def mine(model, inputs, targets):
            return factor * inputs**2

        return Job("mine", as_explainer(mine), metrics, task, task, "here")

    JobRunner(0, tmp_path).do([job(1.0)], "")
    same, other = JobRunner(0, tmp_path), JobRunner(0, tmp_path)
    same.do([job(1.0)], "")
    other.do([job(2.0)], "")
    assert (same.found, other.found) == (1, 0)


def test_what_failed_is_not_kept(tmp_path):
    def broken(model, inputs, targets):
        raise RuntimeError("no")

    task = vd.tasks.load("known/linear")[:8]
    job = Job("b", as_explainer(broken), {"sparseness": registry.make("sparseness")}, task, task, "here")
    found = JobRunner(0, tmp_path).do([job], "")[0]
    assert found.explanation is None
    assert found.failures[0].message == "no"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_other_processes_give_the_same_bits():
    task = vd.tasks.load("known/planted_patch")
    here = audit(task, explainers=METHODS, effort=FAST, samples=24, concepts=())
    with ProcessPoolExecutor(2) as executor:
        there = audit(task, explainers=METHODS, effort=FAST, samples=24, concepts=(), executor=executor)
    assert frame(there).equals(frame(here))
    for cell, scores in here.evaluation.scores.items():
        assert torch.equal(scores.values.nan_to_num(7), there.evaluation.scores[cell].values.nan_to_num(7))


def test_estimates_do_not_depend_on_what_was_evaluated_before():
    """Else an audit on many processes, which share nothing, would decide otherwise than one that shares."""
    found = []
    for warm in (False, True):
        task = vd.tasks.load("digits")[:24]
        metrics = choose_metrics(task, FAST, None, ("removal",)).removal
        if warm:
            vd.score("rfid_plus", task, "occlusion")
        methods = candidates({name: as_explainer(name) for name in METHODS}, task, 0)
        found.append((cost_of_scores(metrics, task, 0), {who: one.rows for who, one in methods.items()}))
    assert found[0] == found[1]
    assert found[0][1]["occlusion"] > found[0][1]["saliency"] > 0


def test_no_estimate_is_more_than_all_subsets():
    assert CostEstimate(100, most=128).of(1, 5) == 105
    assert CostEstimate(100, most=128).of(4, 50) == 128
    table = vd.tasks.load("known/linear")[:4]
    few = cost_of_scores({"pixel_flipping": registry.make("pixel_flipping")}, table, 0)
    assert few.most == 2**table.space.n_features * table.fill.repeats_on(table)
