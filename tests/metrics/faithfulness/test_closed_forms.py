"""On linear models with zero fill, and on logits, every metric has a known value."""

import pytest
import torch

from tests.metrics.faithfulness.cases import explained, linear_task, random_map, text_task, weights_of
from veridical.metrics import (
    Comprehensiveness,
    Deletion,
    FaithfulnessCorrelation,
    FaithfulnessEstimate,
    Infidelity,
    Insertion,
    Monotonicity,
    MonotonicityCorrelation,
    PixelFlipping,
    RegionPerturbation,
    Selectivity,
    SensitivityN,
    TextSufficiency,
)

close = torch.testing.assert_close


@pytest.fixture(scope="module")
def task():
    return linear_task()


@pytest.fixture(scope="module")
def exact(task):
    """Input x gradient: what each feature adds to the logit."""
    return explained(task, task.inputs * weights_of(task))


@pytest.mark.parametrize(
    "metric",
    [
        FaithfulnessCorrelation(runs=20, response="logit"),
        SensitivityN(draws=20, shares=(0.1, 0.3, 0.7), response="logit"),
        FaithfulnessEstimate(response="logit"),
        FaithfulnessEstimate(per_step=4, response="logit"),
    ],
)
def test_exact_contributions_correlate_perfectly(task, exact, metric):
    def rejects_nothing(explanation):
        scores = metric(task, explanation)
        assert not scores.flags
        close(scores.values, torch.ones(len(task), dtype=torch.float64), atol=1e-6, rtol=0)

    rejects_nothing(exact)
    for mutant in (exact.with_values(-exact.values), exact.with_values(exact.values.roll(1, -1))):
        with pytest.raises(AssertionError):
            rejects_nothing(mutant)


def test_monotonicity_correlation_of_exact_contributions_is_one(task, exact):
    from veridical.perturb.fills import Zero

    metric = MonotonicityCorrelation(response="logit", fill=Zero())
    close(metric(task, exact).values, torch.ones(len(task), dtype=torch.float64))
    # its sign does not matter, its order does
    close(metric(task, exact.with_values(-exact.values)).values, torch.ones(len(task), dtype=torch.float64))
    assert (metric(task, exact.with_values(exact.values.roll(1, -1))).values < 0.99).all()


@pytest.mark.parametrize("perturbation", ["removal", "noise"])
def test_infidelity_of_the_exact_gradient_is_zero(task, exact, perturbation):
    metric = Infidelity(draws=20, perturbation=perturbation, response="logit")
    gradient = explained(task, weights_of(task))
    assert metric(task, gradient).values.max() < 1e-12
    # a sign flipped or a doubled gradient predicts something else
    assert metric(task, gradient.with_values(-gradient.values)).values.min() > 1e-3
    doubled = gradient.with_values(2 * gradient.values)
    assert metric(task, doubled).values.min() > 1e-3
    scaled = Infidelity(draws=20, perturbation=perturbation, response="logit", scaling="optimal")
    assert scaled(task, doubled).values.max() < 1e-12


def test_infidelity_of_exact_contributions_in_their_own_units_is_zero(task, exact):
    metric = Infidelity(draws=20, response="logit", units="contribution")
    assert metric(task, exact).values.max() < 1e-12
    assert Infidelity(draws=20, response="logit")(task, exact).values.max() > 1e-3


def test_infidelity_patches_do_not_accumulate():
    """Draws are independent: the first ten of twenty draws are those of ten, so half the mean is shared."""
    task = linear_task(samples=2)
    guess = random_map(task)
    few, many = (Infidelity(draws=n, response="logit")(task, guess).values for n in (1, 200))
    # were perturbations to pile up, late draws would have emptied the input and dominated the mean
    whole = (guess.values * task.inputs - task.inputs * weights_of(task)).sum(-1).square()
    assert torch.isfinite(few).all()
    single = (guess.values * task.inputs - task.inputs * weights_of(task)).square().mean(-1)
    close(many, single, rtol=0.3, atol=0)
    assert ((many - single).abs() < (many - whole).abs()).all()


