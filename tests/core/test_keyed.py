"""Keyed draws: statistical quality, and that a draw depends on its key, sample and number alone."""

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError

KEY = Key(0) / "test"
IDS = torch.arange(200)


# --- quality --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform_lies_in_the_unit_interval_and_fills_it_evenly(dtype: torch.dtype) -> None:
    draws = keyed.uniform(KEY, IDS, 0, 500, dtype)
    assert draws.dtype == dtype
    assert bool(((draws >= 0) & (draws < 1)).all())
    counts = torch.histc(draws.float(), bins=64, min=0, max=1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def stream(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two long rows of draws that differ by one step in sample, draw, feature or key."""
    many = torch.arange(50_000)
    if kind == "sample":
        return keyed.uniform(KEY, many, 0, 1)[:, 0], keyed.uniform(KEY, many + 1, 0, 1)[:, 0]
    if kind == "draw":
        both = keyed.uniform(KEY, torch.tensor([5]), many, 1)[0, :, 0]
        return both[:-1], both[1:]
    if kind == "feature":
        both = keyed.uniform(KEY, torch.tensor([5]), 0, 50_000)[0]
        return both[:-1], both[1:]
    other = {"key": Key(0) / "tess", "seed": Key(1) / "test", "deeper": KEY / 0}[kind]
    return keyed.uniform(KEY, many, 0, 1)[:, 0], keyed.uniform(other, many, 0, 1)[:, 0]


@pytest.mark.parametrize("kind", ["sample", "draw", "feature", "key", "seed", "deeper"])
def test_neighbouring_streams_are_independent(kind: str) -> None:
    a, b = stream(kind)
    assert abs(np.corrcoef(a.numpy(), b.numpy())[0, 1]) < 5 / np.sqrt(len(a))
    table, _, _ = np.histogram2d(a.numpy(), b.numpy(), bins=8)
    chi = ((table - table.mean()) ** 2 / table.mean()).sum()
    assert stats.chi2.sf(chi, 49) > 1e-5


@pytest.mark.parametrize("normal", [keyed.normal, keyed.noise])
def test_normal_has_the_moments_and_distribution_of_a_normal(normal: Callable[..., torch.Tensor]) -> None:
    draws = normal(KEY, IDS, 0, 500, torch.float64).reshape(-1)
    n = len(draws)
    assert abs(float(draws.mean())) < 5 / np.sqrt(n)
    assert abs(float(draws.var()) - 1) < 5 * np.sqrt(2 / n)
    assert abs(float((draws**3).mean())) < 5 * np.sqrt(15 / n)
    assert abs(float((draws**4).mean()) - 3) < 5 * np.sqrt(96 / n)
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-4
    assert bool(torch.isfinite(draws).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_moves_fill_their_interval_and_are_the_same_in_every_precision(dtype: torch.dtype) -> None:
    draws = keyed.moves(KEY, IDS, 0, 500, dtype)
    assert torch.equal(draws, keyed.moves(KEY, IDS, 0, 500, torch.float64).to(dtype))
    assert bool((keyed.moves(KEY, IDS, 0, 500).abs() < 1).all())
    counts = torch.histc(draws.float(), bins=64, min=-1, max=1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    noise = keyed.noise(KEY, IDS, 0, 500, dtype).double()
    close = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(noise, keyed.noise(KEY, IDS, 0, 500, torch.float64), rtol=close, atol=close)


def test_permutations_of_four_are_uniform_over_all_24() -> None:
    drawn = keyed.permutation(KEY, torch.arange(240), torch.arange(100), 4).reshape(-1, 4)
    counts = Counter(map(tuple, drawn.tolist()))
    assert set(counts) == set(permutations(range(4)))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("below", [1, 2, 7, 1000])
def test_integers_are_uniform_below_a_bound(below: int) -> None:
    drawn = keyed.integers(KEY, IDS, 0, 500, below)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) == below - 1
    counts = np.bincount(drawn.reshape(-1).numpy(), minlength=below)
    assert below == 1 or stats.chisquare(counts).pvalue > 1e-4


# --- promise 1: a draw is a pure function of (key, id, draw) ----------------------------------------------


def draw_all(ids: torch.Tensor) -> list[torch.Tensor]:
    draws = torch.arange(3)
    valid = (ids[:, None] + torch.arange(11)) % 4 > 0
    return [
        keyed.uniform(KEY, ids, draws, 11),
        keyed.normal(KEY, ids, draws, 11),
        keyed.noise(KEY, ids, draws, 11),
        keyed.integers(KEY, ids, draws, 11, 17),
        keyed.permutation(KEY, ids, draws, 11),
        keyed.random_ranks(KEY, ids, draws, 11, valid),
        keyed.random_keys(KEY, ids, draws, 11),
        keyed.subsets(KEY, ids, draws, 11, 4),
        keyed.subsets(KEY, ids, draws, 11, torch.tensor([1, 5]), valid),
        keyed.bernoulli(KEY, ids, draws, 11, 0.3),
    ]


@given(st.permutations(list(range(12))), st.integers(1, 12))
def test_draws_are_bit_equal_for_any_order_and_shard(order: list[int], size: int) -> None:
    whole = draw_all(torch.arange(12))
    index = torch.tensor(order)
    pieces = [draw_all(part) for part in index.split(size)]
    for i, expected in enumerate(whole):
        assert torch.equal(torch.cat([piece[i] for piece in pieces]), expected[index])


@pytest.mark.parametrize("draw", [0, 1, 2, 1000, 2**40])
def test_one_draw_equals_that_draw_among_many(draw: int) -> None:
    ids = torch.tensor([0, 7, -3, 2**62])
    for make in (keyed.uniform, keyed.normal, keyed.noise, keyed.permutation):
        assert torch.equal(make(KEY, ids, draw, 5), make(KEY, ids, torch.tensor([draw]), 5)[:, 0])


def test_the_first_numbers_do_not_depend_on_how_many_are_drawn() -> None:
    for make in (keyed.uniform, keyed.normal, keyed.noise):
        assert torch.equal(make(KEY, IDS, 3, 5), make(KEY, IDS, 3, 9)[:, :5])


GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hashed(key: Key, sample: int, draw: int, place: int) -> int:
    """The same hash in Python's own integers, reduced modulo 2^64 by hand."""
    x = mix((sample * GOLDEN + key.state) & MASK)
    x = mix((x + GOLDEN * (draw + 1)) & MASK)
    return mix((x + GOLDEN * (place + 1)) & MASK)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 20))
