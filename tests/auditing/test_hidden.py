"""Vetoes: who hides a feature is found and named, who is right is left in peace."""

import math

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference import auditing as slow
from veridical.auditing.hidden import (
    HIDDEN_SHARE,
    LEVEL,
    LOST_SHARE,
    agreement_with,
    hidden_feature,
    hidden_features,
    lies_in_some,
    lower_bound,
)
from veridical.auditing.measured_effects import Effects

COLUMNS = vd.Space.columns(10)


def drawn(seed, samples=64, features=10, error=0.0):
    """Effects in which feature 3 is mostly the strongest."""
    dice = torch.Generator().manual_seed(seed)
    values = torch.randn(samples, features, generator=dice, dtype=torch.float64) * 0.3
    values[:, 3] = 1 + torch.rand(samples, generator=dice, dtype=torch.float64)
    values[:, 5] = torch.where(torch.rand(samples, generator=dice) < 0.5, -1.2, 0.1)
    return Effects(values, torch.full_like(values, error), True, 0)


def veto_of(maps, effects, **more):
    return hidden_feature(maps, effects, COLUMNS, **more)


@pytest.mark.parametrize("seed", range(8))
def test_hidden_features_agree_with_the_slow_ones(seed):
    dice = np.random.default_rng(seed)
    effects = dice.normal(size=(12, 9)) * dice.choice([0.2, 1, 3], (12, 9))
    errors = dice.uniform(0, 0.3, (12, 9)) * (seed % 2)
    maps = np.round(dice.normal(size=(12, 9)), seed % 3)  # with ties
    maps[:4] = np.abs(maps[:4])
    maps[5] = math.nan
    valid = dice.random((12, 9)) < 0.9 if seed % 3 else np.ones((12, 9), bool)
    expected = slow.hidden(maps, effects, errors, valid)
    found = hidden_features(*map(torch.tensor, (maps, effects, errors, valid)))
    assert expected[0].any()
    for one, other in zip(found, expected, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["signed", "sizes", "positive part"])
def test_the_effects_themselves_hide_nothing(seed, kind):
    effects = drawn(seed)
    values = effects.values
    maps = {"signed": values, "sizes": values.abs(), "positive part": values.clamp(min=0)}[kind]
    tested, hidden = hidden_features(maps, effects.values, effects.errors)
    assert bool(tested.any())
    assert not bool(hidden.any())
    found = veto_of(maps, effects)
    assert not found.fell
    assert found.share == 0.0
    assert found.samples >= 32
    assert found.sentence.startswith("no hidden feature was found in")


def test_a_blanked_feature_is_found_and_named():
    effects = drawn(0)
    maps = effects.values.clone()
    maps[:, 3] = 0
    found = veto_of(maps, effects)
    assert found.fell
    assert found.feature == "column 3"
    assert "'column 3'" in found.sentence
    assert found.share == 1.0
    # two features are strong often enough
    assert found.low == pytest.approx(slow.lower_bound(64, 64, 0.01 / 2))


def test_a_scapegoat_is_found():
    effects = drawn(1)
    maps = effects.values.clone()
    maps[:, [3, 7]] = maps[:, [7, 3]]
    found = veto_of(maps, effects)
    assert found.fell
    assert found.feature == "column 3"


def test_a_constant_map_hides_what_is_strong():
    assert veto_of(torch.ones(64, 10), drawn(0)).fell


def test_what_is_shown_needs_small_errors():
    """Where errors are as large as effects nothing is strong, so nothing is tested."""
    effects = drawn(0, error=1.0)
    maps = torch.zeros(64, 10)
    found = veto_of(maps, effects)
    assert not found.fell
    assert found.samples == 0
    assert "not tested" in found.sentence


def test_rare_features_are_not_tested():
    """Strong in 13 of 66 samples is too seldom, in 13 of 65 it is not; nor are 11 of 24 enough."""
    for samples, strong, tested in ((66, 13, False), (65, 13, True), (24, 11, False), (24, 12, True)):
        values = torch.full((samples, 10), 0.01, dtype=torch.float64)
        values[:strong, 3] = 1
        effects = Effects(values, torch.zeros_like(values), True, 0)
        found = veto_of(-values.abs() * (values < 0.5), effects)
        assert found.fell == tested
        assert (found.samples > 0) == tested


def test_a_missing_map_shows_nothing():
    effects = drawn(0)
    found = veto_of(torch.full((64, 10), torch.nan), effects)
    assert not found.fell
    assert found.samples == 0


def test_words_of_texts_are_not_compared():
    found = hidden_feature(torch.zeros(64, 10), drawn(0), vd.Space.tokens(10, torch.ones(64, 10) > 0))
    assert not found.fell
    assert "not those of another" in found.sentence


@pytest.mark.parametrize(("hits", "samples"), [(0, 20), (1, 20), (7, 30), (20, 20)])
def test_the_bound_is_that_of_the_binomial(hits, samples):
    assert lower_bound(hits, samples, 0.01) == pytest.approx(slow.lower_bound(hits, samples, 0.01), abs=1e-9)


def test_the_bound_of_all_hits_in_closed_form():
    assert lower_bound(12, 12, 0.01) == pytest.approx(0.01 ** (1 / 12))


