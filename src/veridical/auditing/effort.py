"""How much an audit does, and on which samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

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
    """Rows that the model may be asked, about; a method or a stage that does not fit is left out."""
    variants: bool
    """Whether explainers that vary others join unasked."""
    gef_draws: Index
    """Noisy models per level of GEF, which describes; none at 0."""
    gef_rows: Index
    """Rows that a map may ask for its method to be explained again and again under noise."""
    search_draws: Count
    """Draws per level when noise strengths are looked for."""
    layer_steps: Count
    """Groups in which layers are randomised to check the model."""
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
    meta_explainers: Count
    """Explainers on which metrics are meta-evaluated, the cheapest first."""
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


COARSE = (0.1, 0.5, 0.9)
SIZES = (0.1, 0.3, 0.5, 0.7, 0.9)
FINE = tuple(percent / 100 for percent in range(5, 100, 5))
ALL = 10**12
GLANCE = Effort(
    name="glance",
    samples=24,
    budget=20_000_000,
    gef_rows=32,
    variants=False,
    gef_draws=5,
    search_draws=4,
    layer_steps=1,
    removal_draws=4,
    removal_sizes=COARSE,
    flip_steps=8,
    subset_runs=24,
    noise_draws=2,
    damage=(0.5, 1.0),
    meta_samples=0,
    meta_explainers=2,
    meta_draws=1,
    meta_iterations=1,
    standing_samples=0,
    standing_draws=0,
    training_rows=0,
    training_epochs=0,
)
QUICK = replace(
    GLANCE,
    name="quick",
    samples=64,
    budget=100_000_000,
    search_draws=8,
    removal_draws=10,
    removal_sizes=SIZES,
    flip_steps=16,
    subset_runs=50,
    noise_draws=5,
    damage=(0.2, 0.6, 1.0),
    meta_samples=32,
    meta_explainers=3,
    standing_samples=4,
    standing_draws=200,
    training_rows=2000,
    training_epochs=10,
)
STANDARD = replace(
    QUICK,
    name="standard",
    samples=200,
    budget=500_000_000,
    gef_draws=10,
    search_draws=20,
    layer_steps=4,
    removal_draws=20,
    flip_steps=24,
    subset_runs=100,
    noise_draws=10,
    damage=(0.2, 0.4, 0.6, 0.8, 1.0),
    meta_samples=100,
    meta_draws=2,
    meta_iterations=2,
    standing_samples=8,
    standing_draws=1000,
    training_rows=10_000,
    training_epochs=30,
)
THOROUGH = replace(
    STANDARD,
    name="thorough",
    samples=1000,
    budget=ALL,
    variants=True,
    gef_draws=20,
    layer_steps=10,
    removal_draws=50,
    removal_sizes=FINE,
    flip_steps=50,
    meta_samples=1000,
    meta_explainers=6,
    meta_draws=5,
    meta_iterations=3,
    standing_samples=16,
    training_rows=ALL,
)
EFFORTS: Mapping[str, Effort] = {e.name: e for e in (GLANCE, QUICK, STANDARD, THOROUGH)}
ON_HEAVY: Mapping[str, Effort] = {
    "glance": replace(GLANCE, budget=60_000, removal_draws=3, search_draws=2, gef_draws=0),
    "quick": replace(
        GLANCE, name="quick", samples=64, budget=120_000, removal_draws=3, search_draws=2, gef_draws=0
    ),
    "standard": replace(
        STANDARD,
        samples=64,
        budget=500_000,
        gef_draws=5,
        search_draws=8,
        layer_steps=1,
        removal_draws=10,
        flip_steps=16,
        subset_runs=50,
        noise_draws=5,
        damage=(0.2, 0.6, 1.0),
        meta_samples=0,
        standing_samples=4,
        standing_draws=100,
    ),
}
"""What an effort is instead where the model is heavy, so that its name still tells how long one waits."""


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
        # a row of a language model takes long, and GEF asks hundreds of them per prompt: only if asked for
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
