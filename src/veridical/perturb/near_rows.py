"""Near the data: inputs that go a step towards the reference rows most like them.

A masked row may be one that never occurs; a row a little nearer to its neighbours in the data hardly is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from veridical.core.facts import fact, train_fact
from veridical.functional import round_to_grid
from veridical.models.output_heads import Response
from veridical.models.predictor import repeat_side, take_side
from veridical.perturb.masked_task import MaskedTask

NEIGHBOURS = 8
"""How many of the nearest reference rows an input is moved towards, each in a row of its own."""
STEP = 0.2
"""How far it is moved, as a share of the way."""
FEW_LEVELS = 12
"""An element with no more different values over the reference rows takes the neighbour's value whole."""
MANY_ROWS = 10_000
"""Reference rows among which neighbours are looked for, at most: every second, third, ... of more."""
FARTHEST = 0.75
"""Neighbours must be nearer than this share of the distance between two reference rows taken at random."""
UNLIKE = 2.0
"""What two different categories add to a squared distance: as much as two random values of a number."""


def why_no_near_rows(task: MaskedTask) -> str | None:
    """Why inputs have no neighbours to move towards, or None if they have."""
    if task.modality not in ("table", "image"):
        return f"what is near a {task.modality} does not follow from the distance of its elements"
    if task.train is None:
        return "there are no reference rows to find neighbours among; give the task train=..."
    if not task.inputs.is_floating_point():
        return f"inputs of {task.inputs.dtype} cannot be moved a little; pass inputs.float()"
    if len(task.train) <= NEIGHBOURS:
        return f"there are {len(task.train)} reference rows, too few to find {NEIGHBOURS} neighbours among"
    if task.modality == "table":
        return None
    far = _relative_distance(task)
    if not far <= FARTHEST:
        return f"the nearest reference rows are {far:.0%} as far away as any others, so none is near"
    return None


def near_rows(task: MaskedTask, step: float = STEP, neighbours: int = NEIGHBOURS) -> Tensor:
    """The inputs moved `step` of the way towards each of their nearest reference rows (N, K, *shape).

    Distances are those of standardised elements. Rows equal to an input are no neighbours of it. Categories,
    elements of few values, whole numbers, and values that are missing on one side take the neighbour's value
    whole.

    Parameters
    ----------
    task : Task
        The inputs, and the reference rows among which neighbours are looked for.
    step : float
        How far inputs are moved, as a share of the way.
    neighbours : int
        How many neighbours each input is moved towards.

    Returns
    -------
    Tensor
        Rows (N, K, *input shape); an input with fewer neighbours stands in for those that are not there.

    Examples
    --------
    >>> import veridical as vd
    >>> rows = torch.arange(60.0).reshape(20, 3).sqrt()
    >>> task = vd.Task(torch.nn.Linear(3, 2), rows[:1], train=rows)
    >>> near_rows(task, step=0.5, neighbours=1)[0, 0] == (rows[0] + rows[1]) / 2
    tensor([True, True, True])
    """
    own = task.inputs[:, None]
    found, distance = _nearest(task, neighbours)
    rows = _some_rows(task)[found]
    whole = _taken_whole(task) | rows.isnan() | own.isnan()
    moved = torch.where(whole, rows, own + step * (rows - own))
    there = torch.isfinite(distance).reshape(*distance.shape, *[1] * (own.dim() - 2))
    return torch.where(there, moved, own)


def single_moves(
    task: MaskedTask, features: Tensor, step: float = STEP, neighbours: int = NEIGHBOURS
) -> Iterator[Tensor]:
    """Inputs in which one feature alone goes towards the nearest reference rows in which it differs.

    Neighbours often share a category or a small number with an input; such features would never move.

    Parameters
    ----------
    task : Task
        The inputs, and the reference rows.
    features : Tensor
        Numbers (N, M) of features, of each sample's own.
    step, neighbours
        As of `near_rows`.

    Yields
    ------
    Tensor
        For each of the M features rows (N, K, *input shape); an input stands in where too few rows differ.
    """
    rows, whole = _some_rows(task), _taken_whole(task)
    squared = _squared_distances(task, task.inputs)
    squared = squared.masked_fill(squared == 0, torch.inf)
    flat, x = rows.flatten(1), task.inputs[:, None]
    for feature in features.T:
        chosen = one_hot(feature, task.space.n_features).bool()[:, None]
        chosen = task.space.expand(chosen, slice(0, len(task)))[:, 0]
        found = []
        for sample, elements, distances in zip(task.inputs, chosen, squared, strict=True):
            at = elements.flatten()
            own, others = sample.flatten()[at], flat[:, at]
            other = ((own != others) & ~(own.isnan() & others.isnan())).any(1)
            found.append(distances.masked_fill(~other, torch.inf).topk(neighbours, largest=False))
        near = rows[torch.stack([each.indices for each in found])]
        there = torch.isfinite(torch.stack([each.values for each in found]))
        there = there.reshape(*there.shape, *[1] * (x.dim() - 2)) & chosen[:, None]
        near = torch.where(whole | near.isnan() | x.isnan(), near, x + step * (near - x))
        yield torch.where(there, near, x)


