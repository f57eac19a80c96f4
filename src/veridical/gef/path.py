"""The perturbation path: how much noise it takes until the model answers by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional import isotonic_fit
from veridical.gef.worlds import Perturbation, Worlds
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.task import Task

FIRST, STEP, LAST = 0.2, 0.1, 10.2
GRID = tuple(round(FIRST + STEP * i, 10) for i in range(round((LAST - FIRST) / STEP) + 1))
COARSE = 8
LOWEST = 1e-3
MAX_SAMPLES = 256
RESAMPLES = 200
Rule = Literal["isotonic", "published"]


@dataclass(frozen=True)
class NoisePath:
    """Noise levels from nearly none to chance, and why the search ended there.

    `searched` and `agreement` hold the levels tried and the mean agreement with the unperturbed predictions
    (R^2 of the outputs for a regression); `fitted` its non-increasing fit; `interval` covers `sigma_max`
    over the draws; `rows` were asked for all that.
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

    def __str__(self) -> str:
        if self.rule == "given":
            return f"a given path up to {self.sigma_max:g}"
        low, high = self.interval
        spread = "" if low != low else f" [{low:g}, {high:g}]"
        return (
            f"{len(self.levels)} levels up to {self.sigma_max:.3g}{spread} ({self.reason}; "
            f"{self.rule} rule, chance {self.chance:.3g}, {self.rows} rows asked)"
        )


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

    `isotonic` (ours): on the grid 0.2, 0.3, ... 10.2 with `draws` draws a level, a non-increasing fit of the
    mean agreement, the first level whose fit is <= 1/C + max(0.1/C, 0.01); if there is none, the smallest
    level within that tolerance of the fitted minimum (reason "plateau"), as for a fit that lay close to
    chance for eight levels before it touched it. Every eighth level is asked first,
    then all those around the crossing. `published`: one draw a level, stop at
    |agreement - 1/C| <= max(0.1/C, 0.01) or after 100 steps, mean of 5 runs.
    """
    if rule not in ("isotonic", "published"):
        raise InputError(f"the rule of a path is 'isotonic' or 'published', got {rule!r}")
    if rule == "isotonic" and draws < 2:
        raise InputError(f"the isotonic rule needs several draws a level, got {draws}")
    # a task of classes has no inputs of its own; its rows are what the model is seen to change on
    task = task if task.members is None else task.members
    few = task if len(task) <= MAX_SAMPLES else task[_some(task, key)]
    before = task.predictor.meter.cost
    search = _isotonic if rule == "isotonic" else _published
    found = search(few, Worlds(few, perturb), draws, key / "path")
    rows = (task.predictor.meter.cost - before).forward
    return NoisePath(
        levels=even_levels(found["sigma_max"], levels), rule=rule, chance=_chance(task)[0], rows=rows, **found
    )


def _some(task: Task, key: Key) -> Tensor:
    """A keyed choice of samples: sets are often sorted by class, so the first ones would not do."""
    return keyed.bits(key / "some", task.ids, 0, 1)[:, 0].argsort()[:MAX_SAMPLES].sort().values


def _chance(task: Task) -> tuple[float, float]:
    """What agreement means nothing, and how near counts as there; each of several labels is yes or no."""
    if task.head == "regression":
        return 0.0, 0.0
    classes = 2 if task.head == "multilabel" else task.n_outputs
    return 1 / classes, max(0.1 / classes, 0.01)


def agreement(task: Task, outputs: Tensor) -> Tensor:
    """Share of predictions kept; for a regression R^2 with the unperturbed outputs, at least -1.

    An answer that is not finite, as very large weights may give, agrees with nothing.
    """
    clean = task.outputs
    if task.head == "regression":
        left = (outputs.double() - clean.double()).square().sum()
        spread = (clean.double() - clean.double().mean(0)).square().sum().clamp(min=1e-300)
        return (1 - left / spread).nan_to_num(-1.0).clamp(min=-1.0)
    finite = outputs.isfinite().all(-1)
    if task.head == "multilabel":
        return (((outputs > 0) == (clean > 0)).double().mean(-1) * finite).mean()
    return ((outputs.argmax(-1) == clean.argmax(-1)) & finite).double().mean()


def _agreements(task: Task, worlds: Worlds, sigma: float, draws: int, key: Key) -> Tensor:
    out = []
    for draw in range(draws):
        world = worlds.at(sigma, key / draw)
        with world.session():
            out.append(agreement(task, world.predictor.chunk(world.inputs, world.side)))
    return torch.stack(out)


def _isotonic(task: Task, worlds: Worlds, draws: int, key: Key) -> dict[str, Any]:
    chance, slack = _chance(task)
    seen: dict[int, Tensor] = {}

    def look(place: int) -> None:
        if place not in seen:
            seen[place] = _agreements(task, worlds, GRID[place], draws, key / place)

    def table() -> tuple[Tensor, Tensor]:
        order = sorted(seen)
        sigmas = torch.tensor([GRID[place] for place in order], dtype=torch.float64)
        return torch.stack([seen[place] for place in order]).cpu(), sigmas

    ahead = [*range(0, len(GRID) - 1, COARSE), len(GRID) - 1]
    look(ahead.pop(0))
    while True:
        agreements, sigmas = table()
        order, means = sorted(seen), agreements.mean(1)
        first, _ = _crossing(means, sigmas, chance, slack)
        # one level at chance could be luck
        if ahead and int((isotonic_fit(means) <= chance + slack).sum()) < 2:
            look(ahead.pop(0))
            continue
        # the fit at the crossing leans on the levels behind it, so those are asked too
        start, stop = order[max(0, int(first) - 1)], min(order[int(first)] + COARSE, len(GRID) - 1)
        unseen = [place for place in range(start, stop + 1) if place not in seen]
        if not unseen:
            break
        for place in unseen:
            look(place)
    end, reached = _crossing(means, sigmas, chance, slack)
    low, high = _interval(agreements, sigmas, chance, slack, key)
    return {
        "sigma_max": float(sigmas[end]),
        "reason": "chance" if bool(reached) else "plateau",
        "searched": tuple(sigmas.tolist()),
        "agreement": tuple(means.tolist()),
        "fitted": tuple(isotonic_fit(means).tolist()),
        "interval": (float(sigmas[low]), float(sigmas[high])),
    }


def _crossing(means: Tensor, sigmas: Tensor, chance: float, slack: float) -> tuple[Tensor, Tensor]:
    """The first level whose fit (..., levels) is at chance, else where it has settled; and which it was.

    A curve that lay within twice the tolerance for more than eight steps before it touched chance did not
    fall there: it had settled before. With few samples the plateau is a little above 1/C, and the end of a
    long fit dips.
    """
    fitted, near = isotonic_fit(means), max(slack, 0.01)
    there = fitted <= chance + slack
    touched = there.any(-1)
    first = there.double().argmax(-1, keepdim=True)
    floor = torch.where(touched[..., None], chance + near, fitted.amin(-1, keepdim=True))
    settled = (fitted <= floor + near).double().argmax(-1, keepdim=True)
    late = sigmas[first] - sigmas[settled] > STEP * COARSE + STEP / 2
    reached = touched & ~late[..., 0]
    return torch.where(reached[..., None], first, settled)[..., 0], reached


def _interval(table: Tensor, sigmas: Tensor, chance: float, slack: float, key: Key) -> tuple[int, int]:
    """Where sigma_max lies in 95 of 100 resamples of the draws."""
    levels, draws = table.shape
    pick = keyed.integers(key / "resample", torch.arange(RESAMPLES), 0, levels * draws, draws)
    means = table.expand(RESAMPLES, -1, -1).gather(2, pick.reshape(RESAMPLES, levels, draws)).mean(-1)
    ordered = _crossing(means, sigmas, chance, slack)[0].sort().values
    return int(ordered[RESAMPLES // 40]), int(ordered[-1 - RESAMPLES // 40])


def _published(task: Task, worlds: Worlds, draws: int, key: Key) -> dict[str, Any]:
    chance, slack = _chance(task)
    ends, stopped = [], 0
    for run in range(5):
        for sigma in GRID[:100]:
            level = float(_agreements(task, worlds, sigma, 1, key / run / str(sigma))[0])
            near = level <= 0 if task.head == "regression" else abs(level - chance) <= slack
            if near:
                stopped += 1
                break
        ends.append(sigma)
    reason = f"{stopped} of 5 runs met chance" if stopped else "no run met chance in 100 steps"
    return {"sigma_max": sum(ends) / len(ends), "reason": reason, "searched": tuple(ends)}