def test_flipping_area_of_a_linear_model_in_closed_form(task, exact):
    """Removing in any order takes contributions away one by one: the curve is a cumulative sum."""
    clean = task.outputs.gather(1, task.targets[:, None])
    gone = exact.values.sort(-1, descending=True).values.cumsum(-1)
    curve = torch.cat([clean, clean - gone], -1)
    area = torch.trapezoid(curve, dx=1 / 12)
    scores = PixelFlipping(response="logit")(task, exact)
    close(scores.values, area, atol=1e-7, rtol=0)
    close(scores.curve.y, curve, atol=1e-7, rtol=0)
    close(Deletion(steps=12, response="logit")(task, exact).values, area, atol=1e-7, rtol=0)
    falls = (curve[:, :1] - curve[:, 1:]).sum(-1) / 13
    close(RegionPerturbation(response="logit")(task, exact).values, falls, atol=1e-7, rtol=0)
    close(Selectivity(response="logit")(task, exact).values, area, atol=1e-7, rtol=0)
    # what is put back in the same order leaves the rest missing: the two areas add up to clean + empty
    empty = task.predictor.model.bias.detach()[task.targets]
    inserted = Insertion(steps=12, response="logit")(task, exact).values
    close(inserted, clean[:, 0] + empty - area, atol=1e-7, rtol=0)


def test_exact_contributions_beat_their_negation_everywhere(task, exact):
    wrong = exact.with_values(-exact.values)
    for metric in (
        PixelFlipping(),
        PixelFlipping(order="lerf"),
        Deletion(),
        Insertion(),
        RegionPerturbation(),
    ):
        assert (metric(task, exact).utility > metric(task, wrong).utility).all(), metric.name


def test_monotonicity_holds_just_when_every_contribution_is_positive():
    task = linear_task()
    positive = task.with_inputs(weights_of(task).abs() * weights_of(task).sign())
    contributions = explained(positive, positive.inputs * weights_of(positive))
    metric = Monotonicity(response="logit")
    assert metric(positive, contributions).values.tolist() == [1.0] * 5
    flipped = positive.inputs.clone()
    flipped[:, 3] *= -1
    task = positive.with_inputs(flipped)
    scores = metric(task, explained(task, flipped * weights_of(task)))
    assert scores.values.tolist() == [0.0] * 5
    close(scores.details["rising"], torch.full((5,), 11 / 12, dtype=torch.float64))
    share = Monotonicity(response="logit", strict=False)(task, contributions)
    close(share.values, torch.full((5,), 11 / 12, dtype=torch.float64))


def test_text_pair_in_closed_form():
    task = text_task()
    table = task.predictor.model.table.weight.detach()
    given = table[task.inputs].gather(-1, task.targets[:, None, None].expand(-1, 9, 1))[..., 0]
    given = given.masked_fill(~task.space.valid, 0)
    explanation = explained(task, given)
    ranked = given.masked_fill(~task.space.valid, -torch.inf).sort(-1, descending=True).values
    counts = task.space.valid.sum(-1)
    bins = (0.2, 0.5)
    lost, missing = [], []
    for row in range(len(task)):
        tops = [-(-int(counts[row] * 10 * share) // 10) for share in bins]
        parts = [ranked[row, :top].sum() for top in tops]
        whole = ranked[row, : counts[row]].sum()
        lost.append(sum(parts) / 2)
        missing.append(sum(whole - part for part in parts) / 2)
    got = Comprehensiveness(bins=bins, response="logit")(task, explanation)
    close(got.values, torch.stack(lost), atol=1e-7, rtol=0)
    got = TextSufficiency(bins=bins, response="logit")(task, explanation)
    close(got.values, torch.stack(missing), atol=1e-7, rtol=0)
