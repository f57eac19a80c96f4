"""Small models with fixed weights, in float64, for the tests of explainers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import changed_copy, noisy
from veridical.models.predictor import Plan


def seeded(net: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=value.dtype) * 0.4)
    return net.double().eval()


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear_task(samples: int = 5, train: int = 7, **more: object) -> tuple[vd.Task, Tensor]:
    """A linear model, its task, and the weights of each sample's explained output."""
    net = seeded(nn.Sequential(nn.Linear(4, 3)))
    rows = draw(train, 4, seed=2) if train else None
    task = vd.Task(net, draw(samples, 4), train=rows, **{"plan": Plan(rows=64), **more})
    return task, net[0].weight.detach()[task.targets]


def conv_net(inplace: bool = False, pool: type[nn.Module] = nn.AvgPool2d) -> nn.Module:
    return seeded(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=inplace),
            pool(2),
            nn.Conv2d(4, 5, 3, padding=1),
            nn.ReLU(inplace=inplace),
            nn.Flatten(),
            nn.Linear(5 * 16, 6),
            nn.ReLU(inplace=inplace),
            nn.Linear(6, 3),
        )
    )


def image_task(net: nn.Module | None = None, samples: int = 6, **more: object) -> vd.Task:
    net = conv_net() if net is None else net
    return vd.Task(net, draw(samples, 2, 8, 8), **{"plan": Plan(rows=64), "train": draw(9, 2, 8, 8), **more})


def series_net() -> nn.Module:
    return seeded(
        nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool1d(3, 2),
            nn.Conv1d(4, 3, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(9, 3),
        )
    )


def series_task(**more: object) -> vd.Task:
    return vd.Task(series_net(), draw(4, 2, 12), **{"plan": Plan(rows=64), **more})


class FunctionalRelu(nn.Module):
    """Two rectifiers, one of them a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.act = nn.ReLU()
        self.second = nn.Linear(5, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(self.act(self.first(x)))))


class ReusedRelu(FunctionalRelu):
    """One rectifier that runs twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.second(self.act(self.first(x)))))


class Residual(nn.Module):
    """A sum over a rectifier, whose input has a second reader."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.act = nn.ReLU()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.head(self.act(hidden) + hidden)


def noisy_copy(task: vd.Task, sigma: float, key: vd.core.Key) -> tuple[vd.Task, vd.Task]:
    """The task under weight noise, and a task on a deep copy whose own weights carry the same noise."""
    net = changed_copy(task.model, noisy(task.model, sigma, key))
    twin = vd.Task(
        net, task.inputs, targets=task.targets, train=task.train, space=task.space, plan=task.predictor.plan
    )
    return task.with_noise(sigma, key), twin


def hook_count(net: nn.Module) -> int:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(layer, table)) for layer in net.modules() for table in tables)
