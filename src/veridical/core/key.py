"""Keyed draws: every random number is a pure function of (seed, purpose, sample id, draw id).

There is no generator whose state moves, so a draw does not depend on the batch, the order, the shard or
the worker that asks for it. Integers come from a counter hash (the finaliser of SplitMix64) in wrapping
64-bit arithmetic, which every device computes exactly alike: subsets, permutations and uniforms are
bit-equal everywhere. Normals pass through `log` and `cos`, whose last bits differ between device types.
Masks are drawn by a cheaper hash, in `lots`.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core import hash_kernels
from veridical.errors import InputError
from veridical.functional.devices import on_host

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_LOW_63 = 2**63 - 1


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
        # what is plain already is not looked at again: keys are derived for every world and map
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
    once = hash_kernels.kernel(hash_kernels.MIX, _mix_steps, torch.int64, x.device)
    return _mix_steps(x) if once is None else once(x)


def _mix_steps(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _wrapped(number: int) -> int:
    """A Python integer as 64-bit arithmetic would have left it."""
    return (number + 2**63) % 2**64 - 2**63


def _mix_in_place(x: Tensor) -> Tensor:
    """The same hash without a new tensor for each step: on large draws allocating costs most."""
    if not on_host(x):
        return _mix(x)
    spare = torch.empty_like(x)
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        torch.bitwise_right_shift(x, bits, out=spare)
        x.bitwise_xor_(spare.bitwise_and_((1 << (64 - bits)) - 1))
        if factor is not None:
            x.mul_(factor)
    return x


def streams(key: Key, ids: Tensor, draws: Tensor | int) -> Tensor:
    """64 bits for each (sample, draw): (N,) for one draw or (N, K) for K draws."""
    sample = _mix(ids.to(torch.int64) * _GOLDEN + key.state)
    if isinstance(draws, int):
        return _mix(sample + _wrapped(_GOLDEN * (draws + 1)))
    return _mix(sample[:, None] + _GOLDEN * (draws.to(device=ids.device, dtype=torch.int64) + 1))


def bits(key: Key, ids: Tensor, draws: Tensor | int, size: int) -> Tensor:
    """Hash to signed 64-bit integers, shape (N, size) for one draw or (N, K, size) for K draws."""
    counter = torch.arange(1, size + 1, device=ids.device, dtype=torch.int64) * _GOLDEN
    return _mix_in_place(streams(key, ids, draws)[..., None] + counter)


def uniform(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw from U[0, 1) with as many bits as the dtype holds (24 in float32), so 1 is never reached."""
    kept = 1 - round(math.log2(torch.finfo(dtype).eps))
    return _shift(bits(key, ids, draws, size), 64 - kept).to(dtype) * 2.0**-kept


def normal(
    key: Key, ids: Tensor, draws: Tensor | int, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw from N(0, 1) by Box and Muller, computed in float64.

    The i-th number does not depend on how many are drawn, so padding behind a sample changes nothing.
    """
    pair = uniform(key, ids, draws, 2 * size, torch.float64).unflatten(-1, (size, 2))
    radius = torch.sqrt(-2.0 * torch.log1p(-pair[..., 0]))
    return (radius * torch.cos(2.0 * math.pi * pair[..., 1])).to(dtype)


def integers(key: Key, ids: Tensor, draws: Tensor | int, size: int, below: int | Tensor) -> Tensor:
    """Draw integers uniform on {0, ..., below - 1}; `below` may differ between samples."""
    share = uniform(key, ids, draws, size, torch.float64)
    return (share * below).floor().to(torch.int64)


def permutation(key: Key, ids: Tensor, draws: Tensor | int, size: int, valid: Tensor | None = None) -> Tensor:
    """Draw a permutation of the features; with `valid` (N, V) the valid ones come first.

    The first k entries are a uniform subset of size k, so one permutation a (sample, draw) serves all
    sizes, and the subsets of one draw are nested.
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
    """Draw N(0, 1) for one parameter on the CPU, keyed by its name, whatever device it lives on."""
    drawn = torch.empty(shape)
    draw_noise(key, [(name, drawn)])
    return drawn


def draw_noise(key: Key, parts: Iterable[tuple[str, Tensor]]) -> None:
    """The same for several parameters, into tensors of theirs that are contiguous and on the CPU."""
    generator = torch.Generator()
    # `name_id` of the key's text with each name at its end
    start = repr((key.seed, *key.path, ""))[: -len("'')")]
    for name, drawn in parts:
        digest = hashlib.blake2b(f"{start}{name!r})".encode(), digest_size=8).digest()
        generator.manual_seed(int.from_bytes(digest, "little") & _LOW_63)
        drawn.normal_(generator=generator)
