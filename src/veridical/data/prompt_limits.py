"""What a language model can read: how many tokens at once, and which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from veridical.data.prompt_texts import Prompt
from veridical.errors import InputError


def most_tokens(model: nn.Module, length: int | None) -> int | None:
    """How many tokens the model reads at most: what the caller says or its configuration, the less."""
    config = getattr(model, "config", None)
    stated = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    return min((limit for limit in (length, *stated) if isinstance(limit, int)), default=None)


def check_fitting(
    model: nn.Module, prompts: Sequence[Prompt], answers: Iterable[Sequence[int]], length: int | None
) -> None:
    """Refuse tokens that are too many, or that the model has no embedding for.

    Before answers are known, one token of each is: a model must not be asked for more than it can read.
    """
    most = most_tokens(model, length)
    known = _vocabulary(model)
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if most is not None and len(prompt.ids) + len(answer) > most:
            raise InputError(
                f"prompt {number} has {len(prompt.ids)} tokens and its answer {len(answer)}; the model reads "
                f"{most} at most. Shorten the prompt: it is never cut here"
            )
        largest = max(*prompt.ids, *answer)
        if known is not None and largest >= known:
            raise InputError(
                f"prompt {number} or its answer has token {largest}, and the model knows {known} of them "
                "(from 0 on); give the tokenizer that it was trained with"
            )


def _vocabulary(model: nn.Module) -> int | None:
    """How many tokens have an embedding: where the model does not name its layer, in its largest table."""
    named: Any = model
    try:
        layers = [named.get_input_embeddings()]
    except (AttributeError, NotImplementedError):
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return max((layer.num_embeddings for layer in layers if isinstance(layer, nn.Embedding)), default=None)
