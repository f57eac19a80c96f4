"""Keyed draws: every random number is a pure function of (seed, purpose, sample id, draw id).

There is no generator whose state moves, so a draw does not depend on the batch, the order, the shard or
the worker that draws it. Integers come from a counter hash (the finaliser of SplitMix64) in wrapping
64-bit arithmetic, which every device computes exactly alike: subsets, permutations and uniforms are
bit-equal everywhere. Normals pass through `log` and `cos`, whose last bits differ between device types.

Masks need one number per (sample, draw, feature), more than anything else, and get them from a cheaper hash
in 32 bits: `random_keys`. A subset of k features holds the k smallest random keys of its row.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional.devices import at_a_time

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_LOW_63 = 2**63 - 1
_LOW_31 = 2**31 - 1
_MIX_32 = -749064809  # 0xD35A2D97, odd
_CELLS = 2**20  # random keys that are drawn together: 4 MB

Halves = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Key:
    """A seed and the purpose it is used for; `key / "name"` or `key / 3` derives a new, independent key.

    >>> Key(0) / "masks" == Key(0) / "masks"
    True
    """

    seed: int
    path: tuple[str | int, ...] = ()
    apart: tuple[tuple[str, int], ...] = ()
    """Sources of chance that follow a seed of their own, as (("fill", 3),)."""

    def __post_init__(self) -> None:
        # numpy's integers print otherwise, and the text of a key decides its draws
        try:
            object.__setattr__(self, "seed", operator.index(self.seed))
        except TypeError:
            raise InputError(f"a seed is a whole number, got {self.seed!r}") from None
        plain = tuple(p if isinstance(p, str) else operator.index(p) for p in self.path)
        object.__setattr__(self, "path", plain)

    def __truediv__(self, purpose: str | int) -> Key:
        # what is plain already is not checked again: keys are derived for every perturbed model and map
        own = purpose if isinstance(purpose, str) else operator.index(purpose)
        derived = object.__new__(Key)
        derived.__dict__.update(seed=self.seed, path=(*self.path, own), apart=self.apart)
        return derived

    @property
    def parent(self) -> Key:
        """The key that this one was derived from."""
        return Key(self.seed, self.path[:-1], self.apart)

    def of(self, source: str) -> Key:
        """The same key for one source of chance, "fill" or "tie orders": its own seed where it has one."""
        return Key(dict(self.apart).get(source, self.seed), self.path) if self.apart else self

    @property
    def state(self) -> int:
        """64 bits that stand for this key (signed, as torch has no unsigned arithmetic)."""
        return _state((self.seed, *self.path))


def _state(parts: tuple[str | int, ...]) -> int:
    return name_id(repr(parts))


def as_key(seed: int | Key) -> Key:
    """Accept a bare seed wherever a key is expected."""
    return seed if isinstance(seed, Key) else Key(seed)


def name_id(name: str) -> int:
    """A stable signed 64-bit id for a text, used for string sample ids and parameter names."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def _shift(x: Tensor, bits: int) -> Tensor:
    # torch shifts signed integers arithmetically; the hash needs zeros shifted in
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _wrapped(number: int) -> int:
    """A Python integer as 64-bit arithmetic would have left it."""
    return (number + 2**63) % 2**64 - 2**63


def streams(key: Key, ids: Tensor, draws: Tensor | int) -> Tensor:
    """64 bits for each (sample, draw): (N,) for one draw or (N, K) for K draws."""
    sample = _mix(ids.to(torch.int64) * _GOLDEN + key.state)
    if isinstance(draws, int):
        return _mix(sample + _wrapped(_GOLDEN * (draws + 1)))
    return _mix(sample[:, None] + _GOLDEN * (draws.to(device=ids.device, dtype=torch.int64) + 1))


def bits(key: Key, ids: Tensor, draws: Tensor | int, size: int) -> Tensor:
    """Hash to signed 64-bit integers, shape (N, size) for one draw or (N, K, size) for K draws."""
    counter = torch.arange(1, size + 1, device=ids.device, dtype=torch.int64) * _GOLDEN
    return _mix(streams(key, ids, draws)[..., None] + counter)


