"""Maps with ties are judged by every ranking that agrees with them, and a map without ties costs no more."""

from __future__ import annotations

from itertools import chain, permutations, product
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core.key import Key
from veridical.metrics import Metric
from veridical.metrics.base import CONSTANT, TIED_PAIRS, Outcome
from veridical.metrics.faithfulness.irof import Irof
from veridical.metrics.tie_orders import TIES_DECIDE
from veridical.models.context import Context
from veridical.perturb.probe import probe
from veridical.perturb.rules import RankThreshold
from veridical.testing import ContractError, check_metric
from veridical.values.explanation import Explanation
from veridical.values.task import Task
from veridical.values.ties import TieOrders


def table(features: int, samples: int = 3) -> vd.Task:
    generator = torch.Generator().manual_seed(features)
    net = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return vd.Task(net, torch.randn(samples, features, generator=generator).double(), fill=0.0)


class HalfRemoved(Metric):
    """The metric of docs/how-to/add-a-metric.md."""

    name: ClassVar[str] = "half_removed"
    category: ClassVar[str] = "faithfulness"
    ranks_only: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        count = (task.space.counts(len(task))[:, None] * 0.5).long()
        rule = RankThreshold(explanation.descending_ranks, count)
        responses = probe(task, rule, key=context.key, with_clean=True)
        return Outcome(responses[:, 0] - responses[:, 1])


class Careless(HalfRemoved):
    """The same without a word on how it reads maps."""

    name: ClassVar[str] = "careless"
    ranks_only: ClassVar[bool] = False


class Positional(HalfRemoved):
    """Sorts by itself, and says that ties are none of its business."""

    name: ClassVar[str] = "positional"
    averages_ties: ClassVar[bool | None] = False


def test_a_metric_of_ranks_gets_its_ties_averaged_and_flagged() -> None:
    task = table(6)
    values = torch.tensor([[2.0, 1.0, 1.0, 1.0, 1.0, 0.0]] * 3).double()
    found = HalfRemoved()(task, Explanation(values, task.space, task.targets, task.ids))
    each = [HalfRemoved()(task, along(task, values, order)).values for order in agreeing(values[0].tolist())]
    spread = torch.stack(each).std(0)
    assert bool((found.details[TIED_PAIRS] == 6 / 15).all())
    assert TIES_DECIDE in found.flags
    assert bool(((found.values - torch.stack(each).mean(0)).abs() <= 2 * spread).all())
    pairs = torch.tensor([[2.0, 2.0, 1.0, 1.0, 0.0, 0.0]] * 3).double()
    exact = [HalfRemoved()(task, along(task, pairs, order)).values for order in agreeing(pairs[0].tolist())]
    found = HalfRemoved()(task, Explanation(pairs, task.space, task.targets, task.ids))
    torch.testing.assert_close(found.values, torch.stack(exact).mean(0))


def test_the_battery_catches_a_metric_that_breaks_ties_by_position() -> None:
    assert check_metric(HalfRemoved())
    for broken in (Careless(), Positional()):
        with pytest.raises(ContractError, match="breaks ties by the position"):
            check_metric(broken)


def agreeing(values: list[float]) -> list[list[int]]:
    """Every ranking, least relevant first, that agrees with the values."""
    groups = [[i for i, v in enumerate(values) if v == level] for level in sorted(set(values))]
    return [list(chain(*parts)) for parts in product(*(list(permutations(g)) for g in groups))]


def along(task: vd.Task, values: Tensor, order: list[int]) -> Explanation:
    e = Explanation(values, task.space, task.targets, task.ids)
    return e.along(torch.tensor([order] * len(task)))


MAPS = [
    [1.0, 1.0, 2.0, 3.0, 0.0],
    [1.0, 1.0, 1.0, 2.0, 0.0],
    [0.0, 1.0, 0.0, 1.0, 2.0],
    [0.0, 0.0, 1.0, 1.0, 1.0],
]
RANKING = [
    "pixel_flipping",
    "deletion",
    "insertion",
    "kept_features",
    "monotonicity",
    "selectivity",
    "region_perturbation",
    "qge:pixel_flipping",
    "qge:faithfulness_correlation",
    "qge:kept_features",
]


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("values", MAPS[:3])
def test_few_rankings_are_all_looked_at(name: str, values: list[float]) -> None:
    task = table(5)
    maps = torch.tensor([values] * 3).double()
    each = [vd.score(name, task, along(task, maps, order)).values for order in agreeing(values)]
    torch.testing.assert_close(vd.score(name, task, maps).values, torch.stack(each).mean(0))


def test_many_rankings_are_drawn_without_bias() -> None:
    task = table(5, 1)
    values = MAPS[3]
    maps = torch.tensor([values]).double()
    truth = torch.stack(
        [vd.score("pixel_flipping", task, along(task, maps, o)).values for o in agreeing(values)]
    )
    drawn = torch.stack([vd.score("pixel_flipping", task, maps, seed=s).values for s in range(100)])
    assert abs(float(drawn.mean() - truth.mean())) < 4 * float(truth.std()) / (8 * 100) ** 0.5
    assert float(drawn.std()) > 0


