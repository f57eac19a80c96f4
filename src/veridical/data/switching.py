"""A task about what is inside its model: gates of heads, channels, blocks or atoms are explained."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, ShapeError
from veridical.models.inner_units import (
    INPUTS,
    PAIRED,
    SAMPLE,
    Counterfactual,
    InnerUnits,
    MeanOver,
    Row,
    Site,
    Switched,
    Zeroed,
)
from veridical.models.predictor import Side, call, take_side
from veridical.models.prompts import PromptModel
from veridical.perturb.fills import Zero
from veridical.values.input_checks import side_of, tensor_of
from veridical.values.task import Task


@checked
def switch(
    task: Task,
    units: InnerUnits | list[InnerUnits],
    off: Zeroed | MeanOver | Counterfactual = Zeroed(),  # noqa: B008 (frozen)
) -> Task:
    """The same task seen from units inside its model: `inputs` are gates, 1 is on and 0 is off.

    The gradient with respect to the gates is attribution patching, occlusion is activation patching,
    integrated gradients are its path form. The model, its outputs and the targets stay as they are.

    Parameters
    ----------
    task : Task
        Of a torch module, under its own weights.
    units : InnerUnits or list of them
        `vd.models.Heads()`, `Channels(layer)`, `Mlps()`, `Blocks()` or `Atoms(layer, dictionary)`.
    off : Zeroed, MeanOver or Counterfactual
        What takes the place of a unit that is off: zero, its mean over inputs, its value in a paired input.

    Returns
    -------
    Task
        With one feature per unit.

    Raises
    ------
    NotApplicableError
        Where a layer is called more than once per row, or the model does not answer as before with all
        units on.
    ShapeError
        Where paired inputs differ in size.
    """
    _check(task)
    kinds = [units] if isinstance(units, InnerUnits) else list(units)
    sites, names = _counted(task, kinds)
    side, positional = _named_side(task.inputs, task.side)
    paired, reference = _off_rows(task, off)
    side |= paired
    old = task.predictor
    how = {Zeroed: "zero", MeanOver: "mean", Counterfactual: "paired"}[type(off)]
    if how == "paired":
        side[SAMPLE] = torch.arange(len(task), device=task.device)
    own = old.source.copier

    def around(model: nn.Module) -> Switched:
        return Switched(model, sites, how, positional, reference, old.meter)

    source = old.source.wrapped(around, None if own is None else lambda made: around(own(made.module)))
    made = task.changed(
        alone=True,
        predictor=replace(old, source=source),
        targets=task.targets,
        outputs=task.known_outputs,
        inputs=task.inputs.new_ones(len(task), len(names), dtype=_dtype(task)),
        side=side,
        space=Space.units(len(names), None, names).to(task.device),
        fill=Zero(),
        train=None,
        train_labels=None,
        train_side=(),
        masks=None,
    )
    plain = object.__new__(Task)
    kept = vars(made).keys() - {"prompts", "answers", "units", "off"}
    plain.__dict__.update({name: vars(made)[name] for name in kept}, reference=plain)
    _check_on(task, plain)
    return plain


def _check(task: Task) -> None:
    if not isinstance(task.predictor.source.module, nn.Module) or task.predictor.source.shared:
        raise NotApplicableError(
            "units inside a model are switched by hooks, and this one is no torch module"
        )
    if task.predictor.weights is not None or task.predictor.wraps:
        raise NotApplicableError("switch the unperturbed task first, and change its weights then")
    if isinstance(task.predictor.source.module, Switched):
        raise NotApplicableError("this task is switched already; give all its units at once, as a list")
    if task.members is not None:
        raise NotApplicableError("the samples of this task are classes, which have no input of their own")
    model = task.predictor.source.module
    if isinstance(model, PromptModel) and model.has_foil and not model.one_pass:
        raise NotApplicableError(
            "the foil of a prompt differs from its answer before the last token, so the model reads the "
            "prompt twice, and units inside it are switched in one pass: give foils that differ in the last "
            "token alone, or none"
        )
    one_by_one = isinstance(model, PromptModel) and not model.pads and isinstance(task.side, dict)
    if one_by_one and not bool(task.side["attended"].all()):  # type: ignore[call-overload]
        raise NotApplicableError(
            "this model does not follow padding, so that prompts of other lengths are evaluated apart, and "
            "units inside it are switched in one pass: give prompts of equally many tokens"
        )


def _dtype(task: Task) -> torch.dtype:
    if task.inputs.is_floating_point():
        return task.inputs.dtype
    held = [p.dtype for p in task.predictor.source.module.parameters() if p.is_floating_point()]
    return held[0] if held else torch.get_default_dtype()


def _counted(task: Task, kinds: list[InnerUnits]) -> tuple[tuple[Site, ...], list[str]]:
    """All sites with their units numbered through; one row shows what the states look like."""
    if not kinds:
        raise InputError("there are no units to switch")
    sites: list[Site] = []
    names: list[str] = []
    with task.session():
        module = task.predictor.source.working.module
        row = partial(call, module, task.inputs[:1], take_side(task.side, slice(0, 1)))
        for kind in kinds:
            for number, site in enumerate(kind.sites(module, row)):
                sized, own = kind.sized(site, _state(row, module, site), number)
                if replace(sized, first=0) in [replace(known, first=0) for known in sites]:
                    raise InputError(f"the units of '{site.layer}' are given twice; give each kind once")
                sites.append(replace(sized, first=len(names)))
                names += own
    return tuple(sites), names


def _state(row: Row, module: nn.Module, site: Site) -> Tensor:
    seen: list[Tensor] = []
    handles = site.hooked(module, lambda state: seen.append(state))
    try:
        row()
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) != 1 or not len(seen[0]) == 1:
        raise NotApplicableError(
            f"layer '{site.layer}' is called {len(seen)} times for one row; units are switched in layers "
            "that are called once and keep the rows apart"
        )
    return seen[0]


def _named_side(inputs: Tensor, side: Side) -> tuple[dict[str, Tensor], int]:
    """Inputs and side inputs by names that no argument can have, and how many go by their position."""
    if isinstance(side, dict):
        return {INPUTS: inputs, **side}, 0
    return {INPUTS: inputs, **{f"side {place}": value for place, value in enumerate(side)}}, len(side)


def _off_rows(task: Task, off: Any) -> tuple[dict[str, Tensor], Any]:
    """Side inputs with the paired rows, or the reference rows over which states are averaged."""
    if isinstance(off, Zeroed):
        return {}, None
    rows: Any = off.inputs
    side: Any = getattr(off, "side", ())
    if isinstance(rows, Task):
        rows, side = rows.inputs, rows.side
    elif isinstance(off, Counterfactual):
        side = task.side
    rows = tensor_of(rows, "the inputs of what is off", None).to(task.inputs)
    side = side_of(side, len(rows), task.device)
    # prompts may be cut into other units; what counts is that their tokens lie over each other
    if rows.shape[1:] != task.inputs.shape[1:] and task.space.kind != "unit":
        raise ShapeError(
            f"inputs of what is off are {tuple(rows.shape[1:])}, the task's {tuple(task.inputs.shape[1:])}"
        )
    if isinstance(off, MeanOver):
        if sorted(_named_side(rows, side)[0]) != sorted(_named_side(task.inputs, task.side)[0]):
            raise InputError("the model takes side inputs; give those of the reference rows too, or a task")
        given, named = (side, {}) if not isinstance(side, dict) else ((), side)
        return {}, (rows, given, named)
    if len(rows) != len(task):
        raise ShapeError(
            f"{len(rows)} paired inputs for {len(task)} samples; give one for each, in their order"
        )
    mine, theirs = _named_side(task.inputs, task.side)[0], _named_side(rows, side)[0]
    for name in sorted((mine.keys() | theirs.keys()) - {INPUTS}):
        here, there = (tuple(each[name].shape) if name in each else None for each in (mine, theirs))
        if here != there:
            raise ShapeError(
                f"paired inputs differ in '{name}': {there} for {here}; states of inputs of other sizes do "
                "not lie over each other (pair prompts of equally many tokens)"
            )
    for name in ("attended", "answered"):  # of prompts and of answers
        if name in mine and not torch.equal(mine[name], theirs[name]):
            place = int((mine[name] != theirs[name]).any(1).nonzero()[0, 0])
            what = "prompt" if name == "attended" else "the answer to prompt"
            lengths = [int(each[name][place].sum()) for each in (mine, theirs)]
            raise ShapeError(
                f"{what} {place} has {lengths[0]} tokens and its pair {lengths[1]}, so their states do not "
                "lie over each other; pair prompts, and answers, of equally many tokens"
            )
    return {PAIRED + name: value for name, value in theirs.items()}, None


def _check_on(task: Task, switched: Task) -> None:
    """With all units on the model has to answer as it does: else a layer was not switched but changed."""
    first = slice(0, 1)

    def outputs(of: Task) -> Tensor:
        with of.session() as model:
            return of.uncounted(lambda: call(model, of.inputs[first], take_side(of.side, first)))

    # one row both times: in TF32 the same row of a larger batch has other last bits
    if not torch.allclose(outputs(switched), outputs(task), rtol=1e-3, atol=1e-4):
        raise NotApplicableError(
            "with all units on the model does not answer as before, so they cannot be switched"
        )
    module = switched.predictor.unwrapped
    assert isinstance(module, Switched)
    module.forget()
