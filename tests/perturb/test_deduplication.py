"""Sets that are asked once: the same answers for fewer rows, and none where inputs are not alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core.key import Key
from veridical.perturb.fills import Fill, UniformNoise, Zero
from veridical.perturb.probe import probe
from veridical.perturb.rules import RankThreshold
from veridical.perturb.shared_work import sharing
from veridical.values.space import Space

SAMPLES, SIDE = 5, 4


class Net(nn.Module):
    """A small network, whose answer side inputs may shift."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.Generator().manual_seed(3)
        self.first = nn.Parameter(torch.randn(SIDE * SIDE, 6, generator=weights, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(6, 3, generator=weights, dtype=torch.float64))

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        out = (x.flatten(1) @ self.first).tanh() @ self.second
        return out if shift is None else out + shift


def half_black(**options: object) -> vd.Task:
    """Images most of whose pixels are black, each with another number of lit ones."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 1, SIDE, SIDE, generator=draw, dtype=torch.float64)
    for sample in range(SAMPLES):
        x[sample].view(-1)[3 + sample :] = 0.0
    return vd.Task(Net(), x, **options)  # type: ignore[arg-type]


def rule(seed: int, counts: list[int] | Tensor) -> RankThreshold:
    draw = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(SIDE * SIDE, generator=draw) for _ in range(SAMPLES)])
    return RankThreshold(ranks, torch.as_tensor(counts))


def asked(task: vd.Task, ask: Callable[[], Tensor]) -> tuple[Tensor, int]:
    before = task.predictor.meter.forward
    return ask(), task.predictor.meter.forward - before


def distinct_sets(task: vd.Task, rules: list[RankThreshold]) -> int:
    """The slow way: every masked image written out; those unlike the clean input and unlike black."""
    total, black = 0, 0
    for one in rules:
        removed = one.removed(slice(0, SAMPLES), slice(0, one.count))
        for sample, x in enumerate(task.inputs):
            images = {tuple(x.flatten().masked_fill(gone, 0.0).tolist()) for gone in removed[sample]}
            images.discard(tuple(x.flatten().tolist()))
            empty = tuple([0.0] * x.numel())
            black = black or int(empty in images)
            total += len(images - {empty})
    return total + black


@pytest.mark.parametrize("counts", [[1, 2, 5, 8, 12, 16], [16, 12, 8, 5, 2, 1], [4, 8]])
@pytest.mark.parametrize("response", ["logit", "probability"])
def test_each_set_is_asked_once_and_answers_are_the_same(counts: list[int], response: str) -> None:
    task = half_black()
    rules = [rule(seed, counts) for seed in (1, 2)]
    plain = [probe(task, one, response=response, with_clean=True) for one in rules]  # type: ignore[arg-type]
    with sharing(task, once=True):
        found, rows = asked(
            task,
            lambda: torch.stack([probe(task, one, response=response, with_clean=True) for one in rules]),  # type: ignore[arg-type]
        )
    assert torch.allclose(found, torch.stack(plain), rtol=0, atol=1e-12)
    assert rows == distinct_sets(task, rules) < 2 * SAMPLES * len(counts)


def test_counts_may_differ_between_samples() -> None:
    task = half_black()
    one = rule(1, torch.tensor([[1 + s, 4 + s, 16] for s in range(SAMPLES)]))
    with sharing(task, once=True):
        found, rows = asked(task, lambda: probe(task, one))
    assert torch.allclose(found, probe(task, one), rtol=0, atol=1e-12)
    assert rows == distinct_sets(task, [one])


def test_no_more_than_a_chunk_at_a_time() -> None:
    task = half_black()
    small = task.with_plan(vd.Plan(rows=8))
    one = rule(1, list(range(1, 17)))
    with sharing(small, once=True):
        found, rows = asked(small, lambda: probe(small, one))
    assert torch.allclose(found, probe(task, one), rtol=0, atol=1e-9)
    assert rows == distinct_sets(task, [one])


def test_fills_of_ones_own_are_asked_as_ever() -> None:
    every(half_black(), UniformNoise())


def test_side_inputs_tell_samples_apart() -> None:
    every(half_black(side=(torch.randn(SAMPLES, 3, dtype=torch.float64),)), Zero())


def test_what_is_no_feature_stays() -> None:
    labels = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE).clone()
    labels[0, 0], labels[labels > 0] = -1, labels[labels > 0] - 1
    task = half_black(space=Space.superpixels((1, SIDE, SIDE), labels))
    ranks = torch.arange(SIDE * SIDE - 1).expand(SAMPLES, -1)
    every(task, Zero(), RankThreshold(ranks, torch.tensor([3, 15])))


def every(task: vd.Task, fill: Fill, one: RankThreshold | None = None) -> None:
    """All masks of all samples are asked, with the same answers."""
    one = one or rule(1, [2, 8, 16])
    with sharing(task, once=True):
        found, rows = asked(task, lambda: probe(task, one, fill=fill, key=Key(1)))
    assert rows == SAMPLES * one.count
    assert torch.equal(found, probe(task, one, fill=fill, key=Key(1)))


def test_unless_told_so_every_row_is_asked() -> None:
    task = half_black()
    with sharing(task):
        assert asked(task, lambda: probe(task, rule(1, [2, 8, 16])))[1] == SAMPLES * 3


def signature_holds(signature: Callable[[RankThreshold, Tensor], Tensor]) -> bool:
    """Whether a signature is the number of removed features that matter, counted one by one."""
    one = rule(4, [0, 1, 7, 16])
    matters = torch.rand(SAMPLES, SIDE * SIDE, generator=torch.Generator().manual_seed(1)) < 0.4
    removed = one.removed(slice(0, SAMPLES), slice(0, one.count))
    return torch.equal(signature(one, matters), (removed & matters[:, None]).sum(-1))


def test_a_signature_counts_what_matters() -> None:
    assert signature_holds(RankThreshold.signature)
    # off by one, and blind to what matters: both must fail
    assert not signature_holds(
        lambda one, matters: RankThreshold(one.ranks, one.counts.clamp(min=1) - 1).signature(matters)
    )
    assert not signature_holds(lambda one, matters: one.signature(torch.ones_like(matters)))
