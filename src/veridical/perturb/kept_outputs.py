"""Outputs under masks that do not depend on what is explained: evaluated once in a call, for every output.

Who draws masks by the sample alone names them. Under one name, one model and one fill a sample's outputs are
kept whole, so that a map for another output of the same sample, or another method with the same masks, costs
no rows. What is kept takes a bounded memory; the oldest is let go first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import count

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.functional.devices import at_a_time
from veridical.models.context import Memo
from veridical.perturb.fills import Custom, Fill
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.subset_table import contents_of

KEPT_BYTES = 2**28, 2**30
"""Memory that all kept outputs of one call may take: 256 MiB on a CPU, 1 GiB elsewhere."""


class KeptOutputs:
    """Outputs (M, C) by what they belong to, in the order in which they were evaluated."""

    def __init__(self) -> None:
        self.numbers = count()
        self.size = 0
        self._held: dict[Hashable, tuple[Tensor, object]] = {}

    def find(self, names: Sequence[Hashable]) -> list[Tensor | None]:
        """The outputs kept under each name, or None."""
        return [None if (found := self._held.get(name)) is None else found[0] for name in names]

    def add(self, names: Sequence[Hashable], outputs: Tensor, train: object) -> None:
        """Keep the outputs (M, C) of each name; the oldest are let go where they take too much together.

        `train` is held with them, as names contain its identity.
        """
        most = at_a_time(outputs, *KEPT_BYTES)
        for name, own in zip(names, outputs, strict=True):
            if own.nbytes > most or name in self._held:
                continue
            # a copy: a part of a larger tensor would keep all of it
            self._held[name] = own.clone(), train
            self.size += own.nbytes
        while self.size > most:
            self.size -= self._held.pop(next(iter(self._held)))[0].nbytes


def may_keep(fill: Fill) -> bool:
    """Whether a fill gives a masked row the same values again; nobody knows that of a user's own."""
    return type(fill).__module__ == Fill.__module__ and not isinstance(fill, Custom)


def name_of(task: MaskedTask, fill: Fill, key: Key, *about: Hashable) -> Hashable:
    """What decides the outputs of a sample besides its content, or None where they cannot be kept."""
    if not may_keep(fill):
        return None
    return (*about, fill, fill.draw_of(key) if fill.follows_seed(task) else None)


def together(task: MaskedTask, masks: int) -> Sequence[Tensor]:
    """The numbers of a task's samples, as many at a time as have outputs that fit the memory."""
    most = max(1, at_a_time(task.inputs, *KEPT_BYTES) // (8 * task.n_outputs * masks))
    return torch.arange(len(task), device=task.inputs.device).split(most)


def outputs_under(
    task: MaskedTask, name: Hashable, memo: Memo, evaluate: Callable[[Tensor | None], Tensor]
) -> Tensor:
    """Outputs (N, M, C) under masks; `evaluate` is given the samples that have none yet, None for all.

    With `name` (`name_of`) they are kept under it for as long as they fit the memory.
    """
    if name is None:
        return evaluate(None)
    kept = memo.once(memo, "outputs under masks", KeptOutputs)
    owner = memo.once(task.predictor, "number", lambda: next(kept.numbers))
    contents = memo.once(task, "content of samples", lambda: contents_of(task).tolist())
    about = (owner, name, task.space.kind, task.space.input_shape, id(task.train))
    names = [(about, content) for content in contents]
    found = kept.find(names)
    missing = [i for i, outputs in enumerate(found) if outputs is None]
    if len(missing) == len(names):
        fresh = evaluate(None)
        kept.add(names, fresh, task.train)
        return fresh
    if missing:
        task.outputs  # noqa: B018 (evaluated once here, or the part below would evaluate its own)
        rows = torch.tensor(missing, device=task.inputs.device)
        fresh = evaluate(rows)
        kept.add([names[i] for i in missing], fresh, task.train)
        for i, outputs in zip(missing, fresh, strict=True):
            found[i] = outputs
    # a session, though nothing may be left to evaluate: it checks that the model has not changed
    with task.predictor.session():
        return torch.stack([outputs for outputs in found if outputs is not None])
