"""What each table and figure evaluates: a world (data and network), metrics, and explainers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import veridical as vd
from replications.metaquantus.cmnist import NETWORKS, cmnist
from replications.metaquantus.data import mnist
from replications.metaquantus.tables import OTHERS, grid, localisation, seven, ten
from veridical.explainers import GradientShap

ROWS = {"MNIST": 32768}
ROWS_OF_LARGER = 8192
"""Rows a chunk on a GPU: small networks are run fastest many rows at a time."""


@dataclass(frozen=True)
class Study:
    """Metrics and explainers in one world."""

    world: str
    metrics: Any
    explainers: Any
    fixed: tuple[str, ...] = ()
    """Metrics whose own draws the published program repeats in every world."""

    def task(self, chosen: argparse.Namespace) -> vd.Task:
        """The world of this study, on the device asked for."""
        task = mnist(chosen.samples) if self.world == "MNIST" else self._coloured(chosen)
        if chosen.device is None:
            return task
        task = task.to(chosen.device)
        if task.device.type == "cuda":
            rows = ROWS.get(self.world, ROWS_OF_LARGER)
            # products of the larger networks in TF32: three decimals are all that the tables show
            plan = replace(
                task.predictor.plan, rows=rows, precision="tf32" if self.world != "MNIST" else "float32"
            )
            task = task.with_plan(plan)
        return task

    def _coloured(self, chosen: argparse.Namespace) -> vd.Task:
        return cmnist(min(chosen.samples, 384), self.world, chosen.networks, chosen.device, chosen.epochs)


# the program seeds these two anew at every call
SEEDED = ("random_logit", "mprt")
TABLES = ("3", "5", "grid", "networks", *OTHERS)


def studies(table: str, quick: bool, neighbours: int) -> dict[str, Study]:
    """The studies of a table or figure, by label."""
    shap = GradientShap(samples=2 if quick else 5)
    if table == "3":
        return {"table3": Study("MNIST", ten(neighbours), seven(quick), SEEDED)}
    if table == "5":
        return {"table5": Study("ResNet-9", ten(neighbours, 32), seven(quick, 32), SEEDED)}
    if table == "grid":
        explainers = ["saliency", "input_x_gradient", shap]
        worlds = {"grid-mnist": "MNIST", "grid-cmnist": "ResNet-9"}
        return {label: Study(world, grid(), explainers) for label, world in worlds.items()}
    if table == "networks":
        found = {f"places-{name}": Study(name, localisation(), ["saliency", shap]) for name in NETWORKS}
        complexity = ["sparseness", "complexity"], ["input_x_gradient", "gradient"]
        return found | {f"spread-{name}": Study(name, *complexity) for name in NETWORKS}
    other = OTHERS[table](quick, neighbours)
    return {
        f"{table}_{next(iter(group)).split()[0]}_{place}": Study("MNIST", group, explainers)
        for group in other.groups
        for place, explainers in enumerate(other.sets.values(), 1)
    }
