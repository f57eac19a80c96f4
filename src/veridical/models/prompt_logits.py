"""Prompts answered by one number: for methods that follow a model's operations, or read its attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.models.prompted import PromptModel


class PromptLogits(nn.Module):
    """The child's prompts answered by (rows, 1): the answer's logits, less the foil's, added up.

    With a foil that differs in its last token alone this is the response itself; else it lacks the normaliser
    of the log-probability, which no rule of relevance takes apart. `normalised` keeps it.
    """

    read_places = staticmethod(PromptModel.read_places)

    def __init__(self, module: nn.Module, normalised: bool = False) -> None:
        super().__init__()
        assert isinstance(module, PromptModel)
        self.module = module
        self.normalised = normalised

    @property
    def two_passes(self) -> bool:
        """Whether the foil is asked apart from the answer."""
        return self.module.has_foil and not self.module.one_pass

    def forward(self, gates: Tensor, /, **side: Tensor) -> Tensor:
        own, unit = self.module, side["unit"]
        on = torch.where(unit < 0, 1.0, gates.gather(1, unit.clamp(min=0)))
        prompt = side["tokens"], side["attended"], on
        logits = own.logits(*prompt, side["answer"], side["answered"])
        total = self._added(logits, side["answer"], side["judged"])
        if own.has_foil:
            foil, there = side["foil"], side["foiled"]
            against = own.logits(*prompt, foil, there) if self.two_passes else logits
            total = total - self._added(against, foil, there)
        return total[:, None]

    def _added(self, logits: Tensor, answer: Tensor, judged: Tensor) -> Tensor:
        logits = logits.log_softmax(-1) if self.normalised else logits
        each = logits.gather(-1, answer[..., None])[..., 0]
        return torch.where(judged, each, 0.0).sum(1)
