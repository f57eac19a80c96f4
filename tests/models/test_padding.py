"""Padding that a model does not see is left out, and nobody notices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.models.padding import PaddingBlind, columns, watched

PAD, LENGTH, WIDTH = 0, 12, 8


class Reader(PaddingBlind):
    """One block of attention over words and places, and the mean over what is not padding."""

    def __init__(self, minds: str = "nothing") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pad, self.minds = PAD, minds
        self.words, self.places = nn.Embedding(50, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.widths: list[int] = []

    def answer(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        self.widths.append(tokens.shape[1])
        if self.minds == "places" and places is not None:
            raise TypeError("no such argument")
        if self.minds == "columns":
            return self.head(self.mix(self.words(tokens)).mean(1))
        where = torch.arange(tokens.shape[1]).expand_as(tokens) if places is None else places
        states = self.words(tokens) + self.places(where)
        there = tokens != self.pad
        weights = torch.softmax((states @ states.mT).masked_fill(~there[:, None], -1e9), -1)
        states = torch.tanh(self.mix(weights @ states)) * there[..., None]
        return self.head(states.sum(1) / there.sum(1, keepdim=True).clamp(min=1))


def texts(count: int = 9) -> Tensor:
    torch.manual_seed(1)
    lengths = 3 + torch.arange(count) % (LENGTH - 3)
    return torch.randint(1, 50, (count, LENGTH)) * (torch.arange(LENGTH) < lengths[:, None])


@pytest.mark.parametrize(
    ("minds", "left"), [("nothing", "all"), ("places", "the end"), ("columns", "nothing")]
)
def test_what_may_be_left_out_is_found_by_asking(minds, left):
    model = Reader(minds).eval()
    model.try_short(texts())
    assert model.left == left


@torch.no_grad()
def test_answers_are_the_same_from_fewer_columns():
    model, rows = Reader().eval(), texts()
    rows[:, 1::4] = PAD
    rows[3] = PAD  # nothing is left of it
    whole = model(rows)
    model.try_short(texts())
    model.widths.clear()
    assert torch.allclose(model(rows), whole, atol=1e-6)
    assert model.widths[-1] < columns(rows, PAD) <= LENGTH
    assert torch.allclose(model(rows[3:4]), whole[3:4], atol=1e-6)


def test_who_looks_inside_finds_every_column():
    model = Reader().eval()
    model.try_short(texts())
    model.widths.clear()
    model(texts()[:1])
    with torch.no_grad():
        assert not watched(model)
        handle = model.words.register_forward_hook(lambda *_: None)
        assert watched(model)
        model(texts()[:1])
        handle.remove()
    assert model.widths == [LENGTH, LENGTH]


@pytest.mark.parametrize("name", ["input_x_gradient", "integrated_gradients", "occlusion", "lime"])
def test_explanations_are_those_of_all_columns(name):
    rows = texts()
    maps = []
    for short in (False, True):
        model = Reader().eval()
        if short:
            model.try_short(rows)
        space = vd.Space.tokens(LENGTH, rows != PAD)
        task = vd.Task(model, rows, space=space, fill=vd.fills.Token(PAD))
        maps.append(vd.explain(name, task).values)
    assert torch.allclose(*maps, atol=1e-5)
    assert bool(maps[0].any())


def test_who_follows_every_function_at_embeddings_finds_every_column():
    from torch.overrides import TorchFunctionMode

    class Widths(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            value = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "softmax":
                seen.append(value.shape[-1])
            return value

    rows, seen = texts(3), []
    model = Reader().eval()
    model.try_short(rows)
    space = vd.Space.tokens(LENGTH, rows != PAD)
    task = vd.Task(model, rows, space=space, fill=vd.fills.Token(PAD)).at_embeddings()
    with task.session() as asked, Widths():
        asked(task.inputs, *task.side)
    assert seen == [LENGTH]