@pytest.mark.parametrize("name", ["pixel_flipping", "faithfulness_correlation", "fid_plus", "selectivity"])
@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0, 2.0], [0.0, 0.0, 1.0, 1.0]])
def test_qge_turns_its_sign_with_the_map(name: str, values: list[float]) -> None:
    task = table(4)
    e = Explanation(torch.tensor([values] * 3).double(), task.space, task.targets, task.ids)
    there, back = (vd.score(f"qge:{name}", task, m).values for m in (e, e.inverted()))
    torch.testing.assert_close(there, -back)


def test_an_inverse_carries_the_reversed_weak_order() -> None:
    task = table(4, 1)
    e = Explanation(torch.tensor([[1.0, 1.0, 1.0, 2.0]]), task.space, task.targets, task.ids)
    turned = e.inverted()
    assert turned.values.sort(-1).values.tolist() == [[1.0, 1.0, 1.0, 2.0]]
    assert turned.order[0, 0] == 3
    assert turned.tied.tolist() == [[False, False, True, True]]
    again = turned.inverted()
    assert torch.equal(again.values, e.values)
    assert torch.equal(again.tied, e.tied)


def test_no_ties_no_cost() -> None:
    task = table(6)
    maps = torch.arange(18.0).reshape(3, 6)
    scores = vd.score("pixel_flipping", task, maps, steps=3)
    stable = vd.score("pixel_flipping", table(6), maps, steps=3, ties="stable")
    assert torch.equal(scores.values, stable.values)
    assert scores.cost == stable.cost
    assert scores.details[TIED_PAIRS].tolist() == [0.0] * 3
    assert not scores.flags


def test_only_samples_with_ties_are_asked_again() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    task = vd.Task(net, torch.rand(4, 1, 4, 4) + 0.1)
    maps = torch.rand(4, 16)
    plain = vd.score("pixel_flipping", task, maps).cost.forward
    maps[2, [3, 4]] = 2.0
    assert vd.score("pixel_flipping", task, maps).cost.forward == plain + 16


def test_ties_among_features_that_hold_the_fill_cost_nothing() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(2, 1, 4, 4) + 0.1
    x[:, :, :2] = 0.0
    task = vd.Task(net, x)
    maps = x.flatten(1) * torch.rand(2, 16)
    scores = vd.score("pixel_flipping", task, maps)
    assert scores.cost.forward == 2 * 16
    torch.testing.assert_close(scores.details[TIED_PAIRS], torch.full((2,), 28 / 120).double())


def test_ties_are_told_and_flagged_where_they_decide() -> None:
    task = table(6)
    maps = torch.zeros(3, 6)
    maps[:, 0] = 1.0
    scores = vd.score("pixel_flipping", task, maps)
    assert scores.details[TIED_PAIRS].tolist() == [10 / 15] * 3
    assert scores.flags[TIES_DECIDE].any()
    assert CONSTANT not in scores.flags


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_tie_order_is_met_once(size: int) -> None:
    task = table(size, 1)
    values = [float(i // 2) for i in range(size)]
    orders = TieOrders.of(Explanation(torch.tensor([values]), task.space, task.targets, task.ids))
    met = {tuple(orders.strict(k, Key(0)).order[0].tolist()) for k in range(int(orders.counts))}
    assert met == set(map(tuple, agreeing(values)))


def test_chance_ties_of_a_large_map_cost_nothing() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 3))
    task = vd.Task(model, torch.rand(2, 1, 64, 64))
    maps = torch.rand(2, 64 * 64)
    plain = vd.score("pixel_flipping", task, maps, steps=8)
    maps[:, 10:40:2] = maps[:, 11:41:2]  # fifteen pairs of eight million
    tied = vd.score("pixel_flipping", task, maps, steps=8)
    assert tied.cost == plain.cost
    halves = (maps > 0.5).float()
    assert vd.score("pixel_flipping", task, halves, steps=8).cost.forward == 8 * plain.cost.forward


def test_images_of_unequal_segments_may_have_ties_in_some() -> None:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(288, 3)).double().eval()
    rows, values = (torch.rand(6, *shape, generator=generator).double() for shape in ((2, 12, 12), (144,)))
    task, metric = vd.Task(net, rows, targets=[0] * 6), Irof(segments=64)
    assert len(set((metric.regions_of(task).sizes(6) > 0).sum(-1).tolist())) > 1
    values[::2] = (values[::2] > 0.5).double()
    whole = vd.score(metric, task, values)
    assert whole.curve is not None
    assert whole.curve.y.shape == (6, len(whole.curve.x))
    for at in range(6):
        one = vd.score(metric, task[at : at + 1], values[at : at + 1])
        torch.testing.assert_close(one.values, whole.values[at : at + 1])
        assert one.curve is not None
        torch.testing.assert_close(one.curve.y[0, -1], whole.curve.y[at, -1])
