"""Short work on a GPU played again: all that a pass does is recorded once, and then started by one call.

A small model's pass is over on the device before the host has started its next operation. A CUDA graph holds
all operations of a pass. Recorded is what follows from tensors and a model's weights alone; it is played
again only while the weights lie where they lay, and only if it gave what the pass itself gives: the very
bits or, as cuDNN's gradients differ from one pass to the next, something as near as those are.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import RLock, get_ident
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from veridical.cuda_graphs import CudaGraphs
from veridical.places import parts_and_places, tells_all
from veridical.recording import Answer, is_recording, recording
from veridical.scores import Cost

log = logging.getLogger("veridical")

AFTER = 2
"""Times that a pass is made as usual before it is recorded: many are made no more often."""
LARGEST = 2**29
"""Bytes that the tensors of a pass may take: where there is more to do, a GPU does not wait for its host."""
NAMES, KEPT = 64, 2**30
"""Passes known, and bytes of what goes into recordings and comes out; the longest unused make room."""
ROUNDING = 1e-3
"""Of the largest number in an answer: how far two passes over the same may be apart."""

_ONE_AT_A_TIME = RLock()
"""What is switched on while a pass is recorded is switched on for the whole process."""


class Recorder(Protocol):
    """How passes are recorded on a kind of device."""

    def weighed(self, run: Callable[[], Answer]) -> tuple[Answer, int | None]:
        """Make a pass, and say how many bytes it took; None if it waited for the device."""

    def record(self, run: Callable[[], Answer]) -> tuple[Answer, Callable[[], None]]:
        """The tensors in which the answer of a pass will stand, and what plays it again."""


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaGraphs}
"""Who records on which kind of device; on others every pass is made as usual."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A pass that can be played again."""

    given: Answer
    answer: Answer
    again: Callable[[], None]
    cost: Cost
    parts: tuple[ref[nn.Module], ...]
    """The model's: a recording does not keep it alive, and is not that of another in its place."""
    keep: Any
    """What else the recording is known by, and what it reads of what many share: none of it may be given
    back, and its place taken by something else."""

    def play(self, given: Sequence[Tensor]) -> Answer:
        """The answer to these tensors."""
        for own, other in zip(self.given, given, strict=True):
            own.copy_(other.detach())  # a graph of gradients would grow with every time
        self.again()
        return tuple(part.clone() for part in self.answer)

    @property
    def size(self) -> int:
        """Bytes of what goes in and comes out."""
        return sum(part.numel() * part.element_size() for part in (*self.given, *self.answer))


