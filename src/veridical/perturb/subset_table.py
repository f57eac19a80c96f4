"""Few features: the outputs under a mask of a sample are evaluated once and serve all that need masks.

A mask of at most 12 features is a number whose bit i says that the i-th feature is gone. For each (sample,
mask) the means over the fill's rows are kept of every output's logit and probability and of whether it is the
class predicted, so that all metrics and explainers of one call share them, on a task and its subsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.models.context import Memo
from veridical.models.predictor import take_side
from veridical.perturb.fills import (
    Backgrounds,
    Blur,
    Constant,
    Fill,
    Marginal,
    Mean,
    Summary,
    Token,
    UniformNoise,
    Zero,
)
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.rules import MaskRule

FEW = 12
"""The most features a sample may have for its masks to be kept."""
KEPT_BYTES = 2**28
"""Memory that the outputs of one table may take, 256 MiB; beyond it what is there is let go."""
LOGIT, PROBABILITY, PREDICTED = range(3)
_BUILT_IN = (Constant, Zero, Token, Mean, Marginal, Summary, UniformNoise, Blur)
_CELLS_AT_ONCE = 2**24  # features of masks that are written out together


@dataclass(eq=False)
class SubsetTable:
    """Outputs (K, 3, C) under masks, sorted by a number (K,) of the sample and mask they belong to."""

    train: Tensor | None = None
    """The reference rows that its fill draws from."""
    held: tuple[Tensor, Tensor] | None = None
    """The numbers and the outputs; None while there are none."""
    samples: dict[int, int] = field(default_factory=dict)
    """The number of each sample by its content."""

    def rows(self, task: MaskedTask, memo: Memo) -> Tensor:
        """The number of each sample (N,), by its content: noisy copies of an input share its id."""
        made = memo.once(task, "content of samples", lambda: contents_of(task).tolist())
        return torch.tensor(
            [self.samples.setdefault(i, len(self.samples)) for i in made], device=task.inputs.device
        )

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Where the outputs lie, and whether they are there at all."""
        if self.held is None:
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        known = self.held[0]
        place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return place, known[place] == keys

    def has_room(self, more: int) -> bool:
        """Whether so many further outputs may be kept."""
        if self.held is None:
            return True
        kept = self.held[1]
        return (len(kept) + more) * kept[0].numel() * kept.itemsize <= KEPT_BYTES

    def add(self, keys: Tensor, outputs: Tensor) -> None:
        """Keep new outputs beside those that are there."""
        if self.held is not None:
            keys, outputs = torch.cat([self.held[0], keys]), torch.cat([self.held[1], outputs])
        order = keys.argsort()
        self.held = keys[order], outputs[order]


def contents_of(task: MaskedTask) -> Tensor:
    """64 bits for each sample's id, draws, input, side inputs and features (N,)."""
    side = task.side.values() if isinstance(task.side, dict) else task.side
    mixed, space = keyed.content_ids(torch.stack([task.ids, task.draw_ids], -1)), task.space
    labels = space.labels if space.per_sample else space.labels[None].expand(len(task), *space.labels.shape)
    valid = () if space.valid is None else (space.valid,)
    for part in (task.inputs, *side, labels, *valid):
        mixed = keyed.content_ids(torch.stack([mixed, keyed.content_ids(part)], -1))
    return mixed


def has_few(task: MaskedTask, fill: Fill) -> Tensor | None:
    """Which samples have so few features that their masks are kept (N,); None where no sample has."""
    if type(fill) not in _BUILT_IN or task.members is not None:
        return None
    if task.space.valid is None:
        few = task.space.n_features <= FEW
        return torch.ones(len(task.inputs), dtype=torch.bool, device=task.inputs.device) if few else None
    few_of = task.space.counts(len(task)) <= FEW
    return few_of if bool(few_of.any()) else None


def places_of(task: MaskedTask) -> Tensor:
    """The number of each feature among those its sample has (N, V), -1 for those that do not exist."""
    valid = task.space.valid
    if valid is None:
        return torch.arange(task.space.n_features, device=task.inputs.device).expand(len(task.inputs), -1)
    return torch.where(valid, valid.cumsum(-1) - 1, -1)


