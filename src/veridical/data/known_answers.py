"""Tasks with a known answer: columns, planted evidence, digits of an exact size, and a watermark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.embedded import colour_digit_data, digits_data
from veridical.data.networks import ColourCNN, DigitsCNN
from veridical.data.rows import Data, assemble, pick, split, stored
from veridical.errors import InputError
from veridical.perturb.fills import Token, Zero
from veridical.values.task import Task

# --- what a known answer carries ------------------------------------------------------------------------

EVALUATED = 200
TRAINING = 400


@dataclass(frozen=True, eq=False)
class KnownAnswer:
    """A task whose explanation is known: `truth` (N, V) for the task's targets, and why it is the truth.

    `task.masks` holds the features that matter at all. `winners` are explainers (by registered name) that
    give the truth up to a positive factor per sample, or whose strongest features are those that matter;
    `losers` are explainers that cannot. A metric worth its name ranks every winner above every loser.
    """

    task: Task
    truth: Tensor
    winners: tuple[str, ...]
    losers: tuple[str, ...]
    why: str

    def __repr__(self) -> str:
        return f"KnownAnswer on {self.task.name}: {', '.join(self.winners)} win; {self.why}"


def halves() -> tuple[Tensor, Tensor]:
    """The fixed split of synthetic rows: the first for training, the rest evaluated."""
    return torch.arange(TRAINING), torch.arange(TRAINING, TRAINING + EVALUATED)


def row_ids() -> Tensor:
    """The ids of all synthetic rows."""
    return torch.arange(TRAINING + EVALUATED)


def task_of(
    model: nn.Module, data: Data, name: str, samples: int | None, seed: int, **extra: Any
) -> tuple[Task, Tensor]:
    """The task on synthetic rows (zero fill by default), and which rows it evaluates."""
    extra.setdefault("fill", Zero())
    task = assemble(model.eval(), data, f"known/{name}", samples, seed, **extra)
    return task, pick(data, f"known/{name}", samples, seed)


def signed(task: Task, towards_one: Tensor) -> Tensor:
    """Turn an attribution of class 1 against class 0 into one of each sample's target."""
    return torch.where(task.targets[:, None] == 1, towards_one, -towards_one)


def draw_normal(purpose: str, size: int) -> Tensor:
    """Standard normal rows of a synthetic data set."""
    return keyed.normal(Key(0) / "known" / purpose, row_ids(), 0, size)


def draw_below(purpose: str, size: int, below: int) -> Tensor:
    """Uniform integers for every row of a synthetic data set."""
    return keyed.integers(Key(0) / "known" / purpose, row_ids(), 0, size, below)


def draw_uniform(purpose: str, size: int) -> Tensor:
    """Uniform numbers in [0, 1) for every row of a synthetic data set."""
    return keyed.uniform(Key(0) / "known" / purpose, row_ids(), 0, size)


def draw_order(purpose: str, size: int) -> Tensor:
    """A permutation for every row of a synthetic data set."""
    return keyed.permutation(Key(0) / "known" / purpose, row_ids(), 0, size)


# --- columns --------------------------------------------------------------------------------------------

COLUMNS = 12
USED = 5
WEIGHTS = (2.0, -1.6, 1.2, -0.9, 0.6)  # the other columns have weight 0
PAIRS = ((0, 1, 1.5), (2, 3, -1.0), (1, 4, 0.8))

TIERS = (20, 30, 50)
"""Tier sizes c_1, c_2, c_3; their sum is the number of elements."""


