"""Read every metric on a family of dictionaries, over seeds and samples, and say which can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.concepts.dictionary import Dictionary, Recipe, TopK
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.dictionaries.bench import Bench
from veridical.dictionaries.controls import Maker
from veridical.dictionaries.ladder import damaged, family, jittered
from veridical.dictionaries.measures import MEASURES, Measure
from veridical.dictionaries.planted import Superposition
from veridical.dictionaries.subject import Subject
from veridical.dictionaries.trust import Trust
from veridical.dictionaries.truth import chance_mcc, truth_scores
from veridical.errors import InputError, NotApplicableError, unknown_name

SHAKEN = ("trained", "1/16 steps", "frozen decoder")
"""Dictionaries that MetaQuantus's scheme perturbs: slightly, and by half of their atoms."""
SLIGHT, DRAWS = 0.01, 2


def judge(
    bench: Bench | Superposition | None = None,
    recipe: Recipe | None = None,
    *,
    seeds: int = 4,
    measures: Sequence[str] | None = None,
    entries: Mapping[str, Maker] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Trust:
    """Which dictionary metric can be trusted: on planted features, or on a bench of your own model.

    Every entry (the trained dictionary, others whose order is known, controls trained for as many steps) is
    made `seeds` times, and every metric read on each part of the samples.

    >>> from veridical.dictionaries import Superposition, TopK, judge
    >>> world = Superposition(features=24, dimensions=12, active=2.0, groups=3)
    >>> found = judge(world, TopK(24, steps=20, batch=32, active=2), seeds=2, measures=["explained variance"])
    >>> list(found.table["metric"])
    ['explained variance']
    """
    if not isinstance(bench, Bench):
        bench = Bench.planted(bench or Superposition())
    if seeds < 2:
        raise InputError(f"seeds is at least 2, for a spread over them; got {seeds}")
    if recipe is None:
        world = bench.truth
        recipe = TopK(512) if world is None else TopK(world.features, 1500, 256, 5e-3, active=4)
    chosen = _chosen(measures)
    makers = dict(family(recipe, bench) if entries is None else entries)
    if "trained" not in makers:
        raise InputError(
            f"one of the entries is 'trained', the dictionary in question; got {', '.join(makers)}"
        )
    readings = _Readings(bench, chosen)
    keys = [Key(seed) / "dictionaries" / number for number in range(seeds)]
    shaken: dict[str, list[Dictionary]] = {}
    for name, maker in track(list(makers.items()), "judging dictionaries", progress):
        made = [maker(bench, recipe, key) for key in keys]
        for number, one in enumerate(made):
            readings.read(name, Subject(one, bench, made[number - 1]))
        if name in SHAKEN:
            shaken[name] = made[:2]
    for name, (one, other) in track(list(shaken.items()), "perturbing dictionaries", progress):
        for draw in range(DRAWS):
            key = Key(seed) / "shaken" / draw
            readings.read(f"near {name}", Subject(jittered(one, SLIGHT, key), bench, other))
            readings.read(f"far {name}", Subject(damaged(one, 0.5, key), bench, other))
    return readings.result(tuple(makers), tuple(shaken), recipe, seeds)


def _chosen(names: Sequence[str] | None) -> list[Measure]:
    for name in names or ():
        if name not in MEASURES:
            raise unknown_name("dictionary metric", name, MEASURES)
    return list(MEASURES.values()) if names is None else [MEASURES[name] for name in names]


class _Readings:
    """Values of every metric by entry, one row of parts per dictionary."""

    def __init__(self, bench: Bench, measures: list[Measure]) -> None:
        self.bench, self.measures = bench, measures
        self.values: dict[str, dict[str, list[Tensor]]] = {m.name: {} for m in measures}
        self.truth: dict[str, dict[str, list[float]]] = {}
        self.refused: dict[str, str] = {}
        self.chances: dict[int, float] = {}

    def read(self, entry: str, subject: Subject) -> None:
        """Ask every metric about a dictionary; one that does not apply says so once."""
        for measure in self.measures:
            if measure.name in self.refused:
                continue
            try:
                value = measure.ask(subject).cpu()
            except NotApplicableError as error:
                self.refused[measure.name] = str(error)
                continue
            self.values[measure.name].setdefault(entry, []).append(value)
        world = self.bench.truth
        if world is None:
            return
        width = len(subject.dictionary.decoder)
        chance = self.chances.setdefault(width, 0.0) or chance_mcc(width, world.directions)
        self.chances[width] = chance
        fires = self.bench.task.inputs > 0
        found = truth_scores(subject.dictionary.decoder, subject.codes, world.directions, fires, chance)
        for name, known in found.items():
            self.truth.setdefault(name, {}).setdefault(entry, []).append(known)

    def result(self, entries: tuple[str, ...], shaken: tuple[str, ...], recipe: Recipe, seeds: int) -> Trust:
        """Everything that was read, as tensors."""
        kept = {m.name: m for m in self.measures if m.name not in self.refused}
        values: dict[str, dict[str, Tensor]] = {
            name: {entry: torch.stack(rows) for entry, rows in self.values[name].items()} for name in kept
        }
        truth: dict[str, dict[str, Tensor]] = {
            name: {entry: torch.tensor(rows, dtype=torch.float64) for entry, rows in each.items()}
            for name, each in self.truth.items()
        }
        about: dict[str, Any] = {"recipe": recipe.to_json(), "seeds": seeds, "layer": self.bench.layer}
        if self.bench.truth is not None:
            about["planted"] = self.bench.truth.to_json()
        directions = {name: m.direction for name, m in kept.items()}
        return Trust(values, truth, directions, entries, shaken, dict(self.refused), about)
