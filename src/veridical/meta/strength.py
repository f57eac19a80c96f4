"""How strong the noise is: as published, or calibrated to what disrupts this very model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, unknown_name
from veridical.meta.prediction_agreement import answers, changes_that_matter, held, share_changed
from veridical.meta.worlds import MODES, Amount, Mode, Test, perturbed
from veridical.values.task import Task

Strength = Literal["published", "calibrated"] | float | Mapping[str, float]
"""A rule, one number for every test, or a number per test: {"ipt": 0.5, "mpt": 2.0}."""
PUBLISHED: Mapping[Mode, Mapping[Test, float]] = {
    "nr": {"ipt": 0.001, "mpt": 0.001},
    "ar": {"ipt": 5.0, "mpt": 2.0},
}
MOST: Mapping[Test, float] = {"ipt": 5.0, "mpt": 10.0}
"""The search ends at noise of ten times the weights, of five times the range."""
SLIGHT = 0.05
DRAWS, SAMPLES = 20, 256
HALVINGS, REFINEMENTS = 12, 4


@dataclass(frozen=True)
class Calibrated:
    """The noise found, the share of predictions it changes, and whether the target was reached."""

    amount: float
    changed: float
    target: float
    reached: bool


def share_changed_by(
    task: Task, test: Test, amount: float, epsilon: float | None, key: Key, draws: int = DRAWS
) -> float:
    """The share of predictions that noise of this amount changes, mean over draws."""
    noise = Amount(inputs=amount) if test == "ipt" else Amount(weights=amount)
    # the same draws at every amount, so that the share rises smoothly with it
    shares = [
        share_changed(held(task, answers(perturbed(task, noise, key / draw)), epsilon))
        for draw in range(draws)
    ]
    return float(torch.stack(shares).mean())


def calibrate(
    task: Task,
    test: Test,
    mode: Mode,
    epsilon: float | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    disrupted: float | None = None,
) -> Calibrated:
    """The smallest noise that disrupts (AR), or the largest that changes at most 5% (NR).

    Disrupted means that the mean share of changed predictions reaches min(0.5, 0.8 (1 - 1/C)), or the share
    `disrupted`. The amount
    doubles from 1/4096 of the largest allowed until it is passed, then the interval is halved four times (on
    a log scale). Asked of at most 256 samples; found once per task.
    """

    def search() -> Calibrated:
        few = task
        if len(task) > SAMPLES:
            order = keyed.bits(Key(seed) / "meta samples", task.draw_ids, 0, 1)[:, 0].argsort()
            few = task[order[:SAMPLES].sort().values]
        key = Key(seed) / "meta strength" / test
        target = (disrupted or changes_that_matter(task)) if mode == "ar" else SLIGHT

        def passed(amount: float) -> tuple[bool, float]:
            changed = share_changed_by(few, test, amount, epsilon, key, draws)
            return (changed >= target if mode == "ar" else changed > target), changed

        low, low_changed = MOST[test] / 2**HALVINGS, 0.0
        for halving in range(HALVINGS, -1, -1):
            high = MOST[test] / 2**halving
            crossed, high_changed = passed(high)
            if crossed:
                break
            low, low_changed = high, high_changed
        else:
            return Calibrated(high, high_changed, target, mode == "nr")
        for _ in range(REFINEMENTS if high > low else 0):
            middle = (low * high) ** 0.5
            crossed, changed = passed(middle)
            if crossed:
                high, high_changed = middle, changed
            else:
                low, low_changed = middle, changed
        if mode == "ar":
            return Calibrated(high, high_changed, target, True)
        return Calibrated(low, low_changed, target, low_changed <= target)

    found: Calibrated = task.calibrated(
        f"meta strength {test} {mode} {epsilon} {seed} {draws} {disrupted}", search
    )
    return found


def amounts(
    task: Task,
    tests: tuple[Test, ...],
    strengths: Mapping[Mode, Strength],
    epsilon: float | None,
    seed: int,
) -> tuple[dict[tuple[Test, Mode], Amount], list[str]]:
    """The noise of every (test, mode), and remarks where a target was out of reach.

    The combined test uses both amounts at once.
    """
    found: dict[tuple[Test, Mode], Amount] = {}
    remarks: list[str] = []
    singles: tuple[Test, ...] = ("ipt", "mpt")
    needed = [t for t in singles if t in tests or "combined" in tests]
    for mode in MODES:
        chosen: dict[str, float] = {}
        for test in needed:
            chosen[test], remark = _amount(task, test, mode, strengths[mode], epsilon, seed)
            remarks += [remark] * bool(remark)
        for test in tests:
            found[test, mode] = Amount(
                chosen["ipt"] if test in ("ipt", "combined") else 0.0,
                chosen["mpt"] if test in ("mpt", "combined") else 0.0,
            )
    return found, remarks


def _amount(
    task: Task, test: Test, mode: Mode, strength: Strength, epsilon: float | None, seed: int
) -> tuple[float, str]:
    if isinstance(strength, Mapping):
        if test not in strength:
            raise InputError(f"{mode}={dict(strength)} gives no strength for {test}; it needs every test")
        strength = strength[test]
    if isinstance(strength, str):
        if strength == "published":
            return PUBLISHED[mode][test], ""
        if strength != "calibrated":
            raise unknown_name("strength", strength, ("published", "calibrated"))
        got = calibrate(task, test, mode, epsilon, seed)
        if got.reached:
            return got.amount, ""
        verb = "reach" if mode == "ar" else "stay below"
        return got.amount, (
            f"{test} {mode}: no noise up to {MOST[test]:g} makes the share of changed predictions {verb} "
            f"{got.target:.2f}; {got.amount:.3g} is used, which changes {got.changed:.2f}"
        )
    if not isinstance(strength, int | float) or not 0 < float(strength) < float("inf"):
        raise InputError(f"a strength is positive, 'published' or 'calibrated'; got {mode}={strength!r}")
    return float(strength), ""
