"""Known answers with planted evidence: a patch in an image, a window in a series, words in a text.

Patch and window are found by matched filters whose threshold lies above anything else that the rows can
offer: |background| is bounded, and the codes hardly resemble shifted copies of themselves, of each other,
or of the plain block that is planted beside them to attract whoever looks for edges or brightness.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from veridical.data.data import Data, pick
from veridical.data.known import (
    KnownAnswer,
    draw_below,
    draw_order,
    draw_uniform,
    halves,
    row_ids,
    task_of,
)
from veridical.perturb.fills import Token
from veridical.values.space import Space

THRESHOLD = 0.5
GAIN = 8.0

# balanced codes; the largest sum over any shift, of a code on itself or on another, is 4 of 16 (patch) and
# 2 of 16 (window)
PATCH_CODES = (
    ((1, -1, 1, -1), (1, 1, 1, -1), (1, -1, -1, 1), (-1, -1, 1, -1)),
    ((-1, 1, 1, 1), (1, -1, 1, 1), (-1, -1, -1, -1), (1, -1, 1, -1)),
)
WINDOW_CODES = (
    ((-1, -1, 1, 1, -1, 1, -1, 1), (-1, 1, 1, 1, -1, 1, -1, -1)),
    ((1, 1, -1, 1, -1, 1, -1, -1), (-1, -1, 1, -1, -1, 1, 1, 1)),
)


class MatchedFilter(nn.Module):
    """The output of class c is gain * sum over places of relu(<code c, place> / elements - threshold)."""

    def __init__(self, codes: Tensor) -> None:
        super().__init__()
        kind: Any = nn.Conv2d if codes.dim() == 4 else nn.Conv1d
        self.match = kind(codes.shape[1], len(codes), tuple(codes.shape[2:]))
        self.relu = nn.ReLU()
        self.gain = GAIN
        with torch.no_grad():
            self.match.weight.copy_(codes / codes[0].numel())
            self.match.bias.fill_(-THRESHOLD)

    def places(self, x: Tensor) -> Tensor:
        """How strongly each place answers each code."""
        answers: Tensor = self.relu(self.match(x))
        return answers

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.places(x).flatten(2).sum(-1)


def _alternate() -> Tensor:
    return row_ids() % 2


def planted_patch(samples: int | None, seed: int) -> KnownAnswer:
    """16 x 16 images where one 4 x 4 code among noise decides; a plain bright block beside it does not."""
    codes = torch.tensor(PATCH_CODES, dtype=torch.float32)[:, None]
    labels = _alternate()
    count = len(labels)
    rows = 0.4 * draw_uniform("patch noise", 256).reshape(count, 1, 16, 16) - 0.2
    # patch and block stand at opposite sides, so far apart that no filter reaches both
    place = draw_below("patch place", 2, 3)
    down, block_down = draw_below("patch rows", 2, 13).T
    on_left = draw_below("patch side", 1, 2)[:, 0] == 0
    across = torch.where(on_left, place[:, 0], 12 - place[:, 0])
    block_across = torch.where(on_left, 12 - place[:, 1], place[:, 1])
    masks = torch.zeros(count, 1, 16, 16, dtype=torch.bool)
    truth = torch.zeros(count, 1, 16, 16)
    for row in range(count):
        here = (row, slice(None), _span(down[row], 4), _span(across[row], 4))
        rows[row, :, _span(block_down[row], 4), _span(block_across[row], 4)] = 1.0
        rows[here] = codes[labels[row]]
        masks[here] = True
        truth[here] = GAIN / 16
    data = Data(rows, labels, *halves(), masks=masks)
    task, chosen = task_of(MatchedFilter(codes), data, "planted_patch", samples, seed)
    return KnownAnswer(
        task,
        truth[chosen].flatten(1),
        winners=("saliency", "input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random", "sobel"),
        why="only the sixteen planted pixels reach a filter that answers",
    )


def planted_window(samples: int | None, seed: int) -> KnownAnswer:
    """Series of 2 channels and 64 steps where one coded window of 8 steps among noise decides."""
    codes = torch.tensor(WINDOW_CODES, dtype=torch.float32)
    labels = _alternate()
    count = len(labels)
    rows = 0.6 * draw_uniform("window noise", 128).reshape(count, 2, 64) - 0.3
    place = draw_below("window place", 2, 20)
    early = draw_below("window side", 1, 2)[:, 0] == 0
    start = torch.where(early, place[:, 0], 56 - place[:, 0])
    burst = torch.where(early, 56 - place[:, 1], place[:, 1])
    masks = torch.zeros(count, 64, dtype=torch.bool)
    for row in range(count):
        rows[row, :, _span(burst[row], 8)] = 1.0
        rows[row, :, _span(start[row], 8)] = codes[labels[row]]
        masks[row, _span(start[row], 8)] = True
    data = Data(rows, labels, *halves(), masks=masks)
    task, chosen = task_of(MatchedFilter(codes), data, "planted_window", samples, seed)
    return KnownAnswer(
        task,
        masks[chosen] * (GAIN / 8),
        winners=("saliency", "input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random",),
        why="only the eight planted steps reach a filter that answers",
    )


def _span(start: Tensor, length: int) -> slice:
    return slice(int(start), int(start) + length)


# --- words ----------------------------------------------------------------------------------------------

WORDS = 60
TEXT_LENGTH = 20
STRONG, WEAK = 2.0, 1.0
CUES = ((1, 2, 3, 4), (5, 6, 7, 8))
"""Four words speak for each class, the first two strongly; 0 is padding, all others say nothing."""


class WordCount(nn.Module):
    """Each word adds its own weight to the output it speaks for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 2, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.zero_()
            for kind, words in enumerate(CUES):
                self.embedding.weight[list(words[:2]), kind] = STRONG
                self.embedding.weight[list(words[2:]), kind] = WEAK

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).sum(1)


