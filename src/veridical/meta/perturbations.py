"""Perturbed tasks of a meta-evaluation: the plan of them, their noise, and how strong it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.explainers.input_noise import movable, touched, uniform_noise, why_no_noise
from veridical.explainers.layout import time_axis
from veridical.models.output_heads import UNSTEADY
from veridical.values.task import Task

Test = Literal["ipt", "mpt", "combined"]
Mode = Literal["nr", "ar"]
TESTS: tuple[Test, ...] = get_args(Test)
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Amount:
    """How much noise: on inputs in units of their range, on weights as a share of each."""

    inputs: float | tuple[float, float] = 0.0
    """a of U(-a, a), or the two ends of U(a, b)."""
    weights: float = 0.0

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Amount:
        """The amount that was written as plain data, where a pair is a list."""
        inputs = plain["inputs"]
        return cls(tuple(inputs) if isinstance(inputs, list) else inputs, plain["weights"])

    def __str__(self) -> str:
        ends = self.inputs if isinstance(self.inputs, tuple) else ()
        inputs = "U({:.4g}, {:.4g})".format(*ends) if ends else f"a = {self.inputs:.4g}"
        parts = [inputs] * bool(self.inputs) + [f"s = {self.weights:.4g}"] * (self.weights > 0)
        return ", ".join(parts) or "none"


@dataclass(frozen=True)
class Perturbation:
    """One perturbation: its test, mode and iteration, and which of the draws of that iteration it is."""

    test: Test
    mode: Mode
    iteration: int
    draw: int
    amount: Amount

    def key(self, root: Key) -> Key:
        """The key of everything that is drawn for it."""
        return root / self.test / self.mode / self.iteration / self.draw

    def of(self, task: Task, root: Key, published: bool = False) -> Task:
        """The perturbed task; its targets stay the unperturbed predictions.

        Weights come first, so that tokens get the embeddings of the perturbed model.
        """
        return perturbed(task, self.amount, self.key(root), published)


def perturbed(task: Task, amount: Amount, key: Key, published: bool = False) -> Task:
    """The task under noise on its weights, its inputs (tokens at their embeddings), or both."""
    if amount.weights > 0:
        task = task.with_noise(amount.weights, key / "weights")
    if amount.inputs:
        task = movable(task)
        task = task.with_inputs(noisy_inputs(task, amount.inputs, key, published))
    return task


def unperturbed(task: Task, test: Test) -> Task:
    """What perturbed tasks are compared with: where inputs move, tokens are seen at their embeddings."""
    return task if test == "mpt" else movable(task)


def plan(
    tests: Sequence[Test],
    amounts: Mapping[tuple[Test, Mode], Amount],
    iterations: Sequence[int],
    draws: int,
) -> list[Perturbation]:
    """All perturbations as they are scored: what is interrupted has whole iterations of every test."""
    return [
        Perturbation(test, mode, iteration, draw, amounts[test, mode])
        for iteration, draw, test, mode in product(iterations, range(draws), tests, MODES)
    ]


def check_tests(tests: Sequence[str], task: Task) -> tuple[Test, ...]:
    """Known tests, each once, that this task can undergo."""
    given = (tests,) if isinstance(tests, str) else tuple(tests)
    if not given:
        raise InputError(f"give at least one test among {', '.join(TESTS)}")
    if unknown := [test for test in given if test not in TESTS]:
        raise unknown_name("test", str(unknown[0]), TESTS)
    if len(set(given)) != len(given):
        raise InputError(f"each test once, got {', '.join(given)}")
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    if set(given) & {"mpt", "combined"} and not weights:
        raise NotApplicableError(
            f"{type(task.model).__name__} has no weights that torch can see, so MPT cannot put noise on "
            "them; use tests=('ipt',)"
        )
    reason = why_no_noise(task)
    if set(given) & {"ipt", "combined"} and reason is not None:
        raise NotApplicableError(f"IPT puts noise on inputs, but {reason}; or use tests=('mpt',)")
    return given  # type: ignore[return-value]


def unit_range(task: Task) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of every unit, shaped to broadcast over inputs.

    From the reference rows, or the inputs where there are none. What shares a unit shares a range: the
    elements of one channel of an image or a series, of one dimension of an embedding; a column of a table
    has its own.
    """
    rows = task.inputs if task.train is None else task.train
    there = touched(task) if task.train is None else torch.ones_like(rows, dtype=torch.bool)
    axes = _sharing(task)
    low = torch.where(there, rows, torch.inf).amin(axes, keepdim=True)
    high = torch.where(there, rows, -torch.inf).amax(axes, keepdim=True)
    return low, high


