"""Known answers inside a language model: attention heads whose work was written by hand."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.causal_networks import HEADS, InductionTransformer
from veridical.data.data import Data, pick
from veridical.data.generation import Generation
from veridical.data.known import EVALUATED, KnownAnswer
from veridical.data.switching import switch
from veridical.data.word_tokens import WordTokenizer
from veridical.errors import InputError
from veridical.perturb.inner_units import Heads
from veridical.perturb.interventions import Counterfactual

PAIRS = 4
NAMES, NUMBERS = 8, 8
WORDS = ("> ", *(f"{letter} " for letter in "ABCDEFGH"), *(f"{number} " for number in range(NUMBERS)))
LENGTH = 2 * PAIRS + 3
Change = Literal["value", "key", "both"]


def induction(samples: int | None, seed: int) -> KnownAnswer:
    """Which heads answer `> A 3 B 7 C 1 D 5 B` with 7: half the pairs change the 7, half the B before it."""
    return induction_heads(samples, seed)


def induction_heads(
    samples: int | None = None, seed: int = 0, change: Change = "both", turn: tuple[int, int] = (1, 2)
) -> KnownAnswer:
    """The same for one kind of change, and with the two heads at other places (`turn`).

    A head that is off has its value in a paired prompt. Where the value before the answer was changed, only
    the induction head matters, which copies it; where the key was changed, the previous-token head matters
    as much, without which no key matches. So there is no truth of a head: only of a head and a change.
    """
    if change not in ("value", "key", "both"):
        raise InputError(f"change is 'value', 'key' or 'both'; got {change!r}")
    every = torch.arange(EVALUATED)
    ids = pick(Data(every, every, every, every), "known/induction", samples, seed)
    keyed_rows = ids % 2 == 1 if change == "both" else torch.full_like(ids, change == "key").bool()
    rows, place, unused = drawn_pairs(ids)
    at = torch.where(keyed_rows, place, place + 1)[:, None]
    paired = rows.scatter(1, at, unused.gather(1, keyed_rows.long()[:, None]))
    answers = rows.gather(1, place[:, None] + 1)[:, 0]
    other = rows.gather(1, 2 + (place[:, None] + 1) % (2 * PAIRS))[:, 0]
    foils = torch.where(keyed_rows, other, paired.gather(1, place[:, None] + 1)[:, 0])
    model, tokenizer = InductionTransformer(len(WORDS), LENGTH, turn), WordTokenizer(WORDS)
    clean, changed = (
        Generation(
            model,
            tokenizer,
            [tokenizer.decode(row) for row in held.tolist()],
            [WORDS[word] for word in answers.tolist()],
            foils=[WORDS[word] for word in foils.tolist()],
            units="word",
            off="zero",
            ids=ids,
        )
        for held in (rows, paired)
    )
    first, second = turn[0] % HEADS, HEADS + turn[1] % HEADS
    truth = torch.zeros(len(ids), 2 * HEADS)
    truth[:, second] = 1.0
    truth[keyed_rows, first] = 1.0
    task = switch(clean, Heads(), Counterfactual(changed))
    return KnownAnswer(
        task.changed(alone=True, masks=truth > 0, name="known/induction"),
        truth,
        winners=("occlusion", "exact_shapley", "input_x_gradient", "integrated_gradients"),
        losers=("random",),
        why="the induction head copies the value, and finds it by what the previous-token head wrote",
    )


def drawn_pairs(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `> key value ... key`, the place of the repeated key, and a value and a key that do not occur."""
    key = Key(0) / "known" / "induction"
    keys = 1 + keyed.permutation(key / "keys", ids, 0, NAMES)
    values = 1 + NAMES + keyed.permutation(key / "values", ids, 0, NUMBERS)
    asked = keyed.integers(key / "asked", ids, 0, 1, PAIRS)
    pairs = torch.stack([keys[:, :PAIRS], values[:, :PAIRS]], 2).flatten(1)
    rows = torch.cat([torch.zeros_like(asked), pairs, keys.gather(1, asked)], 1)
    return rows, 1 + 2 * asked[:, 0], torch.stack([values[:, PAIRS], keys[:, PAIRS]], 1)
