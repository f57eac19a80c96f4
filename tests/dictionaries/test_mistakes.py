"""What cannot be is refused, in a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from veridical.dictionaries import Bench, Superposition, TopK, controls, judge, mcc, train, truth_scores
from veridical.errors import VeridicalError

WORLD = Superposition(features=24, dimensions=12, active=2.0, groups=3)
BENCH = Bench.planted(WORLD, 64, 128, labels=4)
SHORT = TopK(24, steps=4, batch=16, active=2)
ONE = torch.ones

REFUSED: dict[str, Callable[[], object]] = {
    "at least 2": lambda: judge(BENCH, SHORT, seeds=1),
    "tpp": lambda: judge(BENCH, SHORT, measures=["ttp"]),
    "'trained'": lambda: judge(BENCH, SHORT, entries=controls(BENCH)),
    "not sparse": lambda: Superposition(features=8, active=6.0),
    "no feature of 8": lambda: Superposition(features=8, children=1.0),
    "differ in dimensions": lambda: mcc(ONE(2, 3), ONE(2, 4)),
    "do not belong": lambda: truth_scores(ONE(2, 3), ONE(4, 3), ONE(2, 3), ONE(4, 2) > 0),
    "30 active atoms": lambda: TopK(24, active=30),
    "expected rows": lambda: train(torch.zeros(3), SHORT),
    "NaN or infinite": lambda: train(torch.full((4, 2), torch.nan), TopK(4, 2, active=1)),
    "atoms have shape": lambda: train(WORLD.rows(30), SHORT, atoms=torch.zeros(3, 12)),
    "too few for 8 parts": lambda: Bench(BENCH.task[:9], "embed", BENCH.train),
    "train_labels": lambda: Bench(BENCH.task, "embed", BENCH.train, ONE(3, 2)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_mistakes_are_named(said: str) -> None:
    with pytest.raises(VeridicalError, match=said):
        REFUSED[said]()


def test_odd_rows_are_trained_on() -> None:
    constant = train(torch.ones(8, 3), TopK(4, 3, active=1)).dictionary
    assert bool(torch.isfinite(constant.encode(torch.ones(2, 3))).all())
    assert train(WORLD.rows(30).half(), SHORT).dictionary.decoder.dtype == torch.float32
