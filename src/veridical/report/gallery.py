"""Explanations of real samples as plain data: small pictures, coloured words, bars and curves."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from veridical.core.space import Space
from veridical.data.generation import Generation
from veridical.data.prompt_checks import PromptChecks
from veridical.data.prompt_texts import Prompt, parts
from veridical.explainers.diagnostics import notes
from veridical.functional import average_ranks
from veridical.models.estimators import output_names
from veridical.plots import slices
from veridical.report.charts import number
from veridical.report.rendering import plain
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
    compared = [e for who, e in shown.items() if statuses.get(who) != "control"]
    disputed = disagreement(compared)
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
                **_said(task, sample),
                "disagreement": plain(float(disputed[sample])),
                **_input(task, sample, kind, checks),
                "maps": [
                    {"explainer": who, "status": statuses.get(who, "plain"), **_map(task, e, sample, kind)}
                    for who, e in shown.items()
                ],
            }
        )
    found = {"kind": kind, "items": items, "of": len(task), "notes": notes(shown)}
    if checks is not None:
        found["beside"] = str(checks).splitlines()
    if kind == "heads":
        found["means"] = [
            {
                "explainer": who,
                "status": statuses.get(who, "plain"),
                **head_grid(e.space, e.values.detach().double().nanmean(0).tolist()),
            }
            for who, e in shown.items()
        ]
    return found


def _said(task: Task, sample: int) -> dict[str, Any]:
    """The name of the explained output, what the model says to it, and both in words."""
    target = int(task.targets[sample])
    held = None if task.labels is None or task.labels.dim() > 1 else int(task.labels[sample])
    names, response = (
        output_names(task.predictor.source.module),
        plain(float(task.clean_response("probability")[sample])),
    )
    name = str(names[target]) if len(names) == task.n_outputs else f"output {target}"
    kind = "value" if task.head in ("regression", "generation") else "probability"
    says = f"{name}, {kind} {number(response, 3)}"
    named = "" if held is None or len(names) != task.n_outputs else str(names[held])
    return {"output": name, "response": response, "says": says, "named": named}


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
    """How maps of this task are shown."""
    space = explanation.space
    if len(space.input_shape) in (3, 4) and space.kind != "element":
        return "image"
    if space.kind == "unit" and of_prompts(task):
        return "prompt"
    if space.kind == "unit" and of_heads(space):
        return "heads"
    return {"token": "text", "step": "series", "step_channel": "series"}.get(space.kind, "bars")


def _input(task: Task, sample: int, kind: str, checks: PromptChecks | None) -> dict[str, Any]:
    """What stands beside the maps of a sample: its picture, its answer, its signal."""
    if kind == "image":
        return {"input": image_address(slices(task.inputs[sample]))}
    if kind == "prompt":
        return answer(task, sample, checks)
    steps = task.space.n_features if task.space.kind == "step" else task.inputs.shape[-1]
    if kind == "series" and task.inputs.shape[-1] == steps:
        return {"signal": plain(task.inputs[sample].detach().double().reshape(-1, steps).mean(0))}
    return {}


def _map(task: Task, explanation: Explanation, sample: int, kind: str) -> dict[str, Any]:
    """One explainer's map of a sample, as its kind of input is shown."""
    if bool(explanation.missing[sample]):
        return {"missing": True}
    space, valid = explanation.space, explanation.valid
    values = explanation.values[sample].detach().double().cpu()
    if kind == "image":
        laid = slices(explanation.take(slice(sample, sample + 1)).maps()[0])
        return {"picture": map_address(laid.reshape(-1, *laid.shape[-2:])[0])}
    if kind == "prompt":
        return coloured(task, sample, values.tolist())
    if kind == "heads":
        return head_grid(space, values.tolist())
    if space.kind == "step_channel":  # channels of a step are added up
        laid = explanation.take(slice(sample, sample + 1)).maps()[0].detach().double().cpu()
        values = laid.nan_to_num().reshape(-1, laid.shape[-1]).sum(0)
    if kind == "series":
        shown = valid[sample].cpu() if space.kind == "step" and valid is not None else None
        return {"values": plain(values if shown is None else values.where(shown, 0.0))}
    there = list(range(len(values))) if valid is None else valid[sample].nonzero().flatten().tolist()
    if kind == "text":
        top = max((abs(float(values[i])) for i in there), default=0.0) or 1.0
        words = [[space.feature_name(i, sample), plain(float(values[i]) / top)] for i in there[:LONGEST_TEXT]]
        return {"words": words, "left": max(0, len(there) - LONGEST_TEXT)}
    strongest = sorted(there, key=lambda i: -abs(float(values[i])))[:STRONGEST]
    return {
        "names": [_with_value(task, explanation, i, sample) for i in strongest],
        "values": plain([float(values[i]) for i in strongest]),
    }


