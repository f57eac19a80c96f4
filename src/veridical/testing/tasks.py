"""Tiny tasks, one per kind of input, built the same way every time without touching a global generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import unknown_name
from veridical.models.plan import Plan
from veridical.perturb.fills import Token
from veridical.values.task import Task

MODALITIES = ("image", "table", "series", "text")
STEPS, LENGTHS = 10, (10, 7, 8)


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(2)
        self.second = nn.Conv2d(4, 6, 3, padding=1)
        self.second_relu = nn.ReLU()
        self.flat = nn.Flatten()
        self.head = nn.Linear(6 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv(x)))
        out: Tensor = self.head(self.flat(self.second_relu(self.second(x))))
        return out


class _Series(nn.Module):
    """Reads the first steps only, so that padding behind them can change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.act = nn.Tanh()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.act(self.conv(x[..., :STEPS])).mean(-1))
        return out


class _Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 5)
        self.mix = nn.Linear(5, 6)
        self.act = nn.Tanh()
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        hidden = self.act(self.mix(self.embed(ids))) * keep[..., None]
        out: Tensor = self.head(hidden.sum(1) / keep.sum(1, keepdim=True))
        return out


def tiny_task(modality: str, samples: int = 9, dtype: torch.dtype = torch.float64, padding: int = 0) -> Task:
    """A small task of this kind with reference rows and object masks; `padding` adds invalid features."""
    if modality not in MODALITIES:
        raise unknown_name("tiny task", modality, MODALITIES)
    key = Key(7) / modality
    ids = torch.arange(samples)
    plan = Plan(rows=64)
    if modality == "image":
        x = keyed.uniform(key, ids, 0, 72, torch.float64).reshape(-1, 2, 6, 6).to(dtype)
        masks = torch.zeros(samples, 6, 6, dtype=torch.bool)
        masks[:, 1:4, 2:5] = True
        train = keyed.uniform(key / "train", torch.arange(12), 0, 72, torch.float64).reshape(-1, 2, 6, 6)
        return Task(_seeded(_Images(), key, dtype), x, masks=masks, train=train, plan=plan, name="tiny image")
    if modality == "table":
        x = keyed.normal(key, ids, 0, 6, torch.float64).to(dtype)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        masks = torch.tensor([[1, 1, 0, 0, 0, 0]], dtype=torch.bool).expand(samples, -1)
        train = keyed.normal(key / "train", torch.arange(12), 0, 6, torch.float64)
        return Task(_seeded(net, key, dtype), x, masks=masks, train=train, plan=plan, name="tiny table")
    if modality == "series":
        x = keyed.normal(key, ids, 0, 2 * STEPS, torch.float64).reshape(-1, 2, STEPS).to(dtype)
        lengths = torch.tensor(LENGTHS)[ids % len(LENGTHS)]
        x = torch.cat([x, x.new_zeros(samples, 2, padding)], -1)
        space = Space.steps(x.shape[1:], lengths=lengths)
        masks = torch.zeros(samples, STEPS + padding, dtype=torch.bool)
        masks[:, 2:5] = True
        train = keyed.normal(key / "train", torch.arange(12), 0, 2 * STEPS, torch.float64).reshape(
            -1, 2, STEPS
        )
        train = torch.cat([train, train.new_zeros(12, 2, padding)], -1)
        model = _seeded(_Series(), key, dtype)
        return Task(model, x, masks=masks, train=train, space=space, plan=plan, name="tiny series")
    return _text(key, ids, dtype, plan, padding)


def _text(key: Key, ids: Tensor, dtype: torch.dtype, plan: Plan, padding: int) -> Task:
    length = 7
    tokens = keyed.integers(key, ids, 0, length, 18) + 2
    lengths = torch.tensor([7, 5, 6])[ids % 3]
    keep = torch.arange(length) < lengths[:, None]
    tokens = torch.where(keep, tokens, 0)
    tokens = torch.cat([tokens, tokens.new_zeros(len(ids), padding)], 1)
    keep = torch.cat([keep, keep.new_zeros(len(ids), padding)], 1)
    masks = torch.zeros(len(ids), length + padding, dtype=torch.bool)
    masks[:, 1:3] = True
    return Task(
        _seeded(_Text(), key, dtype),
        tokens,
        side=(keep.to(dtype),),
        space=Space.tokens(length + padding, keep),
        fill=Token(1),
        masks=masks,
        plan=plan,
        name="tiny text",
    )


def _seeded(net: nn.Module, key: Key, dtype: torch.dtype) -> nn.Module:
    with torch.no_grad():
        for name, value in net.named_parameters():
            scale = 1.2 / max(1, value[0].numel() if value.dim() > 1 else 4) ** 0.5
            value.copy_(keyed.parameter_noise(key, name, value.shape) * scale)
    return net.to(dtype).eval()
