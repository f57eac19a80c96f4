"""What the first answers of a model give away: probabilities, chance, other rows, and rows it writes into."""

from __future__ import annotations

import warnings

from torch import Tensor

from veridical.errors import VeridicalWarning

PROBABILITIES = "the model seems to answer probabilities"
UNSTEADY = "the model answers a row otherwise when it is asked again"
_SUM = 1e-5
_APART = {2: 0.1, 4: 0.01, 8: 0.01}
"""How far two answers to one row may lie apart, as a share of the largest, by the bytes of a number."""


def look_for_probabilities(answer: Tensor, level: int) -> None:
    """Warn where one row's outputs (1, C) are no logits: a second softmax would squeeze every response."""
    row = answer.detach()[0].double()
    if bool((row >= 0).all()) and abs(float(row.sum()) - 1) < _SUM:
        warnings.warn(
            f"{PROBABILITIES}, and outputs are read as logits: a second softmax squeezes every response. "
            "Take the softmax off, or say output=lambda answer: answer.clamp(min=1e-12).log()",
            VeridicalWarning,
            stacklevel=level,
        )


def look_for_chance(alone: Tensor, again: Tensor, level: int) -> None:
    """Warn where a row asked again, beside another one, gets another answer (1, C)."""
    apart = float((alone.detach().double() - again.detach().double()).abs().max())
    largest = float(alone.detach().abs().max())
    if apart > _APART.get(alone.element_size(), 0.01) * largest:
        share = apart / largest if largest else 1.0
        warnings.warn(
            f"{UNSTEADY}, beside another row (it moves by {share:.0%} of its size): chance, such as dropout "
            "that is always on, or the other rows of a batch decide with it, and so they do in every score",
            VeridicalWarning,
            stacklevel=level,
        )