def _sharing(task: Task) -> tuple[int, ...]:
    """The axes along which what shares a range lies."""
    if task.modality == "series":
        return (0, time_axis(task))
    own = {"image": 1, "text": task.inputs.dim() - 1}.get(task.modality)
    return (0,) if own is None else tuple(axis for axis in range(task.inputs.dim()) if axis != own)


def noisy_inputs(
    task: Task, amount: float | tuple[float, float], key: Key, published: bool = False
) -> Tensor:
    """x + U(-a, a) or U(a, b), in units of the range and clipped to it; padding stays as it is.

    A value that lies outside the range of the reference rows is not pulled into it. `published` adds noise in
    the inputs' own units and clips at their smallest value only.
    """
    low, high = amount if isinstance(amount, tuple) else (-amount, amount)
    noise = (low + high) / 2 + (high - low) / 2 * uniform_noise(task, key / "input", 0)
    if published:
        return torch.maximum(task.inputs + noise, task.inputs.amin())
    least, most = unit_range(task)
    moved = task.inputs + noise * (most - least)
    bounded = moved.clamp(torch.minimum(least, task.inputs), torch.maximum(most, task.inputs))
    return torch.where(touched(task), bounded, task.inputs)


def check_head(task: Task, epsilon: float | None) -> None:
    """A regression has no class that could change: the caller says how far is elsewhere (A.1.1)."""
    if task.head == "regression" and epsilon is None:
        raise InputError(
            "in a regression nothing says when a prediction has changed; give epsilon=..., in units of the "
            "output"
        )
    if epsilon is not None and not epsilon > 0:
        raise InputError(f"epsilon must be positive, got {epsilon}")


def held(task: Task, outputs: Tensor, epsilon: float | None = None) -> Tensor:
    """Whether each prediction (N,) is that of the unperturbed task.

    The same class, the same set of labels, all tokens of an answer, or for a regression |dy| <= epsilon
    (A.1.1). An answer that is not finite agrees with nothing.
    """
    clean = task.outputs
    finite = outputs.isfinite().all(-1)
    if task.head == "regression":
        place = task.targets[:, None]
        moved = (outputs.gather(1, place) - clean.gather(1, place))[:, 0].double().abs()
        return (moved <= (epsilon or 0.0)) & finite
    if task.head == "generation":
        return (outputs[:, 1] >= 1) & finite
    if task.head == "multilabel":
        return ((outputs > 0) == (clean > 0)).all(-1) & finite
    return (outputs.argmax(-1) == clean.argmax(-1)) & finite


def outputs_of(task: Task) -> Tensor:
    """The outputs of a perturbed task, finite or not; counted to nobody, as a task's own outputs are."""

    def compute() -> Tensor:
        with task.session():
            return task.predictor.chunk(task.inputs, task.side)

    outputs: Tensor = task.uncounted(compute)
    return outputs


def changes_that_matter(task: Task) -> float:
    """The share of changed predictions that counts as disrupted: min(0.5, 0.8 (1 - 1/C))."""
    classes = task.n_outputs if task.head in ("multiclass", "binary") else 0
    return min(0.5, 0.8 * (1 - 1 / classes)) if classes else 0.5


Strength = (
    Literal["published", "calibrated"]
    | float
    | tuple[float, float]
    | Mapping[str, float | tuple[float, float]]
)
"""A rule, a number for every test or one per test, as {"ipt": 0.5, "mpt": 2.0}; inputs may have (a, b)."""
PUBLISHED: Mapping[Mode, Mapping[Test, float]] = {
    "nr": {"ipt": 0.001, "mpt": 0.001},
    "ar": {"ipt": 5.0, "mpt": 2.0},
}
LARGE_SIDE, LARGE_WEIGHTS = 224, 0.5
"""Images of ImageNet's size, whose networks the published program disrupts with less noise on weights."""
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
        (~held(task, outputs_of(perturbed(task, noise, key / draw)), epsilon)).double().mean()
        for draw in range(draws)
    ]
    return float(torch.stack(shares).mean())