def _with_value(task: Task, explanation: Explanation, feature: int, sample: int) -> str:
    """A feature by its name, a column of a table with what stands in it."""
    name = explanation.space.feature_name(feature, sample)
    if explanation.space.kind != "column" or explanation.space.n_features != task.inputs.shape[1]:
        return name
    codec = getattr(task.predictor.source.module, "codec", None)
    value = task.inputs[sample, feature].item()
    if codec is not None and codec.categories[feature] is not None and value == value:
        value = codec.categories[feature][int(value)]
    shown = "missing" if value != value else number(value, 2) if isinstance(value, float) else str(value)
    return f"{name} = {shown}"


LONGEST_PIECE = 400
"""Characters shown of one unit; the middle of a longer one is left out."""
LONGEST_PROMPT = 400
"""Units shown of one prompt."""
FINE = ("token", "word")
"""Kinds of units that are small enough to be added up over sentences."""


def of_prompts(task: Task) -> bool:
    """Whether the samples are prompts whose parts are explained."""
    return isinstance(task, Generation) and task.space.n_features == max(len(p.units) for p in task.prompts)


def answer(task: Task, sample: int, checks: PromptChecks | None) -> dict[str, Any]:
    """What was answered, the foil, how likely the answer is against it, and what to beware of."""
    assert isinstance(task, Generation)
    given = task.answers[sample]
    return {
        "answer": given.text,
        "foil": given.foil,
        "response": plain(float(task.outputs[sample, 0])),
        "alone": None if checks is None else plain(float(checks.response_without[sample])),
        "beware": [] if checks is None else checks.flags(sample),
    }


def coloured(task: Task, sample: int, values: Sequence[float]) -> dict[str, Any]:
    """Sentences of pieces [text, share]; a share is None where no unit is, and 1 at the strongest unit.

    A sentence has a share of its own, the sum over its units, where these are finer than sentences.
    """
    assert isinstance(task, Generation)
    prompt, fine = task.prompts[sample], task.units in FINE
    groups = _grouped(prompt.text, _pieces(prompt)) if fine else [_pieces(prompt)]
    sums = [sum(values[piece.unit] for piece in group if piece.unit is not None) for group in groups]
    top, most = (max(map(abs, held), default=0.0) or 1.0 for held in (values, sums))
    sentences = [
        {
            "share": total / most if fine else None,
            "pieces": [[p.text, None if p.unit is None else values[p.unit] / top] for p in group],
        }
        for total, group in zip(sums, groups, strict=True)
    ]
    shown: dict[str, Any] = plain(
        {"sentences": sentences, "left": max(0, len(prompt.units) - LONGEST_PROMPT)}
    )
    return shown


class Piece(NamedTuple):
    """A piece of a prompt, its unit, if it is of one, and where it begins."""

    text: str
    unit: int | None
    start: int


def _pieces(prompt: Prompt) -> list[Piece]:
    """The text cut where units begin and end."""
    found, at = [], 0
    for unit, (start, stop) in enumerate(prompt.places[:LONGEST_PROMPT]):
        if start > at:
            found.append(Piece(_short(prompt.text[at:start]), None, at))
        found.append(Piece(_short(prompt.text[start:stop]), unit, start))
        at = stop
    if len(prompt.places) <= LONGEST_PROMPT and at < len(prompt.text):
        found.append(Piece(_short(prompt.text[at:]), None, at))
    return found


