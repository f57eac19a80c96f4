"""Which features a mask takes: tickets, subsets and coins, keyed as everything in `rng`.

Masks need a number a (sample, draw, feature), more than anything else, and get them from a cheaper hash in
32 bits: `tickets`. A subset of k features is the k smallest tickets of its row.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veridical.core import hash_kernels
from veridical.core.key import Key, streams
from veridical.functional.devices import at_a_time, on_host

_LOW_31 = 2**31 - 1
_TICKET_MIX = -749064809  # 0xD35A2D97, odd
_TICKET_MIX_32 = np.int32(_TICKET_MIX)
_CELLS_AT_ONCE = 2**15  # tickets of one step on a CPU: they and what they become stay in its second cache
_FEW_THREADS = 4  # up to which numpy's vectorised selection, on one thread, beats torch's on all

_KEPT = threading.local()

Array = npt.NDArray[Any]
Halves = tuple[Tensor, Tensor]
Room = tuple[Tensor, Tensor] | None


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
    if not on_host(device):
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
    once = hash_kernels.kernel(hash_kernels.TICKET, _ticket_steps, torch.int32, factor.device)
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


def _alone(x: Tensor) -> bool:
    """Whether one thread with numpy beats torch's: on a CPU, and where there are few threads anyway."""
    return on_host(x) and torch.get_num_threads() <= _FEW_THREADS


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
        if on_host(values):
            return values.topk(counts, largest=False, sorted=False).values.amax(-1, keepdim=True)
        return values.kthvalue(counts, -1, keepdim=True).values
    ordered = copied if vectorised else values.sort(-1).values
    return ordered.gather(-1, (counts - 1).clamp(0, size - 1)).masked_fill_(counts < 1, -_LOW_31 - 1)


def coins(key: Key, ids: Tensor, draws: Tensor, size: int, chance: float | Tensor) -> Tensor:
    """Toss (N, K, size) independent coins that fall True with `chance`: one number, or one a (N, K)."""
    factor, shift = halves(key, ids, draws)
    if isinstance(chance, float):
        chance = torch.full(
            (), chance, device=ids.device, dtype=torch.float64
        )  # made there: sending it waits
    share = chance.to(ids.device, torch.float64).expand(factor.shape)
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
    return max(1, at_a_time(device, min(rows, _CELLS_AT_ONCE // max(1, size)), rows))
