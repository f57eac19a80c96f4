"""What should be known beside any score of a prompt.

Is the answer in the model's memory, does it matter how
a unit is switched off, do two units say the same, and does a random span of the same length do as much?
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.data.generation import Generation, check_left, evaluated
from veridical.errors import VeridicalError
from veridical.functional.correlation import spearman
from veridical.models.predictor import repeat_side
from veridical.models.prompts import Off
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given

SUFFICIENT_SHARE = 0.8
"""The share of what all units together do to the response that a unit must bring back to be sufficient."""
CERTAIN = math.log(0.9)
"""The log-probability from which on an answer is as good as certain."""

_SINGLE_EXPLAINERS = ("occlusion", "feature_ablation")
_SINGLE_METRICS = ("faithfulness_estimate", "monotonicity_correlation", "non_sensitivity")
"""Those that remove one unit at a time."""


def circular_pairs(explainers: Iterable[str], metrics: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of an explainer and a metric that evaluate the model on the very same inputs.

    Occlusion removes one unit at a time, and a metric that does so too repeats its map back to it.

    Parameters
    ----------
    explainers, metrics : iterable of str
        Names.

    Returns
    -------
    list of (str, str)
        Explainer and metric of each circular pair.

    Examples
    --------
    >>> circular_pairs(["occlusion", "gradient"], ["faithfulness_estimate", "pixel_flipping"])
    [('occlusion', 'faithfulness_estimate')]
    """
    single = [metric for metric in metrics if metric in _SINGLE_METRICS]
    return [(one, metric) for one in explainers if one in _SINGLE_EXPLAINERS for metric in single]


@dataclass(frozen=True, eq=False)
class PromptChecks:
    """What is known of each prompt besides its scores, one value per prompt."""

    log_probability: Tensor
    """The log-probability of the answer."""
    without_context: Tensor
    """The same with all units off: near the one above, the answer is remembered, not read."""
    response: Tensor
    """The response that is explained."""
    response_without: Tensor
    """The same with all units off."""
    off_agreement: Tensor
    """Rank correlation of what removing single units does under two meanings of off; NaN where unknown."""
    same_first: Tensor
    """Whether both find the same unit to matter most."""
    compared: str
    """The two meanings of off, or why there is no second one."""
    sufficient: Tensor
    """Units (N, V) that alone bring back most of what all of them do."""
    random_spans: Tensor
    """The share of random spans, as long as the unit that matters most, that matter as much; NaN where a
    prompt has no other span of that length."""
    circular: tuple[tuple[str, str], ...] = ()
    """Pairs of an explainer and a metric that evaluate the model on the same inputs."""
    swapped: bool = False
    """Whether units that are off are those of another context: all off is that context, not none."""

    @property
    def remembered(self) -> Tensor:
        """Whether the answer is as good as certain, or better than before, without any context."""
        return (self.without_context >= self.log_probability) | (self.without_context > CERTAIN)

    @property
    def redundant(self) -> Tensor:
        """Whether two units or more are each sufficient: removing one of them shows nothing."""
        return self.sufficient.sum(-1) > 1

    def flags(self, prompt: int) -> list[str]:
        """What to beware of in one prompt."""
        found = []
        if bool(self.remembered[prompt]):
            instead = "with the units of the other context" if self.swapped else "without any of these units"
            found.append(f"the answer is as likely {instead}")
        if bool(self.redundant[prompt]):
            found.append(
                f"{int(self.sufficient[prompt].sum())} units each suffice: single removals show little"
            )
        if not bool(self.same_first[prompt]):
            found.append(f"{self.compared} disagree on the unit that matters most")
        if float(self.random_spans[prompt]) > 0.1:
            found.append(f"{float(self.random_spans[prompt]):.0%} of random spans as long matter as much")
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a report."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            out[name] = value.tolist() if isinstance(value, Tensor) else value
        return {**out, "flags": [self.flags(i) for i in range(len(self.response))]}

    def __str__(self) -> str:
        count = len(self.response)
        lines = [
            f"{count} prompts: log-probability of the answer {float(self.log_probability.mean()):.3g} in the "
            f"mean, {float(self.without_context.mean()):.3g} with all units off",
            f"remembered without context: {int(self.remembered.sum())}; redundant units: "
            f"{int(self.redundant.sum())}",
            f"{self.compared}: rank correlation {float(self.off_agreement.nanmean()):.2f}, the same first "
            f"unit in {int(self.same_first.sum())}",
            f"random spans as long as the first unit do as much: {float(self.random_spans.nanmean()):.0%}",
        ]
        lines += [f"circular: {e} judged by {m}" for e, m in self.circular]
        return "\n".join(lines)


