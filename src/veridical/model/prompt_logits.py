"""Prompts answered by logits: for methods that follow a model's operations, or read its attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.model.prompted import PromptModel


class PromptLogits(nn.Module):
    """The child's prompts answered by (rows, 1): the answer's logits, less the foil's, added up.

    With a foil of as many tokens this is the response itself; without one it lacks the normaliser of the
    log-probability, which no rule of relevance takes apart.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        assert isinstance(module, PromptModel)
        self.module = module

    @property
    def two_passes(self) -> bool:
        """Whether the foil is asked apart from the answer."""
        return self.module.has_foil and not self.module.one_pass

    def forward(self, gates: Tensor, /, **side: Tensor) -> Tensor:
        own, unit = self.module, side["unit"]
        on = torch.where(unit < 0, 1.0, gates.gather(1, unit.clamp(min=0)))
        prompt = side["tokens"], side["attended"], on
        logits = own.logits(*prompt, side["answer"], side["answered"])
        total = _added(logits, side["answer"], side["judged"])
        if own.has_foil:
            foil, there = side["foil"], side["foiled"]
            total = total - _added(
                own.logits(*prompt, foil, there) if self.two_passes else logits, foil, there
            )
        return total[:, None]


def _added(logits: Tensor, answer: Tensor, judged: Tensor) -> Tensor:
    each = logits.gather(-1, answer[..., None])[..., 0]
    return torch.where(judged, each, 0.0).sum(1)
