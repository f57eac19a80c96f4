"""On a GPU: the same scores as on a CPU, for models that keep their weights in places of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import of_form

pytestmark = pytest.mark.gpu
PATH = (0.001, 0.4, 0.8, 1.2, 1.6)
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Sequence(nn.Module):
    """A recurrent classifier of series (N, steps, 4)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = KINDS[kind](4, 16, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Attention(nn.Module):
    """A transformer classifier of series."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.first, self.body, self.head = nn.Linear(4, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.first(x)).mean(1))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(12, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )


MODELS = {
    **{kind: (lambda kind=kind: Sequence(kind)) for kind in KINDS},
    "transformer": Attention,
    "convolution": convolution,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["fast", "arc"])
def test_gef_is_that_of_a_cpu(name: str, form: Any) -> None:
    model = MODELS[name]().eval()
    x = torch.randn(64, 12, 4, generator=torch.Generator().manual_seed(1))
    plan = vd.Plan(rows=64, precision="float32")
    metric = of_form(form, path=PATH)
    here = vd.score(metric, vd.Task(model, x, plan=plan), "gradient")
    there = vd.score(metric, vd.Task(model.cuda(), x.cuda(), plan=plan), "gradient")
    print(f"{name} {form}: cpu {here.mean():.4f} cuda {there.mean():.4f}")
    assert abs(here.mean() - there.mean()) < 0.02
    rank = (here.values - there.values.cpu()).abs()
    assert float((rank < 1e-6).double().mean()) > 0.8
    torch.testing.assert_close(
        here.details["model_distortion"], there.details["model_distortion"].cpu(), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("name", KINDS)
def test_noise_paths_end_where_they_do_on_a_cpu(name: str) -> None:
    model = MODELS[name]().eval()
    x = torch.randn(64, 12, 4, generator=torch.Generator().manual_seed(1))
    ends = []
    for device in ("cpu", "cuda"):
        task = vd.Task(model.to(device), x.to(device), plan=vd.Plan(rows=64, precision="float32"))
        ends.append(vd.gef.FastGEF().noise_path(task).sigma_max)
    print(name, ends)
    assert abs(ends[0] - ends[1]) <= 0.2


def test_threads_share_a_model_on_a_gpu() -> None:
    model = MODELS["lstm"]().eval().cuda()
    task = vd.Task(model, torch.randn(32, 12, 4).cuda())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = ["gradient", "saliency", "input_x_gradient"]
    metric = vd.gef.FastGEF(path=PATH, draws=2)
    alone = [vd.score(metric, task, name).values for name in names]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda name: vd.score(metric, task, name).values, names))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=0.3, rtol=0)
        assert float((one == other).double().mean()) > 0.9
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_caller_in_training_mode_keeps_its_flags_and_global_settings() -> None:
    model = Sequence("lstm").cuda()
    with pytest.warns(vd.errors.VeridicalWarning):
        task = vd.Task(model, torch.randn(8, 12, 4).cuda())
    cudnn = torch.backends.cudnn.enabled, torch.backends.cudnn.conv.fp32_precision
    vd.explain("gradient", task)
    assert model.training
    assert all(module.training for module in model.modules())
    assert (torch.backends.cudnn.enabled, torch.backends.cudnn.conv.fp32_precision) == cudnn
