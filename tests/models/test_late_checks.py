"""What a GPU's scores leave to their readers is found by every reader, and nothing else changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import veridical as vd
from benchmarks.launches import as_on_a_gpu
from veridical.errors import InputError, ModelError, VeridicalWarning
from veridical.metrics import ExplainerMetric, registry
from veridical.models.sessions import Question, look_later
from veridical.perturb.shared_work import sharing
from veridical.values.scores import Direction, Scores

CPU = torch.device("cpu")


class Breaking(nn.Module):
    """Answers NaN where an input is all zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.flatten(1).sum(-1, keepdim=True)
        return torch.cat([total, -total], 1) / total.abs()


class Exploding(vd.Explainer):
    name = "exploding"

    def attribute(self, task, key):
        maps = task.inputs.clone()
        maps[1, 0] = torch.inf
        return maps


def task_of(model: nn.Module | None = None) -> vd.Task:
    torch.manual_seed(0)
    return vd.Task(model or nn.Linear(6, 3), torch.rand(5, 6) + 0.1, train=torch.rand(4, 6), fill=0.0)


def raised() -> None:
    raise ModelError("wrong")


def scores(*looks, flags=None) -> Scores:
    return Scores(torch.zeros(2), Direction.HIGHER, "m", torch.arange(2), flags=flags or {}, unchecked=looks)


def test_a_look_is_taken_at_once_where_nobody_collects_or_nobody_waits():
    with pytest.raises(ModelError), as_on_a_gpu():
        look_later(CPU, raised)
    with pytest.raises(ModelError), Question(task_of().predictor):
        look_later(CPU, raised)


def test_what_is_collected_is_nobody_elses():
    predictor = task_of().predictor
    with as_on_a_gpu(), Question(predictor) as outer:
        whether_it_changed = len(outer.unchecked)
        with Question(predictor) as inner:
            look_later(CPU, raised)
        look_later(CPU, raised)
    assert (len(outer.unchecked), len(inner.unchecked)) == (whether_it_changed + 1, 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.values,
        lambda s: s.flags,
        lambda s: s.curve,
        lambda s: s.details,
        lambda s: s.mean(),
        lambda s: s.take(slice(0, 1)),
        lambda s: s.settle(),
        repr,
        pickle.dumps,
        copy.copy,
    ],
)
def test_every_way_of_reading_raises_what_is_wrong_every_time(read):
    with as_on_a_gpu():
        broken = scores(raised)
        assert len(broken) == 2
        for _ in range(2):
            with pytest.raises(ModelError, match="wrong"):
                read(broken)


def test_on_a_cpu_what_is_wrong_is_raised_while_the_score_is_made():
    with pytest.raises(ModelError, match="wrong"):
        scores(raised)


def test_flags_that_nobody_carries_are_dropped_when_they_are_read():
    flags = {"some": torch.tensor([True, False]), "none": torch.zeros(2, dtype=torch.bool)}
    with as_on_a_gpu():
        read = scores(flags=flags).flags
    assert list(read) == list(scores(flags=flags).flags) == ["some"]


def test_a_look_is_taken_once():
    seen = []
    with as_on_a_gpu():
        once = scores(lambda: seen.append(1))
        assert not seen
        _ = once.values, once.flags, once.values
    assert seen == [1]


def test_no_other_attribute_is_made_up():
    with as_on_a_gpu(), pytest.raises(AttributeError, match="nothing"):
        _ = scores().nothing


@pytest.mark.parametrize("name", ["pixel_flipping", "completeness", "insertion", "monotonicity"])
def test_a_model_that_answers_nan_is_refused_when_the_score_is_read(name):
    task = task_of(Breaking())
    maps = vd.explain("gradient", task)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.score(name, task, maps)
    with as_on_a_gpu():
        found = vd.score(name, task, maps)
        with pytest.raises(ModelError, match="NaN or infinity"):
            _ = found.values


class Logarithm(nn.Module):
    """Answers minus infinity where one element of an input is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.log().sum(-1, keepdim=True)
        return torch.cat([total, -total], 1)


def test_answers_that_are_shared_are_refused_by_all_who_share_them():
    task = task_of(Logarithm())
    maps = [vd.explain(name, task) for name in ("gradient", "saliency")]
    metric = registry.make("faithfulness_correlation", runs=5, response="logit")
    with as_on_a_gpu(), sharing(task):
        for scored in [vd.score(metric, task, each) for each in (*maps, *maps)]:
            with pytest.raises(ModelError, match="NaN or infinity"):
                _ = scored.values


@pytest.mark.parametrize("name", ["max_sensitivity", "consistency", "sufficiency", "random_logit", "mprt"])
def test_a_map_that_is_infinite_is_refused_when_the_score_is_read(name):
    task = task_of()
    with pytest.raises(InputError, match=r"in samples \[1\]"):
        vd.score(name, task, Exploding())
    with as_on_a_gpu():
        found = vd.score(name, task, Exploding())
        with pytest.raises(InputError, match=r"in samples \[1\]"):
            _ = found.values


def test_an_explanation_is_looked_at_when_its_values_are_read():
    task = task_of()
    with pytest.raises(InputError, match="infinite"):
        vd.explain(Exploding(), task)
    with as_on_a_gpu():
        made = vd.explain(Exploding(), task)
        for read in (lambda: made.values, lambda: made.whole, lambda: made.order, made.settle):
            with pytest.raises(InputError, match="infinite"):
                read()


def test_cells_that_fail_are_told_by_evaluate_alike():
    task = task_of(Breaking())

    def cells() -> tuple[set, set]:
        with pytest.warns(VeridicalWarning):
            done = vd.evaluate(task, ["gradient", Exploding()], ["pixel_flipping", "sparseness"])
        return set(done.scores), {(f.explainer, f.metric, f.message) for f in done.failures}

    at_once = cells()
    with as_on_a_gpu():
        assert cells() == at_once
    assert at_once[0] == {("gradient", "sparseness")}


def test_scores_are_the_same_to_the_bit():
    task = task_of()
    for name in registry:
        metric = registry.make(name)
        if name in ("gef", "fast_gef", "ffid_plus", "ffid_minus") or metric.why_not(task) is not None:
            continue
        subject = "gradient" if isinstance(metric, ExplainerMetric) else vd.explain("gradient", task)
        at_once = vd.score(metric, task_of(), subject)
        with as_on_a_gpu():
            later = vd.score(metric, task_of(), subject)
        assert torch.equal(at_once.values, later.values) or bool(at_once.values.isnan().any())
        torch.testing.assert_close(at_once.values, later.values, rtol=0, atol=0, equal_nan=True)
        assert list(at_once.flags) == list(later.flags), name
        assert (at_once.cost, at_once.provenance) == (later.cost, later.provenance)
