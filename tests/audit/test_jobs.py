"""Jobs: done once, kept in a folder, done elsewhere, and the same in every way."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
import torch

import veridical as vd
from tests.audit.test_audit import TINY
from veridical.audit import audit, jobs
from veridical.audit.jobs import Crew, Job
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

    def until(job, seed):
        if len(done) == 9:
            raise KeyboardInterrupt
        done.append(job)
        return real(job, seed)

    monkeypatch.setattr(jobs, "carry_out", until)
    with pytest.raises(KeyboardInterrupt):
        audit(task, explainers=METHODS, effort=FAST, samples=32, concepts=(), folder=tmp_path)
    monkeypatch.setattr(jobs, "carry_out", lambda job, seed: done.append(job) or real(job, seed))
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
    Crew(0, tmp_path, "x").do([job], "")
    assert len(list(tmp_path.iterdir())) == 1
    for crew, asked in (
        (Crew(1, tmp_path, "x"), job),
        (Crew(0, tmp_path, "y"), job),
        (Crew(0, tmp_path, "x"), replace(job, place="there")),
        (Crew(0, tmp_path, "x"), replace(job, explainer=as_explainer("gradient"))),
        (Crew(0, tmp_path, "x"), replace(job, draw=1)),
    ):
        crew.do([asked], "")
        assert crew.found == 0
    same = Crew(0, tmp_path, "x")
    same.do([job], "")
    assert same.found == 1


def test_a_damaged_file_is_done_again(tmp_path):
    task = vd.tasks.load("known/linear")[:8]
    job = Job("a", as_explainer("saliency"), {"sparseness": registry.make("sparseness")}, task, task, "here")
    first = Crew(0, tmp_path).do([job], "")[0]
    for file in tmp_path.rglob("0.safetensors"):
        file.write_bytes(file.read_bytes()[:-3])
    crew = Crew(0, tmp_path)
    again = crew.do([job], "")[0]
    assert crew.found == 0
    assert torch.equal(again.scores["sparseness"].values, first.scores["sparseness"].values)


def test_a_changed_function_is_noticed(tmp_path):
    task = vd.tasks.load("known/linear")[:8]
    metrics = {"sparseness": registry.make("sparseness")}

    def job(factor):
        def mine(model, inputs, targets):
            return factor * inputs**2

        return Job("mine", as_explainer(mine), metrics, task, task, "here")

    Crew(0, tmp_path).do([job(1.0)], "")
    same, other = Crew(0, tmp_path), Crew(0, tmp_path)
    same.do([job(1.0)], "")
    other.do([job(2.0)], "")
    assert (same.found, other.found) == (1, 0)


def test_what_failed_is_not_kept(tmp_path):
    def broken(model, inputs, targets):
        raise RuntimeError("no")

    task = vd.tasks.load("known/linear")[:8]
    job = Job("b", as_explainer(broken), {"sparseness": registry.make("sparseness")}, task, task, "here")
    found = Crew(0, tmp_path).do([job], "")[0]
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
