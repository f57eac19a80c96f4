"""A causal language model seen from switches on its prompt: log-probabilities of answers as the response."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.models.embeddings import embedding_layer
from veridical.models.predictor import plain_output

Off = Literal["fill", "drop", "tokens", "swap", "pad", "mask", "zero"]
"""What becomes of a unit that is off: its tokens replaced by a neutral word, the text without it (tokenised
anew), the other tokens alone, the unit of another prompt in its place, its tokens replaced by the pad or the
mask token, or by an embedding of zeros."""
Wanted = Literal["log_probability", "perplexity", "entropy"]
"""What is asked about an answer: how likely it is, or how sure the model is at each of its tokens."""

Rewrite = Callable[[dict[str, Tensor], Tensor], list[tuple[int, ...]]]
"""The tokens of each row's prompt, given the side inputs and which units (rows, units) are on."""


@dataclass(frozen=True)
class SwitchedOff:
    """How tokens are switched off: the prompt is written anew, or embeddings are replaced."""

    rewrite: Rewrite | None = None
    """Makes the tokens of the prompt that is left; None where embeddings are replaced instead."""
    token: int | None = None
    """The token whose embedding stands in; None is zeros."""


def tokens_left(side: dict[str, Tensor], on: Tensor) -> list[tuple[int, ...]]:
    """The tokens of each prompt whose units are on."""
    unit = side["unit"]
    kept = side["attended"] & ((unit < 0) | on.gather(1, unit.clamp(min=0)))
    return [tuple(row[keep].tolist()) for row, keep in zip(side["tokens"], kept, strict=True)]


