"""What each feature does to the explained output, measured by the audit itself: Shapley values.

Exact where samples have at most 12 features, from the table of subsets that explainers and metrics share;
else estimated from the bank of masks that KernelSHAP and LIME read, too, with standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.explainers import as_explainer
from veridical.explainers.layout import Cells, few_cells
from veridical.explainers.occlusion import most_cells
from veridical.explainers.surrogates import sample_blocks, solved
from veridical.functional.responses import grid_step
from veridical.models.context import Context
from veridical.perturb.mask_bank import MASKS, banks
from veridical.perturb.subset_table import FEW
from veridical.values.explanation import Explanation
from veridical.values.task import Task

SPARE = 8
"""Pairs of masks beyond one for each unknown, below which standard errors are not known."""


@dataclass(frozen=True, eq=False)
class Effects:
    """The Shapley value of each feature in each sample, on the scale of logits, with standard errors."""

    values: Tensor
    """(N, V), or one of each cell where neighbours were joined; 0 where a feature does not exist."""
    errors: Tensor
    """Standard errors in the same shape, never below what rounding does; infinite where not known."""
    exact: bool
    """Whether all are exact, from all subsets."""
    rows: int
    """Rows of the model that they took here; what others had evaluated already is not counted."""
    cells: Cells | None = None
    """The cells of neighbours that features were joined into, where there are too many to tell apart."""

    @property
    def in_words(self) -> str:
        """How they were found."""
        if self.exact:
            return "exact Shapley values from all subsets"
        joined = "" if self.cells is None else f"; {self.cells.in_words()}"
        return f"Shapley values estimated from {MASKS} masks{joined}"

    def over_features(self) -> Tensor:
        """One value per feature of the task (N, V): a cell's in equal shares."""
        return self.values if self.cells is None else self.cells.shared_out(self.values)

    def as_explanation(self, task: Task) -> Explanation:
        """The effects as maps of the samples they were measured on."""
        return Explanation(
            self.over_features(),
            task.space,
            task.targets,
            task.ids,
            "measured effects",
            draw_ids=task.draw_ids,
        )

    def summed(self, maps: Tensor) -> Tensor:
        """Maps (N, V) in the shape of the effects: what a map says of a cell is the sum over its features."""
        if self.cells is None:
            return maps
        return maps.new_zeros(len(maps), self.cells.count).index_add_(1, self.cells.of, maps)

    def take(self, rows: Tensor) -> Effects:
        """Those of some samples."""
        return Effects(self.values[rows], self.errors[rows], self.exact, self.rows, self.cells)


def measured_effects(task: Task, context: Context, count: int = MASKS) -> Effects:
    """Measure the effect of every feature of every sample.

    Parameters
    ----------
    task : Task
        The model and the samples.
    context : Context
        The call they belong to: its memo holds the table of subsets.
    count : int
        Masked rows per sample where effects are estimated.

    Returns
    -------
    Effects
        Shapley values with standard errors.
    """
    before = task.predictor.meter.cost.forward
    joined = None if task.space.n_features <= count // 8 else few_cells(task.space, most_cells(count))
    seen = task if joined is None else joined.over(task)
    few = seen.space.counts(len(task)).to(task.device) <= FEW
    values = torch.zeros(len(task), seen.space.n_features, dtype=torch.float64, device=task.device)
    errors = torch.zeros_like(values)
    for rows, is_few in ((few.nonzero()[:, 0], True), ((~few).nonzero()[:, 0], False)):
        if not len(rows):
            continue
        some = seen if len(rows) == len(seen) else seen[rows]
        if is_few:
            values[rows] = as_explainer("exact_shapley").attribute(some, context).double()
        else:
            values[rows], errors[rows] = _estimated(some, context, count)
    # responses are rounded to a grid, and so is what adds them up
    scale = task.clean_response("logit").double().abs() + values.abs().sum(-1, keepdim=True)
    rounding = grid_step(task.predictor.rounding or task.outputs.dtype) * scale
    cost = task.predictor.meter.cost.forward - before
    return Effects(values, torch.maximum(errors, rounding), bool(few.all()), cost, joined)


def _estimated(task: Task, context: Context, count: int) -> tuple[Tensor, Tensor]:
    """Values and standard errors (N, V) from the bank of masks that KernelSHAP and LIME read, too."""
    valid = task.space.valid
    if valid is None:
        valid = torch.ones(len(task), task.space.n_features, dtype=torch.bool, device=task.device)
    values = torch.zeros(valid.shape, dtype=torch.float64, device=task.device)
    errors = torch.zeros_like(values)
    for bank in banks(task, context, count):
        responses, pairs = bank.responses, bank.masks[:, 2:].unflatten(1, (-1, 2))
        total, of_pairs = responses[:, :1] - responses[:, 1:2], responses[:, 2:].unflatten(-1, (-1, 2))
        for some in sample_blocks(len(responses), 4 * pairs[0, :, 0].numel(), task.device):
            rows = bank.rows[some]
            # what is there without a set is what a mask of the rest removes
            fit = fit_pairs(pairs[some, :, 1], of_pairs[some], total[some], valid[rows])
            values[rows], errors[rows] = fit
    return values, errors


def fit_pairs(kept: Tensor, responses: Tensor, total: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Fit Shapley values to pairs of masks by least squares, and give their standard errors, (N, V) each.

    A pair is a set of features and what it leaves: `kept` (N, P, V) says what is there when the set is gone,
    `responses` (N, P, 2) are those without the set and without the rest, `total` (N, 1) is v(all) - v(none).
    Sets are drawn from Shapley's kernel k(S), so the values minimise
    sum_S (v(S) - v(none) - sum_{i in S} phi_i)^2 subject to sum phi = total; what a response owes to the size
    of its set alone is fitted beside. Both masks of a pair carry one equation with opposite signs once rows
    are measured from their mean over features, so half the difference of their responses y stands for both.
    Errors are heteroscedasticity-consistent (HC3, MacKinnon and White 1985), as what a sum of effects leaves
    unexplained differs from set to set: with H the matrix that gives the values from y and h its leverages,
    var_i = sum_p H_ip^2 (r_p / (1 - h_p))^2. They are infinite where pairs are too few.
    """
    there = valid.sum(-1, keepdim=True).double()
    size = kept.sum(-1).double()
    share = size / there
    y = (responses[..., 0] - responses[..., 1]) / 2 - (share - 0.5) * total
    X = (kept.double() - share[..., None]) * valid[:, None]
    known = kept.shape[1] >= there[:, 0] + 2 + SPARE
    if bool(known.any()):
        X = torch.cat([X, torch.stack([share - 0.5, (share - 0.5) ** 3], -1)], -1)
    features = kept.shape[-1]
    # no row decides on "all alike"; one that sets it to 0 changes nothing else
    alike = F.pad(valid / there.sqrt(), (0, X.shape[-1] - features))
    scale = (size * (1 - share)).sum(-1)[:, None, None] / there[..., None]
    gram = X.mT @ X + scale * alike[..., None] * alike[:, None]
    gram = gram + 1e-11 * scale * torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    hat = solved(gram, X.mT)
    fitted = (hat @ y[..., None])[..., 0]
    left = y - (X @ fitted[..., None])[..., 0]
    leverage = (X * hat.mT).sum(-1).clamp(max=1 - 1e-6)
    variance = (hat.square() * (left / (1 - leverage)).square()[:, None]).sum(-1)
    errors = torch.where(known[:, None], variance.sqrt()[:, :features], torch.inf)
    return (total / there + fitted[:, :features]) * valid, errors.masked_fill(~valid, 0.0)