def test_the_level_is_kept_at_the_threshold():
    """Five features, each hidden in just the share that is allowed: a false veto in at most 1% of audits."""
    dice = np.random.default_rng(0)
    hits = dice.binomial(40, HIDDEN_SHARE, (4000, 5))
    bounds = {k: lower_bound(k, 40, LEVEL / 5) for k in range(41)}
    fell = [any(bounds[int(k)] > HIDDEN_SHARE for k in row) for row in hits]
    assert np.mean(fell) <= 0.013


# --- samples in which it lies -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_agreement_is_the_correlation_with_the_effects(seed):
    effects = drawn(seed, samples=20)
    maps = torch.randn(20, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    maps[3], maps[4] = torch.nan, 7.0
    found = agreement_with(maps, effects)
    for n, row in enumerate(maps):
        if n == 3:
            assert math.isnan(found[n])
        else:
            r = 0.0 if n == 4 else np.corrcoef(row.numpy(), effects.values[n].numpy())[0, 1]
            assert float(found[n]) == pytest.approx(r)


def test_maps_without_signs_agree_with_sizes_or_with_the_positive_part():
    effects = drawn(0)
    for maps in (effects.values.abs(), effects.values.clamp(min=0)):
        torch.testing.assert_close(agreement_with(maps, effects), torch.ones(64).double())
    assert float(agreement_with(-effects.values, effects).max()) == pytest.approx(-1)


def test_no_effect_and_no_third_feature_show_nothing():
    effects = drawn(0, error=10.0)
    assert bool(agreement_with(effects.values, effects).isnan().all())
    two = Effects(effects.values[:, :2], torch.zeros(64, 2), True, 0)
    assert bool(agreement_with(two.values, two).isnan().all())
    valid = torch.ones(64, 10, dtype=torch.bool)
    valid[0, 2:] = False
    sure = drawn(0)
    assert agreement_with(sure.values, sure, valid).isnan().tolist() == [True] + [False] * 63


def test_padding_is_left_out():
    effects, valid = drawn(0), torch.arange(10) < torch.full((64, 1), 6)
    maps = effects.values.masked_fill(~valid, torch.nan)
    torch.testing.assert_close(agreement_with(maps, effects, valid), torch.ones(64).double())


def scores(samples=64, lost=0, value=0.4):
    agrees = torch.full((samples,), 1.0, dtype=torch.float64)
    agrees[:lost] = value
    return agrees


def test_a_method_that_always_agrees_does_not_lie():
    found = lies_in_some(scores())
    assert not found.fell
    assert (found.share, found.low, found.samples) == (0.0, 0.0, 64)
    assert found.sentence == "no samples in which it lies were found among 64"


@pytest.mark.parametrize(("lost", "fell"), [(1, False), (8, False), (9, True), (20, True)])
def test_some_lost_samples_are_found(lost, fell):
    found = lies_in_some(scores(lost=lost))
    assert found.fell is fell
    assert found.share == lost / 64
    assert found.low == pytest.approx(slow.lower_bound(lost, 64, 0.01))
    assert (found.low > LOST_SHARE) is fell


def test_half_below_the_median_is_not_lost():
    """Nor is a weak method blamed for being weak."""
    assert lies_in_some(scores(lost=20, value=0.5)).share == 0.0
    weak = torch.linspace(0.2, 0.9, 64)
    assert not lies_in_some(weak).fell
    assert lies_in_some(weak).share == 0.0


@pytest.mark.parametrize("lie", ["negated", "noise"])
def test_lies_in_a_quarter_of_the_samples_are_found(lie):
    effects = drawn(2)
    noise = torch.randn(64, 10, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    maps = effects.values.clone()
    maps[::4] = -maps[::4] if lie == "negated" else noise[::4]
    found = lies_in_some(agreement_with(maps, effects))
    assert found.fell
    assert "disagrees with the measured effects, unlike in most" in found.sentence
    assert not lies_in_some(agreement_with(effects.values, effects)).fell


def test_the_worst_class_is_named():
    targets = torch.arange(64) % 4
    agrees = scores()
    agrees[targets == 2] = torch.tensor([0.0, 0.3, 1, 1] * 4, dtype=torch.float64)
    found = lies_in_some(agrees, targets, ["a", "b", "c", "d"])
    assert found.fell
    assert found.feature == "c"
    assert "of class 'c'" in found.sentence
    assert found.share == 0.5
    assert found.low == pytest.approx(slow.lower_bound(8, 16, 0.01 / 5))


def test_small_classes_are_not_looked_at():
    targets = torch.tensor([0] * 57 + [1] * 7)
    agrees = scores()
    agrees[57:] = 0.0
    assert lies_in_some(agrees, targets).feature == ""


def test_samples_that_show_nothing_do_not_count():
    agrees = scores(lost=9)
    agrees[20:40] = torch.nan
    found = lies_in_some(agrees, torch.arange(64) % 2)
    assert (found.samples, found.share) == (44, 9 / 44)
    assert not lies_in_some(torch.full((64,), torch.nan)).fell
    assert not lies_in_some(torch.empty(0)).fell