def test_the_hash_is_splitmix_in_wrapping_arithmetic(sample: int, draw: int, place: int) -> None:
    found = int(keyed.bits(KEY, torch.tensor([sample]), draw, place + 1)[0, place])
    assert found % 2**64 == hashed(KEY, sample, draw, place)


def test_frozen_draws_so_that_a_change_of_stored_results_is_seen() -> None:
    assert keyed.permutation(Key(7) / "masks", torch.tensor([3]), 2, 6).tolist() == [[0, 5, 3, 1, 4, 2]]
    drawn = keyed.uniform(Key(0), torch.tensor([0]), 0, 3, torch.float64)[0].tolist()
    assert drawn == [0.3830503874537946, 0.3351114995824732, 0.09314404439647295]
    assert keyed.random_keys(Key(0), torch.tensor([0]), 0, 3).tolist() == [
        [1302740303, -894205678, 804034460]
    ]


# --- permutations ---------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 1000))
def test_valid_features_come_first_and_permutations_are_permutations(size: int, seed: int) -> None:
    valid = torch.rand(5, size, generator=torch.Generator().manual_seed(seed)) < 0.6
    order = keyed.permutation(Key(seed), torch.arange(5), torch.arange(3), size, valid)
    assert torch.equal(order.sort(-1).values, torch.arange(size).expand(5, 3, size))
    inside = valid[:, None].expand(5, 3, size).gather(-1, order)
    assert bool((inside[..., :-1] >= inside[..., 1:]).all())
    ranks = keyed.random_ranks(Key(seed), torch.arange(5), torch.arange(3), size, valid)
    assert torch.equal(ranks.gather(-1, order), torch.arange(size).expand(5, 3, size))


def test_padding_behind_the_valid_features_does_not_change_their_order() -> None:
    valid = torch.arange(9)[None] < 6
    padded = keyed.permutation(KEY, torch.tensor([4]), 0, 9, valid)[0, :6]
    assert torch.equal(padded, keyed.permutation(KEY, torch.tensor([4]), 0, 6)[0])


# --- keys -------------------------------------------------------------------------------------------------


def test_keys_derive_and_compare_by_value() -> None:
    assert Key(0) / "a" / 1 == Key(0, ("a", 1))
    assert Key(0) / "1" != Key(0) / 1
    states = {k.state for k in (Key(0), Key(1), Key(0) / 0, Key(0) / "0", Key(0) / 0 / 0, Key(0) / "00")}
    assert len(states) == 6
    assert keyed.as_key(3) == Key(3)
    assert keyed.as_key(Key(3)) == Key(3)


