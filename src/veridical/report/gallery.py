"""Explanations of real samples as plain data: small pictures, coloured words, bars and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.data.prompt_checks import PromptChecks
from veridical.explainers.laws import notes
from veridical.functional import average_ranks
from veridical.plots import slices
from veridical.report import heads, prompts
from veridical.report.numbers import plain
from veridical.report.png import image_address, map_address
from veridical.values.explanation import Explanation
from veridical.values.task import Task

SAMPLES = 9
STRONGEST = 8
"""Bars shown of one map."""
LONGEST_TEXT = 160
"""Words shown of one text."""
BLOCK = 64
"""Samples ranked at once, so that memory does not grow with their number."""


def gallery(
    task: Task,
    explanations: Mapping[str, Explanation],
    statuses: Mapping[str, str],
    *,
    samples: int = SAMPLES,
    checks: PromptChecks | None = None,
) -> dict[str, Any]:
    """Samples from the most disputed to the least, and every explainer's map of each.

    The samples lie at equal steps along the disagreement of the candidates, so that neither the best nor the
    worst cases are picked alone.
    """
    shown = {who: e for who, e in explanations.items() if len(e) == len(task)}
    if not shown or not len(task):
        return {"kind": "none", "items": [], "of": len(task)}
    judged = [e for who, e in shown.items() if statuses.get(who) != "control"]
    disputed = disagreement(judged)
    chosen = _chosen(disputed, min(samples, len(task)))
    kind = _kind(task, next(iter(shown.values())))
    correct = None if task.labels is None or task.head not in ("multiclass", "binary") else task.labels
    items = []
    for sample in chosen:
        label = None if task.labels is None else plain(task.labels[sample])
        predicted = int(task.predictions[sample])
        items.append(
            {
                "id": int(task.ids[sample]),
                "target": int(task.targets[sample]),
                "predicted": predicted,
                "label": label,
                "right": None if correct is None else label == predicted,
                "disagreement": plain(float(disputed[sample])),
                **_input(task, sample, kind, checks),
                "maps": [
                    {"explainer": who, "status": statuses.get(who, "plain"), **_map(task, e, sample, kind)}
                    for who, e in shown.items()
                ],
            }
        )
    told = {"kind": kind, "items": items, "of": len(task), "notes": notes(shown)}
    if checks is not None:
        told["beside"] = str(checks).splitlines()
    if kind == "heads":
        told["means"] = [
            {
                "explainer": who,
                "status": statuses.get(who, "plain"),
                **heads.grid(e.space, e.values.detach().double().nanmean(0).tolist()),
            }
            for who, e in shown.items()
        ]
    return told


def disagreement(explanations: Sequence[Explanation]) -> Tensor:
    """1 minus the mean rank correlation of all pairs of maps (N,); NaN where fewer than two have a ranking.

    With each map's ranks as a unit vector z about its mean, the mean over pairs of k maps is
    (|sum z|^2 - k) / (k (k - 1)): one ranking per map instead of one per pair.
    """
    alike = [e for e in explanations if e.values.shape == explanations[0].values.shape]
    samples = len(alike[0]) if alike else 0
    found = torch.full((samples,), torch.nan, dtype=torch.float64)
    for start in range(0, samples, BLOCK):
        block = slice(start, start + BLOCK)
        directions = torch.stack([_direction(e, block) for e in alike])
        count = directions.square().sum(-1).sum(0).round()
        total = directions.sum(0).square().sum(-1)
        found[block] = torch.where(count > 1, 1 - (total - count) / (count * (count - 1)), torch.nan)
    return found


def _direction(explanation: Explanation, block: slice) -> Tensor:
    """Ranks of each map about their mean, of length 1; zeros for a map without a ranking."""
    values = explanation.values[block].detach().double().cpu()
    where = None if explanation.valid is None else explanation.valid[block].cpu()
    ranks = average_ranks(values, where)
    centred = (ranks - ranks.nanmean(-1, keepdim=True)).nan_to_num()
    length = centred.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, centred / length.clamp(min=1e-300), 0.0)


def _chosen(disputed: Tensor, count: int) -> list[int]:
    order = disputed.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
    places = torch.linspace(0, len(order) - 1, count).round().long()
    return order[places].tolist()


def _kind(task: Task, explanation: Explanation) -> str:
    if len(explanation.space.input_shape) in (3, 4) and explanation.space.kind != "element":
        return "image"
    if explanation.space.kind == "token":
        return "text"
    if explanation.space.kind == "unit" and prompts.of_prompts(task):
        return "prompt"
    if explanation.space.kind == "unit" and heads.of_heads(explanation.space):
        return "heads"
    if explanation.space.kind in ("step", "step_channel"):
        return "series"
    return "bars"


def _input(task: Task, sample: int, kind: str, checks: PromptChecks | None) -> dict[str, Any]:
    if kind == "image":
        return {"input": image_address(slices(task.inputs[sample]))}
    if kind == "prompt":
        return prompts.answer(task, sample, checks)
    if kind == "series":
        rows = task.inputs[sample].detach().double().cpu()
        steps = rows.reshape(-1, rows.shape[-1])
        return {"signal": plain(steps.mean(0))} if steps.shape[-1] == _steps(task) else {}
    return {}


def _steps(task: Task) -> int:
    return task.space.n_features if task.space.kind == "step" else task.inputs.shape[-1]


def _map(task: Task, explanation: Explanation, sample: int, kind: str) -> dict[str, Any]:
    if bool(explanation.missing[sample]):
        return {"missing": True}
    if kind == "image":
        laid = slices(explanation.take(slice(sample, sample + 1)).maps()[0])
        return {"picture": map_address(laid.reshape(-1, *laid.shape[-2:])[0])}
    values = explanation.values[sample].detach().double().cpu()
    if kind == "prompt":
        return prompts.coloured(task, sample, values.tolist())
    if kind == "heads":
        return heads.grid(explanation.space, values.tolist())
    if kind == "series":
        return {"values": plain(_over_steps(explanation, sample, values))}
    valid = explanation.valid
    there = list(range(len(values))) if valid is None else valid[sample].nonzero().flatten().tolist()
    if kind == "text":
        top = float(values[there].abs().max()) if there else 0.0
        words = [
            [explanation.space.feature_name(i, sample), plain(float(values[i]) / top if top > 0 else 0.0)]
            for i in there[:LONGEST_TEXT]
        ]
        return {"words": words, "left": max(0, len(there) - LONGEST_TEXT)}
    strongest = sorted(there, key=lambda i: -abs(float(values[i])))[:STRONGEST]
    return {
        "names": [explanation.space.feature_name(i, sample) for i in strongest],
        "values": plain([float(values[i]) for i in strongest]),
    }


def _over_steps(explanation: Explanation, sample: int, values: Tensor) -> Tensor:
    """One number per step: channels of a step are added up."""
    if explanation.space.kind == "step":
        kept = (
            values if explanation.valid is None else values.masked_fill(~explanation.valid[sample].cpu(), 0.0)
        )
        return kept
    laid = explanation.take(slice(sample, sample + 1)).maps()[0].detach().double().cpu()
    return laid.nan_to_num().reshape(-1, laid.shape[-1]).sum(0)
