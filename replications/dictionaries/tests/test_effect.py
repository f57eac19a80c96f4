"""Claimed effects of atoms: exact where the rest is linear, and those of switching atoms off elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import veridical as vd
from replications.dictionaries.effect import effect
from tests.dictionaries.test_measures import bench, subject  # noqa: F401
from veridical.dictionaries import Bench, Subject


def test_claimed_effects_are_real_where_the_rest_is_linear(subject: Subject) -> None:  # noqa: F811
    assert torch.allclose(effect(subject), torch.ones(8, dtype=torch.float64), atol=1e-4)


def test_effects_are_those_of_switching_atoms_off_one_by_one(bench: Bench, subject: Subject) -> None:  # noqa: F811
    torch.manual_seed(0)
    net = nn.Sequential(bench.task.model.embed, nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3)).eval()
    task = vd.Task(net, bench.task.inputs[:64])
    other = Subject(subject.dictionary, Bench(task, "0", bench.train, parts=2))
    held, h = other.dictionary, bench.test[:32]
    codes = held.encode(h)
    asked = codes.sum(0).topk(16).indices
    found = []
    for row in range(32):
        target = int(task.targets[row])

        def answer(x: Tensor, target: int = target) -> Tensor:
            return net[1:](x).detach()[target] if not x.requires_grad else net[1:](x)[target]

        slope = torch.autograd.functional.jacobian(answer, h[row])
        claims = [float(codes[row, k] * held.decoder[k] @ slope) for k in asked]
        real = [float(answer(h[row]) - answer(h[row] - codes[row, k] * held.decoder[k])) for k in asked]
        found.append(np.corrcoef(claims, real)[0, 1] if np.std(claims) > 0 else np.nan)
    expected = other.bench.means(torch.tensor(found), samples=True)
    assert torch.allclose(effect(other), expected, atol=1e-3)
    assert float(expected.min()) < 0.9999