def uniform(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw from U[0, 1) with as many bits as the dtype holds (24 in float32), so 1 is never reached.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    dtype : torch.dtype
        Precision of the numbers.

    Returns
    -------
    Tensor
        Numbers in [0, 1): (N, K, size), or (N, size) of one draw.
    """
    kept = 1 - round(math.log2(torch.finfo(dtype).eps))
    return _shift(bits(key, ids, draws, size), 64 - kept).to(dtype) * 2.0**-kept


def normal(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw from N(0, 1) by Box and Muller, computed in float64.

    The i-th number does not depend on how many are drawn, so padding behind a sample changes nothing.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    dtype : torch.dtype
        Precision of the numbers.

    Returns
    -------
    Tensor
        Normal numbers: (N, K, size), or (N, size) of one draw.
    """
    pair = uniform(key, ids, draws, 2 * size, torch.float64).unflatten(-1, (size, 2))
    radius = torch.sqrt(-2.0 * torch.log1p(-pair[..., 0]))
    return (radius * torch.cos(2.0 * math.pi * pair[..., 1])).to(dtype)


def moves(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw from U(-1, 1) for every element of many inputs, in a thirtieth of the time of `uniform`.

    24 bits of `random_keys`: the middles of 2^24 equal parts, which float32 holds exactly, so that all
    precisions draw the same. The i-th number does not depend on how many are drawn.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    dtype : torch.dtype
        Precision of the numbers.

    Returns
    -------
    Tensor
        Numbers in (-1, 1): (N, K, size), or (N, size) of one draw.
    """
    return _middles(random_keys(key, ids, draws, size), dtype)


def noise(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw N(0, 1) for every element of many inputs, within 5.4: all but one in 15 million are.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    dtype : torch.dtype
        Precision of the numbers.

    Returns
    -------
    Tensor
        Normal numbers: (N, K, size), or (N, size) of one draw.
    """
    wide = torch.promote_types(dtype, torch.float32)
    return _normals(moves(key, ids, draws, size, wide)).to(dtype)


def _middles(keys: Tensor, dtype: torch.dtype) -> Tensor:
    keys >>= 8
    wide = torch.promote_types(dtype, torch.float32)
    middle = torch.full((), 2.0**-24, dtype=wide, device=keys.device)
    return torch.add(middle, keys, alpha=2.0**-23).to(dtype)


def _normals(moved: Tensor) -> Tensor:
    return moved.erfinv_().mul_(math.sqrt(2.0))


def noise_by_name(key: Key, names: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """`noise(key, name, 0, size)` for each of several `name_id`s (P,), hashed together in few kernels."""
    factors, shifts = halves(key, names, 0)
    numbers = _feature_numbers(max(sizes), names.device)
    cells = torch.empty(sum(sizes), dtype=torch.int32, device=names.device)
    for cell, factor, shift in zip(cells.split(list(sizes)), factors, shifts, strict=True):
        torch.addcmul(shift, numbers[: len(cell)], factor, out=cell)
    drawn = torch.empty(len(cells), device=names.device)
    few = at_a_time(names, 2**16, 2**26)
    for some, out in zip(cells.split(few), drawn.split(few), strict=True):
        out.copy_(_normals(_middles(_mixed(some), torch.float32)))
    return drawn.split(list(sizes))


def integers(key: Key, ids: Tensor, draws: Tensor | int, size: int, below: int | Tensor) -> Tensor:
    """Draw integers uniform on {0, ..., below - 1}; `below` may differ between samples.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    below : int or Tensor
        Numbers lie below it.

    Returns
    -------
    Tensor
        Integers: (N, K, size), or (N, size) of one draw.
    """
    share = uniform(key, ids, draws, size, torch.float64)
    return (share * below).floor().to(torch.int64)


def permutation(key: Key, ids: Tensor, draws: Tensor | int, size: int, valid: Tensor | None = None) -> Tensor:
    """Draw a permutation of the features; with `valid` (N, V) the valid ones come first.

    The first k entries are a uniform subset of size k, so one permutation a (sample, draw) serves all
    sizes, and the subsets of one draw are nested.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    ids : Tensor
        Digests (N,) of the samples.
    draws : Tensor or int
        Numbers (K,) of the draws, or one.
    size : int
        How many elements a draw has.
    valid : Tensor, optional
        Which elements (N, size) exist; the others come last.

    Returns
    -------
    Tensor
        Permutations of 0 to size - 1.
    """
    return torch.argsort(_priorities(key, ids, draws, size, valid), dim=-1, stable=True)


def random_ranks(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, valid: Tensor | None = None
) -> Tensor:
    """Give each feature its place in `permutation`: `random_ranks < k` is a uniform subset of size k."""
    order = permutation(key, ids, draws, size, valid)
    places = torch.arange(size, device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _priorities(key: Key, ids: Tensor, draws: Tensor | int, size: int, valid: Tensor | None) -> Tensor:
    priority = bits(key, ids, draws, size)
    if valid is None:
        return priority
    keep = valid.to(priority.device)
    if priority.dim() == 3:
        keep = keep[:, None, :]
    return priority.masked_fill(~keep, torch.iinfo(torch.int64).max)


def content_ids(x: Tensor) -> Tensor:
    """A 64-bit id of each row's own bits, to key draws by rows that have no name."""
    flat = x.detach().reshape(len(x), -1)
    words = flat.double().view(torch.int64) if flat.is_floating_point() else flat.to(torch.int64)
    places = torch.arange(1, words.shape[1] + 1, device=x.device) * _GOLDEN
    return _mix(words + places).sum(-1)


def parameter_noise(key: Key, name: str, shape: torch.Size) -> Tensor:
    """Draw N(0, 1) for one parameter on the CPU, keyed by its name, whatever device it lives on.

    Parameters
    ----------
    key : Key
        Seed and purpose of the draw.
    name : str
        Name of the parameter.
    shape : torch.Size
        Shape of the parameter.

    Returns
    -------
    Tensor
        Standard normal numbers of this shape, the same on every device.
    """
    generator = torch.Generator().manual_seed((key / name).state & _LOW_63)
    return torch.empty(shape).normal_(generator=generator)


def random_keys(key: Key, ids: Tensor, draws: Tensor | int, size: int) -> Tensor:
    """32-bit integers that differ within a row, (N, size) for one draw or (N, K, size) for K draws.

    Each feature's own number is multiplied by one half of the (sample, draw)'s 64 bits and shifted by the
    other, which makes any two of a row independent; a round of mixing does the rest. Every step is one to
    one, so a row has no ties, and -2^31 never occurs. The i-th number does not depend on the size.
    """
    factor, shift = halves(key, ids, draws)
    return _random_keys(factor[..., None], shift[..., None], size)


def halves(key: Key, ids: Tensor, draws: Tensor | int) -> Halves:
    """What each stream multiplies and adds: its two halves, the first made odd; (N,) or (N, K) each."""
    stream = streams(key, ids, draws)
    return (stream & _LOW_31 | 1).to(torch.int32), (stream >> 32).to(torch.int32)


def _random_keys(factor: Tensor, shift: Tensor, size: int) -> Tensor:
    x = _feature_numbers(size, factor.device) * factor
    x += shift
    return _mixed(x)


def _mixed(x: Tensor) -> Tensor:
    # without its sign a number may be shifted as it is: torch shifts signs in
    x &= _LOW_31
    x ^= x >> 15
    x *= _MIX_32
    return x


@lru_cache(maxsize=16)
def _feature_numbers(size: int, device: torch.device) -> Tensor:
    """Another 31-bit number for each feature, mixed so that neighbours have nothing in common."""
    with torch.inference_mode(False):
        x = torch.arange(1, size + 1, device=device, dtype=torch.int64) * 0x9E3779B1 & _LOW_31
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x535A2D97)):
            x = (x ^ (x >> shift)) * factor & _LOW_31
        return (x ^ (x >> 15)).to(torch.int32)


def subsets(
    key: Key, ids: Tensor, draws: Tensor, size: int, counts: int | Tensor, valid: Tensor | None = None
) -> Tensor:
    """Draw uniform subsets with exact counts: (N, K * S, size) bool, counts running fastest.

    `counts` is one number, (S,), (N, S) where samples differ, or (N, K, S) where draws differ too; with
    `valid` (N, V) only valid features are drawn. The subsets of one (sample, draw) are nested.
    """
    return subsets_of(halves(key, ids, draws), size, counts, valid)


def subsets_of(drawn: Halves, size: int, counts: int | Tensor, valid: Tensor | None = None) -> Tensor:
    """`subsets` of (sample, draw)s whose `halves` (N, K) are known already."""
    shape, device = drawn[0].shape, drawn[0].device
    factor, shift = (half.reshape(-1, 1) for half in drawn)
    if isinstance(counts, Tensor):
        counts = counts.to(device)
        counts = (counts[:, None] if counts.dim() == 2 else counts).expand(*shape, -1).flatten(0, 1)
    width = 1 if isinstance(counts, int) else counts.shape[-1]
    out = torch.empty(len(factor), width, size, dtype=torch.bool, device=device)
    step = max(1, _CELLS // max(1, size))
    for at in range(0, len(factor), step):
        rows = slice(at, min(len(factor), at + step))
        found = _random_keys(factor[rows], shift[rows], size)
        inside = None
        if valid is not None:
            inside = valid[torch.arange(rows.start, rows.stop, device=device) // shape[1]]
            found.masked_fill_(~inside, _LOW_31)
        last = smallest(found, counts if isinstance(counts, int) else counts[rows])
        torch.le(found[:, None], last[..., None], out=out[rows])
        if inside is not None:
            out[rows].logical_and_(inside[:, None])
    return out.view(shape[0], -1, size)


def smallest(values: Tensor, counts: int | Tensor) -> Tensor:
    """The k-th smallest of each row of random keys (R, V): (R, 1) for one k, (R, S) for counts (R, S).

    Below a count of 1 it is -2^31, which no random key reaches.
    """
    rows, size = values.shape
    if isinstance(counts, int):
        if not 0 < counts < size:
            return values.new_full((rows, 1), _LOW_31 if counts > 0 else -_LOW_31 - 1)
        return values.kthvalue(counts, -1, keepdim=True).values
    ordered = values.sort(-1).values
    return ordered.gather(-1, (counts - 1).clamp(0, size - 1)).masked_fill_(counts < 1, -_LOW_31 - 1)


def bernoulli(key: Key, ids: Tensor, draws: Tensor, size: int, chance: float | Tensor) -> Tensor:
    """Draw (N, K, size) independent booleans, true with `chance`: one number, or one per (N, K)."""
    factor, shift = halves(key, ids, draws)
    if isinstance(chance, float):
        # made on the device: sending it there would wait
        chance = torch.full((), chance, device=ids.device, dtype=torch.float64)
    share = chance.to(ids.device, torch.float64).expand(factor.shape)
    limit = ((share * 2.0**32).round() - (2.0**31 + 1)).clamp(min=-(2.0**31)).to(torch.int32)
    return _random_keys(factor[..., None], shift[..., None], size) <= limit[..., None]
