"""Noise drawn ahead: the same bits, one draw at a time, and no thread that outlives the block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.explainers import Explainer
from veridical.gef import noise_prefetch as ahead
from veridical.gef.noise_prefetch import NoiseAhead
from veridical.models.weights import Noise, NoiseSource
from veridical.testing import tiny_task

KEYS = [vd.core.Key(5) / i for i in range(4)]
PATH = (0.1, 0.5, 1.0)


@pytest.fixture
def always() -> Iterator[None]:
    """Draw ahead also for small models on a CPU."""
    with mock.patch.object(ahead, "worthwhile", return_value=True):
        yield


def source() -> NoiseSource:
    return NoiseSource(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 2)))


def left_behind() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "ahead" in thread.name]


def same(a: Noise, b: Noise) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_noise_is_that_of_its_key(always: None) -> None:
    drawn_by = source()
    with NoiseAhead(drawn_by, KEYS) as noise:
        drawn = [noise(key) for key in KEYS]
    assert all(same(noise, source()(key)) for noise, key in zip(drawn, KEYS, strict=True))
    assert not same(drawn[0], drawn[1])


def test_a_key_that_was_not_expected_is_drawn_when_asked_for(always: None) -> None:
    drawn_by, stranger = source(), vd.core.Key(9)
    with NoiseAhead(drawn_by, KEYS[:2]) as noise:
        found = {key: noise(key) for key in (KEYS[0], stranger, KEYS[1], KEYS[3])}
    assert all(same(noise, source()(key)) for key, noise in found.items())


def test_only_a_few_draws_are_begun_ahead(always: None) -> None:
    drawn_by, begun = source(), []
    begin = NoiseSource.begin

    def counted(self: NoiseSource, key: vd.core.Key, pool: Any) -> Any:
        begun.append(key)
        return begin(self, key, pool)

    with mock.patch.object(NoiseSource, "begin", counted), NoiseAhead(drawn_by, iter(KEYS)) as noise:
        assert begun == KEYS[: ahead.AHEAD]
        noise(KEYS[0])
        assert begun == KEYS[: ahead.AHEAD + 1]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_thread_outlives_the_block(always: None, error: type[BaseException]) -> None:
    def work() -> None:
        with NoiseAhead(source(), KEYS):
            assert left_behind()
            raise error

    with pytest.raises(error):
        work()
    assert not left_behind()


@dataclass(frozen=True)
class Interrupted(Explainer):
    """Explains the unperturbed world and is stopped in the first noisy one."""

    name: ClassVar[str] = "interrupted"

    def attribute(self, task: vd.Task, key: vd.core.Key) -> Tensor:
        if task.reference is not task:
            assert left_behind()
            raise KeyboardInterrupt
        return torch.rand(len(task), task.space.n_features)


def test_a_score_that_is_interrupted_leaves_no_thread_and_no_noise(always: None) -> None:
    task = tiny_task("image", 4)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        vd.score(vd.gef.FastGEF(path=PATH), task, Interrupted())
    assert not left_behind()
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())


def _only_kept(self: NoiseSource, key: vd.core.Key) -> Noise:
    assert key in self._kept, "drawn late"
    return self.keep(key, self._kept[key])


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        *((form, {}) for form in ("fast", "arc", "reference", "jacobian")),
        # `reference` draws anew at each step and takes no direction
        *((form, {"same_direction": True}) for form in ("fast", "arc", "jacobian")),
    ],
)
def test_every_form_expects_the_keys_it_asks_for(form: str, settings: dict[str, Any]) -> None:
    """Scores do not change, and every draw but none else was begun ahead."""
    task = tiny_task("image", 3)
    metric = vd.gef.GEF(form=form, path=PATH, draws=2, steps=2, **settings)  # type: ignore[arg-type]
    plain = vd.score(metric, task, "gradient")
    with (
        mock.patch.object(ahead, "worthwhile", return_value=True),
        mock.patch.object(NoiseSource, "__call__", _only_kept),
    ):
        early = vd.score(metric, task, "gradient")
    assert torch.equal(plain.values, early.values)
    for name in ("model_distortion", "explanation_distortion"):
        assert torch.equal(plain.details[name], early.details[name])


def test_small_models_and_cpus_draw_when_asked() -> None:
    with NoiseAhead(source(), KEYS):
        assert not left_behind()


def test_a_path_is_searched_with_the_noise_drawn_ahead() -> None:
    task = tiny_task("image")
    plain = vd.gef.find_path(task)
    with mock.patch.object(ahead, "worthwhile", return_value=True):
        assert vd.gef.find_path(task) == plain
        assert vd.gef.find_path(task, perturb="input").sigma_max > 0
    assert not left_behind()
