"""Perturbed worlds: the plan of all of them, and the task that each one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.meta.noise import noisy_inputs
from veridical.metrics.input_noise import movable, why_no_noise
from veridical.values.task import Task

Test = Literal["ipt", "mpt", "combined"]
Mode = Literal["nr", "ar"]
TESTS: tuple[Test, ...] = get_args(Test)
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Amount:
    """How much noise: on inputs in units of their range, on weights as a share of each."""

    inputs: float = 0.0
    weights: float = 0.0

    def __str__(self) -> str:
        parts = [f"a = {self.inputs:.4g}"] * (self.inputs > 0) + [f"s = {self.weights:.4g}"] * (
            self.weights > 0
        )
        return ", ".join(parts) or "none"


@dataclass(frozen=True)
class World:
    """One perturbation: its test, mode and iteration, and which of the draws of that iteration it is.

    `attempt` counts how often it was drawn before, because too few predictions did what they must.
    """

    test: Test
    mode: Mode
    iteration: int
    draw: int
    amount: Amount
    attempt: int = 0

    def key(self, root: Key) -> Key:
        """The key of everything that is drawn for this world."""
        key = root / self.test / self.mode / self.iteration / self.draw
        return key / "again" / self.attempt if self.attempt else key

    def of(self, task: Task, root: Key, published: bool = False) -> Task:
        """The perturbed task; its targets stay the unperturbed predictions.

        Weights come first, so that tokens get the embeddings of the perturbed model.
        """
        return perturbed(task, self.amount, self.key(root), published)


def perturbed(task: Task, amount: Amount, key: Key, published: bool = False) -> Task:
    """The task under noise on its weights, its inputs (tokens at their embeddings), or both."""
    if amount.weights > 0:
        task = task.with_noise(amount.weights, key / "weights")
    if amount.inputs > 0:
        task = movable(task)
        task = task.with_inputs(noisy_inputs(task, amount.inputs, key, published))
    return task


def unperturbed(task: Task, test: Test) -> Task:
    """What a test's worlds are compared with: where inputs move, tokens are seen at their embeddings."""
    return task if test == "mpt" else movable(task)


def plan(
    tests: Sequence[Test],
    amounts: dict[tuple[Test, Mode], Amount],
    iterations: int | Sequence[int],
    draws: int,
) -> list[World]:
    """All worlds, in the order they are visited: what is interrupted has whole iterations of every test."""
    return [
        World(test, mode, iteration, draw, amounts[test, mode])
        for iteration in (range(iterations) if isinstance(iterations, int) else iterations)
        for draw in range(draws)
        for test in tests
        for mode in MODES
    ]


def check_tests(tests: Sequence[str], task: Task) -> tuple[Test, ...]:
    """Known tests, each once, that this task can undergo."""
    given = (tests,) if isinstance(tests, str) else tuple(tests)
    if not given:
        raise InputError(f"give at least one test among {', '.join(TESTS)}")
    for test in given:
        if test not in TESTS:
            raise unknown_name("test", str(test), TESTS)
    if len(set(given)) != len(given):
        raise InputError(f"each test once, got {', '.join(given)}")
    if set(given) & {"mpt", "combined"} and not _has_weights(task):
        raise NotApplicableError(
            f"{type(task.model).__name__} has no weights that torch can see, so MPT cannot put noise on "
            "them; use tests=('ipt',)"
        )
    reason = why_no_noise(task)
    if set(given) & {"ipt", "combined"} and reason is not None:
        raise NotApplicableError(f"IPT puts noise on inputs, but {reason}; or use tests=('mpt',)")
    return given  # type: ignore[return-value]


def _has_weights(task: Task) -> bool:
    return any(p.is_floating_point() for p in task.predictor.model.parameters())
