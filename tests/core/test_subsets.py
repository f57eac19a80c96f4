"""Tickets, subsets and coins: exact counts, one hash everywhere, and no pattern that a statistic finds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from veridical.core import key as keyed
from veridical.core.key import Key

KEY = Key(0) / "test"
IDS = torch.arange(200)


def ordered(size: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The place of each feature among the tickets of its row, invalid ones last: (5, 3, size)."""
    drawn = keyed.random_keys(KEY, torch.arange(5), torch.arange(3), size).long()
    if valid is not None:
        drawn = drawn + 2**40 * ~valid[:, None]
    return drawn.argsort(-1).argsort(-1)


@given(st.integers(1, 12), st.integers(0, 12), st.booleans(), st.sampled_from([1, 8]))
def test_a_subset_is_what_holds_the_smallest_tickets(
    size: int, count: int, padded: bool, threads: int
) -> None:
    count = min(count, size)
    valid = (torch.arange(size) < max(1, count)).expand(5, size) if padded else None
    expected = ordered(size, valid) < count
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)  # other ways to select, the same sets
        for counts in (count, torch.tensor([count]), torch.full((5, 1), count), torch.full((5, 3, 1), count)):
            chosen = keyed.subsets(KEY, torch.arange(5), torch.arange(3), size, counts, valid)
            assert torch.equal(chosen, expected)
    finally:
        torch.set_num_threads(before)


def test_subsets_of_several_counts_run_over_counts_fastest_and_are_nested() -> None:
    counts = torch.tensor([0, 3, 7, 20])
    chosen = keyed.subsets(KEY, torch.arange(5), torch.arange(3), 20, counts).unflatten(1, (3, 4))
    assert torch.equal(chosen, ordered(20)[:, :, None] < counts[:, None])
    own = torch.stack([counts.roll(i) for i in range(5)])
    chosen = keyed.subsets(KEY, torch.arange(5), torch.arange(3), 20, own).unflatten(1, (3, 4))
    assert torch.equal(chosen, ordered(20)[:, :, None] < own[:, None, :, None])


def test_large_draws_are_those_of_their_pieces() -> None:
    """Steps that fit a cache change nothing: 90 rows of 1000 are more than one of them."""
    ids, draws = torch.arange(9), torch.arange(10)
    whole = keyed.subsets(KEY, ids, draws, 1000, 137)
    assert bool((whole.sum(-1) == 137).all())
    tossed = keyed.bernoulli(KEY, ids, draws, 1000, 0.3)
    for i in (0, 4, 8):
        for d in (0, 9):
            one = keyed.subsets(KEY, ids[i : i + 1], draws[d : d + 1], 1000, 137)
            assert torch.equal(one[0, 0], whole[i, d])
            one = keyed.bernoulli(KEY, ids[i : i + 1], draws[d : d + 1], 1000, 0.3)
            assert torch.equal(one[0, 0], tossed[i, d])


def test_no_more_than_the_valid_features_are_drawn() -> None:
    valid = torch.arange(8)[None].expand(5, 8) < 3
    chosen = keyed.subsets(KEY, torch.arange(5), torch.arange(3), 8, 6, valid)
    assert torch.equal(chosen, valid[:, None].expand(5, 3, 8))


def ticket(key: Key, sample: int, draw: int, place: int) -> int:
    """The same ticket in Python's own integers."""
    low, word = 2**31 - 1, 2**32 - 1

    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x535A2D97)):
            x = ((x ^ (x >> shift)) * factor) & low
        return x ^ (x >> 15)

    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    stream = mix((mix((sample * golden + key.state) & mask) + golden * (draw + 1)) & mask)
    x = (mixed(((place + 1) * 0x9E3779B1) & low) * (stream & low | 1) + (stream >> 32)) & low
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & word
    return x - 2**32 if x >= 2**31 else x


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 1000))
def test_tickets_are_the_stated_hash_in_wrapping_arithmetic(sample: int, draw: int, place: int) -> None:
    found = keyed.random_keys(KEY, torch.tensor([sample]), torch.tensor([draw]), place + 1)
    assert int(found[0, 0, place]) == ticket(KEY, sample, draw, place)
    assert torch.equal(found[:, 0], keyed.random_keys(KEY, torch.tensor([sample]), draw, place + 1))


