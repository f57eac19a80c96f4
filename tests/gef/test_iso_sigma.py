"""Iso-sigma GEF: closed forms, a slow rewrite, nothing found where nothing is, and power as promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import veridical as vd
from veridical.gef import IsoSigma, evidence, iso_sigma

PATH = (0.1, 0.4, 0.8)


def slow(model: np.ndarray, explanation: np.ndarray) -> float:
    """Of one sample (M, Z): Spearman at each level, averaged on Fisher's scale."""
    z = []
    for level in range(model.shape[1]):
        d_f, d_phi = model[:, level], explanation[:, level]
        if np.ptp(d_f) == 0:
            continue
        rho = 0.0 if np.ptp(d_phi) == 0 else stats.spearmanr(d_f, d_phi).statistic
        z.append(np.arctanh(np.clip(rho, -1 + 1e-6, 1 - 1e-6)))
    return float(np.tanh(np.mean(z))) if z else float("nan")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_agrees_with_the_slow_one() -> None:
    model, moved = drawn(0, 12, 9, 4), (3 * drawn(1, 12, 9, 4)).floor()
    moved[0, :, 1] = 1.0
    model[1, :, 2] = 2.0
    model[2] = 0.0
    expected = [slow(a, b) for a, b in zip(model.numpy(), moved.numpy(), strict=True)]
    np.testing.assert_allclose(iso_sigma(model, moved), expected, atol=1e-12)


def test_one_weight_is_followed_exactly() -> None:
    """D_f = |w x (eta - 1)| and D_phi = |w (eta - 1)| have one order at every level."""
    task = vd.Task(nn.Linear(1, 1, bias=False).double(), drawn(0, 4, 1) + 1, head="regression")
    scores = vd.score(IsoSigma(path=PATH, normalise=False), task, "gradient")
    assert bool((scores.values > 0.999).all())
    found = scores.provenance["iso_sigma"]
    assert found["p_value"] == 1 / 500
    assert found["mean"] > 0.999


def test_who_follows_the_level_alone_scores_zero_where_q_is_high() -> None:
    """Both distances grow with the noise and share nothing else."""
    level = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    model, moved = (level * (0.8 + 0.4 * drawn(seed, 40, 30, 5)) for seed in (0, 1))
    assert float(vd.gef.gef_score(model, moved)[0].mean()) > 0.9
    assert abs(float(iso_sigma(model, moved).mean())) < 0.05
    still = level.expand(40, 30, 5)
    assert torch.equal(iso_sigma(model, still), torch.zeros(40, dtype=torch.float64))


def test_dropped_draws_are_left_out() -> None:
    model, moved = drawn(0, 3, 12, 2), drawn(1, 3, 12, 2)
    model[0, 3, 1] = torch.inf
    moved[1, 4, 0] = torch.nan
    kept = torch.arange(12) != 3
    rho = [
        stats.spearmanr(model[0, k, z], moved[0, k, z]).statistic for z, k in ((0, slice(None)), (1, kept))
    ]
    assert float(iso_sigma(model, moved)[0]) == pytest.approx(float(np.tanh(np.mean(np.arctanh(rho)))))
    few = model.clone()
    few[2, 4:] = torch.nan
    assert bool(iso_sigma(few, moved)[2].isnan())


def related(
    seed: int, strength: float, samples: int = 6, draws: int = 12, levels: int = 3
) -> tuple[Tensor, Tensor]:
    """Distortions of samples that share most of their noise, as they share the noisy models."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    common, other = normal(1, draws, levels), normal(1, draws, levels)
    model = common + 0.5 * normal(samples, draws, levels)
    return model, strength * common + (1 - strength) * (other + 0.5 * normal(samples, draws, levels))


def test_where_nothing_is_followed_little_is_found() -> None:
    """Samples that share their perturbed models are no independent witnesses: 5% stays 5%."""
    p = np.array([evidence(*related(seed, 0.0), key=vd.core.Key(seed)).p_value for seed in range(100)])
    assert (p <= 0.05).mean() <= 0.11
    assert 0.4 < p.mean() < 0.6


def test_its_power_is_what_it_says() -> None:
    found = [evidence(*related(seed, 0.35), key=vd.core.Key(seed)) for seed in range(60)]
    effect = float(np.mean([each.mean for each in found]))
    promised = float(np.mean([each.power(effect) for each in found]))
    seen = float(np.mean([each.p_value <= 0.05 for each in found]))
    assert abs(promised - seen) < 0.15
    held = np.mean([each.interval[0] <= effect <= each.interval[1] for each in found])
    assert held >= 0.85
    more = found[0].draws_for(effect / 2)
    assert found[0].draws_for(effect) < more <= 4 * (found[0].draws_for(effect) + 2)


def test_draws_are_chosen_for_a_wanted_resolution() -> None:
    task = vd.tasks.load("digits")[:4]
    coarse, fine = (
        vd.gef.with_draws_for(task, "gradient", effect, metric=IsoSigma(path=PATH)) for effect in (0.6, 0.3)
    )
    assert 5 <= coarse.draws < fine.draws <= 4 * coarse.draws + 4
    assert fine.path == PATH
    scores = vd.score(fine, task, "gradient")
    assert scores.provenance["iso_sigma"]["draws"] == fine.draws
    kept = vd.gef.Evidence(
        **{k: scores.provenance["iso_sigma"][k] for k in vd.gef.Evidence.__dataclass_fields__}
    )
    assert kept.power(0.3) == pytest.approx(0.8, abs=0.15), (
        "the power that was asked for is the power reached"
    )
    with pytest.raises(vd.errors.InputError, match="effect is a finite number above 0"):
        vd.gef.with_draws_for(task, "gradient", 0.0)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(vd.errors.InputError, match="draws is a whole number from 5"):
        IsoSigma(draws=4)
    with pytest.raises(vd.errors.InputError, match="mean_then_correlate"):
        IsoSigma(mean_then_correlate=True)
    with pytest.raises(vd.errors.InputError, match="effect is a finite number above 0"):
        evidence(*related(0, 0.0)).draws_for(1.5)
    with pytest.raises(vd.errors.InputError, match="power is between level"):
        evidence(*related(0, 0.0)).draws_for(power=0.01)


def test_a_constant_map_is_flagged() -> None:
    task = vd.tasks.load("digits")[:4]
    scores = vd.score(IsoSigma(path=PATH, draws=5), task, "constant")
    assert torch.equal(scores.values, torch.zeros(4, dtype=torch.float64))
    assert scores.flagged["the explanation does not move"] == 4


def test_maps_that_are_no_numbers_are_flagged_and_no_evidence() -> None:
    task = vd.Task(nn.Linear(5, 3), torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))
    scores = vd.score(
        IsoSigma(path=PATH, draws=5), task, lambda model, inputs, targets: torch.full_like(inputs, torch.nan)
    )
    assert bool(scores.values.isnan().all())
    assert max(scores.flagged.values()) == 4
    sure = scores.provenance["iso_sigma"]
    assert sure["p_value"] == 1  # it was the smallest there is: no shuffle is above what is no number
    assert sure["draws_for_0.2"] is None
    with pytest.raises(vd.errors.InputError, match="no sample has an iso-sigma"):
        evidence(torch.rand(2, 6, 2), torch.full((2, 6, 2), torch.nan)).draws_for()
