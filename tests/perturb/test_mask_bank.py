"""The bank of masks: what is in it, what its weights stand for, and that its rows are evaluated once."""

from __future__ import annotations

from math import comb

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_models import Text, mlp
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.models import Memo
from veridical.models.context import Context
from veridical.perturb.mask_bank import Bank, banks
from veridical.perturb.subset_table import FEW


def columns(features: int, samples: int = 3) -> vd.Task:
    torch.manual_seed(features)
    return vd.Task(mlp(features, 4).double(), torch.randn(samples, features).double(), fill=0.0)


def only(task: vd.Task, count: int = 512, seed: int = 0) -> Bank:
    (bank,) = banks(task, Context(Key(seed)), count)
    return bank


def rows_of(task: vd.Task, evaluate) -> int:
    before = task.predictor.meter.here.forward
    evaluate()
    return task.predictor.meter.here.forward - before


def mean_by_enumeration(features: int, value) -> float:
    """The mean of a function of sets, their size uniform on 0..D, uniform among those of their size."""
    total = 0.0
    for code in range(2**features):
        gone = [i for i in range(features) if code >> i & 1]
        total += value(gone) / comb(features, len(gone)) / (features + 1)
    return total


@pytest.mark.parametrize("features", [1, 2, 5, 8])
def test_few_features_have_every_set_once(features: int) -> None:
    bank = only(columns(features))
    codes = (bank.masks.long() * (1 << torch.arange(features))).sum(-1)
    assert bank.every
    assert (codes.sort(-1).values == torch.arange(2**features)).all()
    assert torch.allclose(bank.weights.sum(-1), torch.ones(3).double())
    value = lambda gone: sum((i + 1) ** 2 for i in gone) + 3.0 * (0 in gone)  # noqa: E731
    found = sum(
        float(w) * value(m.nonzero()[:, 0].tolist())
        for w, m in zip(bank.weights[0], bank.masks[0], strict=True)
    )
    assert found == pytest.approx(mean_by_enumeration(features, value))


@pytest.mark.parametrize("features", [FEW + 1, 40])
def test_responses_are_those_of_the_masked_rows(features: int) -> None:
    task = columns(features)
    bank = only(task, 64)
    for i in range(len(task)):
        kept = task.inputs[i] * ~bank.masks[i]
        with torch.no_grad():
            outputs = task.model(kept)
        assert torch.allclose(bank.outputs[i], outputs, atol=1e-9)
        assert torch.allclose(bank.responses[i], outputs[:, task.targets[i]], atol=1e-7)
    assert not bank.masks[:, 0].any()
    assert bank.masks[:, 1].all()
    # each set stands beside what it leaves
    assert (bank.masks[:, 2::2] ^ bank.masks[:, 3::2]).all()


@pytest.mark.parametrize("even", [False, True])
def test_weights_estimate_means_over_sets_of_uniform_size(even: bool) -> None:
    features, draws = 14, 200
    task, above = columns(features, 1), features - even
    each = [next(banks(task, Context(Key(seed)), 129, above)) for seed in range(draws)]
    size = torch.arange(features + 1).double()
    for value in (size, size.square(), (size == 1).double(), (size == 7).double()):
        found = torch.stack([(bank.weights[0] * value[bank.masks[0].sum(-1)]).sum() for bank in each])
        error = float(found.std()) / draws**0.5
        assert abs(float(found.mean() - value.mean())) < 4 * error + 1e-9
    # drawn with uniform sizes or, as Shapley's kernel has it, those of one feature more often
    single = torch.stack([(bank.masks[0, 2:].sum(-1) == 1).double().mean() for bank in each])
    assert (abs(float(single.mean()) - 1 / (features - 1)) < 0.01) == even


def test_a_part_of_a_task_has_the_masks_of_the_whole() -> None:
    task = columns(20)
    assert (only(task).masks[1:] == only(task[1:]).masks).all()
    assert not (only(task, seed=1).masks == only(task, seed=0).masks).all()


def test_samples_of_other_lengths_have_banks_of_their_own() -> None:
    torch.manual_seed(0)
    valid = torch.arange(20) < torch.tensor([20, 3, 3, 16])[:, None]
    ids = torch.randint(1, 20, (4, 20))
    task = vd.Task(Text().double().eval(), ids, space=Space.tokens(20, valid), fill=vd.fills.Token(0))
    found = {tuple(bank.rows.tolist()): bank for bank in banks(task, Context(Key(0)))}
    assert {rows: bank.every for rows, bank in found.items()} == {(1, 2): True, (0, 3): False}
    for rows, bank in found.items():
        assert not (bank.masks & ~valid[list(rows)][:, None]).any()


@pytest.mark.parametrize("fill", [0.0, vd.fills.Marginal(7), vd.fills.NoisyLinear()])
def test_rows_are_evaluated_once_for_every_output(fill) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    x, train = torch.rand(6, 1, 8, 8), torch.rand(9, 1, 8, 8)
    task = vd.Task(net, x, train=train, fill=fill, space=Space.patches((1, 8, 8), 2))
    memo, repeats = Memo(), task.fill.repeats_on(task)
    context = lambda: Context(Key(2), memo=memo)  # noqa: E731

    def responses(of: vd.Task) -> torch.Tensor:
        (bank,) = banks(of, context(), 101)
        return bank.responses

    assert rows_of(task, lambda: responses(task)) == 6 * 101 * repeats
    for other in (task.with_targets((task.targets + 1) % 5), task[2:5], task[[4, 1]].with_targets([0, 0])):
        (alone,) = banks(other, Context(Key(2)), 101)
        want = alone.responses
        assert rows_of(task, lambda: responses(other)) == 0  # noqa: B023
        # fills by linear systems differ in their last bits from one batch to another
        assert torch.allclose(responses(other), want, rtol=0, atol=0 if fill == 0.0 else 1e-5)
    (bank,) = banks(task, context(), 101)
    assert rows_of(task, lambda: bank.outputs) == 0
    # other weights, another seed and another count are other rows
    others = (task.with_noise(0.1, Key(1)), task)
    assert rows_of(task, lambda: responses(others[0])) == 6 * 101 * repeats
    (seeded,) = banks(task, Context(Key(3), memo=memo), 101)
    (longer,) = banks(task, Context(Key(2), memo=memo), 103)
    assert rows_of(task, lambda: seeded.responses) == 6 * 101 * repeats
    assert rows_of(task, lambda: longer.responses) == 6 * 103 * repeats