class TwoClassLinear(nn.Module):
    """Logits (-z/2, z/2) of z = w.x - offset: the probability of class 1 is the sigmoid of z."""

    def __init__(self, weight: Tensor, offset: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(len(weight), 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.stack([-weight / 2, weight / 2]))
            self.linear.bias.copy_(torch.tensor([offset / 2, 0.0 - offset / 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class TwoClassInteractions(nn.Module):
    """Logits (-z/2, z/2) of z = a.x + sum over pairs of b_ij x_i x_j."""

    def __init__(self, weight: Tensor, pairs: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.pairs = nn.Parameter(pairs.clone())  # symmetric, zero diagonal: x B x / 2 is the sum over pairs

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.weight + ((x @ self.pairs) * x).sum(-1) / 2
        return torch.stack([-z / 2, z / 2], 1)


def _weight() -> Tensor:
    return torch.tensor([*WEIGHTS, *[0.0] * (COLUMNS - USED)])


def _columns() -> Space:
    return Space.columns(COLUMNS, [f"x{i}" for i in range(COLUMNS)])


def linear(samples: int | None, seed: int) -> KnownAnswer:
    """z = w.x with 5 of 12 columns in use: the truth is w * x, the change when a column becomes zero."""
    model = TwoClassLinear(_weight())
    rows = draw_normal("linear", COLUMNS)
    used = (_weight() != 0).expand(len(rows), COLUMNS)
    data = Data(rows, (rows @ _weight() > 0).long(), *halves(), masks=used)
    task, _ = task_of(model, data, "linear", samples, seed, space=_columns())
    return KnownAnswer(
        task,
        signed(task, _weight() * task.inputs / 2),
        winners=("input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random",),
        why="in a linear model a column contributes weight times value",
    )


def interactions(samples: int | None, seed: int) -> KnownAnswer:
    """z = a.x + pairs: the truth is the Shapley value against zero, each pair shared equally.

    phi_i = x_i (a_i + sum_j b_ij x_j / 2). Integrated gradients from zero give exactly this; input times
    gradient and occlusion charge every pair in full to both of its columns.
    """
    pairs = torch.zeros(COLUMNS, COLUMNS)
    for i, j, strength in PAIRS:
        pairs[i, j] = pairs[j, i] = strength
    model = TwoClassInteractions(_weight(), pairs)
    rows = draw_normal("interactions", COLUMNS)
    used = (_weight() != 0).expand(len(rows), COLUMNS)
    with torch.no_grad():
        labels = model(rows).argmax(1)
    data = Data(rows, labels, *halves(), masks=used)
    task, _ = task_of(model, data, "interactions", samples, seed, space=_columns())
    x = task.inputs
    return KnownAnswer(
        task,
        signed(task, x * (_weight() + x @ pairs / 2) / 2),
        winners=("integrated_gradients",),
        losers=("random",),
        why="the Shapley value splits each interaction equally between its two columns",
    )


def tier_weights() -> tuple[float, ...]:
    """One weight per tier, 1 for the first; an element outweighs all elements of the lower tiers together."""
    weights = [1.0]
    for size in TIERS[1:]:
        weights.append(weights[-1] / (size + 1))
    return tuple(weights)


def tiers(samples: int | None, seed: int) -> KnownAnswer:
    """F-Fidelity's Theorem 1: the probability is g(j_1, j_2, j_3), lexicographically increasing.

    j_k counts the elements of tier k that are still there. Tiers have 20, 30 and 50 elements at other
    places in every sample. An element's value is the weight of its tier, so the sum of a masked input
    orders the counts lexicographically, and g is the sigmoid of a multiple of it. All elements of one tier
    have the same Shapley value. Masks mark the first tier. Evaluated rows have all elements and are of class
    1; every other training row has less than half of its first tier and is of class 0, so that a model that
    is fine-tuned must still count.
    """
    weights = tier_weights()
    by_place = torch.cat([torch.full((size,), w) for size, w in zip(TIERS, weights, strict=True)])
    elements = sum(TIERS)
    order = draw_order("tiers", elements)
    rows = torch.empty(len(order), elements).scatter_(1, order, by_place.expand(len(order), elements))
    total = float(by_place.sum())
    gain = 12.0 / total  # all there: z = 6, half of the first tier gone: z near 0
    model = TwoClassLinear(torch.full((elements,), gain), 6.0)
    labels = torch.ones(len(rows), dtype=torch.int64)
    masks = rows == weights[0]
    for row in range(1, TRAINING, 2):
        rows[row, order[row, row % (TIERS[0] // 2) : TIERS[0]]], labels[row] = 0.0, 0
    data = Data(rows, labels, *halves(), masks=masks)
    task, _ = task_of(model, data, "tiers", samples, seed, space=Space.columns(elements))
    return KnownAnswer(
        task,
        task.inputs * (gain / 2),
        winners=("input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random", "gradient"),
        why="an element contributes the weight of its tier, whatever else is there",
    )


# --- planted evidence -----------------------------------------------------------------------------------

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


# --- images that a small CNN learnt first -------------------------------------------------------------

SHARES = (0.10, 0.15, 0.20, 0.25)


def colour_digits(samples: int | None = None, seed: int = 0, share: float = 0.2) -> KnownAnswer:
    """A CNN on coloured digits whose shape covers exactly `share` of the image (F-Fidelity, appendix D.8).

    The truth says which pixels matter, not how much each does: 1 on the shape, 0 elsewhere.
    """
    if share not in SHARES:
        raise InputError(f"a digit covers one of the shares {SHARES} of the image, got share={share}")
    data = colour_digit_data(share)
    name = f"colour_digits_{round(100 * share)}"
    model = stored(name, ColourCNN())
    task, chosen = task_of(model, data, name, samples, seed)
    assert data.masks is not None
    return KnownAnswer(
        task,
        data.masks[chosen].flatten(1).float(),
        winners=("integrated_gradients", "input_x_gradient", "occlusion"),
        losers=("random",),
        why="the background is noise that carries no class; only the shape does",
    )


colour_digits_10, colour_digits_15, colour_digits_20, colour_digits_25 = (
    partial(colour_digits, share=share) for share in SHARES
)


# --- the watermark --------------------------------------------------------------------------------------

MARK = ((6, 0), (6, 1), (7, 0), (7, 1))
"""Pixels of the watermark: the lower left corner."""


def watermark_data() -> tuple[Data, Tensor]:
    """Digits with coin-flip labels, and the watermark in the corner of those of class 1; also its mask.

    What the digit shows is independent of the label, so the watermark is all there is to learn. Only
    marked images are evaluated: where there is no mark, there is nothing to point at.
    """
    source = digits_data()
    count = len(source.rows)
    labels = keyed.integers(Key(0) / "watermark", torch.arange(count), 0, 1, 2)[:, 0]
    mark = torch.zeros(8, 8, dtype=torch.bool)
    for row, column in MARK:
        mark[row, column] = True
    clean = source.rows.masked_fill(mark, 0.0)
    rows = torch.where(mark & (labels == 1)[:, None, None, None], 1.0, clean)
    train, test = split(count, 0.3, Key(0) / "watermark")
    return Data(rows, labels, train, test[labels[test] == 1], masks=mark.expand(count, 8, 8)), mark


def clever_hans(samples: int | None, seed: int) -> KnownAnswer:
    """A CNN that looks at nothing but a watermark in the corner of the image."""
    data, mark = watermark_data()
    model = stored("clever_hans", DigitsCNN(classes=2))
    task, _ = task_of(model, data, "clever_hans", samples, seed)
    return KnownAnswer(
        task,
        mark.flatten().float().expand(len(task), -1).clone(),
        winners=("integrated_gradients", "input_x_gradient", "occlusion"),
        losers=("random", "sobel"),
        why="labels are coin flips that only the watermark tells",
    )
