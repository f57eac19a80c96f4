"""Pictures of concepts: the patches that activate them, their importances, and how far they carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Embeddings, Head
from veridical.errors import InputError, ShapeError
from veridical.plots import COLOURS, as_image, axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def strongest(concepts: Concepts, embeddings: Embeddings, output: int, count: int) -> tuple[Tensor, Tensor]:
    """For each concept of an output (K, count): the samples that activate it most, and where in them."""
    positions = embeddings.values.shape[1] if embeddings.spatial else 1
    codes = concepts.project(embeddings.values.reshape(-1, embeddings.dimension))[
        :, 0 if concepts.shared else output
    ]
    best, where = codes.reshape(len(embeddings), positions, -1).max(1)
    samples = best.argsort(dim=0, descending=True, stable=True)[:count].T
    return samples, where.T.gather(1, samples)


def patch(image: Tensor, where: int, grid: tuple[int, int] | None, size: float = 0.4) -> Tensor:
    """The part of an image (C, H, W) around a cell of the map; the whole image where there is no map."""
    if grid is None or grid == (1, 1):
        return image
    high, wide = image.shape[1:]
    tall, broad = max(1, round(size * high)), max(1, round(size * wide))
    top = round((where // grid[1] + 0.5) / grid[0] * high - tall / 2)
    left = round((where % grid[1] + 0.5) / grid[1] * wide - broad / 2)
    top, left = min(max(0, top), high - tall), min(max(0, left), wide - broad)
    return image[:, top : top + tall, left : left + broad]


def concept_grid(
    concepts: Concepts,
    embeddings: Embeddings,
    head: Head,
    inputs: Tensor,
    output: int = 0,
    patches: int = 6,
    most: int = 5,
    names: Sequence[str] | None = None,
) -> Figure:
    """One output's concepts: the patches that activate each most, its importance, and its logits.

    A row is a concept, the most important by magnitude on top.

    Parameters
    ----------
    concepts, embeddings, head
        Collect embeddings with positions to see patches; without them whole images are shown.
    inputs
        The images of the embeddings (N, C, H, W).
    output
        Whose concepts are shown.
    patches, most
        Patches of a concept, and concepts, at most.
    names
        Names of the outputs.

    Returns
    -------
    Figure
        Of matplotlib.
    """
    if not 0 <= output < head.n_outputs:
        raise InputError(f"the head has outputs 0 to {head.n_outputs - 1}, got {output}")
    if inputs.dim() != 4 or len(inputs) != len(embeddings):
        wanted = f"({len(embeddings)}, C, H, W), got {tuple(inputs.shape)}"
        raise ShapeError(f"a grid shows the images of the embeddings: expected {wanted}")
    weights = concepts.importances[output]
    present = concepts.present[0 if concepts.shared else output]
    order = weights.abs().masked_fill(~present, -1).argsort(dim=-1, descending=True, stable=True)
    order = order[: min(most, int(present.sum()))]
    if not len(order):
        raise InputError(f"output {output} has no concepts: {concepts.flags.get(output, 'none were found')}")
    shown = min(patches, len(embeddings))
    figure = pyplot().figure(figsize=(shown + 5.4, len(order) + 0.9), layout="constrained")
    grid = figure.add_gridspec(len(order), shown + 5)
    samples, where = strongest(concepts, embeddings, output, shown)
    for row, k in enumerate(order.tolist()):
        for column in range(shown):
            ax = figure.add_subplot(grid[row, column])
            _show_patch(ax, inputs[int(samples[k, column])], int(where[k, column]), embeddings.grid)
            if column == 0:
                ax.set_ylabel(f"concept {k}", fontsize=8)
    bars = figure.add_subplot(grid[:, shown : shown + 2])
    _importance_bars(bars, weights[order].tolist())
    _surrogate_against_model(concepts, embeddings, head, output, figure.add_subplot(grid[:, shown + 2 :]))
    title = f"output {output}" if names is None else names[output]
    figure.suptitle(f"{concepts.method}: concepts of {title}", fontsize=10)
    return figure


def _show_patch(ax: Axes, image: Tensor, where: int, grid: tuple[int, int] | None) -> None:
    """The part of an image that activates a concept, in the colours it has in the image as a whole."""
    whole = as_image(image)
    channels = whole[None] if whole.dim() == 2 else whole.movedim(-1, 0)
    part = patch(channels, where, grid).movedim(0, -1).squeeze(-1)
    # a dozen pixels are a mosaic that the eye cannot read
    ax.imshow(part.numpy(), interpolation="bilinear", cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _importance_bars(ax: Axes, heights: list[float]) -> None:
    """Importances with their values, each bar beside its row of patches."""
    colours = [COLOURS[1] if height >= 0 else COLOURS[0] for height in heights]
    drawn = ax.barh(range(len(heights)), heights, 0.6, color=colours)
    ax.bar_label(drawn, [f" {height:.3g} " for height in heights], fontsize=7)
    ax.margins(x=0.3)
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set(yticks=[], ylim=(len(heights) - 0.5, -0.5), xlabel="importance")
    ax.spines[["top", "right", "left"]].set_visible(False)


def _surrogate_against_model(
    concepts: Concepts, embeddings: Embeddings, head: Head, output: int, ax: Axes | None = None
) -> Axes:
    """The surrogate's logit over the model's, a point per sample; faithful concepts lie on the diagonal."""
    ax = axes(ax, 3.2, 3.2)
    h = embeddings.pooled
    wanted = head.outputs(h)
    y, guess = wanted[:, output], concepts.surrogate(h, head)[:, output]
    own = head.membership(wanted)[:, output]
    yes = {"multilabel": "held true", "regression": "all"}.get(head.kind, "predicted as it")
    for mask, color, label in ((~own, COLOURS[7], "others"), (own, COLOURS[1], yes)):
        if bool(mask.any()):
            ax.plot(y[mask].tolist(), guess[mask].tolist(), ".", markersize=3, color=color, label=label)
    ax.axline((float(y[0]), float(y[0])), slope=1, color="0.4", linewidth=0.8, zorder=0)
    error = f"MAE {float((y - guess).abs().mean()):.3g}"
    ax.set(title=error, box_aspect=1, xlabel="model's output", ylabel="surrogate's")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False)
    return ax
