"""The walk along a noise path: every noisy world is made once, and all explainers meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.gef import noise_prefetch
from veridical.gef.distortion import arc, fast
from veridical.gef.found import Found, Moved
from veridical.gef.jacobian_form import jacobian, near_key, neighbours
from veridical.gef.map_health import MapHealth, map_health
from veridical.gef.noise_path import NoisePath
from veridical.gef.reference_form import RunningReference, step_key
from veridical.gef.setting import Setting, noise_key
from veridical.gef.shared_worlds import Company, SharedWorld
from veridical.models.plan import memory_budget
from veridical.models.weights import NoiseSource
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.gef.metric import GEF

BLOCK_BYTES = 2**22
"""Bytes of maps held at once for each MiB that a chunk's activations may take on the device."""
MAKING: dict[str, Callable[[], Callable[..., Moved]]] = {
    "fast": lambda: fast,
    "reference": RunningReference,
    "arc": lambda: arc,
    "jacobian": lambda: jacobian,
}
"""What measures the movement of an explanation, made anew for each: some remember."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Some explainers along one path."""

    metric: GEF
    """Says what is measured, and how often."""
    company: Company
    """The explainers."""
    path: NoisePath
    """The noise levels."""
    key: Key
    """Decides all draws."""

    def distortions(self, task: Task) -> dict[str, Found]:
        """Distortions (N, M, Z), some samples at a time so that memory does not grow with their number."""
        widths = [self.company.members[who].space_of(task).n_features for who in self.company]
        room = BLOCK_BYTES * memory_budget(task.device)
        # of all the clean maps and those that wait, and what one is at work on
        maps = 2 * sum(widths) + (7 if self.metric.form == "jacobian" else 2) * max(widths, default=0)
        size = max(1, room // (8 * max(1, maps)))
        source = None
        if self.metric.perturb == "weights":
            source = task.cached("weight noise", lambda: NoiseSource(task.predictor.source.module))
        if size >= len(task):
            return self._block(task, source)
        parts = [self._block(task[at : at + size], source) for at in range(0, len(task), size)]
        return {who: Found.joined([part[who] for part in parts]) for who in self.company}

    def _block(self, task: Task, source: NoiseSource | None) -> dict[str, Found]:
        # one session around those of all worlds, unless an explainer would meet it that opens none itself
        plain = all(self.company.members[who].plain for who in self.company)
        with task.predictor.session(grad=None) if plain else nullcontext():
            if source is None:
                return self._together(task, SharedWorld())
            with noise_prefetch.NoiseAhead(source, self._noise_keys(task)) as draw:
                return self._together(task, SharedWorld(draw))

    def _noise_keys(self, task: Task) -> Iterator[Key]:
        """The keys of weight noise in the order in which the form asks for them."""
        last, metric = None, self.metric
        for draw in range(metric.draws):
            for z in range(len(self.path.levels)):
                own = noise_key(self.key, draw, None if metric.same_direction else z)
                if metric.form == "reference":
                    yield from (step_key(own, t) for t in range(metric.steps))
                if own != last:
                    yield own
                last = own
                if metric.form == "jacobian":
                    for t in range(1, metric.steps + 1):
                        yield from (near_key(own, t, k) for k in range(neighbours(task)))

    def _together(self, task: Task, latest: SharedWorld) -> dict[str, Found]:
        company = self.company
        settings: dict[str, Setting] = {}
        clean: dict[str, Tensor] = {}
        health: dict[str, MapHealth] = {}
        cells: dict[str, list[Moved]] = {who: [] for who in company}
        measures = {who: MAKING[self.metric.form]() for who in company}
        for who in company:
            with company.at_work(who, task):
                settings[who] = self._setting(task, who, latest)
                health[who] = map_health(task, company.members[who], self.key / "explainer")
                settings[who] = replace(settings[who], redraws=health[who].draws)
                clean[who] = settings[who].explain(task, "clean")
        for draw in range(self.metric.draws):
            for z, sigma in enumerate(self.path.levels):
                for who in company:
                    with company.at_work(who, task):
                        cells[who].append(measures[who](settings[who], sigma, draw, z, clean[who]))
        found: dict[str, Found] = {}
        for who in company:
            with company.at_work(who, task):
                found[who] = self._found(settings[who], cells[who], clean[who], health[who])
        return found

    def _setting(self, task: Task, who: str, latest: SharedWorld) -> Setting:
        alike = {f.name for f in fields(Setting)} & {f.name for f in fields(self.metric)}
        own = {name: getattr(self.metric, name) for name in alike}
        return Setting(task, self.company.members[who], self.key, self.path.sigma_max, latest=latest, **own)

    def _found(
        self,
        setting: Setting,
        cells: list[Moved],
        clean: Tensor,
        health: MapHealth,
    ) -> Found:
        def table(values: Tensor) -> Tensor:
            return values.unflatten(0, (self.metric.draws, -1)).permute(2, 0, 1).contiguous()

        def told(what: str) -> Tensor:
            return table(torch.stack([getattr(cell, what) for cell in cells]))

        model, explanation = table(torch.stack(setting.model_moved)), told("explanation")
        lost = ~model.isfinite()
        deaf, gaps = setting.watch.settle(
            (model == 0).all(), (explanation.isnan() | lost).any(), excused=lost.any(-1).any(-1)
        )
        size = clean.square().sum(-1).sqrt()
        if setting.normalise:
            size = setting.space.counts(len(setting.task)).double().sqrt().to(setting.task.device)
        found = Found(model, explanation, size, deaf, not gaps, health)
        if self.metric.form != "jacobian":
            return found
        fit, in_span = (told(what).nanmean((1, 2)) for what in ("fit", "in_span"))
        return replace(found, fit=fit, in_span=in_span)
