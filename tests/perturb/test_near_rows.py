"""Near rows: neighbours by standardised distance, equal rows left out, categories and gaps taken whole."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.reference.faithfulness import nearest_rows
from veridical.models.plan import Plan
from veridical.perturb.near_rows import near_responses, near_rows, ways, why_no_near_rows
from veridical.values.task import Task

close = torch.testing.assert_close


def numbers(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def first(x):
    return x.nan_to_num(nan=7.0)[:, :2]


def test_inputs_go_a_step_towards_their_nearest_rows():
    train = numbers(50, 4) * torch.tensor([1.0, 10.0, 0.1, 3.0])
    task = Task(first, torch.cat([train[:3], train[3:5] + 0.01]), train=train)
    got = near_rows(task, step=0.25, neighbours=5)
    for i, x in enumerate(task.inputs.numpy()):
        rows = np.stack(nearest_rows(x, train.numpy(), 5))
        np.testing.assert_allclose(got[i].numpy(), x + 0.25 * (rows - x))
    # a row of the reference rows is no neighbour of itself, however often it occurs
    repeated = Task(first, train[:3], train=torch.cat([train, train[:3]]))
    close(near_rows(repeated, step=0.25, neighbours=5), got[:3])


def test_where_neighbours_are_missing_the_input_stands_in():
    train = torch.cat([numbers(1, 3).expand(9, 3), numbers(2, 3, seed=1)])
    task = Task(first, train[:1], train=train)
    got = near_rows(task, step=1.0, neighbours=4)
    assert (got[0, :2] != task.inputs[0]).any(-1).all()
    assert torch.equal(got[0, 2:], task.inputs.expand(2, 3))


def test_few_values_and_whole_numbers_are_taken_whole():
    train = numbers(60, 4)
    train[:, 1] = torch.arange(60) % 12 / 7
    train[:, 2] = torch.arange(60) * 3
    moved = near_rows(Task(first, train[:20], train=train), step=0.2)
    for column, whole in enumerate((False, True, True, False)):
        known = torch.isin(moved[..., column], train[:, column])
        assert bool(known.all()) == whole


def test_categories_of_a_frame_are_names():
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "kind": rng.choice(list("uvwxyz"), 80)})

    def model(rows):
        return np.stack([rows["a"], (rows["kind"] == "u") * 1.0], 1)

    task = Task(model, frame[:10], train=frame)
    moved = near_rows(task, step=0.5, neighbours=1)[:, 0]
    assert torch.isin(moved[:, 1], torch.arange(6.0, dtype=torch.float64)).all()
    # z is no further from u than v is: the nearest rows are of the same kind, or much nearer in the number
    spread = frame["a"].std(ddof=0)
    for i in range(10):
        apart = ((frame["a"] - frame["a"][i]) / spread) ** 2 + 2 * (frame["kind"] != frame["kind"][i])
        nearest = apart[apart > 0].idxmin()
        assert moved[i, 0] == pytest.approx((frame["a"][i] + frame["a"][nearest]) / 2)
    assert set(ways(task, task.train[None, :1])[:, 1].tolist()) == {0.0, 1.0}


def test_a_missing_value_takes_that_of_the_neighbour():
    train = numbers(40, 3)
    train[::2, 1] = torch.nan
    task = Task(lambda x: np.nan_to_num(x, nan=9.0)[:, :2], train[:6], train=train)
    moved = near_rows(task, step=0.3)
    gap = train[:6, 1].isnan()
    there = ~moved[..., 1].isnan()
    assert torch.isin(moved[gap][..., 1][there[gap]], train[:, 1]).all()
    # of the same kind are nearer: most neighbours of a row with a gap have one
    assert there[gap].double().mean() < 0.5 < there[~gap].double().mean()
    way = ways(task, train[None])[:, 1]
    assert torch.isfinite(way).all()
    close(way[gap], torch.full_like(way[gap], 0.5))


def test_responses_are_those_of_moved_rows_in_any_chunks():
    train = numbers(30, 5)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    moved = torch.rand(7, 6, 5, generator=torch.Generator().manual_seed(2)) < 0.5
    found = []
    for rows in (8, 64, 4096):
        task = Task(net, numbers(7, 5, seed=3), train=train, plan=Plan(rows=rows))
        found.append(near_responses(task, moved, neighbours=3))
    own, responses = found[0]
    for other in found[1:]:
        close(other, found[0], atol=1e-9, rtol=0)
    near = near_rows(task, neighbours=3)
    close(own[:, 0], task.outputs.gather(1, task.targets[:, None])[:, 0])
    for i, k, m in ((0, 0, 0), (3, 2, 5), (6, 1, 4)):
        row = torch.where(moved[i, m], near[i, k], task.inputs[i])
        close(responses[i, k, m], net(row[None])[0, task.targets[i]].detach(), atol=1e-7, rtol=0)


def test_who_has_no_near_rows():
    train = numbers(40, 3)
    assert why_no_near_rows(Task(first, train[:4], train=train)) is None
    assert "reference rows" in str(why_no_near_rows(Task(first, train[:4])))
    noise = torch.rand(60, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    pictures = Task(lambda x: x.mean((1, 2)), noise[:4], train=noise)
    assert "none is near" in str(why_no_near_rows(pictures))
    alike = 0.1 * noise + torch.arange(60)[:, None, None, None] // 15
    assert why_no_near_rows(Task(lambda x: x.mean((1, 2)), alike[:4], train=alike)) is None
