"""The probability of being best, against draws of its own prior."""

from __future__ import annotations

import pytest
import torch

from replications.verdict.best_probability import SCALE, best_probability
from tests.functional import cases
from tests.reference import functional as reference
from veridical.functional import mean_units, win_units


def drawn(methods, samples, lead, seed=0):
    scores = cases.smooth(methods, samples, seed=seed)
    scores[0] += lead
    return mean_units(win_units(scores[:, None], scores[None], 1e-9))


@pytest.mark.parametrize("lead", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("samples", [10, 64])
def test_two_methods_agree_with_weighing_draws_of_the_prior(lead, samples):
    units = drawn(2, samples, lead)
    expected = reference.best_of_two((units[0] - units[1]).tolist(), SCALE, 40_000, seed=1)
    got = best_probability(units)
    assert got[0].item() == pytest.approx(expected, abs=0.02)
    assert got.sum().item() == pytest.approx(1.0)


def test_claims_are_drawn_towards_no_difference():
    """A narrow prior hardly claims anything, a wide one what a normal test would."""
    units = drawn(2, 64, 0.3)
    difference = units[0] - units[1]
    z = difference.mean() / (difference.std() / 8)
    flat = float(torch.special.ndtr(z))
    narrow, usual, wide = (best_probability(units, scale=s)[0].item() for s in (1e-4, SCALE, 100.0))
    assert abs(narrow - 0.5) < 0.05 < usual - 0.5
    assert usual < wide == pytest.approx(flat, abs=0.02)


def test_groups_add_up_and_copies_share():
    units = drawn(4, 64, 0.5)
    alone = best_probability(units)
    grouped = best_probability(units, [(0, 2), (1,), (3,)])
    cases.assert_same(grouped, torch.stack([alone[0] + alone[2], alone[1], alone[3]]))
    scores = cases.smooth(3, 64)
    scores[1] = scores[0]
    units = mean_units(win_units(scores[:, None], scores[None], 1e-9))
    copies = best_probability(units)
    assert copies[0].item() == pytest.approx(copies[1].item(), abs=1e-12)


def test_certainty_where_samples_never_differ():
    units = torch.tensor([[1.0], [0.0]]).expand(2, 20)
    assert best_probability(units).tolist() == [1.0, 0.0]
