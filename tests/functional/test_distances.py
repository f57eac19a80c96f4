from __future__ import annotations

import pytest
import scipy.spatial.distance
import torch
from hypothesis import assume, given

from tests.functional import cases
from tests.reference import functional_maps as reference
from veridical.functional import cosine_distance, euclidean, rms_normalise, spearman


def check_rms(function):
    for e in (cases.smooth(5, 12), cases.tied(5, 12), torch.zeros(2, 12)):
        cases.assert_same(function(e), [reference.rms_normalise(r) for r in e.tolist()])


def check_euclidean(function):
    for a, b in (
        (cases.smooth(5, 12), cases.smooth(5, 12, seed=1)),
        (cases.tied(5, 12), cases.tied(5, 12, seed=1)),
    ):
        rows = zip(a.numpy(), b.numpy(), strict=True)
        cases.assert_same(function(a, b), [scipy.spatial.distance.euclidean(*r) for r in rows])


def check_cosine(function):
    for a, b in (
        (cases.smooth(5, 12), cases.smooth(5, 12, seed=1)),
        (cases.tied(5, 12), cases.tied(5, 12, seed=1)),
    ):
        rows = zip(a.numpy(), b.numpy(), strict=True)
        cases.assert_same(function(a, b), [scipy.spatial.distance.cosine(*r) for r in rows])
    zero, one = torch.zeros(3), torch.tensor([1.0, 2.0, 0.0])
    assert function(zero, one) == 1
    assert function(one, zero) == 1
    assert function(zero, zero) == 0


def test_agree_with_scipy():
    check_rms(rms_normalise)
    check_euclidean(euclidean)
    check_cosine(cosine_distance)


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_rms, lambda e: rms_normalise(e).abs()),
        (check_rms, lambda e: torch.nn.functional.normalize(e.double(), dim=-1)),
        (check_rms, lambda e: (e / e.std(-1, keepdim=True).clamp(min=1e-300)).double()),
        (check_rms, lambda e: (e / e.square().mean(-1, keepdim=True).sqrt()).double()),
        (check_euclidean, lambda a, b: euclidean(a, b).square()),
        (check_euclidean, lambda a, b: euclidean(a, -b)),
        (check_euclidean, lambda a, b: (a - b).abs().sum(-1)),
        (check_cosine, lambda a, b: 1 - cosine_distance(a, b)),
        (check_cosine, lambda a, b: cosine_distance(a, -b)),
        (check_cosine, lambda a, b: (1 - torch.cosine_similarity(a, b, -1)).double()),
    ],
)
def test_wrong_formulas_fail_the_checks(check, mutant):
    with pytest.raises(AssertionError):
        check(mutant)


def test_masked_entries_do_not_exist():
    a, b, where = cases.tied(6, 14), cases.smooth(6, 14), cases.mask(6, 14)
    for function in (euclidean, cosine_distance):
        cases.assert_mask_means_absent(function, a, b, where=where)
    cases.assert_mask_means_absent(rms_normalise, b, where=where)
    assert (rms_normalise(cases.poisoned(b, where), where)[~where] == 0).all()
    nothing = torch.zeros(14, dtype=torch.bool)
    assert (euclidean(a, b, nothing) == 0).all()
    assert (cosine_distance(a, b, nothing) == 0).all()


@given(cases.numbers(1))
def test_normalised_maps_have_unit_mean_square_at_any_scale(values):
    e = cases.row(values)
    for scale in (1.0, 2.0**450, 2.0**-450):
        got = rms_normalise(e * scale)
        assert torch.equal(got.sign(), e.sign())
        cases.assert_same(got.square().mean(), float((e != 0).any()))


@given(cases.numbers(3), cases.numbers(3))
def test_cosine_distance_is_a_number_between_0_and_2(a, b):
    n = min(len(a), len(b))
    x, y = cases.row(a[:n]), cases.row(b[:n])
    d = cosine_distance(x, y)
    assert 0 <= d <= 2
    # the plain formula overflows unless the vectors are brought to a common size first
    x, y = (v / v.abs().max().clamp(min=1e-300) for v in (x, y))
    cases.assert_same(d, reference.cosine_distance(x.tolist(), y.tolist()))
    assert cosine_distance(x, x) == 0
    assume((x != 0).any())
    cases.assert_same(cosine_distance(x, -x), 2.0)


def test_nearly_parallel_vectors_keep_their_digits():
    angle = 1e-9
    a, b = cases.row([1.0, 0.0]), cases.row([1.0, angle])
    cases.assert_same(cosine_distance(a, b), angle**2 / 2, atol=0.0, rtol=1e-6)


def test_euclidean_at_the_ends_of_the_range():
    assert euclidean(cases.row([3e200, 0.0]), cases.row([0.0, 4e200])) == pytest.approx(5e200)
    assert euclidean(cases.row([3e-200, 0.0]), cases.row([0.0, 4e-200])) == pytest.approx(5e-200)


def test_both_distances_rank_normalised_maps_alike():
    original = rms_normalise(cases.smooth(30))
    perturbed = rms_normalise(
        cases.smooth(30) + torch.linspace(0, 2, 9).unsqueeze(-1) * cases.smooth(9, 30, seed=1)
    )
    assert spearman(euclidean(original, perturbed), cosine_distance(original, perturbed)) == 1.0
