"""Results on disk, and iterations that were visited apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import veridical as vd
from tests.meta.conftest import small_table
from veridical.errors import InputError
from veridical.jobs import Processes
from veridical.meta import evaluate

NAMES = (["sparseness", "max_sensitivity", vd.meta.Same()], ["gradient", "saliency"])
ASKED = {"draws": 2, "tests": ("mpt",), "ar": "published", "resamples": 0}


@pytest.fixture(scope="module")
def whole():
    return vd.meta.meta_evaluate(small_table(), *NAMES, iterations=3, **ASKED)


@pytest.fixture(scope="module")
def parts():
    task = small_table()
    return [vd.meta.meta_evaluate(task, *NAMES, iterations=some, **ASKED) for some in ([2], range(2))]


def equal(a, b):
    """Bit for bit; samples that do not count have no score."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def same(a, b):
    assert a.metrics == b.metrics
    assert a.iterations == b.iterations
    for label in a.scores:
        for place, scores in a.scores[label].perturbed.items():
            assert equal(scores, b.scores[label].perturbed[place])
    assert all(torch.equal(kept, b.kept[place]) for place, kept in a.kept.items())


def test_iterations_visited_apart_are_those_of_one_run(whole, parts):
    together = vd.meta.joined(parts)
    same(together, whole)
    assert together.to_frame().equals(whole.to_frame())
    assert together.iterations == (0, 1, 2)
    # each part explains its own unperturbed task
    assert together.explanations == whole.explanations + 2
    assert together.scores["max_sensitivity"].cost.forward > whole.scores["max_sensitivity"].cost.forward


def test_a_run_that_was_ended_goes_on_from_its_folder(whole, tmp_path, monkeypatch):
    real, made = evaluate.carry_out, []

    def until(call):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.extend(call["iterations"])
        return real(call)

    monkeypatch.setattr(evaluate, "carry_out", until)
    with pytest.raises(KeyboardInterrupt):
        vd.meta.meta_evaluate(small_table(), *NAMES, iterations=3, folder=tmp_path, **ASKED)
    made.clear()
    same(vd.meta.meta_evaluate(small_table(), *NAMES, iterations=3, folder=tmp_path, **ASKED), whole)
    assert made == [2]
    damaged = next(tmp_path.glob("iterations/*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    made.clear()
    same(vd.meta.meta_evaluate(small_table(), *NAMES, iterations=3, folder=tmp_path, **ASKED), whole)
    assert len(made) == 1
    made.clear()
    vd.meta.meta_evaluate(small_table(), *NAMES, iterations=2, folder=tmp_path, **{**ASKED, "seed": 1})
    assert made == [0, 1]


@pytest.mark.slow
def test_iterations_on_other_processes_are_those_of_one(whole):
    with Processes(2) as pool:
        same(vd.meta.meta_evaluate(small_table(), *NAMES, iterations=3, executor=pool, **ASKED), whole)


def test_another_iteration_is_another_draw(parts):
    third, others = parts
    place = ("mpt", "ar")
    first = others.scores["sparseness"].perturbed[place][0]
    assert not equal(third.scores["sparseness"].perturbed[place][0], first), "a mutant that redraws"


def test_what_does_not_belong_together_is_refused(whole, parts):
    with pytest.raises(InputError, match="in two of the results"):
        vd.meta.joined([whole, parts[0]])
    with pytest.raises(InputError, match="differ in seed"):
        vd.meta.joined([parts[0], replace(parts[1], seed=1)])
    with pytest.raises(InputError, match="at least one"):
        vd.meta.joined([])


@pytest.mark.parametrize("given", [[], [0, 0], [-1], ["1"]])
def test_iterations_are_checked(given):
    with pytest.raises(InputError, match=r"from 0 and each once|each a whole number, got \['1'\]"):
        vd.meta.meta_evaluate(small_table(), *NAMES, iterations=given, **ASKED)


def test_a_saved_result_is_read_again_whole(whole, tmp_path):
    read = vd.meta.load(whole.save(tmp_path / "meta.safetensors"))
    same(read, whole)
    assert read.to_frame().equals(whole.to_frame())
    assert repr(read) == repr(whole)
    assert read.amounts == whole.amounts
    assert read.explanations == whole.explanations
    assert read.scores["sparseness"].dependence == whole.scores["sparseness"].dependence


def test_a_metric_that_failed_in_one_part_is_left_out(parts):
    tables = {label: table for label, table in parts[0].scores.items() if label != "sparseness"}
    assert "sparseness" not in vd.meta.joined([replace(parts[0], scores=tables), parts[1]]).metrics


def test_last_bits_of_another_process_are_no_change(parts):
    """Unperturbed scores that differ by a bit, as those of two processes on a GPU may."""
    second, first = parts
    label = first.metrics[0]
    table = second.scores[label]
    off = {test: base + 1e-12 for test, base in table.unperturbed.items()}
    # as in IPT with old maps: every score is the unperturbed one
    same = {p: off[p[0]].expand_as(scores).clone() for p, scores in table.perturbed.items()}
    tables = {**second.scores, label: replace(table, unperturbed=off, perturbed=same)}
    whole = vd.meta.joined([first, replace(second, scores=tables)]).scores[label]
    for (test, mode), scores in whole.perturbed.items():
        assert torch.equal(scores[2:], first.scores[label].unperturbed[test].expand_as(scores[2:]))
        assert equal(scores[:2], first.scores[label].perturbed[test, mode])
