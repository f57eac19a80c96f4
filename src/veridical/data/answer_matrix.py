"""Which unit of a prompt made which token of the answer: one map per token, as a matrix."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core.allowed import Index
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.data.generation import Generation
from veridical.errors import InputError, visible
from veridical.explainers.base import as_explainer
from veridical.plots import axes
from veridical.values.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class AnswerMatrix:
    """The values of a prompt's units for each token of its answer."""

    values: Tensor
    """Tokens of the answer by units (T, V)."""
    tokens: tuple[str, ...]
    """The tokens of the answer that are judged."""
    units: tuple[str, ...]
    """The units of the prompt."""
    explanation: Explanation
    """The maps it was made of, one sample per token: who made them, cost and provenance."""

    def __str__(self) -> str:
        rows = (
            f"{token!r}: " + ", ".join(f"{unit!r} {value:.3g}" for unit, value in self._strongest(row))
            for row, token in enumerate(self.tokens)
        )
        return "\n".join([f"{self.explanation.explainer} of {len(self.tokens)} tokens", *rows])

    def _strongest(self, row: int) -> list[tuple[str, float]]:
        order = self.values[row].abs().argsort(descending=True)[:3].tolist()
        return [(_short(self.units[place], 32), float(self.values[row, place])) for place in order]

    def plot(self, ax: Axes | None = None) -> Axes:
        """A heat map, blue to red about zero: answer tokens below each other, units side by side."""
        ax = axes(ax, 1.5 + 0.6 * len(self.units), 1.2 + 0.35 * len(self.tokens))
        top = float(self.values.abs().max()) or 1.0
        image = ax.imshow(
            self.values.float().cpu().numpy(), cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto"
        )
        # a dollar sign is no formula here
        names = [visible(_short(unit, 24)).replace("$", r"\$") for unit in self.units]
        ax.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
        ax.set_yticks(range(len(self.tokens)), [visible(token).replace("$", r"\$") for token in self.tokens])
        ax.set_title(self.explanation.explainer, fontsize=9)
        ax.figure.colorbar(image, ax=ax, fraction=0.05)
        return ax

    def to_html(self) -> str:
        """The same as a table of coloured cells, all of its text escaped."""
        top = float(self.values.abs().max()) or 1.0

        def cell(value: float) -> str:
            colour = "178,24,43" if value > 0 else "33,102,172"
            shade = f"background:rgba({colour},{abs(value) / top:.2f})"
            return f'<td style="{shade}">{value:.3g}</td>'

        def heads(names: tuple[str, ...]) -> list[str]:
            return [f"<th>{html.escape(visible(name))}</th>" for name in names]

        rows = (
            f"<tr>{head}{''.join(map(cell, row))}</tr>"
            for head, row in zip(heads(self.tokens), self.values.tolist(), strict=True)
        )
        return f"<table><tr><th></th>{''.join(heads(self.units))}</tr>{''.join(rows)}</table>"

    _repr_html_ = to_html


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


@checked
def answer_matrix(
    task: Generation, explainer: Any = "occlusion", *, prompt: Index = 0, seed: int = 0, **settings: Any
) -> AnswerMatrix:
    """Explain every judged token of an answer by itself, each given the prompt and the answer before it.

    It asks what the explainer asks of a prompt, once per token.

    Parameters
    ----------
    task : Generation
        Prompts and answers; a foil has as many tokens as the answer, and each of them is compared.
    explainer : str, Explainer or callable
        What `vd.explain` takes.
    prompt : int
        The number of the prompt.
    seed : int
        Seed of all draws.
    **settings
        Settings of an explainer given by name.

    Returns
    -------
    AnswerMatrix
        Tokens by units, with `plot()` and `to_html()`.
    """
    if prompt >= len(task):
        raise InputError(f"there is no prompt {prompt}; the task has {len(task)}, counted from 0")
    answer, units = task.answers[prompt], task.prompts[prompt].units
    if answer.foil_tokens is not None and len(answer.foil_tokens) != len(answer.tokens):
        raise InputError(
            f"the foil has {len(answer.foil_tokens)} tokens for {len(answer.tokens)} of the answer, so none "
            "stands against each; give a foil of equally many tokens, or none"
        )
    count = len(answer.judged)
    rows = task[[prompt] * count]
    assert isinstance(rows.side, dict)
    one = torch.zeros_like(rows.side["judged"])
    one[torch.arange(count), list(answer.judged)] = True
    side = {**rows.side, "judged": one}
    if answer.foil_tokens is not None:
        side["foil_judged"] = one[:, : side["foil_judged"].shape[1]]
    ids = torch.arange(count, device=task.device)
    tokenwise = rows.changed(alone=True, side=side, ids=ids, inputs=rows.inputs)
    assert isinstance(tokenwise, Generation)
    answers = tuple(replace(answer, judged=(place,)) for place in answer.judged)
    tokenwise.__dict__["answers"] = answers
    made = as_explainer(explainer, **settings)(tokenwise, Key(seed))
    tokens = tuple(str(task.tokenizer.decode([answer.tokens[place]])) for place in answer.judged)
    return AnswerMatrix(made.values[:, : len(units)], tokens, units, made)
