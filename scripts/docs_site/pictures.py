"""Pictures of what a metric or explainer asks: the rows that reach the model, and the maps that come back."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import veridical as vd
from veridical.explainers import Explainer
from veridical.metrics import AnyMetric, ExplainerMetric
from veridical.metrics import registry as metrics
from veridical.plots import COLOURS

SHOWN = 5
SAME_ROWS = {"ffid_plus": "rfid_plus", "ffid_minus": "rfid_minus"}
"""Metrics that ask what another asks, of a model fine-tuned before."""
SEEN: list[Any] = []
"""What the last watched call showed to its model. Models are copied, so this cannot live in one."""


def note(rows: Tensor) -> None:
    """Write rows down; a function apart, since a model that holds a growing list counts as changed."""
    SEEN.extend(rows.detach().cpu().clone())


class Watching(nn.Module):
    """A model that writes down every row it is asked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Any:
        note(given[0])
        return self.model(*given)


def watched(task: vd.Task) -> vd.Task:
    """The first sample of a task, with a model that remembers what it is asked."""
    one = vd.Task(
        Watching(task.model),
        task.inputs,
        targets=task.targets,
        labels=task.labels,
        masks=task.masks,
        space=task.space,
        fill=task.fill,
        train=task.train,
        ids=task.ids,
    )[:1]
    SEEN.clear()
    return one


def asked(one: vd.Task) -> list[Tensor]:
    """The rows a watched model has seen, without copies that fill up a chunk and without the input."""
    kept: list[Tensor] = []
    for row in SEEN:
        if not torch.equal(row, one.inputs[0].cpu()) and (not kept or not torch.equal(row, kept[-1])):
            kept.append(row)
    return kept


