"""QGE of metrics that read values: those of the inverse follow the ranking, so ties are averaged over."""

from itertools import permutations

import pytest
import torch

import veridical as vd
from tests.qge.conftest import table
from veridical.metrics import registry
from veridical.metrics.tie_orders import TIES_DECIDE

TIED = [[1.0, 1, 1, 2], [2, 1, 1, 1], [1, 1, 2, 2], [-1, -1, 0, 5], [4, 3, 2, 1]]


def inverses(values: list[float]) -> list[list[float]]:
    """The inverse of a map along every ranking that agrees with it, least relevant first."""
    found = []
    for order in permutations(range(len(values))):
        along = [values[i] for i in order]
        if along == sorted(values):
            inverse = [0.0] * len(values)
            for place, feature in enumerate(reversed(order)):
                inverse[feature] = along[place]
            found.append(inverse)
    return found


def gap_by_hand(metric: object, task: vd.Task, maps: torch.Tensor) -> torch.Tensor:
    expected = []
    for i, row in enumerate(maps.tolist()):
        one = task[i : i + 1]
        others = torch.cat([vd.score(metric, one, torch.tensor([m])).values for m in inverses(row)])
        expected.append(vd.score(metric, one, maps[i : i + 1]).values[0] - others.mean())
    return torch.stack(expected)


@pytest.mark.parametrize("name", ["faithfulness_estimate", "monotonicity_correlation"])
def test_metrics_that_read_values_meet_every_inverse(name: str) -> None:
    task, maps = table(4, samples=len(TIED)), torch.tensor(TIED)
    metric = registry.make(name, fill=task.fill)
    gap = vd.score(vd.qge.QGE(metric), task, maps)
    assert torch.allclose(gap.values, gap_by_hand(metric, task, maps), atol=1e-7, equal_nan=True)
    assert gap.flags[TIES_DECIDE].tolist()[:2] == [True, True]


def test_regions_see_where_the_inverse_puts_its_values_even_among_empty_pixels() -> None:
    # two black pixels tie at 0; the inverse gives them the map's two largest values, either way round
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )
    image = torch.tensor([[[0.0, 0.9, 0.4, 0.8], [0.7, 0.3, 0.0, 0.5]]])[None]
    task = vd.Task(network.eval(), image, fill=0.0)
    maps = torch.tensor([[0.0, 1, 2, 3, 4, 5, 0, 9]])
    metric = registry.make("selectivity", patch=2)
    gap = vd.score(vd.qge.QGE(metric), task, maps)
    assert torch.allclose(gap.values, -gap_by_hand(metric, task, maps), atol=1e-7)


@pytest.mark.parametrize(
    "name", ["pixel_flipping", "insertion", "rfid_plus", "fid_minus", "faithfulness_estimate"]
)
def test_a_gap_changes_its_sign_with_the_map_however_many_rankings_agree(name: str) -> None:
    task = table(9, samples=6)
    values = torch.randint(0, 3, (6, 9), generator=torch.Generator().manual_seed(0)).double()
    values[0] = 1.0  # a constant map is its own inverse
    maps = vd.explain(values, task)
    gap, turned = (vd.score(f"qge:{name}", task, e).values for e in (maps, maps.inverted()))
    assert torch.allclose(gap, -turned, atol=1e-12, equal_nan=True)
    assert abs(float(gap.nan_to_num()[0])) < 1e-12
    assert bool((gap[1:].abs() > 1e-3).any())