def codes_of(task: MaskedTask, rule: MaskRule) -> Tensor:
    """The masks of a rule as numbers (N, M)."""
    bit = _bits(task)
    out = torch.empty(len(task.inputs), rule.count, dtype=torch.int64, device=task.inputs.device)
    few = max(1, _CELLS_AT_ONCE // max(1, rule.count * bit.shape[-1]))
    for at in range(0, len(task.inputs), few):
        rows = slice(at, min(len(task.inputs), at + few))
        removed = rule.removed(rows, slice(0, rule.count))
        out[rows] = torch.where(removed, bit[rows, None], 0).sum(-1)
    return out


def outputs_under(task: MaskedTask, codes: Tensor, behind: Backgrounds, memo: Memo) -> tuple[Tensor, Tensor]:
    """Where the outputs under masks (N, M) lie in the table, and the table (K, 3, C) itself.

    Masks that differ only in features equal to their fill are one, and the mask of none is the input.
    """
    fill, train = behind.fill, task.train
    drawn = fill.draw_of(behind.key) if fill.follows_seed(task) else None
    table = memo.once(task.predictor, ("subsets", fill, drawn, id(train)), lambda: SubsetTable(train))
    matters = behind.matters()
    if matters is not None:
        codes = codes & torch.where(matters, _bits(task), 0).sum(-1, keepdim=True)
    # a session, though nothing may be left to evaluate: it checks that the model has not changed
    with task.predictor.session():
        rows = table.rows(task, memo)
        keys = (rows[:, None] << FEW) | codes
        place, known = table.find(keys)
        if not bool(known.all()):
            new = keys[~known].unique()
            if not table.has_room(len(new)):
                table.held, new = None, keys.unique()
            _evaluate(task, table, rows, new, behind)
            place, _ = table.find(keys)
    assert table.held is not None
    return place, table.held[1]


def bits_of(sets: Tensor, features: int = FEW) -> Tensor:
    """Whether each feature is in each set (..., D), a number whose bit i stands for feature i."""
    return (sets[..., None] >> torch.arange(features, device=sets.device)) & 1 == 1


def _bits(task: MaskedTask) -> Tensor:
    """The bit of each feature in the number of a mask (N, V), 0 for those that do not exist."""
    places = places_of(task)
    return torch.where(places >= 0, 1 << places.clamp(min=0, max=FEW), 0)


def _evaluate(task: MaskedTask, table: SubsetTable, rows: Tensor, keys: Tensor, behind: Backgrounds) -> None:
    """Evaluate masks of samples, each once; of those that remove nothing the outputs are known."""
    code, ordered = keys & ((1 << FEW) - 1), rows.argsort()
    who = ordered[torch.searchsorted(rows[ordered], keys >> FEW)]
    # by sample, so that the backgrounds of a chunk lie together
    order = who.argsort(stable=True)
    keys, code, who = keys[order], code[order], who[order]
    clean = code == 0
    found = [_scales(task, task.outputs[who[clean]])]
    removing = (~clean).nonzero()[:, 0]
    places, repeats, shape = places_of(task), behind.repeats, task.inputs.shape[1:]
    together = max(1, task.predictor.rows // repeats)
    # read here, once: in the loop a GPU would wait at every chunk
    firsts, lasts = who[removing[::together]].tolist(), who[removing[together - 1 :: together]].tolist()
    lasts += who[removing[-1:]].tolist()
    for chunk, at in enumerate(range(0, len(removing), together)):
        some = removing[at : at + together]
        here, first, last = who[some], firsts[chunk], lasts[chunk]
        gone = ((code[some, None] >> places[here].clamp(min=0)) & 1).bool() & (places[here] >= 0)
        shown = behind(slice(first, last + 1))
        shown = shown if len(shown) == 1 else shown[here - first]
        filled = torch.where(task.space.expand(gone, here)[:, None], shown, task.inputs[here, None])
        side = take_side(task.side, here.repeat_interleave(repeats))
        masked = filled.expand(len(here), repeats, *shape).flatten(0, 1)
        outputs = task.predictor.chunk(masked, side)
        found.append(_means(task, outputs, behind))
    table.add(torch.cat([keys[clean], keys[removing]]), torch.cat(found))


def predicted(task: MaskedTask, outputs: Tensor) -> Tensor:
    """1 for the output that is predicted, or of labels for each that is; else 0 (R, C); of tokens a share."""
    if task.head == "generation":
        return outputs[..., 1:]
    if task.head in ("multiclass", "binary"):
        return torch.zeros_like(outputs).scatter_(-1, outputs.argmax(-1, keepdim=True), 1.0)
    return (outputs > 0).to(outputs.dtype)


def _means(task: MaskedTask, outputs: Tensor, behind: Backgrounds) -> Tensor:
    """Means over the fill's rows of logits, probabilities and predictions: (R * repeats, C) -> (R, 3, C)."""
    each = _scales(task, outputs)
    return each if behind.repeats == 1 else behind.mean(each.unflatten(0, (-1, behind.repeats)), 1)


def _scales(task: MaskedTask, outputs: Tensor) -> Tensor:
    """Logits, probabilities and predictions of rows (R, 3, C)."""
    return torch.stack((task.respond(outputs, "logit"), task.respond(outputs), predicted(task, outputs)), 1)