def planted_tokens(samples: int | None, seed: int) -> KnownAnswer:
    """Texts of 10 to 20 words where three planted words speak for a class and all others for none."""
    labels = _alternate()
    count = len(labels)
    lengths = 10 + draw_below("text length", 1, TEXT_LENGTH - 9)[:, 0]
    first_plain = len(CUES[0]) + len(CUES[1]) + 1
    rows = first_plain + draw_below("text words", TEXT_LENGTH, WORDS - first_plain)
    there = torch.arange(TEXT_LENGTH) < lengths[:, None]
    order = draw_order("text places", 10)[:, :3]  # every text has its first ten words
    cues = torch.tensor(CUES)[labels[:, None], draw_below("text cues", 3, 4)]
    rows = rows.scatter(1, order, cues) * there
    masks = torch.zeros(count, TEXT_LENGTH, dtype=torch.bool).scatter(1, order, True)
    model = WordCount()
    weights = model.embedding.weight.detach()[rows].gather(
        2, labels[:, None, None].expand(-1, TEXT_LENGTH, 1)
    )
    data = Data(rows, labels, *halves(), masks=masks)
    chosen = pick(data, "known/planted_tokens", samples, seed)
    space = Space.tokens(TEXT_LENGTH, there[chosen], [[_word(w) for w in r] for r in rows[chosen].tolist()])
    task, chosen = task_of(model, data, "planted_tokens", samples, seed, space=space, fill=Token(0))
    return KnownAnswer(
        task,
        weights[chosen, :, 0],
        winners=("input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random", "gradient"),
        why="an output is the sum of what its own words weigh",
    )


def _word(number: int) -> str:
    if number == 0:
        return "[pad]"
    for kind, words in enumerate(CUES):
        if number in words:
            return f"cue{kind}{'abcd'[words.index(number)]}"
    return f"word{number}"
