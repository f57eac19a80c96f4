"""The perturbation path: how much noise it takes until the model answers by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.functional import isotonic_fit
from veridical.gef.worlds import Perturbation, disturbed
from veridical.rng import Key
from veridical.task import Task

FIRST, STEP, LAST = 0.2, 0.1, 10.2
LOWEST = 1e-3
MAX_SAMPLES = 256
Rule = Literal["isotonic", "published"]


@dataclass(frozen=True)
class NoisePath:
    """Noise levels from nearly none to chance, and why the search ended there.

    `searched` and `agreement` hold the levels tried and the mean agreement with the unperturbed predictions
    (R^2 of the outputs for a regression); `fitted` its non-increasing fit; `interval` covers `sigma_max`
    over the draws.
    """

    levels: tuple[float, ...]
    sigma_max: float
    reason: str
    rule: str
    chance: float
    searched: tuple[float, ...] = ()
    agreement: tuple[float, ...] = ()
    fitted: tuple[float, ...] = ()
    interval: tuple[float, float] = (float("nan"), float("nan"))
    rows: int = 0

    @classmethod
    def given(cls, levels: tuple[float, ...]) -> NoisePath:
        """A path of the caller's own."""
        if not levels or min(levels) <= 0 or list(levels) != sorted(levels):
            raise InputError(f"a noise path is positive and rising, got {levels}")
        return cls(tuple(levels), levels[-1], "given", "given", float("nan"))

    def to_json(self) -> dict[str, Any]:
        """The path as plain data, for the provenance of the scores that rest on it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def even_levels(sigma_max: float, count: int) -> tuple[float, ...]:
    """`count` levels evenly spaced from 1e-3 to sigma_max; a single level is sigma_max itself."""
    if count < 1:
        raise InputError(f"a path needs at least one level, got {count}")
    if count == 1:
        return (sigma_max,)
    return tuple(LOWEST + (sigma_max - LOWEST) * i / (count - 1) for i in range(count))


def find_path(
    task: Task,
    levels: int = 5,
    rule: Rule = "isotonic",
    perturb: Perturbation = "weights",
    draws: int = 20,
    key: Key = Key(0),  # noqa: B008 (frozen)
) -> NoisePath:
    """Search the noise at which the model's predictions agree with its own only by chance.

    `isotonic` (ours): levels 0.2, 0.3, ... with `draws` draws each, a non-increasing fit of the mean
    agreement, the first level whose fit is <= 1/C + max(0.1/C, 0.01); if there is none up to 10.2, the
    smallest level within that tolerance of the fitted minimum (reason "plateau"). `published`: one draw a
    level, stop at |agreement - 1/C| <= max(0.1/C, 0.01) or after 100 steps, mean of 5 runs.
    """
    if rule not in ("isotonic", "published"):
        raise InputError(f"the rule of a path is 'isotonic' or 'published', got {rule!r}")
    if rule == "isotonic" and draws < 2:
        raise InputError(f"the isotonic rule needs several draws a level, got {draws}")
    few = task if len(task) <= MAX_SAMPLES else task[_some(task, key)]
    before = task.predictor.meter.cost
    search = _isotonic if rule == "isotonic" else _published
    found = search(few, perturb, draws, key / "path")
    rows = (task.predictor.meter.cost - before).forward
    return NoisePath(
        levels=even_levels(found["sigma_max"], levels), rule=rule, chance=_chance(task)[0], rows=rows, **found
    )


def _some(task: Task, key: Key) -> Tensor:
    """A keyed choice of samples: sets are often sorted by class, so the first ones would not do."""
    return rng.bits(key / "some", task.ids, 0, 1)[:, 0].argsort()[:MAX_SAMPLES].sort().values


def _chance(task: Task) -> tuple[float, float]:
    """What agreement means nothing, and how near counts as there."""
    if task.head == "regression":
        return 0.0, 0.0
    classes = task.n_outputs
    return 1 / classes, max(0.1 / classes, 0.01)


def agreement(task: Task, outputs: Tensor) -> Tensor:
    """Share of predictions kept; for a regression R^2 with the unperturbed outputs, at least -1."""
    if task.head == "regression":
        clean = task.outputs.double()
        left = (outputs.double() - clean).square().sum()
        spread = (clean - clean.mean(0)).square().sum().clamp(min=1e-300)
        return (1 - left / spread).clamp(min=-1.0)
    if task.head == "multilabel":
        return ((outputs > 0) == (task.outputs > 0)).all(-1).double().mean()
    return (outputs.argmax(-1) == task.outputs.argmax(-1)).double().mean()


def _agreements(task: Task, sigma: float, draws: int, perturb: Perturbation, key: Key) -> Tensor:
    out = []
    for draw in range(draws):
        world = disturbed(task, sigma, key / draw, perturb)
        out.append(agreement(task, world.predictor.outputs(world.inputs, world.side)))
    return torch.stack(out)


def _isotonic(task: Task, perturb: Perturbation, draws: int, key: Key) -> dict[str, Any]:
    chance, slack = _chance(task)
    sigmas: list[float] = []
    seen: list[Tensor] = []
    below = 0
    while not sigmas or sigmas[-1] < LAST - STEP / 2:
        sigma = round(FIRST + STEP * len(sigmas), 10)
        sigmas.append(sigma)
        seen.append(_agreements(task, sigma, draws, perturb, key / len(sigmas)))
        fitted = isotonic_fit(torch.stack([row.mean() for row in seen]))
        # later levels can lift the fit again, so the crossing must hold for a while
        below = int((fitted <= chance + slack).sum())
        if below >= 5:
            break
    table = torch.stack(seen).cpu()
    place, reason = _crossing(table.mean(1), chance, slack)
    bounds = _interval(table, chance, slack, key)
    return {
        "sigma_max": sigmas[place],
        "reason": reason,
        "searched": tuple(sigmas),
        "agreement": tuple(table.mean(1).tolist()),
        "fitted": tuple(isotonic_fit(table.mean(1)).tolist()),
        "interval": (sigmas[bounds[0]], sigmas[bounds[1]]),
    }


def _crossing(means: Tensor, chance: float, slack: float) -> tuple[int, str]:
    fitted = isotonic_fit(means)
    reached = (fitted <= chance + slack).nonzero().reshape(-1)
    if len(reached):
        return int(reached[0]), "chance"
    settled = (fitted <= fitted.min() + max(slack, 0.01)).nonzero().reshape(-1)
    return int(settled[0]), "plateau"


def _interval(table: Tensor, chance: float, slack: float, key: Key) -> tuple[int, int]:
    """Where sigma_max lies in 95 of 100 resamples of the draws."""
    generator = torch.Generator().manual_seed(key.state & (2**63 - 1))
    places = []
    for _ in range(200):
        pick = torch.randint(table.shape[1], table.shape, generator=generator)
        places.append(_crossing(table.gather(1, pick).mean(1), chance, slack)[0])
    ordered = sorted(places)
    return ordered[5], ordered[194]


def _published(task: Task, perturb: Perturbation, draws: int, key: Key) -> dict[str, Any]:
    chance, slack = _chance(task)
    ends, stopped = [], 0
    for run in range(5):
        for step in range(100):
            sigma = FIRST + STEP * step
            level = float(_agreements(task, sigma, 1, perturb, key / run / step)[0])
            near = level <= 0 if task.head == "regression" else abs(level - chance) <= slack
            if near:
                stopped += 1
                break
        ends.append(sigma)
    reason = f"{stopped} of 5 runs met chance" if stopped else "no run met chance in 100 steps"
    return {"sigma_max": sum(ends) / len(ends), "reason": reason, "searched": tuple(ends)}
