"""How much an audit does, and on which samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Between, Count, Index, PartOf, Within
from veridical.core.key import Key
from veridical.core.settings import check_settings
from veridical.errors import InputError, unknown_name
from veridical.values.task import Task

EffortName = Literal["glance", "quick", "standard", "thorough"]
HEAVY_PARAMETERS = 2_000_000
FEW_ROWS = 8
"""`gef_rows` of quick audits of heavy text models: what only describes would take longest."""
LARGE_INPUT = 10_000
"""A model of more parameters, or inputs of more values, is heavy: a row takes tens of milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much an audit does."""

    name: str
    """How reports call it."""
    samples: Annotated[int, Within(2, MANY)]
    """Samples that are explained, at most."""
    budget: Annotated[int, Within(1, 10**15)]
    """Rows that may be evaluated, about; a method or a stage that does not fit is left out."""
    variants: bool
    """Whether explainers that vary others join unasked."""
    describe: bool
    """Whether what decides nothing is measured too: GEF, sensitivity, assumptions, standing, concepts."""
    gef_draws: Index
    """Noisy models per level of GEF, which describes; none at 0."""
    gef_rows: Index
    """Rows that a map may evaluate for its method to be explained again and again under noise."""
    search_draws: Count
    """Perturbed models, at most, when noise strengths are looked for."""
    layer_steps: Count
    """Groups in which layers are randomised to check the model."""
    coarse: bool
    """Whether few weighted rows stand for the reference rows that fill tables, and importance takes fewer."""
    removal_draws: Count
    """Random parts that F-Fidelity removes per sample and size."""
    removal_sizes: tuple[Between, ...]
    """Shares of the features that F-Fidelity takes as the explanation."""
    flip_steps: Count
    """Steps of pixel flipping, at most."""
    subset_runs: Count
    """Random subsets per sample of faithfulness correlation."""
    noise_draws: Count
    """Neighbours per sample of average sensitivity."""
    damage: tuple[PartOf, ...]
    """Shares of the features whose values are permuted to see which metrics notice."""
    meta_samples: Index
    """Samples on which metrics are meta-evaluated; none at 0."""
    meta_draws: Count
    """Perturbations per test and iteration of the meta-evaluation."""
    meta_iterations: Count
    """How often the meta-evaluation is repeated."""
    standing_samples: Index
    """Samples whose maps are ranked among random ones; none at 0."""
    standing_draws: Index
    """Random maps that each of them is ranked among."""
    training_rows: Index
    """Rows that F-Fidelity fine-tunes on, at most; none at 0."""
    training_epochs: Index
    """Passes over those rows, at most."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("removal_sizes", "damage"):
            if not getattr(self, name):
                raise InputError(f"Effort: {name} is empty; give at least one share")


FILL_ROWS = 16
"""Weighted rows that stand for all in the fill of coarse audits of tables.

Mean outputs are then as far from those with all rows as those with 100 drawn rows are.
"""
IMPORTANCE_ROWS = 4
"""Reference rows of permutation importance in coarse audits."""
COARSE, SIZES = (0.1, 0.5, 0.9), (0.1, 0.3, 0.5, 0.7, 0.9)
FINE = tuple(percent / 100 for percent in range(5, 100, 5))
ALL = 10**12
_NAMES: tuple[EffortName, ...] = get_args(EffortName)
_LEVELS: Mapping[str, tuple[Any, Any, Any, Any]] = {
    "samples": (24, 64, 200, 1000),
    "budget": (20_000_000, 100_000_000, 500_000_000, ALL),
    "variants": (False, False, False, True),
    "describe": (False, False, True, True),
    "gef_draws": (5, 5, 10, 20),
    "gef_rows": (32, 32, 32, 32),
    "search_draws": (40, 80, 400, 400),
    "layer_steps": (1, 1, 4, 10),
    "coarse": (True, True, False, False),
    "removal_draws": (1, 1, 20, 50),
    "removal_sizes": (COARSE, COARSE, SIZES, FINE),
    "flip_steps": (8, 8, 24, 50),
    "subset_runs": (24, 24, 100, 100),
    "noise_draws": (2, 5, 10, 10),
    "damage": ((0.5, 1.0), (0.2, 0.6, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0)),
    "meta_samples": (24, 64, 100, 1000),
    "meta_draws": (1, 1, 2, 5),
    "meta_iterations": (1, 1, 2, 3),
    "standing_samples": (4, 4, 8, 16),
    "standing_draws": (200, 200, 1000, 1000),
    "training_rows": (0, 2000, 10_000, ALL),
    "training_epochs": (0, 10, 30, 30),
}
"""Each setting at glance, quick, standard and thorough."""
EFFORTS: Mapping[str, Effort] = {
    name: Effort(name=name, **{setting: levels[i] for setting, levels in _LEVELS.items()})
    for i, name in enumerate(_NAMES)
}
_LIGHT = replace(EFFORTS["glance"], search_draws=20, gef_draws=0)
ON_HEAVY: Mapping[str, Effort] = {
    "glance": replace(_LIGHT, budget=60_000),
    "quick": replace(_LIGHT, name="quick", samples=64, budget=120_000),
    "standard": replace(
        EFFORTS["quick"],
        name="standard",
        describe=True,
        removal_draws=10,
        removal_sizes=SIZES,
        flip_steps=16,
        subset_runs=50,
        budget=500_000,
        standing_draws=100,
        training_rows=10_000,
        training_epochs=30,
    ),
}
"""What an effort is instead where the model is heavy, so that its name still means how long one waits."""


def effort_of(given: str | Effort, task: Task | None = None) -> Effort:
    """The effort of this name, lighter where the task's model is heavy; or the caller's own."""
    if isinstance(given, Effort):
        return given
    if given not in EFFORTS:
        raise unknown_name("effort", str(given), get_args(EffortName))
    if task is not None and heavy(task):
        plan = ON_HEAVY.get(given, EFFORTS[given])
        if task.modality == "text" and given in ("glance", "quick"):
            plan = replace(plan, gef_rows=FEW_ROWS)
        # a row of a language model takes long, and GEF evaluates hundreds of them per prompt: only on request
        return replace(plan, gef_draws=0) if task.head == "generation" else plan
    return EFFORTS[given]


def heavy(task: Task) -> bool:
    """Whether a row of this task takes long, by what anyone can count: no clock decides what is done."""
    size = 0 if task.inputs is None else task.inputs[0].numel()
    return size > LARGE_INPUT or sum(p.numel() for p in task.model.parameters()) > HEAVY_PARAMETERS


def keyed_order(task: Task, seed: int) -> Tensor:
    """The places of all samples in an order that ids and seed decide; fewer are always among more."""
    return keyed.bits(Key(seed) / "audit" / "samples", task.draw_ids, 0, 1)[:, 0].argsort()


def some_of(task: Task, count: int, seed: int) -> Task:
    """The task with at most `count` of its samples, in its own order."""
    return task if len(task) <= count else task[keyed_order(task, seed)[:count].sort().values]


def in_drawn_order(task: Task, count: int, seed: int) -> Task:
    """The same samples in keyed order: interim analyses need an order fixed before scores are seen."""
    return task[keyed_order(task, seed)[:count]]


def first_of_each(task: Task) -> Tensor:
    """The places of samples whose input and target no earlier sample has: repeats are no evidence."""
    pairs = zip(task.draw_ids.tolist(), task.targets.tolist(), strict=True)
    firsts = {pair: place for place, pair in reversed(list(enumerate(pairs)))}
    return torch.tensor(sorted(firsts.values()), device=task.device)
