"""Draws that all samples share: their doubt reaches the intervals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.audit.redraws import by_draw, redrawn_shares, shares_of_redraws
from veridical.audit.statistics import resampled_scores, shares_beaten
from veridical.values.scores import Direction, Scores

METHODS = ("saliency", "input_x_gradient", "random")


@pytest.fixture(scope="module")
def scored() -> dict[tuple[str, str], Scores]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    task = vd.Task(net, torch.randn(24, 6))
    return {(who, "gef"): vd.score("gef", task, who, draws=4) for who in METHODS}


def test_the_mean_over_draws_is_the_score(scored):
    for scores in scored.values():
        each = by_draw(scores)
        assert each.shape == (24, 4)
        torch.testing.assert_close(each.nanmean(-1), scores.values, equal_nan=True)


def test_only_metrics_with_shared_draws_are_drawn_again(scored):
    assert redrawn_shares(scored, METHODS, "gef").shape == (400, 3, 24)
    plain = {(who, "m"): Scores(torch.rand(5), Direction.HIGHER, "m", torch.arange(5)) for who in METHODS}
    assert redrawn_shares(plain, METHODS, "m") is None


def test_a_method_that_failed_stays_last_in_every_redrawing(scored):
    some = {cell: scores for cell, scores in scored.items() if cell[0] != "random"}
    assert redrawn_shares(some, METHODS, "gef")[:, 2].abs().max() == 0


def test_redrawings_centre_on_what_all_draws_say():
    each = torch.randn(4, 30, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = shares_of_redraws(each)
    torch.testing.assert_close(found.mean(0), shares_beaten(each.mean(-1)))
    assert found.std(0).max() > 0.05


LEVELS = torch.tensor([0.6, 0.3, 0.0], dtype=torch.float64)


def simulated(generator: torch.Generator, samples: int = 40, draws: int = 5) -> Tensor:
    """Utilities (E, N, M): a level, an effect of the draw that all samples share, and noise of their own."""
    shared = 0.5 * torch.randn(3, 1, draws, generator=generator, dtype=torch.float64)
    own = torch.randn(3, samples, draws, generator=generator, dtype=torch.float64)
    return LEVELS[:, None, None] + shared + own


def coverage(with_redraws: bool) -> float:
    """How often the interval of an audit holds what infinitely many audits say on average."""
    generator = torch.Generator().manual_seed(0)
    many = torch.stack([shares_beaten(simulated(generator).mean(-1)).mean(1) for _ in range(1500)])
    truth, weights, candidates = many.mean(0), torch.ones(1), torch.ones(3, dtype=torch.bool)
    hits = []
    for trial in range(120):
        each = simulated(generator)
        redrawn = {0: shares_of_redraws(each, trial)} if with_redraws else None
        found = resampled_scores(
            shares_beaten(each.mean(-1))[:, None],
            weights,
            candidates,
            redrawn=redrawn,
            resamples=400,
            seed=trial,
        )
        hits.append((found.low <= truth) & (truth <= found.high))
    return float(torch.stack(hits).double().mean())


def test_intervals_cover_what_shared_draws_do():
    assert 0.88 < coverage(with_redraws=True) <= 1.0


def test_samples_alone_would_not():
    """The mutant: intervals that resample samples only are too narrow here."""
    assert coverage(with_redraws=False) < 0.8