@checked
def calibrate(
    task: Task,
    test: Test,
    mode: Mode,
    epsilon: float | None = None,
    seed: int = 0,
    draws: Count = DRAWS,
) -> Calibrated:
    """Find the smallest noise that disrupts (AR), or the largest that changes at most 5% (NR).

    The amount doubles from 1/4096 of the largest allowed until it is passed, then the interval is halved four
    times (on a log scale). At most 256 samples are evaluated; found once per task.

    Parameters
    ----------
    task
        The model and the samples.
    test
        "ipt" for noise on inputs, "mpt" for noise on weights.
    mode
        "nr" or "ar".
    epsilon
        How far an output must move for a prediction of a regression to have changed.
    seed, draws
        The seed of the draws, and how many are averaged at each amount.

    Returns
    -------
    Calibrated
        The amount, the share of predictions it changes, and whether the target was reached.
    """
    label = f"meta strength {test} {mode} {epsilon} {seed} {draws}"
    if label in task.estimates:
        known: Calibrated = task.estimates[label]
        return known
    few = task
    if len(task) > SAMPLES:
        order = keyed.bits(Key(seed) / "meta samples", task.draw_ids, 0, 1)[:, 0].argsort()
        few = task[order[:SAMPLES].sort().values]
    key = Key(seed) / "meta strength" / test
    target = changes_that_matter(task) if mode == "ar" else SLIGHT

    def changed(amount: float) -> tuple[bool, float, float]:
        """Whether this amount changes enough, or too many; the amount and the share of changes."""
        share = share_changed_by(few, test, amount, epsilon, key, draws)
        return share >= target if mode == "ar" else share > target, amount, share

    low, high = (False, MOST[test] / 2**HALVINGS, 0.0), (False, 0.0, 0.0)
    for halving in range(HALVINGS, -1, -1):
        high = changed(MOST[test] / 2**halving)
        if high[0]:
            break
        low = high
    if high[0] and high[1] > low[1]:
        for _ in range(REFINEMENTS):
            middle = changed((low[1] * high[1]) ** 0.5)
            low, high = (low, middle) if middle[0] else (middle, high)
    crossed, amount, share = high if mode == "ar" else low
    found = Calibrated(amount, share, target, crossed if mode == "ar" else share <= target)
    task.estimates[label] = found
    return found


def published_amount(task: Task, test: Test, mode: Mode) -> float:
    """The strength of the published program's settings for a task of this kind."""
    shape = task.inputs.shape
    large = task.modality == "image" and min(shape[-2:]) >= LARGE_SIDE
    return LARGE_WEIGHTS if (test, mode) == ("mpt", "ar") and large else PUBLISHED[mode][test]


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
    remarks = [UNSTEADY] * bool(task.moves)
    singles: tuple[Test, ...] = ("ipt", "mpt")
    for mode in MODES:
        chosen: dict[str, Any] = {"ipt": 0.0, "mpt": 0.0}
        for test in singles:
            if test in tests or "combined" in tests:
                chosen[test], remark = _amount(task, test, mode, strengths[mode], epsilon, seed)
                remarks += [remark] * bool(remark)
        one = {"ipt": Amount(inputs=chosen["ipt"]), "mpt": Amount(weights=chosen["mpt"])}
        for test in tests:
            found[test, mode] = one.get(test, Amount(chosen["ipt"], chosen["mpt"]))
    return found, remarks


def _amount(
    task: Task, test: Test, mode: Mode, strength: Strength, epsilon: float | None, seed: int
) -> tuple[float | tuple[float, float], str]:
    if isinstance(strength, Mapping):
        if test not in strength:
            raise InputError(f"{mode}={dict(strength)} gives no strength for {test}; it needs every test")
        strength = strength[test]
    if isinstance(strength, str):
        if strength == "published":
            return published_amount(task, test, mode), ""
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
    if isinstance(strength, tuple | list) and len(strength) == 2 and test == "ipt":
        low, high = map(float, strength)
        if not math.isfinite(high - low) or low >= high:
            raise InputError(f"noise on inputs is uniform from a to a larger b; got {mode}={strength!r}")
        return (low, high), ""
    if not isinstance(strength, int | float) or not 0 < float(strength) < float("inf"):
        raise InputError(
            f"a strength is positive, 'published', 'calibrated', or for ipt two ends of uniform noise, as "
            f"{{'ipt': (0.0, 1.0), 'mpt': 2.0}}; got {mode}={strength!r} for {test}"
        )
    return float(strength), ""
