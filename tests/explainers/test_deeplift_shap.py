"""DeepLIFT SHAP: each sample runs once for all baselines, and each baseline counts as it would alone."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import DeepLift, DeepLiftShap
from veridical.models.predictor import Plan


class Reused(nn.Module):
    """One ReLU, in place, that runs three times; maximum pooling, a residual sum, a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1, bias=False)
        self.norm, self.relu, self.head = nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(8, 3)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.first(x))
        g = self.norm(self.second(h))
        g += h
        return self.head(F.max_pool1d(self.relu(g), 4, 4).flatten(1))


class Attending(nn.Module):
    """Attention between eight places, with places first or rows first, a norm and a gate."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.enter, self.attention = nn.Linear(2, 6), nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.transpose(1, 2))
        h = h if self.attention.batch_first else h.transpose(0, 1)
        h = self.norm(h + self.attention(h, h, h)[0])
        return self.head((h * torch.sigmoid(h)).amax(1 if self.attention.batch_first else 0))


class Recurring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.transpose(1, 2))[0][:, -1])


class Windows(nn.Module):
    """The windows of all rows lie along the first axis, those of a row together, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x.unflatten(2, (2, 4)).flatten(0, 2)))
        return self.head(h.reshape(len(x), -1))


class Scattered(nn.Module):
    """The places of all rows lie along the first axis, those of a row apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x.permute(2, 0, 1).flatten(0, 1)))
        return self.head(h.unflatten(0, (8, -1)).sum(0))


NETS = {
    "reused": Reused,
    "attention": lambda: Attending(True),
    "places first": lambda: Attending(False),
    "lstm": Recurring,
    "windows": Windows,
}


def one_by_one(task: vd.Task) -> Tensor:
    """The mean of DeepLIFT over reference rows, each in a call of its own."""
    assert task.train is not None
    single = [task.changed(train=row) for row in task.train.split(1)]
    return torch.stack([DeepLift("mean")(one).values for one in single]).mean(0)


@pytest.mark.parametrize(
    ("samples", "baselines", "rows"), [(5, 3, 2), (5, 3, 64), (3, 3, 64), (1, 4, 64), (4, 1, 2), (2, 2, 2)]
)
@pytest.mark.parametrize("name", NETS)
def test_each_call_is_the_mean_over_single_baselines(
    name: str, samples: int, baselines: int, rows: int
) -> None:
    train = draw(baselines, 2, 8, seed=9)
    task = vd.Task(seeded(NETS[name]()), draw(samples, 2, 8), train=train, plan=Plan(rows=rows))
    expected, explainer = one_by_one(task), DeepLiftShap()
    found = explainer(task)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-10)
    assert found.cost == explainer._declared(task) == vd.models.Cost(samples + baselines, samples * baselines)
    assert found.provenance["completeness"]["largest_residual"] < 1e-7
    shuffled = task.changed(train=train.flip(0))
    torch.testing.assert_close(explainer(shuffled).values, expected, rtol=0, atol=1e-10)
    if baselines > 1:
        fewer = explainer(task.changed(train=train[:-1])).values
        assert not torch.allclose(fewer, expected, atol=1e-6)


class Beside(nn.Module):
    """A row times what it is given beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * torch.relu(x[:, :1] + beside[:, None]))


@pytest.mark.parametrize("rows", [2, 64])
def test_samples_with_side_inputs_run_once_too(rows: int) -> None:
    side = (torch.tensor([0.5, 1.0, -2.0, 3.0]).double(),)
    task = vd.Task(seeded(Beside()), draw(4, 5), side=side, train=draw(3, 5, seed=9), plan=Plan(rows=rows))
    expected, explainer = one_by_one(task), DeepLiftShap()
    found = explainer(task)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-10)
    assert found.cost == explainer._declared(task) == vd.models.Cost(4 + 3 * 4, 3 * 4)


@pytest.mark.parametrize("explainer", [DeepLift("mean"), DeepLiftShap()], ids=lambda each: each.name)
def test_rows_whose_things_are_not_together_are_refused(explainer: vd.Explainer) -> None:
    task = vd.Task(seeded(Scattered()), draw(4, 2, 8), train=draw(3, 2, 8, seed=9))
    with pytest.raises(NotApplicableError, match="'relu': several things of each row"):
        explainer(task)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETS)
def test_a_gpu_gives_the_maps_of_a_processor(name: str, dtype: torch.dtype) -> None:
    net, x, train = seeded(NETS[name]()), draw(5, 2, 8), draw(3, 2, 8, seed=9)
    here = vd.Task(net, x, train=train, targets=[0, 1, 2, 0, 1])
    there = vd.Task(deepcopy(net).to(dtype), x.to(dtype), train=train.to(dtype), targets=here.targets)
    there = there.to("cuda")
    near = 1e-9 if dtype == torch.float64 else 5e-3  # convolutions in tf32
    for explainer in (DeepLift("mean"), DeepLiftShap()):
        expected = explainer(here).values
        found = explainer(there).values.cpu().double()
        torch.testing.assert_close(found, expected, rtol=0, atol=near)
