"""Outputs kept within a call: bit-equal with and without, bounded, and never those of another task."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import ModelChangedError
from veridical.models import Memo
from veridical.perturb import kept_outputs
from veridical.perturb.kept_outputs import KeptOutputs
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given

MASKS = torch.rand(20, 16, generator=torch.Generator().manual_seed(0)) < 0.4


def image(fill: vd.fills.Fill | float = 0.0, samples: int = 5) -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    x = torch.rand(samples, 1, 8, 8)
    x[:, :, :2, :2] = 0  # a patch that equals its fill
    return vd.Task(net, x, train=torch.rand(9, 1, 8, 8), fill=fill, space=Space.patches((1, 8, 8), 2))


def rows_of(task: vd.Task, evaluate) -> int:
    before = task.predictor.meter.here.forward
    evaluate()
    return task.predictor.meter.here.forward - before


FILLS = [0.0, vd.fills.Mean(), vd.fills.Marginal(4), vd.fills.Marginal(1), vd.fills.UniformNoise()]
FILLS += [vd.fills.Blur(1.0), vd.fills.NoisyLinear()]


@pytest.mark.parametrize("response", ["logit", "probability"])
@pytest.mark.parametrize("fill", FILLS, ids=str)
def test_responses_are_bit_equal_with_and_without(fill, response) -> None:
    task = image(fill)
    memo, plain = Memo(), {"response": response, "with_clean": True}
    for target in range(5):
        own = task.with_targets([target] * 5)
        want = probe(own, Given(MASKS), **plain)
        assert torch.equal(probe(own, Given(MASKS), memo=memo, kept="masks", **plain), want)


def test_samples_that_are_there_are_not_evaluated_again() -> None:
    task, memo = image(), Memo()
    ask = lambda of, name="a": probe(of, Given(MASKS), memo=memo, kept=name)  # noqa: E731
    assert rows_of(task, lambda: ask(task[:2])) == 40
    assert rows_of(task, lambda: ask(task)) == 60
    assert rows_of(task, lambda: ask(task.with_targets([1] * 5))) == 0
    assert rows_of(task, lambda: ask(task, "b")) == 100
    assert torch.equal(ask(task), probe(task, Given(MASKS)))
    assert rows_of(task, lambda: probe(task, Given(MASKS), memo=Memo(), kept="a")) == 100


@pytest.mark.parametrize(
    "other",
    [
        lambda task: task.with_inputs(task.inputs + 0.1),
        lambda task: task.with_noise(0.1, Key(0)),
        lambda task: task.with_fill(0.5),
        lambda task: task.with_space(Space.patches((1, 8, 8), (1, 4))),
        lambda task: task.with_fill(vd.fills.Marginal(4)),
    ],
)
def test_what_decides_a_row_is_told_apart(other) -> None:
    task, memo = image(), Memo()
    changed = other(task)
    for one in (task, changed, task):
        found = probe(one, Given(MASKS), memo=memo, kept="masks")
        assert torch.equal(found, probe(one, Given(MASKS)))


def test_a_fill_of_the_users_own_is_evaluated_every_time() -> None:
    task, memo = image(lambda x, removed: torch.where(removed, torch.rand(()), x)), Memo()
    ask = lambda: probe(task, Given(MASKS), memo=memo, kept="masks")  # noqa: E731
    assert rows_of(task, ask) == rows_of(task, ask) == 100


def test_memory_is_bounded_and_the_oldest_goes_first(monkeypatch) -> None:
    kept, each = KeptOutputs(), torch.zeros(3, 10, 5)
    monkeypatch.setattr(kept_outputs, "KEPT_BYTES", (4 * each[0].nbytes, 0))
    kept.add(["a", "b", "c"], each, None)
    kept.add(["d", "e", "f"], each + 1, None)
    assert [found is None for found in kept.find(list("abcdef"))] == [True, True, False, False, False, False]
    assert kept.size == 4 * each[0].nbytes
    kept.add(["large"], torch.zeros(1, 100, 5), None)
    assert kept.find(["large"]) == [None]
    # a task that does not fit is evaluated all the same, and right
    monkeypatch.setattr(kept_outputs, "KEPT_BYTES", (450, 0))
    task, memo = image(), Memo()
    for _ in range(2):
        assert torch.equal(probe(task, Given(MASKS), memo=memo, kept="x"), probe(task, Given(MASKS)))


def test_a_changed_model_is_refused_though_nothing_is_evaluated() -> None:
    task, memo = image(), Memo()
    probe(task, Given(MASKS), memo=memo, kept="masks")
    with torch.no_grad():
        task.model[0].weight.mul_(2)
    with pytest.raises(ModelChangedError):
        probe(task, Given(MASKS), memo=memo, kept="masks")
