"""`Scores.variance()` tells samples, draws, fill and tie orders apart, planted and real."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core import key as keyed
from veridical.errors import InputError
from veridical.metrics.base import Metric, Outcome, registry
from veridical.values.scores import SOURCES, Variance

SD = {"samples": 3.0, "draws": 1.0, "fill": 3.0, "tie orders": 2.0}
NOWHERE = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True)
class Planted(Metric):
    """A score that is the sum of what is planted; the fill moves all samples alike."""

    name: ClassVar[str] = "planted"

    def evaluate(self, task, explanation, context) -> Outcome:
        def normal(source: str, ids: torch.Tensor) -> torch.Tensor:
            return SD[source] * keyed.normal(context.key.of(source) / source, ids, 0, 1, torch.float64)[:, 0]

        own = SD["samples"] * keyed.normal(vd.core.Key(7), task.ids, 0, 1, torch.float64)[:, 0]
        noise = normal("draws", task.ids) + normal("tie orders", task.ids) + normal("fill", NOWHERE)
        return Outcome(own + noise)


def planted(samples: int, repeats: int) -> Variance:
    task = vd.Task(nn.Linear(3, 2), torch.randn(samples, 3), train=torch.randn(200, 3))
    return vd.score(Planted(), task, torch.ones(samples, 3), repeats=repeats).variance()


def test_a_planted_decomposition_is_found() -> None:
    found = planted(800, 40)
    for source, sd in SD.items():
        # the fill is one number per repeat, the others one per sample as well
        near = 0.6 if source == "fill" else 0.15
        assert found.score[source] == pytest.approx(sd**2, rel=near), source
    for source in ("samples", "draws", "tie orders"):
        assert found.mean[source] == pytest.approx(SD[source] ** 2 / 800, rel=0.6), source
    assert found.mean["fill"] == pytest.approx(SD["fill"] ** 2, rel=0.6)  # more samples do not help
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert "40 repeats of each source" in repr(found)


def table(train: int = 200, fill=None) -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return vd.Task(net, torch.randn(6, 14).double(), train=torch.randn(train, 14).double(), fill=fill)


def test_only_what_draws_varies() -> None:
    maps = torch.rand(6, 14)
    still = vd.score("pixel_flipping", table(fill=0.0), maps, repeats=3)
    assert [still.variance().score[source] for source in SOURCES] == [0.0, 0.0, 0.0]
    assert still.variance().shares["samples"] == 1.0
    rows = vd.score("pixel_flipping", table(fill=vd.fills.Marginal(4)), maps, repeats=3).variance()
    assert rows.score["fill"] > 0 == rows.score["draws"] == rows.score["tie orders"]
    inside = vd.qge.QGE(registry.make("pixel_flipping", fill=vd.fills.Marginal(4)))
    assert vd.score(inside, table(fill=0.0), maps, repeats=3).variance().score["fill"] > 0
    few = vd.score("pixel_flipping", table(train=4, fill=vd.fills.Marginal(4)), maps, repeats=3).variance()
    assert few.score["fill"] == 0.0  # all reference rows are taken, whatever the seed
    drawn = vd.score("rfid_plus", table(fill=0.0), maps, repeats=3, variant="probability", draws=5).variance()
    assert drawn.score["draws"] > 0 == drawn.score["fill"] == drawn.score["tie orders"]
    tied = vd.score("pixel_flipping", table(fill=0.0), (maps > 0.5).double(), repeats=3).variance()
    assert tied.score["tie orders"] > 0 == tied.score["draws"] == tied.score["fill"]
    gap = vd.score("qge:pixel_flipping", table(fill=0.0), (maps > 0.5).double(), repeats=3).variance()
    assert gap.score["tie orders"] > 0 == gap.score["draws"]


def test_the_score_itself_stays_and_rows_are_counted(tmp_path: Path) -> None:
    maps = torch.rand(6, 14)
    once = vd.score("rfid_plus", table(fill=0.0), maps, draws=5)
    more = vd.score("rfid_plus", table(fill=0.0), maps, draws=5, repeats=4)
    assert torch.equal(once.values, more.values)
    assert more.cost.forward == 4 * once.cost.forward  # neither a fill nor ties to draw again
    back = vd.Scores.load(more.save(tmp_path / "scores.safetensors"))
    assert back.variance() == more.variance()


def test_methods_are_repeated_too() -> None:
    found = vd.score("max_sensitivity", table(), "gradient", draws=2, repeats=3).variance()
    assert found.score["draws"] > 0


def test_what_is_not_known_is_said() -> None:
    scores = vd.score("pixel_flipping", table(fill=0.0), torch.rand(6, 14))
    with pytest.raises(InputError, match="score with repeats=8"):
        scores.variance()
    with pytest.raises(InputError, match="repeats is a whole number from 1"):
        vd.score("pixel_flipping", table(fill=0.0), torch.rand(6, 14), repeats=0)
    one = vd.score("pixel_flipping", table(fill=0.0)[:1], torch.rand(1, 14), repeats=2)
    with pytest.raises(InputError, match="needs two"):
        one.variance()
