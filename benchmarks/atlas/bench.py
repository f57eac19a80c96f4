"""What metrics are measured with on one task: maps and methods from true to useless, in a known order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.api import as_explanation, labelled
from veridical.core import key as keyed
from veridical.core.allowed import Count, Index, Share
from veridical.core.key import Key
from veridical.core.settings import check_settings
from veridical.data.tasks import ENTRIES, known, load
from veridical.errors import unknown_name
from veridical.explainers import Explainer, as_explainer
from veridical.explainers.transforms import Transform
from veridical.meta.admissible import concordance
from veridical.meta.damage import LEVELS, NONE, PERMUTED, damaged_maps, reference_for
from veridical.testing.red_team import red_team
from veridical.values.explanation import Explanation
from veridical.values.task import Task

log = logging.getLogger("veridical")
TASKS = (
    "known/planted_patch",
    "digits",
    "known/clever_hans",
    "known/linear",
    "breast_cancer",
    "known/interactions",
    "known/planted_window",
    "basic_motions_cnn",
    "known/planted_tokens",
    "reviews",
)
"""The standard tasks; of each kind of input first one whose answer is known, then one that was trained."""
LANGUAGE = "units"
"""What the catalogue calls tasks about language models: parts of a prompt or of the model are off."""
METHODS = ("gradient", "saliency", "input_x_gradient", "integrated_gradients", "occlusion", "random")
PLAIN = "input_x_gradient"
MOST = 32
"""Rows per map of the methods that metrics of methods are asked about: they explain in hundreds of worlds."""
CHEATS = ("input_copy", "input_hash", "other_class", "edges")
"""Maps and methods beside the true one: sound ones, sound for other questions, and some that cheat."""


KEY = Key(0) / "damaged methods"


@dataclass(frozen=True)
class Damaged(Transform):
    """An explainer whose every map is damaged; equal maps are damaged alike, others by draws of their own.

    One fixed permutation for all maps would leave every distance between them as it was, and metrics that
    compare maps with each other would be asked nothing.
    """

    damage: str = PERMUTED
    """What is done to a map: "permuted", "blended" with noise, or "negated"."""
    share: Share = 1.0
    """How much of it is done: a share that `planted_damage` plants as well."""
    kind: ClassVar[str] = "damaged"

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        absent = explanation.missing[:, None]
        if explanation.valid is not None:
            absent = absent | ~explanation.valid
        content = keyed.content_ids(explanation.values.masked_fill(absent, 0.0))
        steps = damaged_maps(replace(explanation, ids=content, draw_ids=content), LEVELS, KEY)
        made = next(s.maps for s in steps if (s.kind, s.share) == (self.damage, self.share))
        return replace(made, ids=explanation.ids, draw_ids=explanation.draw_ids)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    samples: Count
    """Samples of each task."""
    tasks: Count
    """Tasks of each kind of input, the first of the standard ones."""
    seeds: Count
    """Seeds under which scores are repeated to see their noise."""
    draws: Index
    """Perturbed worlds and iterations of the meta-evaluation; 0 leaves it out."""

    def __post_init__(self) -> None:
        check_settings(self)


SIZES = {"tiny": Size(8, 1, 2, 0), "small": Size(16, 2, 2, 1), "standard": Size(48, 3, 3, 2)}


def modality_of(name: str) -> str:
    """The kind of input a task stands for in the atlas: that of the catalogue, or a language model's."""
    if name not in ENTRIES:
        raise unknown_name("task", name, ENTRIES)
    kind = ENTRIES[name].modality
    return "language model" if kind == LANGUAGE else kind


def tasks_of(size: Size) -> list[str]:
    """The tasks of a size: the standard ones, and all that the catalogue knows of language models."""
    names = [*TASKS, *(name for name, entry in ENTRIES.items() if entry.modality == LANGUAGE)]
    kinds = [modality_of(name) for name in names]
    return [name for at, name in enumerate(names) if kinds[:at].count(kinds[at]) < size.tasks]


