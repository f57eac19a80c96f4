"""Explainers made for language models: value zeroing, and the recursive attribution generator (ReAGent)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Between, Within
from veridical.errors import NotApplicableError
from veridical.explainers.attention import AttentionExplainer, AttentionWeights
from veridical.explainers.base import register
from veridical.explainers.diagnostics import record_split_half
from veridical.explainers.layout import places
from veridical.explainers.occlusion import MaskingExplainer, responses_to
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.models.inner_units import Blocks
from veridical.models.predictor import call
from veridical.models.prompts import AnswerModel
from veridical.perturb.rules import Given
from veridical.values.task import Task


class _WithoutValue(AttentionWeights):
    """Attention in which one token has the value zero, in every layer and head; None changes nothing."""

    def __init__(self, rows: int, token: int | None) -> None:
        super().__init__(rows)
        self.token = token

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if not self.found:
            return made
        weights = self.found.pop()
        if self.token is None or self.token >= weights.shape[-1]:  # a foil may be shorter
            return weights
        # a weight of nothing is a value of nothing
        return weights.index_fill(-1, torch.tensor([self.token], device=weights.device), 0.0)


@register
@dataclass(frozen=True)
class ValueZeroing(AttentionExplainer):
    """How far a token's state turns in a layer where another token's value is zero, through the layers.

    C_l[i, j] = 1 - cos(x_i, x_i without the value of j) behind block l, which reads what it always reads; the
    rows of C_l sum to 1, and the matrices are multiplied (Mohebbi et al. 2023). The whole
    block is asked, its feed-forward layer too, where attention weights stop before it. It does not depend on
    the explained output. Rows: one for each token, and one more.
    """

    name: ClassVar[str] = "value_zeroing"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "turn of a token's state where another's value is zero, through the layers"
    paper: ClassVar[str] = "Mohebbi et al. 2023"
    modalities: ClassVar[frozenset[str]] = frozenset({"text", "units"})

    def _declared(self, task: Task) -> Cost:
        tokens = places(task) if task.modality == "units" else task.space.n_features
        return Cost((1 + tokens) * super()._declared(task).forward)

    def _refusal(self, task: Task) -> str | None:
        try:
            self._blocks(task)
        except NotApplicableError:
            return "the model has no list of blocks, found by its name, behind which states are compared"
        return super()._refusal(task)

    @staticmethod
    def _blocks(task: Task) -> list[nn.Module]:
        model = task.predictor.model
        return [model.get_submodule(site.layer) for site in Blocks().sites(model, lambda: None)]

    def attribute(self, task: Task, context: Context) -> Tensor:
        with task.session() as model:
            states = partial(self._states, task, model)
            clean = states(None, None)
            before = clean[0][0]
            mixing = torch.eye(before.shape[1], dtype=torch.float64, device=task.device)
            turned = mixing.repeat(len(clean), len(task), 1, 1)
            for token in range(before.shape[1]):
                for layer, (moved, *_) in enumerate(states(token, clean)):
                    same = torch.cosine_similarity(clean[layer][0].double(), moved.double(), -1)
                    turned[layer, :, :, token] = (1 - same).clamp(min=0)
        for layer in turned:
            mixing = layer / layer.sum(-1, keepdim=True).clamp(min=torch.finfo(layer.dtype).tiny) @ mixing
        return self._laid(self._read(mixing, task), task).to(task.outputs.dtype)

    def _states(
        self, task: Task, model: Any, token: int | None, clean: list[list[Tensor]] | None
    ) -> list[list[Tensor]]:
        """The states behind each block, one for each call of it; with `clean` those go on to the next."""
        blocks = self._blocks(task)
        found: list[list[Tensor]] = [[] for _ in blocks]

        def after(layer: int, _block: nn.Module, _given: Any, made: Any) -> Any:
            found[layer].append(made[0] if isinstance(made, tuple) else made)
            if clean is None:
                return None
            on = clean[layer][len(found[layer]) - 1]
            return (on, *made[1:]) if isinstance(made, tuple) else on

        handles = [block.register_forward_hook(partial(after, n)) for n, block in enumerate(blocks)]
        try:
            with _WithoutValue(len(task), token):
                call(model, task.inputs, task.side)
        finally:
            for handle in handles:
                handle.remove()
        return found


@register
@dataclass(frozen=True)
class ReAGent(MaskingExplainer):
    """What the answer's probability loses where random sets of units are off, as log-odds.

    With p the probability of the answer (against its foil, where it has one) and Δ = p - p(set off), a unit
    gains logit((1 + Δ) / 2) from each set that holds it and loses as much from each that does not (Zhao and
    Shan 2024). The mean over a fixed number of sets takes the place of the rule that stops when a
    few units give the answer back, and units are off as the task says, rather than other words. Where units
    are few many sets recur. Rows: `draws`.
    """

    draws: Annotated[int, Within(2, MANY)] = 128
    """Random sets of units per prompt."""
    share: Between = 0.3
    """The share of a prompt's units in each set, one at least."""
    stochastic: ClassVar[bool] = True
    name: ClassVar[str] = "reagent"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "log-odds of what random sets of units take from the answer's probability"
    paper: ClassVar[str] = "Zhao and Shan 2024"
    modalities: ClassVar[frozenset[str]] = frozenset({"units"})

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def inapplicable_reason(self, task: Task) -> str | None:
        asked = _asked(task)
        if asked is None or asked.wanted != "log_probability":
            return "it reads the probability of a language model's answer, and this task asks something else"
        return super().inapplicable_reason(task)

    def attribute(self, task: Task, context: Context) -> Tensor:
        asked = _asked(task)
        assert asked is not None
        numbers = torch.arange(self.draws, device=task.device)
        drawn = keyed.uniform(
            context.key / "sets", task.draw_ids, numbers, task.space.n_features, torch.float64
        )
        units = drawn.new_full((len(task), 1, 1), drawn.shape[-1])
        if task.space.valid is not None:
            units = task.space.valid.sum(-1)[:, None, None]
            drawn = drawn.masked_fill(~task.space.valid[:, None], 2.0)
        sets = drawn.argsort(-1).argsort(-1) < (self.share * units).round().clamp(min=1)
        found = responses_to(task, Given(sets), self.fill_key(context.key), context)
        chances = (found.sigmoid() if asked.has_foil else found.exp()).double()
        falls = 2 * (chances[:, :1] - chances[:, 1:]).clamp(-1 + 1e-9, 1 - 1e-9).atanh()
        each = falls[..., None] * torch.where(sets, 1.0, -1.0)
        record_split_half(context, task, self.draws, lambda half: each[:, half::2].mean(1))
        return each.mean(1).to(task.outputs.dtype)


def _asked(task: Task) -> AnswerModel | None:
    """The language model of a task, perhaps with switches inside it."""
    model = task.predictor.model
    found = model if isinstance(model, AnswerModel) else getattr(model, "module", None)
    return found if isinstance(found, AnswerModel) else None
