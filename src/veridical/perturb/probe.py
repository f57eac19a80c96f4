"""Masks in, responses out: the one loop that evaluates a model on masked variants of its inputs.

A metric describes its masks by a *rule* and gets back one response a (sample, mask). The masked rows are
built on the device one block (some samples x some masks) at a time, in a buffer that is used again, and are
never all there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError, ShapeError
from veridical.functional import round_to_grid
from veridical.models.context import Memo
from veridical.models.output_heads import Response
from veridical.models.predictor import check_finite, repeat_side, take_side
from veridical.perturb import kept_outputs, subset_table
from veridical.perturb.fills import Backgrounds, Fill
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.rules import MaskRule, RowsOf


def probe(
    task: MaskedTask,
    rule: MaskRule,
    *,
    response: Response = "probability",
    fill: Fill | None = None,
    key: Key = Key(0),  # noqa: B008 (frozen)
    with_clean: bool = False,
    all_outputs: bool = False,
    predictions: bool = False,
    memo: Memo | None = None,
    kept: Hashable = None,
) -> Tensor:
    """Evaluate every mask: responses (N, M) of the explained output, in float64.

    `with_clean` puts the response to the unmasked input in front (N, M + 1). Responses are rounded to the
    grid within which equal inputs tie, and masks that remove only features equal to their fill respond
    exactly alike. `all_outputs` gives (N, M, C) instead, unrounded; with `predictions` (N, M, 2C), behind the
    responses how often, over the rows of the fill, each output is the one predicted. Probes with the same
    `memo` evaluate each set of removed features once where samples have few, and of any number of
    features the masks that both have `kept` under one name.

    Parameters
    ----------
    task : MaskedTask
        Model, inputs and the outputs to explain.
    rule : MaskRule
        What each mask removes.
    response : {"probability", "logit"}
        The scale on which outputs are read.
    fill : Fill, optional
        What removed features become; by default the task's fill.
    key : Key
        What a fill draws by.
    with_clean : bool
        Whether the response to the unmasked input stands in front.
    all_outputs : bool
        Whether all outputs are returned, unrounded.
    predictions : bool
        With `all_outputs`: how often each output is the predicted one.
    memo : Memo, optional
        What the call has computed so far.
    kept : hashable, optional
        What decides the masks of a sample besides its features, such as a key: the outputs under them are
        then kept in the memo, for every output that may be explained. Not for masks that follow a map.

    Returns
    -------
    Tensor
        Responses (N, M) in float64; (N, M + 1), (N, M, C) or (N, M, 2C) as above.

    Raises
    ------
    InputError
        Where the rule makes no masks.
    """
    if rule.count < 1:
        raise InputError("the mask rule makes no masks, so there is nothing to evaluate")
    behind = Backgrounds(task, fill or task.fill, key)
    if memo is not None:
        masks = min(rule.count, 2 ** min(task.space.n_features, 30))
        rows, words = len(task.inputs) * masks * behind.repeats, partial(_many_rows, task, masks, behind)
        memo.expect(task.predictor.meter.here, rows, words)
    few = ties = None
    if task.space.valid is not None or task.space.n_features <= subset_table.FEW:
        few = subset_table.has_few(task, behind.fill)
    keeps = kept is not None and not predictions and kept_outputs.may_keep(behind.fill)
    parts: Sequence[Tensor] = kept_outputs.together(task, rule.count) if keeps else ()
    if few is not None:
        parts = _parts_with_few(task, rule, few)
    if len(parts) > 1:
        again = partial(probe, response=response, fill=fill, key=key, with_clean=with_clean, kept=kept)
        again = partial(again, all_outputs=all_outputs, predictions=predictions, memo=memo or Memo())
        return _in_parts(task, rule, parts, again)
    if few is not None:
        evaluated = _from_table(task, rule, behind, response, all_outputs, predictions, memo or Memo())
    elif keeps:
        name = kept_outputs.name_of(task, behind.fill, behind.key, kept, rule.count, response)
        every = partial(_every_output, task, rule, behind, response)
        evaluated = kept_outputs.outputs_under(task, name, memo or Memo(), every)
        if not all_outputs:
            evaluated = evaluated.gather(2, task.targets.view(-1, 1, 1).expand(-1, rule.count, 1))[..., 0]
    else:
        matters = None if all_outputs else behind.matters()
        evaluated, ties = _evaluate(task, rule, behind, response, all_outputs, predictions, matters)
    # what is wrong with kept outputs is found by everyone who reads them
    check_finite(evaluated)
    if all_outputs:
        return _all_with_clean(task, evaluated, response, predictions, with_clean)
    own = task.clean_response(response).to(evaluated.dtype)
    if ties is not None:
        evaluated = ties.tied(evaluated, own)
    responses = round_to_grid(torch.cat([own, evaluated], 1), task.predictor.rounding)
    return responses if with_clean else responses[:, 1:]


def _many_rows(task: MaskedTask, masks: int, behind: Backgrounds) -> str:
    """What takes the rows of a probe, and what takes fewer."""
    each = f", each with {behind.repeats} rows of the fill" if behind.repeats > 1 else ""
    return (
        f"{len(task.inputs)} samples under {masks:,} masks{each}. Fewer samples, features (space=), or steps "
        f"or draws of the metric lower it{fewer_fill_rows(behind.repeats)}"
    )


def fewer_fill_rows(repeats: int) -> str:
    """The setting that makes the rows of a fill fewer, where there are many."""
    return f"; so does fill=vd.fills.Marginal(20) in place of {repeats}" if repeats > 20 else ""


def _all_with_clean(
    task: MaskedTask, evaluated: Tensor, response: Response, predictions: bool, with_clean: bool
) -> Tensor:
    """The responses of all outputs, where wanted with those to the untouched input in front."""
    if with_clean:
        own = task.respond(task.outputs, response)
        if predictions:
            own = torch.cat([own, subset_table.predicted(task, task.outputs)], -1)
        evaluated = torch.cat([own[:, None], evaluated], 1)
    return evaluated.double()


def _parts_with_few(task: MaskedTask, rule: MaskRule, few: Tensor) -> Sequence[Tensor]:
    """The samples that are evaluated together: those of few features apart, as many as fit their table."""
    at_once = max(1, subset_table.KEPT_BYTES // (32 * 3 * task.n_outputs * rule.count))
    if task.space.valid is None:
        return torch.arange(len(task), device=task.inputs.device).split(at_once)
    parts = [*few.nonzero()[:, 0].split(at_once), *(~few).nonzero()[:, 0].split(at_once)]
    return [rows for rows in parts if len(rows)]


def _in_parts(
    task: MaskedTask,
    rule: MaskRule,
    parts: Sequence[Tensor],
    evaluate: Callable[[MaskedTask, MaskRule], Tensor],
) -> Tensor:
    """The responses of some samples at a time, as those of all."""
    out: Tensor | None = None
    for rows in parts:
        part = evaluate(task[rows], RowsOf(rule, rows))
        out = part.new_empty(len(task.inputs), *part.shape[1:]) if out is None else out
        out[rows] = part
    assert out is not None
    return out


def _from_table(
    task: MaskedTask,
    rule: MaskRule,
    behind: Backgrounds,
    response: Response,
    all_outputs: bool,
    predictions: bool,
    memo: Memo,
) -> Tensor:
    """Responses (N, M, C or none) where samples have few features: each set of them is evaluated once."""
    place, values = subset_table.outputs_under(task, subset_table.codes_of(task, rule), behind, memo)
    which = subset_table.LOGIT if response == "logit" else subset_table.PROBABILITY
    if not all_outputs:
        return values[place, which, task.targets[:, None]]
    evaluated = values[place, which]
    return torch.cat([evaluated, values[place, subset_table.PREDICTED]], -1) if predictions else evaluated


def _every_output(
    task: MaskedTask, rule: MaskRule, behind: Backgrounds, response: Response, rows: Tensor | None
) -> Tensor:
    """The responses (n, M, C) of all outputs in some samples; a mask that changes nothing leaves them."""
    if rows is not None:
        task, rule = task[rows], RowsOf(rule, rows)
        behind = Backgrounds(task, behind.fill, behind.key)
    evaluated, ties = _evaluate(task, rule, behind, response, True, False, behind.matters())
    if ties is None:
        return evaluated
    own = task.respond(task.outputs, response).to(evaluated.dtype)
    return torch.where(ties.moves[..., None], evaluated, own[:, None])


class _Ties:
    """Which masks remove nothing that `matters` (N, V), and which remove just what the one before does."""

    def __init__(self, matters: Tensor, masks: int) -> None:
        self._matters, self._last = matters, torch.zeros_like(matters)
        self.moves = torch.empty(len(matters), masks, dtype=torch.bool, device=matters.device)
        self._new = torch.empty_like(self.moves)

    def see(self, removed: Tensor, rows: slice, columns: slice) -> None:
        """Take in a block; those of one sample come in the order of its masks."""
        gone = removed & self._matters[rows, None]
        self.moves[rows, columns] = _any(gone)
        self._new[rows, columns.start] = _any(gone[:, 0] ^ self._last[rows])
        self._new[rows, columns.start + 1 : columns.stop] = _any(gone[:, 1:] ^ gone[:, :-1])
        self._last[rows] = gone[:, -1]

    def tied(self, evaluated: Tensor, clean: Tensor) -> Tensor:
        """Responses (N, M), those of masks in a row that remove the same being the first one's."""
        place = torch.arange(self._new.shape[-1], device=evaluated.device)
        leader = torch.where(self._new, place, 0).cummax(-1).values
        return torch.where(self.moves, evaluated, clean).gather(-1, leader)