class AnswerModel(nn.Module):
    """What is asked of prompts whose units have gates (rows, units): 1 is on, 0 is off.

    It returns (rows, 2): the response, and the share of the answer's tokens at which the most probable token
    is `predicted`.
    """

    expensive = True
    gate_dtype = torch.float32
    """Gates of a model in half precision: what is added up over them keeps its digits."""
    off: SwitchedOff
    has_foil: bool
    wanted: Wanted = "log_probability"
    no_gradient = ""
    """Why there is no gradient with respect to the gates; empty where there is one."""

    @property
    def asks(self) -> str:
        """What the response is, in words."""
        if self.wanted != "log_probability":
            return f"{self.wanted}, sign turned"
        return "log-odds of answer and foil" if self.has_foil else "log-probability"

    def forward(self, gates: Tensor, /, **side: Tensor) -> Tensor:
        response, said, _ = self.answers(gates, side)
        answered = side["answered"]
        kept = ((said == side["predicted"]) & answered).sum(1) / answered.sum(1)
        return torch.stack([response, kept.to(response.dtype)], 1)

    def answers(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The response (rows,), the most probable tokens, and the log-probability of the answer (rows,).

        The most probable token is that at each place of the answer (rows, places).
        """
        raise NotImplementedError


class PromptModel(AnswerModel):
    """The child model evaluated on prompts whose units have gates.

    Prompts end at the same place (they are padded on the left); the answer follows. An encoder reads prompts
    that begin together, and the decoder the answer.
    """

    def __init__(
        self,
        model: nn.Module,
        off: SwitchedOff,
        has_foil: bool = False,
        one_pass: bool = True,
        wanted: Wanted = "log_probability",
        pads: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.off = off
        self.has_foil = has_foil
        self.one_pass = one_pass
        """Whether answer and foil differ in their last tokens only, so that one pass gives both."""
        self.wanted = wanted
        self.pads = pads
        """Whether padding changes nothing; else prompts of one length are evaluated at a time."""
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        self.start = decoder_start(model)
        """The token with which a decoder begins; None where there is no encoder."""
        if off.rewrite is not None:
            self.no_gradient = (
                "a unit is there or not: off='drop', 'tokens' and 'swap' have no gradient; say off='fill'"
            )
            return
        layer = embedding_layer(_reader(model))
        if layer is None:
            raise InputError(
                "the model has no nn.Embedding layer whose output could be replaced; say off='drop'"
            )
        known = getattr(_reader(model).get_submodule(layer), "num_embeddings", None)
        if off.token is not None and known is not None and off.token >= known:
            raise InputError(
                f"token {off.token} is to stand in for units that are off, and the model knows {known} "
                "of them (from 0 on); say off='zero', or give the tokenizer that it was trained with"
            )
        self.layer = layer

    def around(self, model: nn.Module, **changes: Any) -> PromptModel:
        """The same questions to another child, or asked otherwise."""
        names = ("off", "has_foil", "one_pass", "wanted", "pads")
        return PromptModel(model, **{**{name: getattr(self, name) for name in names}, **changes})

    def extra_repr(self) -> str:
        """What outputs depend on besides the child."""
        how = getattr(self.off.rewrite, "__name__", self.off.rewrite)
        return f"off={how or self.off.token}, has_foil={self.has_foil}, wanted={self.wanted}"

    @property
    def precision(self) -> torch.dtype:
        """What the child computes in; half precisions are all called float16."""
        held = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        found = next(held, torch.float32)
        return found if found in (torch.float64, torch.float32) else torch.float16

    def answers(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        response, own, logits = self.response(gates, side)
        return response, logits.argmax(-1), own

    def response(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The response, the log-probability of the answer (rows,), and the logits at its places."""
        logits, against = self.both_logits(gates, side)
        known = logits.log_softmax(-1)
        response = own = total(known, side["answer"], side["judged"])
        if against is not None:
            response = own - total(against.log_softmax(-1), side["foil"], side["foil_judged"])
        elif self.wanted == "perplexity":
            response = -(-own / side["judged"].sum(1)).exp()
        elif self.wanted == "entropy":
            each = (known.exp() * known).sum(-1)
            response = torch.where(side["judged"], each, 0.0).sum(1) / side["judged"].sum(1)
        return response, own, logits

    def both_logits(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Logits at the places of the answer, and at those of the foil where there is one."""
        prompt = self.prompts(gates, side)
        logits = self.logits(*prompt, side["answer"], side["answered"])
        if not self.has_foil:
            return logits, None
        return logits, logits if self.one_pass else self.logits(*prompt, side["foil"], side["foiled"])

    def prompts(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, which of them are there, and how far on each is."""
        unit = side["unit"]
        if self.off.rewrite is None:
            return (
                side["tokens"],
                side["attended"],
                torch.where(unit < 0, 1.0, gates.gather(1, unit.clamp(min=0))),
            )
        on = gates > 0.5
        if bool(on.all()):
            tokens, attended = side["tokens"], side["attended"]
        else:
            left = [torch.tensor(row, device=gates.device) for row in self.off.rewrite(side, on)]
            edge: Any = "left" if self.start is None else "right"
            tokens, attended = (
                nn.utils.rnn.pad_sequence(each, True, 0, padding_side=edge)
                for each in (left, [torch.ones_like(row, dtype=torch.bool) for row in left])
            )
        return tokens, attended, gates.new_ones(tokens.shape)

    @staticmethod
    def read_places(side: dict[str, Tensor]) -> Tensor:
        """Which places hold a token that is read (rows, places): no padding, nor an answer's last token."""
        return torch.cat([side["attended"], side["answered"][:, 1:]], 1)

    def logits(
        self, tokens: Tensor, attended: Tensor, gates: Tensor, answer: Tensor, there: Tensor
    ) -> Tensor:
        """Logits at each place of the answer (rows, places, vocabulary), given all that stands before it."""
        if not self.pads and not bool(attended.all()):
            lengths, found = attended.sum(1), None
            for length in lengths.unique().tolist():
                rows = (lengths == length).nonzero()[:, 0]
                own = attended[rows]
                cut = [each[rows][own].view(len(rows), length) for each in (tokens, attended, gates)]
                some = self.logits(cut[0], cut[1], cut[2], answer[rows], there[rows])
                found = some.new_empty(len(tokens), *some.shape[1:]) if found is None else found
                found = found.index_copy(0, rows, some)
            assert found is not None
            return found
        places = answer.shape[1]
        named: dict[str, Any] = {"attention_mask": attended.long(), "use_cache": False}
        if self.start is None:
            tokens = torch.cat([tokens, answer[:, :-1]], 1)
            gates = torch.nn.functional.pad(gates, (0, places - 1), value=1.0)
            padded = not bool(attended.all())
            attended = torch.cat([attended, there[:, :-1]], 1).long()
            named |= {"attention_mask": attended, "logits_to_keep": places}
            if padded:  # else the model counts for itself: some begin at another number than 0
                named["position_ids"] = (attended.cumsum(1) - 1).clamp(min=0)
        else:
            begin = torch.full_like(answer[:, :1], self.start)
            named["decoder_input_ids"] = torch.cat([begin, answer[:, :-1]], 1)
        named = {name: value for name, value in named.items() if name in self.takes}
        return read_logits(self._outputs(tokens, gates, **named), places)

    def _outputs(self, tokens: Tensor, gates: Tensor, **named: Any) -> Any:
        """What the child returns for tokens, each as far on as its gate says."""
        if self.off.rewrite is not None:
            return self.model(tokens, **named)
        layer = _reader(self.model).get_submodule(self.layer)

        def blended(module: nn.Module, _given: Any, embedded: Tensor) -> Tensor:
            handle.remove()  # a decoder embeds its own tokens by the same layer, later
            share = gates[..., None].to(embedded.dtype)
            if self.off.token is None:
                return share * embedded
            # past the hook, which would be called again
            instead = module.forward(torch.full((1, 1), self.off.token, device=embedded.device))
            return share * embedded + (1 - share) * instead

        handle = layer.register_forward_hook(blended)
        try:
            return self.model(tokens, **named)
        finally:
            handle.remove()


def decoder_start(model: nn.Module) -> int | None:
    """The token with which the decoder behind an encoder begins; None where the model has no encoder."""
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return None
    found = getattr(config, "decoder_start_token_id", None)
    if not isinstance(found, int):
        raise InputError("the model has an encoder, and its config.decoder_start_token_id is no token")
    return found


def _reader(model: nn.Module) -> nn.Module:
    """What reads the prompt: the encoder where there is one."""
    reader: nn.Module = model.get_encoder() if decoder_start(model) is not None else model  # type: ignore[operator]
    return reader


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


def total(values: Tensor, answer: Tensor, judged: Tensor) -> Tensor:
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
        if self.normalised:
            return self.module.response(gates, side)[0][:, None]
        logits, against = self.module.both_logits(gates, side)
        found = total(logits, side["answer"], side["judged"])
        if against is not None:
            found = found - total(against, side["foil"], side["foil_judged"])
        return found[:, None]
