"""Pictures of explanations and scores: every function takes `ax=` and returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.plots import COLOURS, as_image, axes, slices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veridical.values.explanation import Explanation
    from veridical.values.scores import Scores


def plot_explanation(
    explanation: Explanation, sample: int, ax: Axes | None, inputs: Tensor | None = None
) -> Axes:
    """A heat map over an image, a curve over a series, bars over tokens and columns."""
    ax = axes(ax)
    space, values = explanation.space, explanation.values[sample].detach().float().cpu()
    name = explanation.explainer
    if len(space.input_shape) in (3, 4) and space.kind != "element":
        laid = slices(explanation.take(slice(sample, sample + 1)).maps()[0].detach().float().cpu())
        if inputs is not None:
            grey = as_image(slices(inputs[sample]))
            ax.imshow((grey if grey.dim() == 2 else grey.mean(-1)).numpy(), cmap="gray_r", alpha=0.35)
        scale = _colours(laid)
        ax.imshow(laid[0].numpy(), alpha=1.0 if inputs is None else 0.8, **scale)
        ax.set_axis_off()
    elif space.kind in ("step", "step_channel", "element") and space.n_features > 12:
        ax.plot(values.numpy(), color=COLOURS[0])
        ax.axhline(0, color="0.7", linewidth=0.8)
        ax.set_xlabel(f"{space.kind.replace('_', ' x ')}")
        ax.set_ylabel("relevance")
    else:
        count = int(space.valid[sample].sum()) if space.valid is not None else space.n_features
        chosen = explanation.order[sample, :count].cpu()
        strongest = chosen[values[chosen].abs().argsort(descending=True)[:12]].flip(0)
        colours = [COLOURS[1] if values[i] >= 0 else COLOURS[0] for i in strongest]
        names = [space.feature_name(int(i), sample) for i in strongest]
        # by place, not by name: the same word may stand in a text twice
        error = (
            None if explanation.error is None else (explanation.interval()[1] - explanation.values)[sample]
        )
        wide = None if error is None else error.detach().float().cpu()[strongest].numpy()
        ax.barh(range(len(names)), values[strongest].numpy(), xerr=wide, color=colours)
        ax.set_yticks(range(len(names)), names)
        ax.axvline(0, color="0.7", linewidth=0.8)
        ax.set_xlabel("relevance")
    ax.set_title(name, fontsize=9)
    return ax


def _colours(laid: Tensor) -> dict[str, Any]:
    """Blue and red around zero for signed maps; from the least to the most for those of one sign."""
    low, high = float(laid.min()), float(laid.max())
    if low >= 0 and high > low:
        return {"cmap": "Reds", "vmin": low, "vmax": high}
    bound = max(abs(low), abs(high)) or 1.0
    return {"cmap": "RdBu_r", "vmin": -bound, "vmax": bound}


def plot_scores(scores: Scores, ax: Axes | None, color: str = COLOURS[0], label: str | None = None) -> Axes:
    """The mean curve with the band of its middle half, or the distribution of the values."""
    ax = axes(ax)
    label = label or scores.explainer or scores.metric
    if scores.curve is not None:
        x, y = scores.curve.x.cpu(), scores.curve.y.double().cpu()
        quarter = torch.nanquantile(y, torch.tensor([0.25, 0.75], dtype=y.dtype), dim=0)
        ax.fill_between(
            x.numpy(), quarter[0].numpy(), quarter[1].numpy(), alpha=0.2, color=color, linewidth=0
        )
        ax.plot(x.numpy(), y.nanmean(0).numpy(), color=color, label=label)
        ax.set_xlabel(scores.curve.x_label)
        ax.set_ylabel(scores.curve.y_label)
    else:
        kept = scores.values[~scores.values.isnan()].cpu()
        ax.hist(kept.numpy(), bins=min(30, max(5, len(kept) // 4)), color=color, alpha=0.8, label=label)
        ax.set_xlabel(scores.metric.replace("_", " "))
        ax.set_ylabel("samples")
    ax.set_title(f"{scores.metric.replace('_', ' ')} ({scores.direction.value} is better)", fontsize=9)
    return ax