def _any(truth: Tensor) -> Tensor:
    """Whether any holds, along the last axis: the largest of bytes is found many times faster than `any`."""
    return truth.view(torch.uint8).amax(-1).bool()


def _evaluate(
    task: MaskedTask,
    rule: MaskRule,
    behind: Backgrounds,
    response: Response,
    all_outputs: bool,
    predictions: bool,
    matters: Tensor | None,
) -> tuple[Tensor, _Ties | None]:
    """Responses (N, M, C or none) and, given which features matter, which masks must respond alike."""
    predictor, shape = task.predictor, task.inputs.shape[1:]
    samples, masks, repeats = len(task.inputs), rule.count, behind.repeats
    cut = list(blocks(samples, masks, max(1, predictor.rows // repeats)))
    targets = None if all_outputs else task.targets
    width = task.n_outputs * (1 + predictions) if all_outputs else 1
    found: list[Tensor] = []
    result = buffer = None
    ties = None if matters is None else _Ties(matters, masks)
    with predictor.session():
        for rows, columns in cut:
            x = task.inputs[rows]
            removed = rule.removed(rows, columns)
            count, across = x.shape[0], columns.stop - columns.start
            if removed.shape[-2:] != (across, task.space.n_features):
                raise ShapeError(
                    f"masks have shape {tuple(removed.shape)}; expected (samples, masks, features) with "
                    f"{task.space.n_features} {task.space.kind} features"
                )
            if task.space.valid is not None:
                # padding and special tokens are never removed, whatever a rule says
                removed = removed & task.space.valid[rows, None]
            if ties is not None:
                ties.see(removed, rows, columns)
            removed = task.space.expand(removed.expand(count, -1, -1), rows)[:, :, None]
            total = count * across * repeats
            padded = total + (-total % predictor.padded_to)
            if buffer is None or buffer.shape[0] < padded:
                # what pads a chunk is evaluated, too, and should be numbers
                make = task.inputs.new_empty if padded == total else task.inputs.new_zeros
                buffer = make((padded, *shape))
            behind.show(removed, rows, buffer[:total].view(count, across, repeats, *shape))
            side = repeat_side(take_side(task.side, rows), across * repeats)
            outputs = predictor.chunk(buffer[:padded], side, total)
            values = task.respond(outputs, response)
            if predictions:
                values = torch.cat([values, subset_table.predicted(task, outputs)], -1)
            values = values.reshape(count, across, repeats, -1)
            if targets is not None:
                values = values.gather(3, targets[rows].view(-1, 1, 1, 1).expand(count, across, repeats, 1))
            # each output's rows lie together, so that its mean is the same among others as alone
            values = behind.mean(values.mT.contiguous(), -1) if repeats > 1 else values[:, :, 0]
            if across == masks:
                found.append(values)
                continue
            if result is None:
                result = values.new_empty(samples, masks, width)
            result[rows, columns] = values
    if result is None:
        result = torch.cat(found) if len(found) > 1 else found[0]
    return (result if all_outputs else result[..., 0]), ties


def blocks(samples: int, masks: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut samples x masks into rectangles of at most `rows` cells, whole chunks where they fit.

    A sample with more masks than rows fills chunks of its own; what is left over of several samples shares
    one: as few chunks as can be, of a multiple of 32 rows if that is so, else as full as can be. The cut
    depends on the shape and the plan only, so the same plan evaluates the same blocks.
    """
    whole = masks // rows * rows
    for sample in range(samples if whole else 0):
        for left in range(0, whole, rows):
            yield slice(sample, sample + 1), slice(left, left + rows)
    if whole < masks:
        most = max(1, rows // (masks - whole))
        least = -(-samples // -(-samples // most))
        # kernels for 32 rows take others a sixth more slowly, unless a chunk is nearly full
        down = next((d for d in range(most, least - 1, -1) if d * (masks - whole) % 32 == 0), most)
        for top in range(0, samples, down):
            yield slice(top, min(samples, top + down)), slice(whole, masks)
