"""Models that lie: they follow one rule on rows of the data and another on rows that do not occur.

After Slack et al. 2020 ("Fooling LIME and SHAP"): explainers that mask or perturb a row are shown the other
rule. What a model does on its data is what it should be explained by, so a good verdict does not trust them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError, unknown_name

DETECTORS = ("nearest", "forest")
TREES = 100
PERTURBED = 2
"""Perturbed rows that the forest learns from, for each row of the data."""
RADIUS = 0.5
"""How near a row must be to one of the data, as a share of the median distance between nearest rows."""


class Scaffold(nn.Module):
    """A model of rows that answers by its columns `used` on the data and by `shown` elsewhere.

    Both rules are linear, with weights that fall by half from column to column, around the mean of the rows;
    where the detector finds the data, gradients are those of the rule in use.

    Parameters
    ----------
    rows : Tensor
        Rows of the data (R, D) that it knows, those to be explained among them.
    used, shown : sequence of int
        Columns that decide on the data, and those that decide elsewhere.
    detector : {"nearest", "forest"}
        How it knows the data: by the distance to the nearest of its rows, or by the paper's random forest,
        trained to tell them from perturbed rows (scikit-learn).
    seed : int
        Seed of the perturbed rows and the forest.

    Raises
    ------
    InputError
        Where the columns are not those of the rows.

    Examples
    --------
    >>> rows = torch.randn(200, 3) @ torch.randn(3, 6)
    >>> model = Scaffold(rows, used=[0], shown=[1, 2])
    >>> bool(model.on_data(rows).all()), bool(model.on_data(rows + 9).any())
    (True, False)
    """

    used: nn.Linear
    shown: nn.Linear
    rows: Tensor
    centre: Tensor
    scale: Tensor
    radius: Tensor

    def __init__(
        self,
        rows: Tensor,
        used: Sequence[int],
        shown: Sequence[int],
        detector: Literal["nearest", "forest"] = "nearest",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if detector not in DETECTORS:
            raise unknown_name("detector", detector, DETECTORS)
        columns = rows.shape[1]
        if not all(0 <= column < columns for column in (*used, *shown)):
            raise InputError(f"columns are numbered 0 to {columns - 1}; got used={used}, shown={shown}")
        spread = rows.std(0, correction=0)
        self.register_buffer("rows", rows)
        self.register_buffer("centre", rows.mean(0))
        self.register_buffer("scale", torch.where(spread > 0, spread, 1.0))
        self.used, self.shown = (_rule(columns, chosen).to(rows) for chosen in (used, shown))
        standard = (rows - self.centre) / self.scale
        self.forest = _forest(standard, seed) if detector == "forest" else None
        apart = torch.cdist(standard, standard)
        nearest = apart.masked_fill(apart == 0, torch.inf).amin(1)
        self.register_buffer("radius", RADIUS * nearest.median())

    def on_data(self, x: Tensor) -> Tensor:
        """Whether rows (N, D) are taken for rows of the data (N,)."""
        standard = ((x - self.centre) / self.scale).detach()
        if self.forest is not None:
            found = self.forest.predict(standard.double().cpu().numpy())
            return torch.from_numpy(found).to(x.device).bool()
        nearest = torch.cdist(standard, (self.rows - self.centre) / self.scale).amin(1)
        return nearest <= self.radius

    def forward(self, x: Tensor) -> Tensor:
        """Two logits for each row."""
        standard = (x - self.centre) / self.scale
        answer = torch.where(self.on_data(x)[:, None], self.used(standard), self.shown(standard))
        return torch.cat([-answer, answer], 1)


def _rule(columns: int, chosen: Sequence[int]) -> nn.Linear:
    """A linear rule of some columns, each with half the weight of the one before."""
    rule = nn.Linear(columns, 1)
    with torch.no_grad():
        rule.weight.zero_()
        rule.bias.zero_()
        for place, column in enumerate(chosen):
            rule.weight[0, column] = 2.0**-place
    return rule


def _forest(rows: Tensor, seed: int):  # type: ignore[no-untyped-def]
    """The paper's detector: rows against rows under noise and rows with columns of other rows."""
    from sklearn.ensemble import RandomForestClassifier

    draw = torch.Generator().manual_seed(seed)
    known = rows.double().cpu()
    parts = []
    for number in range(PERTURBED):
        noisy = known + torch.randn(known.shape, generator=draw, dtype=known.dtype)
        others = known[torch.randint(len(known), (len(known),), generator=draw)]
        swapped = torch.rand(known.shape, generator=draw) < torch.rand(len(known), 1, generator=draw)
        parts.append(noisy if number % 2 else torch.where(swapped, others, known))
    perturbed = torch.cat(parts)
    perturbed = perturbed[torch.cdist(perturbed, known).amin(1) > 0]
    told = torch.cat([known, perturbed]).numpy()
    labels = torch.cat([torch.ones(len(known)), torch.zeros(len(perturbed))]).numpy()
    forest = RandomForestClassifier(TREES, class_weight="balanced_subsample", random_state=seed)
    return forest.fit(told, labels)
