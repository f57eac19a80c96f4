"""Keyed draws: every random number is a pure function of (seed, purpose, sample id, draw id).

There is no generator whose state moves, so a draw does not depend on the batch, the order, the shard or
the worker that asks for it. Integers come from a counter hash (the finaliser of SplitMix64) in wrapping
64-bit arithmetic, which every device computes exactly alike: subsets, permutations and uniforms are
bit-equal everywhere. Normals pass through `log` and `cos`, whose last bits differ between device types.

Masks need a number a (sample, draw, feature), more than anything else here, and get them from a cheaper
hash in 32 bits: `tickets`. A subset of k features is the k smallest tickets of its row.
"""

from __future__ import annotations

import hashlib
import math
import operator
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veridical import fused

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_LOW_31 = 2**31 - 1
_LOW_63 = 2**63 - 1
_TICKET_MIX = -749064809  # 0xD35A2D97, odd
_TICKET_MIX_32 = np.int32(_TICKET_MIX)
_CELLS_AT_ONCE = 2**15  # tickets of one step on a CPU: they and what they become stay in its second cache
_FEW_THREADS = 4  # up to which numpy's vectorised selection, on one thread, beats torch's on all

_KEPT = threading.local()

Array = npt.NDArray[Any]
Halves = tuple[Tensor, Tensor]
Room = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Key:
    """A seed and the purpose it is used for; `key / "name"` or `key / 3` derives a new, independent key.

    >>> Key(0) / "masks" == Key(0) / "masks"
    True
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        # numpy's integers print otherwise, and the text of a key decides its draws
        object.__setattr__(self, "seed", operator.index(self.seed))
        plain = tuple(p if isinstance(p, str) else operator.index(p) for p in self.path)
        object.__setattr__(self, "path", plain)

    def __truediv__(self, purpose: str | int) -> Key:
        # what is plain already is not looked at again: keys are derived for every world and map
        own = purpose if isinstance(purpose, str) else operator.index(purpose)
        derived = object.__new__(Key)
        derived.__dict__.update(seed=self.seed, path=(*self.path, own))
        return derived

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
    once = fused.kernel(fused.MIX, _mix_steps, torch.int64, x.device)
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
    if x.device.type != "cpu":
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


def tickets(key: Key, ids: Tensor, draws: Tensor | int, size: int) -> Tensor:
    """32-bit integers that differ within a row, (N, size) for one draw or (N, K, size) for K draws.

    Each feature's own number is multiplied by one half of the (sample, draw)'s 64 bits and shifted by the
    other, which makes any two tickets of a row independent; a round of mixing does the rest. Every step is
    one to one, so a row has no ties, and -2^31 never occurs. The i-th ticket does not depend on the size.
    """
    factor, shift = halves(key, ids, draws)
    return _tickets((factor.view(-1, 1), shift.view(-1, 1)), size).view(*factor.shape, size)


def _room(rows: int, size: int, device: torch.device) -> Room:
    """Two arrays to draw tickets in on a CPU, as often as is needed."""
    if device.type != "cpu":
        return None
    if rows * size <= _CELLS_AT_ONCE:
        x, spare = map(torch.from_numpy, _room_kept(rows, size))
    else:
        x, spare = torch.empty(2, rows, size, dtype=torch.int32)
    return x, spare


def _room_kept(rows: int, size: int) -> Array:
    """(2, rows, size) that a thread keeps for itself: new memory costs what hashing does."""
    if not hasattr(_KEPT, "room"):
        _KEPT.room = np.empty((2, _CELLS_AT_ONCE), np.int32)
    room: Array = _KEPT.room[:, : rows * size].reshape(2, rows, size)
    return room


def halves(key: Key, ids: Tensor, draws: Tensor | int) -> Halves:
    """What each stream multiplies and adds: its two halves, the first made odd; (N,) or (N, K) each."""
    stream = streams(key, ids, draws)
    return (stream & _LOW_31 | 1).to(torch.int32), (stream >> 32).to(torch.int32)


def _tickets(columns: Halves, size: int, room: Room = None) -> Tensor:
    """The tickets of streams given by their halves, (R, 1) each, in the first rows of the room if any."""
    factor, shift = columns
    places = _places(size, factor.device)
    once = fused.kernel(fused.TICKET, _ticket_steps, torch.int32, factor.device)
    if once is not None:
        return once(places, factor, shift)
    if room is None:
        return _ticket_steps(places, factor, shift)
    x, spare = (half[: len(factor)] for half in room)
    if not _alone(x):
        return _ticket_steps(places, factor, shift, x, spare)
    # so small an array is no work for several threads, and waking them costs more than the work
    _tickets_alone(places.numpy(), factor.numpy(), shift.numpy(), x.numpy(), spare.numpy())
    return x


def _ticket_steps(
    places: Tensor, factor: Tensor, shift: Tensor, x: Tensor | None = None, spare: Tensor | None = None
) -> Tensor:
    x = torch.mul(places, factor, out=x)
    x.add_(shift)
    # without its sign a number may be shifted as it is: torch shifts signs in
    x.bitwise_and_(_LOW_31)
    x.bitwise_xor_(torch.bitwise_right_shift(x, 15, out=spare))
    return x.mul_(_TICKET_MIX)


def _tickets_alone(places: Array, factor: Array, shift: Array, out: Array, spare: Array) -> None:
    """The same in numpy, on one thread."""
    np.multiply(places, factor, out=out)
    np.add(out, shift, out=out)
    np.bitwise_and(out, _LOW_31, out=out)
    np.bitwise_xor(out, np.right_shift(out, 15, out=spare), out=out)
    np.multiply(out, _TICKET_MIX_32, out=out)


@lru_cache(maxsize=16)
def _places(size: int, device: torch.device) -> Tensor:
    """Another 31-bit number for each feature, mixed so that neighbours have nothing in common."""
    x = torch.arange(1, size + 1, device=device, dtype=torch.int64) * 0x9E3779B1 & _LOW_31
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x535A2D97)):
        x = (x ^ (x >> shift)) * factor & _LOW_31
    return (x ^ (x >> 15)).to(torch.int32)


def subsets(
    key: Key, ids: Tensor, draws: Tensor, size: int, counts: int | Tensor, valid: Tensor | None = None
) -> Tensor:
    """Draw uniform subsets with exact counts: (N, K * S, size) truth values, counts running fastest.

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
    if isinstance(counts, int) and 0 < counts < size and valid is None and _alone(factor):
        _equal_subsets(factor.numpy(), shift.numpy(), counts, out.numpy()[:, 0])
        return out.view(shape[0], -1, size)
    step = _step(len(factor), size, device)
    room = _room(step, size, device)
    for at in range(0, len(factor), step):
        rows = slice(at, min(len(factor), at + step))
        found = _tickets((factor[rows], shift[rows]), size, room)
        inside = None
        if valid is not None:
            inside = valid[torch.arange(rows.start, rows.stop, device=device) // shape[1]]
            found.masked_fill_(~inside, _LOW_31)
        last = smallest(found, counts if isinstance(counts, int) else counts[rows], room and room[1])
        if _alone(found):
            np.less_equal(found.numpy()[:, None], last.numpy()[..., None], out=out[rows].numpy())
        else:
            torch.le(found[:, None], last[..., None], out=out[rows])
        if inside is not None:
            out[rows].logical_and_(inside[:, None])
    return out.view(shape[0], -1, size)


def _equal_subsets(factor: Array, shift: Array, count: int, out: Array) -> None:
    """Subsets of one size among all features, in as few calls as can be: it is what most metrics draw."""
    cpu = torch.device("cpu")
    many, size = out.shape
    step = _step(many, size, cpu)
    places = _places(size, cpu).numpy()
    small = step * size <= _CELLS_AT_ONCE
    x, ordered = _room_kept(step, size) if small else np.empty((2, step, size), np.int32)
    # numpy copies short rows through a buffer when it stretches one number over each: twice the time
    usual = np.setbufsize(16)
    try:
        for at in range(0, len(factor), step):
            rows = slice(at, at + step)
            few = len(factor[rows])
            _tickets_alone(places, factor[rows], shift[rows], x[:few], ordered[:few])
            np.copyto(ordered[:few], x[:few])
            ordered[:few].partition(count - 1)
            np.less_equal(x[:few], ordered[:few, count - 1 : count], out=out[rows])
    finally:
        np.setbufsize(usual)


def _alone(x: Tensor) -> bool:
    """Whether one thread with numpy beats torch's: on a CPU, and where there are few threads anyway."""
    return x.device.type == "cpu" and torch.get_num_threads() <= _FEW_THREADS


def smallest(values: Tensor, counts: int | Tensor, spare: Tensor | None = None) -> Tensor:
    """The k-th smallest of each row of tickets (R, V): (R, 1) for one k, (R, S) for counts (R, S).

    Below a count of 1 it is -2^31, which no ticket reaches. `spare` is room to sort in.
    """
    rows, size = values.shape
    if isinstance(counts, int) and not 0 < counts < size:
        return values.new_full((rows, 1), _LOW_31 if counts > 0 else -_LOW_31 - 1)
    vectorised = _alone(values)
    if vectorised:
        copied = torch.empty_like(values) if spare is None else spare[:rows]
        np.copyto(copied.numpy(), values.numpy())
        if isinstance(counts, int):
            copied.numpy().partition(counts - 1)
            return copied[:, counts - 1 : counts].clone()
        copied.numpy().sort()
    elif isinstance(counts, int):
        if values.device.type == "cpu":
            return values.topk(counts, largest=False, sorted=False).values.amax(-1, keepdim=True)
        return values.kthvalue(counts, -1, keepdim=True).values
    ordered = copied if vectorised else values.sort(-1).values
    return ordered.gather(-1, (counts - 1).clamp(0, size - 1)).masked_fill_(counts < 1, -_LOW_31 - 1)


def coins(key: Key, ids: Tensor, draws: Tensor, size: int, chance: float | Tensor) -> Tensor:
    """Toss (N, K, size) independent coins that fall True with `chance`: one number, or one a (N, K)."""
    factor, shift = halves(key, ids, draws)
    share = torch.as_tensor(chance, dtype=torch.float64, device=ids.device).expand(factor.shape)
    limit = ((share * 2.0**32).round() - (2.0**31 + 1)).clamp(min=-(2.0**31)).to(torch.int32)
    out = torch.empty(*factor.shape, size, dtype=torch.bool, device=ids.device)
    flat, limit = out.flatten(0, 1), limit.flatten()[:, None]
    factor, shift = factor.view(-1, 1), shift.view(-1, 1)
    step = _step(len(flat), size, ids.device)
    room = _room(step, size, ids.device)
    for at in range(0, len(flat), step):
        rows = slice(at, at + step)
        tossed = _tickets((factor[rows], shift[rows]), size, room)
        if _alone(tossed):
            np.less_equal(tossed.numpy(), limit[rows].numpy(), out=flat[rows].numpy())
        else:
            torch.le(tossed, limit[rows], out=flat[rows])
    return out


def _step(rows: int, size: int, device: torch.device) -> int:
    """Rows to draw together: all of them on a GPU, on a CPU as many as its cache holds."""
    return max(1, rows if device.type != "cpu" else min(rows, _CELLS_AT_ONCE // max(1, size)))


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
