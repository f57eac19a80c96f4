"""Masked texts: short ones are asked together, and none is asked twice while answers are remembered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.models.padding import PaddingBlind
from veridical.perturb.token_rows import TokenRows

PAD, LENGTH = 0, 24
ASKED: list[Tensor] = []


class Reader(PaddingBlind):
    """Words and their places, squashed together; `answer` notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pad = PAD
        self.words, self.places = nn.Embedding(40, 8), nn.Embedding(LENGTH, 8)
        self.head = nn.Linear(8, 3)

    def answer(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        ASKED.append(tokens)
        where = torch.arange(tokens.shape[1]).expand_as(tokens) if places is None else places
        there = (tokens != self.pad)[..., None]
        states = torch.tanh(self.words(tokens) * self.places(where)) * there
        return self.head(torch.tanh(states.sum(1)))


def task_of(left: str = "all", lengths: tuple[int, ...] = (24, 14, 20, 5, 17)) -> vd.Task:
    torch.manual_seed(1)
    rows = torch.randint(1, 40, (len(lengths), LENGTH))
    rows *= torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    model = Reader().eval()
    model.left = left  # type: ignore[assignment]
    space = vd.Space.tokens(LENGTH, rows != PAD)
    return vd.Task(model, rows, space=space, fill=vd.fills.Token(PAD), plan=vd.Plan(rows=8))


def cells() -> tuple[int, int]:
    """Tokens that were computed and tokens that were there, since the last time."""
    found = sum(rows.numel() for rows in ASKED), sum(int((rows != PAD).sum()) for rows in ASKED)
    ASKED.clear()
    return found


@pytest.mark.parametrize("left", ["all", "the end", "nothing"])
@pytest.mark.parametrize("what", ["lime", "kernel_shap", "occlusion", "rise"])
def test_maps_are_those_of_all_columns(left, what):
    plain = vd.explain(what, task_of("nothing")).values
    torch.testing.assert_close(vd.explain(what, task_of(left)).values, plain, atol=1e-5, rtol=1e-4)


def test_little_padding_is_computed():
    task = task_of()
    _ = task.outputs
    cells()
    vd.explain("lime", task, draws=256)
    computed, there = cells()
    assert computed < 1.2 * there  # unsorted 1.7


def test_few_rows_of_many_lengths_are_not_padded_to_the_longest():
    task = task_of(lengths=(24,))
    _ = task.outputs
    cells()
    vd.score("pixel_flipping", task, torch.arange(24.0)[None], steps=24)
    computed, there = cells()
    assert there == 23 * 24 // 2
    assert computed <= 8 * (23 + 15 + 7)  # three chunks of eight; in one it would be 24 * 23


def test_rows_go_together_by_length_and_within_the_tokens_of_a_chunk():
    texts = TokenRows.of(task_of())
    assert texts is not None
    assert texts.tokens == 4 * 8 * LENGTH
    assert texts._stop([24] * 100, 0) == 32  # as many as the tokens allow
    assert texts._stop([24] * 8 + [17] * 20, 0) == 8
    assert texts._stop([24] * 10 + [17] * 20, 0) == 16  # chunks are a multiple of eight
    assert texts._stop([3] * 5, 0) == 5
    assert texts._stop([0] * 9, 8) == 9


def test_only_texts_without_side_inputs_take_this_way():
    assert TokenRows.of(task_of()) is not None
    assert TokenRows.of(task_of().at_embeddings()) is None
    assert TokenRows.of(vd.tasks.load("known/linear")[:2]) is None
