"""A causal language model seen from switches on its prompt: log-probabilities of answers as the response."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.models.embeddings import embedding_layer
from veridical.models.predictor import plain_output

Off = Literal["fill", "drop", "pad", "mask", "zero"]
"""What becomes of the tokens of a unit that is off: replaced by a neutral word, left out of the text,
replaced by the pad or the mask token, or by an embedding of zeros."""


@dataclass(frozen=True)
class SwitchedOff:
    """How tokens are switched off: hidden, or their embeddings replaced by that of a token or by zeros."""

    hidden: bool
    """Whether they are left out: hidden from all others, whose positions are numbered anew."""
    token: int | None = None
    """The token whose embedding stands in; None is zeros."""


class PromptModel(nn.Module):
    """The child model evaluated on prompts whose units have gates (rows, units): 1 is on, 0 is off.

    Prompts end at the same place (they are padded on the left); the answer follows. It returns (rows, 2):
    the log-probability of the answer's judged tokens, less that of the foil where there is one; and the share
    of the answer's tokens at which the most probable token is `predicted`.
    """

    expensive = True

    def __init__(self, model: nn.Module, off: SwitchedOff, has_foil: bool, one_pass: bool) -> None:
        super().__init__()
        self.model = model
        self.off = off
        self.has_foil = has_foil
        self.one_pass = one_pass
        """Whether answer and foil differ in their last tokens only, so that one pass gives both."""
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        if not off.hidden:
            layer = embedding_layer(model)
            if layer is None:
                raise InputError(
                    "the model has no nn.Embedding layer whose output could be replaced; say off='drop'"
                )
            known = getattr(model.get_submodule(layer), "num_embeddings", None)
            if off.token is not None and known is not None and off.token >= known:
                raise InputError(
                    f"token {off.token} is to stand in for units that are off, and the model knows {known} "
                    "of them (from 0 on); say off='zero', or give the tokenizer that it was trained with"
                )
            self.layer = layer
        elif not {"attention_mask", "position_ids"} <= self.takes:
            raise InputError(
                "off='drop' hides tokens and numbers the others anew, and the model's forward takes no "
                "attention_mask and position_ids; say off='fill'"
            )

    @property
    def precision(self) -> torch.dtype:
        """What the child computes in; half precisions are all called float16."""
        held = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        found = next(held, torch.float32)
        return found if found in (torch.float64, torch.float32) else torch.float16

    @property
    def no_gradient(self) -> str:
        """Why there is no gradient with respect to the gates; empty where there is one."""
        return (
            "a token is left out or it is not: off='drop' has no gradient; say off='fill'" * self.off.hidden
        )

    def forward(self, gates: Tensor, /, **side: Tensor) -> Tensor:
        response, said, _ = self.answers(gates, side)
        answered = side["answered"]
        kept = ((said == side["predicted"]) & answered).sum(1) / answered.sum(1)
        return torch.stack([response, kept.to(response.dtype)], 1)

    def answers(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The response (rows,), the most probable tokens, and the log-probability of the answer (rows,).

        The most probable token is that at each place of the answer (rows, places).
        """
        logits, against = self.both_logits(gates, side)
        response = own = _total(logits.log_softmax(-1), side["answer"], side["judged"])
        if against is not None:
            response = own - _total(against.log_softmax(-1), side["foil"], side["foil_judged"])
        return response, logits.argmax(-1), own

    def both_logits(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Logits at the places of the answer, and at those of the foil where there is one."""
        unit = side["unit"]
        on = torch.where(unit < 0, 1.0, gates.gather(1, unit.clamp(min=0)))
        prompt = side["tokens"], side["attended"], on
        logits = self.logits(*prompt, side["answer"], side["answered"])
        if not self.has_foil:
            return logits, None
        return logits, logits if self.one_pass else self.logits(*prompt, side["foil"], side["foiled"])

    @staticmethod
    def read_places(side: dict[str, Tensor]) -> Tensor:
        """Which places hold a token that is read (rows, places): no padding, nor an answer's last token."""
        return torch.cat([side["attended"], side["answered"][:, 1:]], 1)

    def logits(
        self, tokens: Tensor, attended: Tensor, gates: Tensor, answer: Tensor, there: Tensor
    ) -> Tensor:
        """Logits at each place of the answer (rows, places, vocabulary), given all that stands before it."""
        places = answer.shape[1]
        tokens = torch.cat([tokens, answer[:, :-1]], 1)
        gates = torch.nn.functional.pad(gates, (0, places - 1), value=1.0)
        attended = torch.cat([attended, there[:, :-1]], 1)
        if self.off.hidden:
            tokens, attended = _ending(tokens, attended & (gates > 0.5), tokens.shape[1] - places + 1)
        positions = (attended.long().cumsum(1) - 1).clamp(min=0)
        named: dict[str, Any] = {"attention_mask": attended.long(), "position_ids": positions}
        named |= {"use_cache": False, "logits_to_keep": places}
        named = {name: value for name, value in named.items() if name in self.takes}
        return read_logits(self._outputs(tokens, gates, **named), places)

    def _outputs(self, tokens: Tensor, gates: Tensor, **named: Any) -> Any:
        """What the child returns for tokens, each as far on as its gate says."""
        if self.off.hidden:
            return self.model(tokens, **named)
        layer = self.model.get_submodule(self.layer)
        handle = layer.register_forward_hook(lambda _m, _i, made: self._blended(layer, made, gates))
        try:
            return self.model(tokens, **named)
        finally:
            handle.remove()

    def _blended(self, layer: nn.Module, embedded: Tensor, gates: Tensor) -> Tensor:
        """Embeddings of tokens that are on; of those that are off that which stands in for them."""
        share = gates[..., None].to(embedded.dtype)
        if self.off.token is None:
            return share * embedded
        # past the hook, which would be called again
        instead = layer.forward(torch.full((1, 1), self.off.token, device=embedded.device))
        return share * embedded + (1 - share) * instead


def _ending(tokens: Tensor, attended: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The last token of a prompt that is not hidden in the prompt's last place: the answer is read there.

    All places between are hidden, so that the text is the same.
    """
    rows = torch.arange(len(tokens), device=tokens.device)
    place = length - 1 - attended[:, :length].flip(1).int().argmax(1)
    tokens, attended = tokens.clone(), attended.clone()
    tokens[:, length - 1] = tokens[rows, place]
    attended[rows, place] = False
    attended[:, length - 1] = True
    return tokens, attended


def read_logits(answered: Any, places: int) -> Tensor:
    """Logits at the last places, in what a causal model returns."""
    logits = plain_output(answered)
    if logits.dim() != 3 or logits.shape[1] < places:
        raise InputError(
            f"the model returned shape {tuple(logits.shape)}; a causal language model returns "
            "(rows, tokens, vocabulary)"
        )
    logits = logits[:, -places:]
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _total(values: Tensor, answer: Tensor, judged: Tensor) -> Tensor:
    """The sum of the values, one per word, at those tokens of the answer that are judged (rows,)."""
    each = values.gather(-1, answer[..., None])[..., 0]
    return torch.where(judged, each, 0.0).sum(1)


def near(one: Tensor, two: Tensor, share: float) -> bool:
    """Whether outputs are the same but for such a share of the largest, or of 1."""
    return bool((one - two).abs().max() <= share * two.abs().max().clamp(min=1))


# --- as one number -----------------------------------------------------------------------------


class PromptLogits(nn.Module):
    """The child's prompts as (rows, 1): the answer's logits, less the foil's, added up.

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
        """Whether the foil is evaluated apart from the answer."""
        return self.module.has_foil and not self.module.one_pass

    def forward(self, gates: Tensor, /, **side: Tensor) -> Tensor:
        logits, against = self.module.both_logits(gates, side)
        total = _total(self._scaled(logits), side["answer"], side["judged"])
        if against is not None:
            total = total - _total(self._scaled(against), side["foil"], side["foil_judged"])
        return total[:, None]

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1) if self.normalised else logits