def _grouped(text: str, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces by the sentence in which they begin."""
    starts = [start for start, _ in parts(text, "sentence")]
    groups: dict[int, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(sum(start <= piece.start for start in starts), []).append(piece)
    return list(groups.values())


def _short(text: str) -> str:
    if len(text) <= LONGEST_PIECE:
        return text
    half = LONGEST_PIECE // 2
    return f"{text[:half]} … {text[-half:]}"


HEAD = re.compile(r"layer (\d+) head (\d+)")


def of_heads(space: Space) -> bool:
    """Whether every feature is an attention head."""
    names = space.names or ()
    return bool(names) and all(isinstance(name, str) and HEAD.fullmatch(name) for name in names)


def head_grid(space: Space, values: Sequence[float]) -> dict[str, Any]:
    """Shares of the strongest head by layer and head, None where a layer has no such head."""
    places = [
        tuple(map(int, found.groups())) for name in space.names or () if (found := HEAD.fullmatch(name))
    ]
    top = max(map(abs, values), default=0.0) or 1.0
    layers, heads = (max(axis) + 1 for axis in zip(*places, strict=True))
    rows: list[list[float | None]] = [[None] * heads for _ in range(layers)]
    for (layer, head), value in zip(places, values, strict=True):
        rows[layer][head] = value / top
    shares: dict[str, Any] = plain({"grid": rows, "top": top})
    return shares


SIDE = 96
"""Longest side of a picture in the page; larger ones are averaged down to it."""
SIGNED = ((5, 70, 140), (120, 175, 215), (250, 250, 250), (232, 140, 105), (160, 25, 35))
POSITIVE = ((250, 250, 250), (247, 200, 175), (225, 110, 80), (160, 25, 35), (85, 5, 25))


def map_address(values: Tensor) -> str:
    """A map (H, W): blue to red about zero where it has both signs, else from least to most.

    The scale ends at the largest magnitude, except that the strongest hundredth may saturate, so that one
    bright pixel does not hide the rest.
    """
    values = shrunk(torch.nan_to_num(values.detach().double().cpu())[None])[0]
    low = float(values.min())
    if low >= 0:
        top = max(_bright(values - low), 1e-300)
        level = ((values - low) / top).clamp(0, 1)
        return _address(level.mul(255).round().to(torch.uint8), _palette(POSITIVE))
    top = max(_bright(values.abs()), 1e-300)
    level = (values / top).clamp(-1, 1).add(1).div(2)
    return _address(level.mul(254).round().to(torch.uint8), _palette(SIGNED, 255))


def _bright(values: Tensor) -> float:
    top = float(torch.quantile(values.reshape(-1), 0.99)) if values.numel() > 200 else float(values.max())
    return top if top > 0 else float(values.max())


def image_address(image: Tensor) -> str:
    """An input (C, H, W) stretched over its own range; anything but three channels becomes grey."""
    image = torch.nan_to_num(image.detach().double().cpu())
    image = shrunk(image if len(image) == 3 else image.mean(0, keepdim=True))
    low, high = float(image.min()), float(image.max())
    level = (image - low) / (high - low) if high > low else image * 0
    pixels = level.mul(255).round().to(torch.uint8)
    if len(pixels) == 1:
        return _address(pixels[0], _palette(((0, 0, 0), (255, 255, 255))))
    return _address(pixels.movedim(0, -1).contiguous(), None)


def shrunk(image: Tensor, side: int = SIDE) -> Tensor:
    """An image (C, H, W) of at most this many pixels per side."""
    longest = max(image.shape[-2:])
    if longest <= side:
        return image
    size = [max(1, round(side * n / longest)) for n in image.shape[-2:]]
    return interpolate(image[None], size=size, mode="area")[0]


@cache
def _palette(stops: tuple[tuple[int, int, int], ...], count: int = 256) -> bytes:
    """Colours between the stops, evenly."""
    at = np.linspace(0, len(stops) - 1, count)
    channels = [np.interp(at, range(len(stops)), channel) for channel in zip(*stops, strict=True)]
    return np.stack(channels, 1).round().astype(np.uint8).tobytes()


def _address(pixels: Tensor, palette: bytes | None) -> str:
    return "data:image/png;base64," + base64.b64encode(encode(pixels, palette)).decode()


def encode(pixels: Tensor, palette: bytes | None = None) -> bytes:
    """Bytes of a PNG file: indices (H, W) into a palette, or colours (H, W, 3)."""
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    head = pack(">2I5B", width, height, 8, 2 if palette is None else 3, 0, 0, 0)
    # every line begins with the number of its filter: 0 for none
    lines = np.pad(pixels.numpy().reshape(height, -1), ((0, 0), (1, 0))).tobytes()
    colours = b"" if palette is None else chunk(b"PLTE", palette)
    parts = (chunk(b"IHDR", head), colours, chunk(b"IDAT", zlib.compress(lines, 9)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