@checked
def prompt_checks(
    task: Generation,
    *,
    explainers: Iterable[str] = (),
    metrics: Iterable[str] = (),
    spans: Count = 16,
    seed: int = 0,
) -> PromptChecks:
    """Check prompts beside their scores: memory, redundancy, the meaning of off, and random spans.

    For each prompt it evaluates 3 rows per unit (2 of them are in the table of all subsets), `spans` for the
    random spans, and 3 more.

    Parameters
    ----------
    task : Generation
        Prompts and answers.
    explainers, metrics : iterable of str
        Names among which circular pairs are looked for.
    spans : int
        Random spans per prompt.
    seed : int
        Which spans are drawn.

    Returns
    -------
    PromptChecks
        One value per prompt, and `flags(prompt)`.
    """
    units = task.space.n_features
    one = torch.eye(units, dtype=torch.bool, device=task.device)
    every = torch.cat([one, ~one, torch.ones_like(one[:1])])
    answered = probe(task, Given(every), response="logit", with_clean=True)
    clean, removed, alone, none = answered.split([1, units, units, 1], 1)
    falls = _known(task, clean - removed)
    other, compared = _other(task)
    agreement, same = _nothing(task), torch.ones(len(task), dtype=torch.bool, device=task.device)
    if other is not None:
        theirs = probe(other, Given(one), response="logit", with_clean=True)
        second = _known(task, theirs[:, :1] - theirs[:, 1:])
        agreement = spearman(falls, second, where=task.space.valid)
        same = falls.argmax(-1) == second.argmax(-1)
    whole = clean - none
    back = _known(task, alone - none)
    first = falls.argmax(-1)
    gates = task.inputs
    return PromptChecks(
        _counted(task, gates, task.side)[1],
        _counted(task, torch.zeros_like(gates), task.side)[1],
        clean[:, 0],
        none[:, 0],
        agreement,
        same,
        compared,
        (back >= SUFFICIENT_SHARE * whole) & (whole > 0),
        _random_spans(task, first, falls.gather(1, first[:, None])[:, 0], spans, Key(seed) / "spans"),
        tuple(circular_pairs(explainers, metrics)),
        task.off == "swap",
    )


def _nothing(task: Generation) -> Tensor:
    return torch.full((len(task),), torch.nan, dtype=torch.float64, device=task.device)


def _known(task: Generation, values: Tensor) -> Tensor:
    """Values of units that a prompt does not have come last."""
    return values if task.space.valid is None else values.masked_fill(~task.space.valid, -torch.inf)


def _other(task: Generation) -> tuple[Generation | None, str]:
    """The same prompts with the other meaning of off, where the model and the tokenizer allow one."""
    off: Off = "fill" if task.off in ("drop", "tokens") else "drop"
    try:
        other = task.with_off(off)
        if off == "drop":
            check_left(other, dropped=1)  # no more than one unit is
        return other, f"off={task.off!r} and off={off!r}"
    except VeridicalError as error:
        return None, f"only off={task.off!r} works here ({error})"


def _counted(task: Generation, gates: Tensor, side: Any) -> tuple[Tensor, Tensor]:
    """Responses and log-probabilities of answers to rows, counted."""
    response, _, own = evaluated(task, gates, side)
    task.predictor.meter.here.forward += len(gates)
    return response.double(), own.double()


def _random_spans(task: Generation, first: Tensor, fall: Tensor, draws: int, key: Key) -> Tensor:
    """The share of random spans of tokens, as many as the first unit has, whose removal costs as much.

    Another context has no counterpart of a random span, so that of a swap it is unknown.
    """
    if task.off == "swap":
        return _nothing(task)
    side = repeat_side(task.side, draws)
    assert isinstance(side, dict)
    unit = side["unit"].clone()
    drawn = keyed.uniform(key, task.draw_ids, 0, draws, torch.float64)
    possible = torch.ones(len(task), dtype=torch.bool, device=task.device)
    for sample in range(len(task)):
        own = unit[sample * draws]
        places = (own >= 0).nonzero()[:, 0]
        length = int((own == first[sample]).sum())
        begin = int((own[places] == first[sample]).double().argmax())
        starts = [at for at in range(len(places) - length + 1) if at != begin]
        possible[sample] = bool(starts)
        for draw in range(draws):
            at = starts[int(drawn[sample, draw] * len(starts))] if starts else 0
            row = torch.full_like(own, -1)
            row[places[at : at + length]] = 0
            unit[sample * draws + draw] = row
    gates = torch.zeros_like(task.inputs).repeat_interleave(draws, 0)
    response = _counted(task, gates, {**side, "unit": unit})[0].reshape(len(task), draws)
    costs = task.outputs[:, :1].double() - response
    share = (costs >= fall[:, None]).double().mean(1)
    return torch.where(possible, share, torch.nan)