@dataclass(frozen=True, eq=False)
class Bench:
    """A task with the true maps, the same damaged ever more, and their rivals: as maps and as methods."""

    name: str
    task: Task
    seed: int
    truth: Tensor | None
    """The true map (N, V), where it is known."""
    rivals: tuple[str, ...]
    """Labels of the maps and methods beside the ladder of damage."""
    maps: Mapping[str, Explanation]
    """What a metric of maps is asked about."""
    methods: Mapping[str, Explainer]
    """What a metric of methods is asked about, under the same labels."""
    maps_of_methods: Mapping[str, Explanation]
    """The maps of these methods: on the ladder others than `maps`, since a finished map is no method."""

    @property
    def ladder(self) -> list[str]:
        """The labels of the true maps and the damaged ones."""
        return [label for label in self.maps if label not in self.rivals]


def make_bench(name: str, samples: int, seed: int, explainers: Any = (), device: Any = None) -> Bench:
    """The bench of an embedded task, with explainers of the user's own among the rivals."""
    answer = known(name, samples, seed) if name.startswith("known/") else None
    task = load(name, samples, seed) if answer is None else answer.task
    task, key = task if device is None else task.to(device), Key(seed)
    cheats = red_team(task)
    chosen: dict[str, Explainer] = {who: as_explainer(who) for who in METHODS}
    chosen |= {who: cheats[who] for who in CHEATS if who in cheats} | labelled(explainers, as_explainer)
    rivals = {who: method for who, method in chosen.items() if method.inapplicable_reason(task) is None}
    others = {who: own for who, method in rivals.items() if (own := _tried(method, task, key)) is not None}
    if answer is None:
        truth, best = None, as_explanation(reference_for(task), task, seed)
    else:
        truth = answer.truth.to(task.device, torch.float64)
        best = Explanation(truth, task.space, task.targets, task.ids, "truth", draw_ids=task.draw_ids)
    steps = damaged_maps(best, LEVELS, key / "atlas")
    maps = {_label(step.kind, step.share): step.maps for step in steps}
    # the method that stands for the truth where a finished map will not do: one that gives it
    base = as_explainer(PLAIN if answer is None or PLAIN in answer.winners else answer.winners[0])
    worse = {_label(step.kind, step.share): Damaged(base, step.kind, step.share) for step in steps[1:]}
    methods: dict[str, Explainer] = {NONE: base, **worse}
    made = {label: method(task, key) for label, method in methods.items()}
    asked = {who: found.cost.forward + found.cost.backward for who, found in others.items()}
    methods |= {who: rivals[who] for who in others if asked[who] <= MOST * len(task)}
    labels = tuple(others)
    return Bench(name, task, seed, truth, labels, {**maps, **others}, methods, {**made, **others})


def nearness(maps: Explanation, truth: Tensor) -> Tensor:
    """How far a map orders features as the truth does (N,): Somers' D over pairs that the truth tells apart.

    1 for every map that ranks like the truth, 0 for chance, -1 for its opposite; with features that matter
    and others that do not, 2 AUROC - 1.
    """
    truth = truth if maps.valid is None else truth.masked_fill(~maps.valid, torch.nan)
    order = truth.argsort(dim=1, descending=True, stable=True)
    sorted_truth = truth.gather(1, order).T
    apart = (sorted_truth[:, None] - sorted_truth[None]).abs() > 0  # NaN, no feature, is never apart
    return concordance(maps.values.double().gather(1, order).T, apart)


def _tried(method: Explainer, task: Task, key: Key) -> Explanation | None:
    """The maps of a rival; one that fails is no rival, and takes nobody along."""
    try:
        return method(task, key)
    except Exception as error:
        log.warning("%s is left out on %s: %s", method.name, task.name, error)
        return None


def _label(kind: str, share: float) -> str:
    return kind if kind == NONE else f"{kind} {share:g}"
