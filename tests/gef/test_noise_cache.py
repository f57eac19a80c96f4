"""Noise that a task keeps: the same bits, drawn once, never more than there is room for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.gef import noise_cache as kept
from veridical.gef.noise_cache import KeptNoise
from veridical.model import noisy_copy as weights
from veridical.model.noisy_copy import Layout, Noise
from veridical.testing import tiny_task

KEYS = [vd.Key(5) / i for i in range(4)]
PATH = (0.1, 0.5, 1.0)


def layout(dtype: torch.dtype = torch.float32) -> Layout:
    return Layout.of(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 2)).to(dtype))


@pytest.fixture
def drawn() -> Iterator[list[vd.Key]]:
    """The keys whose noise is drawn, in order."""
    keys: list[vd.Key] = []
    original = weights.draw_noise

    def seen(key: vd.Key, parts: Any) -> None:
        keys.append(key)
        original(key, parts)

    with mock.patch.object(weights, "draw_noise", seen):
        yield keys


def asked(keeping: KeptNoise, laid: Layout, keys: list[vd.Key]) -> list[Noise] | None:
    """What a score gets that announces these keys and asks for them."""
    noise = keeping.of(laid, keys)
    return None if noise is None else [noise(key) for key in keys]


def same(one: Layout, noise: Noise, key: vd.Key) -> bool:
    """Whether every parameter's noise is that of its key; nobody reads what lies between them."""
    return all(
        torch.equal(a, b)
        for run, own, expected in zip(one.runs, noise, one.noise(key), strict=True)
        for (_, a), (_, b) in zip(run.parts(own), run.parts(expected), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_is_that_of_its_key(dtype: torch.dtype) -> None:
    laid = layout(dtype)
    noise = KeptNoise().of(laid, KEYS)
    assert noise is not None
    # in any order, again and again, announced or not
    assert all(same(laid, noise(key), key) for key in [*KEYS[::-1], *KEYS, vd.Key(9)])
    assert not same(laid, noise(KEYS[0]), KEYS[1])


def test_noise_is_drawn_once_and_again_only_for_weights_of_another_kind(drawn: list[vd.Key]) -> None:
    keeping = KeptNoise()
    for keys, expected in ((KEYS[:2], KEYS[:2]), (KEYS[:2], []), (KEYS[:3], KEYS[2:3]), (KEYS[:1], [])):
        asked(keeping, layout(), keys)
        assert drawn == expected
        drawn.clear()
    doubled = asked(keeping, layout(torch.float64), KEYS[:2])
    assert drawn == KEYS[:2]
    assert doubled is not None
    assert doubled[0][0].dtype == torch.float64


def test_a_score_without_room_keeps_nothing_and_a_new_one_replaces_the_old(drawn: list[vd.Key]) -> None:
    keeping, laid = KeptNoise(), layout()
    with mock.patch.object(kept, "MOST", 3 * laid.size):
        assert asked(keeping, laid, KEYS) is None
        asked(keeping, laid, KEYS[:2])
        asked(keeping, laid, KEYS[2:])
        assert list(keeping._drawn) == KEYS[2:]
        asked(keeping, laid, KEYS[:2])
    assert drawn == [*KEYS, *KEYS[:2]]
    with mock.patch.object(kept, "SMALLEST", laid.size):
        assert asked(keeping, laid, KEYS[:1]) is None


def test_a_key_that_nobody_announced_is_not_kept() -> None:
    keeping = KeptNoise()
    noise = keeping.of(layout(), KEYS[:1])
    assert noise is not None
    noise(KEYS[3])
    assert not keeping._drawn


def test_forms_and_explainers_of_a_task_share_their_noise(drawn: list[vd.Key]) -> None:
    task = tiny_task("image")
    first = vd.score(vd.FastGEF(path=PATH, draws=2), task, "gradient")
    assert len(drawn) == len(set(drawn)) == 6
    for form, explainer in (("fast", "saliency"), ("arc", "gradient"), ("fast", "gradient")):
        again = vd.score(vd.GEF(form=form, path=PATH, draws=2), task, explainer)  # type: ignore[arg-type]
    assert len(drawn) == 6
    assert torch.equal(first.values, again.values)
    vd.score(vd.FastGEF(path=PATH, draws=2), task, "gradient", seed=1)
    assert len(drawn) == 12


def test_weights_that_were_changed_get_the_noise_that_is_kept() -> None:
    task = tiny_task("image")
    metric = vd.FastGEF(path=PATH, draws=2)
    before = vd.score(metric, task, "gradient").details["explanation_distortion"]
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(1.5)
    after = vd.score(metric, task, "gradient").details["explanation_distortion"]
    fresh = vd.score(metric, vd.Task(task.model, task.inputs, targets=task.targets), "gradient")
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh.details["explanation_distortion"])


def test_what_is_kept_does_not_travel_with_the_task() -> None:
    task = tiny_task("image")
    vd.score(vd.FastGEF(path=PATH, draws=2), task, "gradient")
    assert task.__dict__["_cache"]["gef noise"]._drawn
    assert not pickle.loads(pickle.dumps(task)).__dict__["_cache"]["gef noise"]._drawn