def test_numpy_and_torch_integers_make_the_same_key() -> None:
    assert Key(np.int64(5)).state == Key(5).state
    assert (Key(5) / np.int32(2)).state == (Key(5) / 2).state
    assert Key(torch.tensor(5)).state == Key(5).state
    with pytest.raises(InputError):
        Key(0.5)  # type: ignore[arg-type]


# --- weight noise -----------------------------------------------------------------------------------------


def test_parameter_noise_depends_on_key_and_name_and_on_no_global_state() -> None:
    shape = torch.Size((3, 4))
    torch.manual_seed(1)
    first = keyed.parameter_noise(KEY, "fc.weight", shape)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert torch.equal(first, keyed.parameter_noise(KEY, "fc.weight", shape))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(first, keyed.parameter_noise(KEY, "fc.bias", shape))
    assert not torch.equal(first, keyed.parameter_noise(KEY / 1, "fc.weight", shape))


SUBSETS = Key(0) / "test"
MANY_IDS = torch.arange(200)


def ordered(size: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The place of each feature among the tickets of its row, invalid ones last: (5, 3, size)."""
    drawn = keyed.random_keys(SUBSETS, torch.arange(5), torch.arange(3), size).long()
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
            chosen = keyed.subsets(SUBSETS, torch.arange(5), torch.arange(3), size, counts, valid)
            assert torch.equal(chosen, expected)
    finally:
        torch.set_num_threads(before)


def test_subsets_of_several_counts_run_over_counts_fastest_and_are_nested() -> None:
    counts = torch.tensor([0, 3, 7, 20])
    chosen = keyed.subsets(SUBSETS, torch.arange(5), torch.arange(3), 20, counts).unflatten(1, (3, 4))
    assert torch.equal(chosen, ordered(20)[:, :, None] < counts[:, None])
    own = torch.stack([counts.roll(i) for i in range(5)])
    chosen = keyed.subsets(SUBSETS, torch.arange(5), torch.arange(3), 20, own).unflatten(1, (3, 4))
    assert torch.equal(chosen, ordered(20)[:, :, None] < own[:, None, :, None])


def test_large_draws_are_those_of_their_pieces() -> None:
    """Steps that fit a cache change nothing: 90 rows of 1000 are more than one of them."""
    ids, draws = torch.arange(9), torch.arange(10)
    whole = keyed.subsets(SUBSETS, ids, draws, 1000, 137)
    assert bool((whole.sum(-1) == 137).all())
    tossed = keyed.bernoulli(SUBSETS, ids, draws, 1000, 0.3)
    for i in (0, 4, 8):
        for d in (0, 9):
            one = keyed.subsets(SUBSETS, ids[i : i + 1], draws[d : d + 1], 1000, 137)
            assert torch.equal(one[0, 0], whole[i, d])
            one = keyed.bernoulli(SUBSETS, ids[i : i + 1], draws[d : d + 1], 1000, 0.3)
            assert torch.equal(one[0, 0], tossed[i, d])


def ticket(key: Key, sample: int, draw: int, place: int) -> int:
    """The same ticket in Python's own integers."""
    low, word = 2**31 - 1, 2**32 - 1

    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x535A2D97)):
            x = ((x ^ (x >> shift)) * factor) & low
        return x ^ (x >> 15)

    stream = mix((mix((sample * GOLDEN + key.state) & MASK) + GOLDEN * (draw + 1)) & MASK)
    x = (mixed(((place + 1) * 0x9E3779B1) & low) * (stream & low | 1) + (stream >> 32)) & low
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & word
    return x - 2**32 if x >= 2**31 else x


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 1000))
def test_tickets_are_the_stated_hash_in_wrapping_arithmetic(sample: int, draw: int, place: int) -> None:
    found = keyed.random_keys(SUBSETS, torch.tensor([sample]), torch.tensor([draw]), place + 1)
    assert int(found[0, 0, place]) == ticket(SUBSETS, sample, draw, place)
    assert torch.equal(found[:, 0], keyed.random_keys(SUBSETS, torch.tensor([sample]), draw, place + 1))


def drawn_sets(ids: int, draws: int, size: int, count: int) -> torch.Tensor:
    return keyed.subsets(SUBSETS, torch.arange(ids), torch.arange(draws), size, count)


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


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_coins_fall_with_their_chance(chance: float) -> None:
    tossed = keyed.bernoulli(SUBSETS, MANY_IDS, torch.arange(10), 50, chance).double()
    n = tossed.numel()
    assert abs(float(tossed.mean()) - chance) <= 5 * np.sqrt(chance * (1 - chance) / n)
