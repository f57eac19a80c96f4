"""ERASER for text: what is lost without the most relevant tokens, and what they alone leave missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.metrics import Outcome, PartOf, RankingMetric, RankThreshold, register
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)


def top_counts(counts: Tensor, bins: tuple[float, ...]) -> Tensor:
    """Tokens in the top share of each bin (N, bins): rounded up, so never none."""
    share = torch.tensor(bins, dtype=torch.float64, device=counts.device)
    return torch.minimum((counts[:, None] * share - 1e-9).ceil().long().clamp(min=1), counts[:, None])


@dataclass(frozen=True)
class _Eraser(RankingMetric):
    bins: tuple[PartOf, ...] = BINS
    """Shares of the tokens that are chosen, each in (0, 1]."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    category: ClassVar[str] = "faithfulness"
    paper: ClassVar[str] = "DeYoung et al. 2020"
    modalities: ClassVar[frozenset[str]] = frozenset({"text", "units"})
    ranks_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", tuple(self.bins))
        if not self.bins:
            raise InputError("give at least one share of the tokens, such as bins=(0.1, 0.2)")

    def _outcome(self, task: Task, rule: RankThreshold, context: Context) -> Outcome:
        responses = self.responses(task, rule, context)
        falls = responses[:, :1] - responses[:, 1:]
        axis = torch.tensor(self.bins, dtype=torch.float64)
        return Outcome(
            falls.mean(-1),
            curve=Curve(axis, falls, "share of tokens chosen", f"fall of the {self.response}"),
        )


@register
@dataclass(frozen=True)
class Comprehensiveness(_Eraser):
    """The mean fall y(x) - y(x without the top share of tokens), over `bins` of that share.

    Tokens are replaced by the fill (the pad or mask token) rather than cut out, so that positions stay.
    """

    name: ClassVar[str] = "comprehensiveness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Is the response lost without the most relevant tokens?"
    assumes: ClassVar[str] = "a text with tokens replaced by the fill is like those the model was trained on"
    misleads: ClassVar[str] = "when the fill token itself moves the response, or evidence is redundant"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        chosen = top_counts(task.space.counts(len(task)), self.bins)
        return self._outcome(task, RankThreshold(explanation.descending_ranks, chosen), context)


@register
@dataclass(frozen=True)
class TextSufficiency(_Eraser):
    """The mean fall y(x) - y(the top share of tokens alone), over `bins` of that share.

    All other tokens are replaced by the fill; special tokens stay in place. Lower is better: what was
    chosen is then enough for the response.
    """

    name: ClassVar[str] = "text_sufficiency"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Are the most relevant tokens alone enough for the response?"
    assumes: ClassVar[str] = "a text of a few tokens among fills is like those the model was trained on"
    misleads: ClassVar[str] = "when an almost empty text already gets the explained class"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        counts = task.space.counts(len(task))
        gone = counts[:, None] - top_counts(counts, self.bins)
        return self._outcome(task, RankThreshold(explanation.ranks, gone), context)