@dataclass(eq=False)
class Replays:
    """The recordings of a predictor and of those made from it, and the meter that counts what they ask."""

    meter: Any
    _known: dict[Hashable, int | Recording | None] = field(default_factory=dict)
    """How often a pass was made, its recording, or None if it cannot be recorded; the last used come last."""
    _recorders: dict[Hashable, Recorder] = field(default_factory=dict)

    def __call__(
        self,
        name: Hashable,
        model: nn.Module,
        given: Sequence[Tensor],
        run: Callable[..., Answer],
        usual: Callable[[], Answer],
        keep: Any = None,
    ) -> Answer:
        """`usual()`, or the same by a recording of `run(*given)` where there is one.

        The answer must follow from `given`, the weights of `model`, and what `name` says; what the name knows
        by its place in memory is to be kept.
        """
        placed = parts_and_places(model)
        if placed is None:
            return usual()
        parts, places = placed
        device = given[0].device
        # two threads, or two streams, would write over what the other has just put there
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        exact = torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
        here = get_ident(), device, stream, *exact
        full = name, places, tuple((each.shape, each.stride(), each.dtype) for each in given), here
        known = self._known.pop(full, 0)
        if isinstance(known, Recording) and any(part() is None for part in known.parts):
            known = 0
        self._known[full] = known
        if isinstance(known, Recording):
            self.meter.add(known.cost)
            return known.play(given)
        if known is None:
            return usual()
        if known < AFTER:
            self._known[full] = known + 1
            self._make_room()
            return usual()
        if not all(tells_all(part, device) for part in parts):
            self._known[full] = None
            return usual()
        with _ONE_AT_A_TIME:
            answer, self._known[full] = self._recorded(given, run, usual, here, parts, keep)
        self._make_room()
        return answer

    def _recorded(
        self,
        given: Sequence[Tensor],
        run: Callable[..., Answer],
        usual: Callable[[], Answer],
        here: Hashable,
        parts: Sequence[nn.Module],
        keep: Any,
    ) -> tuple[Answer, Recording | None]:
        """The answer of a pass made as usual, and the recording of the pass if it gives the same."""
        recorder = self._recorders.get(here)
        if recorder is None:
            make = RECORDERS.get(given[0].device.type)
            if make is None:  # while this thread waited for its turn, another's recording failed
                return usual(), None
            recorder = self._recorders[here] = make(given[0].device)
        before = self.meter.cost
        try:
            with recording():
                answer, size = recorder.weighed(lambda: run(*given))
        except Exception as error:
            # if it is the pass itself that fails, it does so again
            log.info("a pass is not recorded: %s", error)
            self.meter.reset(before)
            return usual(), None
        after = self.meter.cost
        if size is None or size > LARGEST:
            return answer, None
        try:
            own = tuple(torch.empty_like(each).copy_(each.detach()) for each in given)
            with recording() as read:
                answered, again = recorder.record(lambda: run(*own))
                made = Recording(own, answered, again, after - before, tuple(map(ref, parts)), (keep, read))
            twin = usual()
            if all(map(no_further, made.play(given), answer, twin)):
                return answer, made
            log.info("a recorded pass answers otherwise than the pass itself; it is not played again")
        except Exception as error:
            # what could be foreseen was; who knows what else this device cannot do
            log.warning("a pass could not be recorded, and no other will be: %s", error)
            RECORDERS.pop(given[0].device.type, None)
        finally:
            self.meter.reset(after)
        return answer, None

    def _make_room(self) -> None:
        while len(self._known) > NAMES or self._size() > KEPT:
            # other threads add and take away meanwhile, but not while a list is made
            oldest, *_ = list(self._known)
            self._known.pop(oldest, None)

    def _size(self) -> int:
        return sum(each.size for each in list(self._known.values()) if isinstance(each, Recording))

    def __getstate__(self) -> dict[str, Any]:
        # recordings are of a process and of the very weights
        return {"meter": self.meter, "_known": {}, "_recorders": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        return Replays(copy.deepcopy(self.meter, memo))


def can_record(device: torch.device) -> bool:
    """Whether passes on this device may be recorded or played, here and now."""
    return (
        device.type in RECORDERS
        and not is_recording()
        and not torch.is_inference_mode_enabled()
        and not torch._C._len_torch_dispatch_stack()  # somebody counts or changes operations
        and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def no_further(played: Tensor, made: Tensor, twin: Tensor) -> bool:
    """Whether what was played is the same as what was made, or about as near to it as what was made twice."""
    if played.shape != made.shape or played.dtype != made.dtype:
        return False
    if not made.is_floating_point():
        return torch.equal(played, made)
    apart, size = strays(twin, made), strays(made.nan_to_num(0.0, 0.0, 0.0), torch.zeros_like(made))
    # answers that are further apart than rounding explains are drawn, perhaps by a number that would be kept
    return strays(played, made) <= 4 * apart <= 4 * ROUNDING * size


def strays(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors; none where neither has a number, infinite where one has none."""
    away = (one - other).abs()
    away = away.masked_fill((one == other) | (one.isnan() & other.isnan()), 0.0)
    return float(away.nan_to_num(torch.inf, torch.inf).amax()) if away.numel() else 0.0