def noting(pairs: list[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Input times gradient, which notes each input and map it makes."""

    def input_x_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        x = inputs.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(model(x).gather(1, targets[:, None]).sum(), x)
        made = (x * slope).detach()
        pairs.extend(zip(x.detach().cpu(), made.cpu(), strict=True))
        return made

    return input_x_gradient


def some(rows: list[Any], count: int = SHOWN) -> list[tuple[int, Any]]:
    """A few of the rows with their numbers, spread evenly from the first to the last."""
    count = min(count, len(rows))
    at = [0] if count == 1 else [round(i * (len(rows) - 1) / (count - 1)) for i in range(count)]
    return [(i + 1, rows[i]) for i in at]


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()


def strip(panels: list[tuple[str, Callable[[Axes], None]]], width: float = 1.45) -> bytes:
    """Panels side by side, each with a title."""
    figure = Figure(figsize=(width * len(panels), width + 0.35), layout="constrained")
    for ax, (title, draw) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(ax)
        ax.set_title(title, fontsize=8)
    return png(figure)


def show_input(x: Tensor, like: Tensor | None = None) -> Callable[[Axes], None]:
    """An input, in the greys of the one it was made of."""
    grey = x.detach().float().cpu().mean(0)
    scale = grey if like is None else like.detach().float().cpu().mean(0)

    def draw(ax: Axes) -> None:
        ax.imshow(grey.numpy(), cmap="gray_r", vmin=float(scale.min()), vmax=float(scale.max()))
        ax.set_xticks([])
        ax.set_yticks([])

    return draw


def show_map(values: Tensor, mask: Tensor | None = None) -> Callable[[Axes], None]:
    laid = values.detach().float().cpu().reshape(values.shape[-2:])
    bound = float(laid.abs().max()) or 1.0

    def draw(ax: Axes) -> None:
        ax.imshow(laid.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound)
        if mask is not None:
            ax.contour(mask.float().cpu().numpy(), levels=[0.5], colors="black", linewidths=1.2)
        ax.set_xticks([])
        ax.set_yticks([])

    return draw


def sentences(task: vd.Task, rows: list[tuple[int, Tensor]], title: str) -> bytes:
    """Rows of a text, one line each; what was taken away is dotted."""
    valid = task.space.valid
    places = [i for i in range(task.space.n_features) if valid is None or bool(valid[0, i])]
    words = [task.space.feature_name(i, 0).split("@")[0] for i in places]
    figure = Figure(figsize=(8.2, 0.32 * len(rows) + 0.5), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_title(title, fontsize=9, loc="left")
    for place, (number, row) in enumerate(rows):
        kept = [
            word if row[i] == task.inputs[0, i] else "·" * len(word)
            for i, word in zip(places, words, strict=True)
        ]
        ax.text(
            0,
            1 - (place + 0.5) / len(rows),
            f"{number:>4}  {' '.join(kept)}",
            family="monospace",
            fontsize=7.5,
        )
    return png(figure)


def metric_asks(metric: AnyMetric, task: vd.Task) -> tuple[bytes, str]:
    """The picture of what one score asks for one sample, and what is to be seen in it."""
    image = task.modality == "image"
    if isinstance(metric, ExplainerMetric):
        return _maps_again(metric, task)
    explanation = vd.explain("integrated_gradients", task[:1])
    one = watched(task)
    vd.score(_plainest(metric), one, explanation, seed=0)
    rows = asked(one)
    if not rows:
        return _map_alone(task)
    if not image:
        return sentences(task, some(rows, 7), "rows asked of the model"), (
            "Some of the rows that the model is asked about the first review; removed words are dotted."
        )
    panels = [("input", show_input(one.inputs[0])), ("map", show_map(explanation.maps()[0]))]
    panels += [(f"row {number}", show_input(row, one.inputs[0])) for number, row in some(rows)]
    return strip(
        panels
    ), "The input, the map that is judged, and some of the rows that the model is asked because of it."


def _plainest(metric: AnyMetric) -> AnyMetric:
    """The metric that asks the same with the fewest detours: no fine-tuning, one order of tied features."""
    if metric.name in SAME_ROWS:
        metric = metrics.make(SAME_ROWS[metric.name])
    return replace(metric, ties="stable") if "ties" in {f.name for f in fields(metric)} else metric


def _maps_again(metric: ExplainerMetric, task: vd.Task) -> tuple[bytes, str]:
    pairs: list[tuple[Tensor, Tensor]] = []
    vd.score(metric, task[:1], noting(pairs), seed=0)
    figure = Figure(figsize=(1.45 * (SHOWN + 1), 3.1), layout="constrained")
    shown = some(pairs, SHOWN + 1)
    axes = figure.subplots(2, len(shown), squeeze=False)
    for column, (number, (x, values)) in enumerate(shown):
        show_input(x)(axes[0][column])
        show_map(values)(axes[1][column])
        axes[0][column].set_title(f"map {number} of {len(pairs)}", fontsize=8)
    axes[0][0].set_ylabel("input", fontsize=8)
    axes[1][0].set_ylabel("its map", fontsize=8)
    return png(figure), (
        f"The method is asked for {len(pairs)} maps of one sample, first of the input as it is; "
        "the score compares them."
    )


def _map_alone(task: vd.Task) -> tuple[bytes, str]:
    maps = {name: vd.explain(name, task[:1]) for name in ("integrated_gradients", "saliency", "random")}
    if task.masks is not None:
        mask = task.masks[0].reshape(task.inputs.shape[-2:])
        panels = [("input", show_input(task.inputs[0]))]
        panels += [(name.replace("_", " "), show_map(e.maps()[0], mask)) for name, e in maps.items()]
        return strip(panels, 1.9), "Three maps and the outline of the object. The model is not asked."
    figure = Figure(figsize=(8, 2.2), layout="constrained")
    for ax, (name, e) in zip(figure.subplots(1, len(maps), sharey=True), maps.items(), strict=True):
        sizes = e.values[0].abs().sort(descending=True).values
        ax.bar(range(len(sizes)), (sizes / sizes.sum()).numpy(), width=1.0, color=COLOURS[0])
        ax.set_title(name.replace("_", " "), fontsize=9)
        ax.set_xlabel("features, strongest first", fontsize=8)
    return png(
        figure
    ), "The share of relevance that each feature has, in three maps of one sample. The model is not asked."


def metric_result(table: vd.Evaluation) -> bytes:
    """Curves of the methods where the metric has them, else one dot per sample."""
    (name,) = table.metrics
    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    ax = figure.subplots()
    scores = {who: table[who, name] for who in table.explainers if (who, name) in table.scores}
    if all(s.curve is not None for s in scores.values()):
        for colour, (who, s) in zip(COLOURS, scores.items(), strict=False):
            s.plot(ax, color=colour, label=who.replace("_", " "))
        ax.legend(fontsize=8, frameon=False)
        ax.xaxis.label.set_fontsize(9)
        ax.yaxis.label.set_fontsize(8)
        ax.set_title("mean over samples; the band holds the middle half of them", fontsize=9)
        return png(figure)
    for place, (colour, (_who, s)) in enumerate(zip(COLOURS, reversed(scores.items()), strict=False)):
        values = s.values.detach().double().cpu()
        spread = place + torch.linspace(-0.2, 0.2, len(values))
        ax.plot(values.numpy(), spread.numpy(), ".", color=colour, alpha=0.6)
        kept = values[~values.isnan()]
        if len(kept):
            ax.plot([float(kept.mean())] * 2, [place - 0.32, place + 0.32], color="black", linewidth=1.5)
    ax.set_yticks(range(len(scores)), [who.replace("_", " ") for who in reversed(scores)])
    ax.set_xlabel(name.replace("_", " "), fontsize=9)
    ax.set_title("one dot per sample; the bar is their mean", fontsize=9)
    return png(figure)


def explainer_asks(explainer: Explainer, task: vd.Task) -> tuple[bytes, str] | None:
    """The rows a method asks about one sample; None where there is nothing to see beyond the input."""
    if explainer.control or explainer.rows_per_sample(task) < 3 or task.modality != "image":
        return None
    one = watched(task)
    explanation = vd.explain(explainer, one)
    panels = [("input", show_input(one.inputs[0]))]
    panels += [(f"row {number}", show_input(row, one.inputs[0])) for number, row in some(asked(one))]
    panels.append(("map", show_map(explanation.maps()[0])))
    return strip(
        panels
    ), "The input, some of the rows that the model is asked, and the map made of the answers."


def explainer_result(explanation: vd.Explanation, task: vd.Task) -> bytes:
    """Maps of six samples under their inputs with one colour bar; the strongest features of one elsewhere."""
    if task.modality != "image":
        figure = Figure(figsize=(6, 3), layout="constrained")
        explanation.plot(0, figure.subplots())
        return png(figure)
    figure = Figure(figsize=(8.8, 3.3), layout="constrained")
    axes = figure.subplots(2, 6)
    laid = explanation.maps()[:6].detach().float().cpu()
    low = laid.flatten(1).amin(1).clamp_min(0)[:, None, None, None]
    laid = (laid - low) / (laid - low).abs().flatten(1).amax(1).clamp_min(1e-30)[:, None, None, None]
    drawn = None
    for i in range(6):
        show_input(task.inputs[i])(axes[0][i])
        drawn = axes[1][i].imshow(laid[i, 0].numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        axes[1][i].set_axis_off()
        axes[0][i].set_title(f"explained: {int(task.targets[i])}", fontsize=8)
    figure.colorbar(drawn, ax=axes[1], shrink=0.9, label="relevance,\nlargest = 1")
    return png(figure)
