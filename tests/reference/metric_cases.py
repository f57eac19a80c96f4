"""Small models with known answers, in float64, for the metric tests."""

import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.models.predictor import Plan


def numbers(name: str, rows: int, *shape: int) -> Tensor:
    """Fixed normal numbers (rows, *shape)."""
    size = int(torch.Size(shape).numel())
    return keyed.normal(Key(1) / name, torch.arange(rows), 0, size, torch.float64).reshape(rows, *shape)


def seeded(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, value in net.named_parameters():
            scale = 1.0 / max(1, value[0].numel() if value.dim() > 1 else 4) ** 0.5
            value.copy_(keyed.parameter_noise(Key(2), name, value.shape) * scale)
    return net.double().eval()


def linear_task(rows: int = 6, columns: int = 5, outputs: int = 4, **more: object) -> vd.Task:
    """y = W x + b on a table."""
    more = {"plan": Plan(rows=8), **more}
    return vd.Task(seeded(nn.Linear(columns, outputs)), numbers("x", rows, columns), **more)


def mlp_task(rows: int = 6, columns: int = 5, outputs: int = 4, **more: object) -> vd.Task:
    """Two tanh layers on a table: smooth, and linear in nothing."""
    net = nn.Sequential(nn.Linear(columns, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, outputs))
    more = {"plan": Plan(rows=8), **more}
    return vd.Task(seeded(net), numbers("x", rows, columns), **more)


def image_task(rows: int = 4, size: int = 8, **more: object) -> vd.Task:
    """A small convolutional net on two-channel images."""
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * (size // 2) ** 2, 3),
    )
    more = {"plan": Plan(rows=8), **more}
    return vd.Task(seeded(net), numbers("images", rows, 2, size, size), **more)


class TokenNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(ids)).sum(1))


def text_task(rows: int = 4) -> vd.Task:
    ids = keyed.integers(Key(1) / "tokens", torch.arange(rows), 0, 6, 12)
    return vd.Task(seeded(TokenNet()), ids, fill=vd.fills.Token(0), plan=Plan(rows=8))


def one_gradient(task: vd.Task, x: Tensor, target: int, model: nn.Module | None = None) -> Tensor:
    """The gradient of one output at one row, asked alone."""
    x = x.detach().clone()[None].requires_grad_(True)
    (model or task.model)(x)[0, target].backward()
    return x.grad[0]