def test_a_row_of_tickets_has_no_ties() -> None:
    drawn = keyed.random_keys(KEY, torch.arange(3), torch.arange(2), 300_000).sort(-1).values
    assert bool((drawn.diff(dim=-1) > 0).all())
    assert int(drawn.min()) > -(2**31)


def hypergeometric_fits(overlap: torch.Tensor, of: int, good: int, taken: int) -> float:
    """How likely such counts are (p) if each were drawn without replacement: chi-squared, tails joined."""
    law = stats.hypergeom(of, good, taken)
    seen = np.bincount(overlap.reshape(-1).numpy(), minlength=taken + 1).astype(float)
    hoped = law.pmf(np.arange(len(seen))) * seen.sum()
    many = hoped > 20
    seen, hoped = np.append(seen[many], seen[~many].sum()), np.append(hoped[many], hoped[~many].sum())
    chi = ((seen - hoped) ** 2 / np.maximum(hoped, 1e-9)).sum()
    return float(stats.chi2.sf(chi, len(seen) - 1))


def drawn_sets(ids: int, draws: int, size: int, count: int) -> torch.Tensor:
    return keyed.subsets(KEY, torch.arange(ids), torch.arange(draws), size, count)


def test_drawn_subsets_hold_every_feature_pair_and_triple_equally_often() -> None:
    chosen = drawn_sets(200, 200, 24, 7).flatten(0, 1).double()
    n, one = len(chosen), 7 / 24
    two, three = one * 6 / 23, one * 6 / 23 * 5 / 22
    assert bool((chosen.sum(-1) == 7).all())
    assert float((chosen.mean(0) - one).abs().max()) < 5 * np.sqrt(one * (1 - one) / n)
    off = ~torch.eye(24, dtype=torch.bool)
    pairs = (chosen.T @ chosen / n)[off]
    assert float((pairs - two).abs().max()) < 5 * np.sqrt(two * (1 - two) / n)
    z = (pairs - two) / np.sqrt(two * (1 - two) / n)
    assert 0.8 < float(z.square().mean()) < 1.2
    for a, b, c in ((0, 1, 2), (0, 8, 16), (3, 4, 23)):
        met = (chosen[:, a] * chosen[:, b] * chosen[:, c]).mean()
        assert abs(float(met) - three) < 5 * np.sqrt(three / n)


def test_tickets_order_five_features_in_all_120_ways_equally_often() -> None:
    places = keyed.random_keys(KEY, torch.arange(600), torch.arange(500), 5).argsort(-1).reshape(-1, 5)
    codes = (places * 5 ** torch.arange(5)).sum(-1)
    counts = codes.unique(return_counts=True)[1].numpy()
    assert len(counts) == 120
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("step", ["draw", "sample"])
def test_neighbouring_subsets_overlap_as_independent_ones_do(step: str) -> None:
    chosen = drawn_sets(120, 120, 64, 13)
    if step == "sample":
        chosen = chosen.transpose(0, 1)
    assert hypergeometric_fits((chosen[:, 0::2] & chosen[:, 1::2]).sum(-1), 64, 13, 13) > 1e-4
    assert hypergeometric_fits((chosen[:, 0::2] & chosen[:, 0::2]).sum(-1), 64, 13, 13) < 1e-9


def test_subsets_know_nothing_of_the_grid_that_features_lie_on() -> None:
    chosen = drawn_sets(60, 60, 784, 157).reshape(-1, 28, 28)
    squares = chosen.reshape(-1, 7, 4, 7, 4).transpose(2, 3).flatten(-2).sum(-1)
    for counts, many in ((squares, 16), (chosen.sum(-1), 28), (chosen.sum(-2), 28)):
        assert hypergeometric_fits(counts, 784, 157, many) > 1e-5


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_coins_fall_with_their_chance(chance: float) -> None:
    tossed = keyed.bernoulli(KEY, IDS, torch.arange(10), 50, chance).double()
    n = tossed.numel()
    assert abs(float(tossed.mean()) - chance) <= 5 * np.sqrt(chance * (1 - chance) / n)
    own = torch.full((200, 10), chance)
    assert torch.equal(
        keyed.bernoulli(KEY, IDS, torch.arange(10), 50, own).double().mean(), tossed.mean()
    ) or (
        chance not in (0.0, 0.5, 1.0)  # the others are no binary fractions, and float32 holds fewer digits
    )