def near_responses(
    task: MaskedTask,
    moved: Tensor,
    response: Response = "logit",
    step: float = STEP,
    neighbours: int = NEIGHBOURS,
) -> tuple[Tensor, Tensor]:
    """The response of the explained output as it is (N, 1), and where features are `moved` (N, K, M).

    Parameters
    ----------
    task : Task
        The task to evaluate.
    moved : Tensor
        Which features (N, M, V) each of M masks moves towards a neighbour; the others stay.
    response : {"probability", "logit"}
        The scale on which outputs are read.
    step, neighbours
        As of `near_rows`.

    Returns
    -------
    tuple of Tensor
        Responses in float64, on the grid within which equal ones tie.
    """
    if task.space.valid is not None:
        moved = moved & task.space.valid[:, None]
    masks, found = moved.shape[1], []
    near = near_rows(task, step, neighbours)
    few = max(1, task.predictor.rows // (neighbours * masks))
    for at in range(0, len(task), few):
        some = slice(at, at + few)
        x, towards = task.inputs[some], near[some]
        where = task.space.expand(moved[some], some)[:, None]
        rows = torch.where(where, towards[:, :, None], x[:, None, None]).flatten(0, 2)
        outputs = task.predictor.outputs(rows, repeat_side(take_side(task.side, some), neighbours * masks))
        read = task.respond(outputs, response).unflatten(0, (len(x), -1))
        found.append(read.gather(2, task.targets[some, None, None].expand(-1, read.shape[1], 1))[..., 0])
    own = task.clean_response(response)
    responses = round_to_grid(torch.cat([own, torch.cat(found).to(own)], 1), task.predictor.rounding)
    return responses[:, :1], responses[:, 1:].unflatten(1, (neighbours, masks))


def little_moves(task: MaskedTask) -> Tensor:
    """Features (N or 1, V) that can be moved a little: none of their elements is taken whole."""
    whole = _taken_whole(task)
    return ~task.space.anywhere(whole.expand(len(task) if task.space.per_sample else 1, *whole.shape))


def ways(task: MaskedTask, rows: Tensor) -> Tensor:
    """How far each feature is moved to become that of other rows (N or 1, R, *shape): means over them (N, V).

    Of categories and missing values, whether they differ.
    """
    x, rows = task.inputs[:, None].double(), rows.double()
    total = torch.zeros_like(x[:, 0])
    names = torch.zeros(task.inputs.shape[1:], dtype=torch.bool, device=x.device)
    names.view(-1)[list(_categories(task))] = True
    for row in range(rows.shape[1]):
        apart = (x[:, 0] - rows[:, row]).abs()
        other = (x[:, 0] != rows[:, row]) & ~(x[:, 0].isnan() & rows[:, row].isnan())
        total += torch.where(names | apart.isnan(), other.double(), apart)
    return task.space.pool(total / rows.shape[1])


def _some_rows(task: MaskedTask) -> Tensor:
    assert task.train is not None
    return task.train[:: -(-len(task.train) // MANY_ROWS)]


@train_fact
def _taken_whole(task: MaskedTask) -> Tensor:
    """Which elements are moved all the way: categories, few different values, whole numbers."""
    rows = _some_rows(task).flatten(1)
    steady = rows.nan_to_num(nan=0.0)
    ordered = steady.sort(0).values
    levels = 1 + (ordered[1:] != ordered[:-1]).sum(0)
    whole = (levels <= FEW_LEVELS) | (steady == steady.round()).all(0)
    return whole.reshape(task.inputs.shape[1:])


@train_fact
def _categories(task: MaskedTask) -> tuple[int, ...]:
    """Columns of a data frame whose numbers are names of categories."""
    codec = getattr(task.predictor.source.module, "codec", None)
    return () if codec is None else tuple(i for i, levels in enumerate(codec.categories) if levels)


def _squared_distances(task: MaskedTask, x: Tensor) -> Tensor:
    """Between rows x (n, *shape) and the reference rows (n, R)."""
    rows, x = _some_rows(task).flatten(1).double(), x.flatten(1).double()
    names = list(_categories(task))
    scale = (rows - rows.nanmean(0)).square().nanmean(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    scale[names] = torch.inf
    # differences and not products, so that equal rows are at distance 0
    exact = "donot_use_mm_for_euclid_dist"
    near = torch.cdist(
        (x / scale).nan_to_num(nan=0.0), (rows / scale).nan_to_num(nan=0.0), compute_mode=exact
    )
    squared = near.square()
    for column in names:
        squared += UNLIKE * (x[:, None, column] != rows[None, :, column])
    for column in rows.isnan().any(0).nonzero()[:, 0].tolist():
        squared += UNLIKE * (x[:, None, column].isnan() != rows[None, :, column].isnan())
    return squared


@fact
def _nearest(task: MaskedTask, neighbours: int) -> tuple[Tensor, Tensor]:
    """The numbers of the nearest reference rows and their squared distances (N, K); equal rows are far."""
    parts = []
    for at in range(0, len(task), 64):
        squared = _squared_distances(task, task.inputs[at : at + 64])
        squared = squared.masked_fill(squared == 0, torch.inf)
        parts.append(squared.topk(neighbours, dim=-1, largest=False))
    return torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts])


@train_fact
def _relative_distance(task: MaskedTask) -> float:
    """How far the last neighbour of a reference row is, as a share of the distance to any other."""
    rows = _some_rows(task)
    squared = _squared_distances(task, rows[:: -(-len(rows) // 64)])
    ordered = squared.masked_fill(squared == 0, torch.inf).sort(-1).values
    return float((ordered[:, NEIGHBOURS - 1] / squared.median(-1).values).sqrt().median())
