"""Draw the pictures of docs/understand/ with the code they explain.

`python scripts/make_figures.py [gef qge fidelity surf meta dictionaries]` writes docs/assets/understand;
the same code gives the same picture.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from math import comb
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import veridical as vd
from veridical.data.known_answers import TIERS, tier_weights
from veridical.fidelity.removal import budget, removal_counts
from veridical.functional import rms_normalise
from veridical.gef import plot_path
from veridical.gef.noise_path import LEFT
from veridical.meta.plots import area_chart
from veridical.plots import COLOURS

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets" / "understand"
STYLE = {
    "svg.hashsalt": "veridical",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def panels(columns: int, width: float = 4.2, height: float = 3.1) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def keep(figure: Figure, name: str) -> None:
    """Write a picture without the day it was made on, which would change every time."""
    ASSETS.mkdir(parents=True, exist_ok=True)
    figure.savefig(ASSETS / f"{name}.svg", metadata={"Date": None})
    print(ASSETS / f"{name}.svg", flush=True)


# --- GEF --------------------------------------------------------------------------------------------


def gef() -> None:
    task = vd.tasks.load("digits")[:64]
    gef_path(task)
    gef_moves(task)
    gef_arc(task[:1])


def gef_path(task: vd.Task) -> None:
    found = vd.gef.FastGEF().noise_path(task)
    figure, (ax,) = panels(1, 5.0)
    ax.plot(
        found.searched,
        found.agreement,
        "o",
        color=COLOURS[5],
        markersize=4,
        label="noisy models of one level",
    )
    ax.plot(found.searched, found.fitted, color=COLOURS[0], label="fitted curve")
    ax.axhline(LEFT, color="0.5", linestyle=":", label="a tenth is left")
    ax.axvline(found.sigma_max, color=COLOURS[1], label=f"end of the path, {found.sigma_max:.1f}")
    for level in found.levels:
        ax.plot(level, 0, marker="^", color=COLOURS[1], clip_on=False, markersize=6)
    ax.set_xlim(0, min(max(found.searched), 2.2 * found.sigma_max))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("weight noise σ")
    ax.set_ylabel("agreement with the undisturbed model")
    ax.legend(fontsize=8, frameon=False)
    keep(figure, "gef-path")


def gef_moves(task: vd.Task) -> None:
    names = ["gradient", "guided_backprop", "random", "constant"]
    scores = {name: vd.score("fast_gef", task, name) for name in names}
    figure, (left, right) = panels(2)
    plot_path(scores, left)
    what = {
        "score": "score",
        "ceiling": "ceiling",
        "rho_sigma_explanation": "rank correlation of level and map",
        "partial": "partial, given the level",
    }
    for place, key in enumerate(what):
        values = [
            own.mean(skip_nan=True) if key == "score" else float(own.details[key].nanmean())
            for own in scores.values()
        ]
        at = [i + 0.2 * (place - 1.5) for i in range(len(names))]
        right.bar(at, values, width=0.19, color=COLOURS[place], label=what[key])
    right.axhline(0, color="0.4", linewidth=0.8)
    right.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=8)
    right.set_ylim(-0.1, 1.3)
    right.legend(fontsize=7, frameon=False, ncols=2, loc="upper center")
    keep(figure, "gef-moves")


def walked(task: vd.Task, sigma: float, key: vd.core.Key, steps: int) -> torch.Tensor:
    """The gradient map of one sample (steps + 1, V) while the weights walk straight to noisy ones."""
    worlds = [task.with_noise(sigma, key, step=t / steps) for t in range(1, steps + 1)]
    maps = [rms_normalise(vd.explain("gradient", world).values.double())[0] for world in [task, *worlds]]
    return torch.stack(maps)


def gef_arc(task: vd.Task) -> None:
    """A map's way through its own space, and its length by the number of steps, for two kinds of model."""
    sigma, key, fine = 1.2, vd.core.Key(4) / "walk", 64
    walk = walked(task, sigma, key, fine)
    _, _, directions = torch.linalg.svd(walk - walk.mean(0), full_matrices=False)
    seen = ((walk - walk[0]) @ directions[:2].T).numpy()
    figure, (left, right) = panels(2)
    left.plot(seen[:, 0], seen[:, 1], color="0.75", linewidth=1, label="the map's way, 64 steps")
    five = seen[[round(fine * t / 5) for t in range(6)]]
    left.plot(five[:, 0], five[:, 1], "o-", color=COLOURS[0], markersize=4, label="arc, 5 steps")
    left.plot(*seen[[0, -1]].T, "--", color=COLOURS[1], label="straight distance (fast)")
    left.set_xlabel("first direction of the walk")
    left.set_ylabel("second")
    left.legend(fontsize=7, frameon=False)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        smooth = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
        )
    steps = [1, 2, 4, 8, 16, 32, 64]
    models = {"ReLU and max-pooling": walk, "tanh": walked(vd.Task(smooth, task.inputs), sigma, key, fine)}
    for place, (name, way) in enumerate(models.items()):
        length = [float((way[:: fine // t].diff(dim=0)).norm(dim=-1).sum()) for t in steps]
        right.plot(steps, [v / length[0] for v in length], "o-", color=COLOURS[2 * place], label=name)
    right.axhline(1, color=COLOURS[1], linestyle="--", label="straight distance")
    right.set_xscale("log", base=2)
    right.set_xticks(steps, [str(t) for t in steps])
    right.set_ylim(bottom=0)
    right.set_xlabel("steps T")
    right.set_ylabel("length of the way / straight distance")
    right.legend(fontsize=8, frameon=False)
    keep(figure, "gef-arc")


# --- QGE --------------------------------------------------------------------------------------------


def qge() -> None:
    task = vd.tasks.load("digits")[:4]
    explanation = vd.explain("integrated_gradients", task)
    inverse = explanation.inverted()
    figure, (a, b, c) = panels(3, 3.1, 2.8)
    explanation.plot(0, a)
    a.set_title("a map", fontsize=9)
    inverse.plot(0, b)
    b.set_title("its inverse: same values, reverse order", fontsize=9)
    curves = [vd.score("pixel_flipping", task, e).curve for e in (explanation, inverse)]
    assert all(curve is not None for curve in curves)
    x = torch.linspace(0, 1, curves[0].y.shape[-1])  # type: ignore[union-attr]
    own, other = (curve.y[0].cpu() for curve in curves)  # type: ignore[union-attr]
    c.plot(x, own, color=COLOURS[1], label="the map")
    c.plot(x, other, color=COLOURS[0], linestyle="--", label="its inverse")
    c.fill_between(x, own, other, color="0.9", label="QGE")
    c.set_xlabel("share of pixels removed")
    c.set_ylabel("probability of the class")
    c.legend(fontsize=7, frameon=False)
    keep(figure, "qge-inverse")

    patches = task.with_space(vd.Space.patches((1, 8, 8), (4, 2)))
    figure, (left, right) = panels(2)
    vd.qge.standing(patches, "pixel_flipping", "integrated_gradients").plot(sample=0, ax=left)
    left.legend(fontsize=7, frameon=False, loc="upper center")
    study = vd.qge.exhaustive_study(patches, draws=8, progress=False)
    study.plot(right)
    keep(figure, "qge-standing")


# --- F-Fidelity -------------------------------------------------------------------------------------


def fidelity() -> None:
    figure, (left, right) = panels(2)
    n, alpha, beta = torch.tensor([100]), 0.5, 0.1
    sizes = torch.arange(1, 100)[None]
    for sign, colour in (("plus", COLOURS[1]), ("minus", COLOURS[0])):
        free = removal_counts(sizes, n, sign, alpha)  # type: ignore[arg-type]
        capped = removal_counts(sizes, n, sign, alpha, budget(n, beta))  # type: ignore[arg-type]
        mark = "+" if sign == "plus" else "−"
        left.plot(sizes[0], free[0], color=colour, linestyle=":", label=f"RFid{mark}")
        left.plot(sizes[0], capped[0], color=colour, label=f"FFid{mark}")
    left.set_xlabel("explanation size s, of n = 100")
    left.set_ylabel("features removed")
    left.legend(fontsize=8, frameon=False)
    first = TIERS[0]
    for place, cap in enumerate((0.05, 0.1, 0.2)):
        curve = [expected_drop(size, 1.0, round(cap * sum(TIERS))) for size in range(1, 80)]
        right.plot(range(1, 80), curve, color=COLOURS[place], label=f"β = {cap:g}")
    right.axvline(first, color="0.5", linestyle=":", label=f"first tier, {first} of 100")
    right.set_xlabel("explanation size s")
    right.set_ylabel("FFid+, exact expectation")
    right.legend(fontsize=8, frameon=False)
    keep(figure, "ffid-size")

    known = vd.tasks.load("digits")
    task = known[:200]
    tuned = vd.fidelity.finetune(task, epochs=6, rate=1e-3)
    table = vd.fidelity.robustness_table(task, tuned, shares=(0.0, 0.05, 0.1, 0.2, 0.3))
    figure, (ax,) = panels(1, 5.0)
    for place, (name, row) in enumerate(table.accuracy.items()):
        ax.plot(
            [100 * s for s in table.shares], [100 * v for v in row], "o-", color=COLOURS[place], label=name
        )
    ax.axvspan(0, 100 * tuned.beta, color="0.93", label="what fine-tuning has seen")
    ax.set_xlabel("features masked, %")
    ax.set_ylabel("accuracy, %")
    ax.legend(fontsize=8, frameon=False)
    keep(figure, "ffid-robustness")


def expected_drop(size: int, alpha: float, most: int) -> float:
    """The fall of Theorem 1's model when random elements of the `size` strongest go, by exact counting."""
    weights = tier_weights()
    present = [min(TIERS[0], size), min(TIERS[1], max(0, size - TIERS[0])), max(0, size - sum(TIERS[:2]))]
    removed = min(int(alpha * size + 1e-9), most)
    total = sum(w * t for w, t in zip(weights, TIERS, strict=True))

    def answer(gone: tuple[int, int, int]) -> float:
        left = total - sum(w * k for w, k in zip(weights, gone, strict=True))
        return 1 / (1 + 2.718281828459045 ** -(12 * left / total - 6))

    expected = 0.0
    for i in range(min(present[0], removed) + 1):
        for j in range(min(present[1], removed - i) + 1):
            k = removed - i - j
            if k <= present[2]:
                ways = comb(present[0], i) * comb(present[1], j) * comb(present[2], k)
                expected += ways / comb(size, removed) * answer((i, j, k))
    return answer((0, 0, 0)) - expected


# --- SURF -------------------------------------------------------------------------------------------


def surf() -> None:
    task = vd.tasks.load("digits")
    table = vd.concepts.sanity(task, draws=10)
    figure, (left, right) = panels(2)
    settings = ("Perfect", "Rand-Imp", "Full-Rand")
    for place, measure in enumerate(("ICE-Eval", "SURF")):
        values = [table.value(setting, measure, "emd") for setting in settings]
        at = [i + 0.36 * (place - 0.5) for i in range(3)]
        bars = left.bar(at, values, width=0.34, color=COLOURS[place], label=measure)
        left.bar_label(bars, [f"{v:.2f}" for v in values], fontsize=7)
    left.set_xticks(range(3), settings)
    left.set_ylabel("error in probabilities (EMD)")
    left.legend(fontsize=8, frameon=False)
    methods = [
        vd.concepts.PCA(),
        vd.concepts.KMeans(),
        vd.concepts.NMF(),
        vd.concepts.ICE(),
        vd.concepts.SAE(steps=600),
    ]
    found = vd.concepts.compare(task, methods)
    names = list(found.splits)
    concepts = [found.splits[name].concepts for name in names]
    rest = [found.splits[name].importances for name in names]
    right.bar(names, concepts, color=COLOURS[0], label="concepts")
    right.bar(names, rest, bottom=concepts, color=COLOURS[4], label="importances")
    right.set_ylabel("SURF, error in logits (MAE)")
    right.legend(fontsize=8, frameon=False, title="whose fault", title_fontsize=8)
    keep(figure, "surf-sanity")

    parts = vd.concepts.split(task)
    train, test, head = parts.train(), parts.test(), parts.head
    figure, (ax,) = panels(1, 5.0)
    for place, method in enumerate((vd.concepts.PCA(), vd.concepts.NMF())):
        curve = vd.concepts.parsimony(method, train, test, head, counts=(1, 2, 3, 5, 8, 12))
        curve.plot(ax=ax, color=COLOURS[place])
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=8, frameon=False)
    keep(figure, "surf-parsimony")


# --- meta-evaluation --------------------------------------------------------------------------------


def meta() -> None:
    task = vd.tasks.load("digits")[:64]
    metrics = ["sparseness", "pixel_flipping", "max_sensitivity", vd.meta.PredictionHolds()]
    explainers = ["gradient", "saliency", "input_x_gradient"]
    result = vd.meta.meta_evaluate(task, metrics, explainers, draws=3, iterations=2)
    figure, axes = panels(4, 2.5, 2.7)
    for ax, name in zip(axes, result.metrics, strict=True):
        area_chart(result, name, ax)
    axes[0].legend(fontsize=7, loc="lower left", frameon=False)
    keep(figure, "meta-areas")

    judges = ["pixel_flipping", "insertion", "faithfulness_correlation", "infidelity", "sparseness"]
    figure, (ax,) = panels(1, 6.0, 2.8)
    vd.meta.planted_damage(task[:24], [*judges, vd.meta.PredictionHolds()]).plot(ax)
    keep(figure, "meta-damage")

    strengths = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 2.0]
    figure, (ax,) = panels(1, 5.0)
    changed = []
    for strength in strengths:
        worlds = [task.with_noise(strength, vd.core.Key(draw) / "strength") for draw in range(10)]
        moved = [float((task.predictions != world.predictions).double().mean()) for world in worlds]
        changed.append(sum(moved) / len(moved))
    ax.plot(strengths, changed, "o-", color=COLOURS[0])
    for mode, colour, text in (("nr", COLOURS[2], "slight"), ("ar", COLOURS[1], "disruptive")):
        strength = result.amounts["mpt", mode].weights  # type: ignore[index]
        ax.axvline(strength, color=colour, label=f"{text} noise, {strength:.3g}")
    ax.set_xscale("log")
    ax.set_ylim(0, 1)
    ax.set_xlabel("weight noise s")
    ax.set_ylabel("share of predictions that change")
    ax.legend(fontsize=8, frameon=False)
    keep(figure, "meta-strength")


# --- dictionaries: drawn from what the replication measured -------------------------------------------


def dictionaries() -> None:
    results = ASSETS.parents[2] / "replications" / "dictionaries" / "results"
    table = pd.read_csv(results / "planted_trust.csv")
    means = pd.read_csv(results / "planted_means.csv")
    table, means = (frame[frame["kind"] == "topk"] for frame in (table, means))
    figure, (left, right, last) = panels(3, 3.9, 3.6)
    each = table.groupby("metric")["steps"]
    order = each.median().fillna(0).sort_values().index
    shades = {"use": COLOURS[2], "separates only": COLOURS[4], "follows truth only": COLOURS[5]}
    for place, metric in enumerate(order):
        rows = table[table["metric"] == metric]
        colours = [shades.get(verdict, COLOURS[1]) for verdict in rows["verdict"]]
        left.scatter(rows["steps"].clip(-5, 31).fillna(0), [place] * len(rows), c=colours, s=14)
    for verdict, colour in (*shades.items(), ("do not use", COLOURS[1])):
        left.scatter([], [], c=colour, s=14, label=verdict)
    left.set_yticks(range(len(order)), order, fontsize=7)
    left.axvline(1, color="black", lw=0.8, ls=":")
    left.set_xlabel("gap to the best random control,\nin smallest differences (a dot is a world)", fontsize=8)
    left.legend(fontsize=6, frameon=False, loc="lower right")
    controls = ("frozen decoder", "frozen encoder", "pca", "k-means", "shuffled", "untrained model")
    for ax, metric in ((right, "tpp"), (last, "scr")):
        for names, colour, text in (
            (("trained",), COLOURS[2], "trained"),
            (("true atoms",), COLOURS[6], "true atoms"),
            (
                ("1/4 steps", "1/16 steps", "25% random", "50% random", "75% random"),
                COLOURS[0],
                "less or damaged",
            ),
            (controls, COLOURS[1], "controls"),
        ):
            rows = means[means["entry"].isin(names)]
            ax.scatter(rows["truth: mcc"], rows[metric], s=10, color=colour, label=text)
        ax.set_xlabel("MCC with the planted features, above chance", fontsize=8)
        ax.set_title(metric.upper(), fontsize=9)
    right.legend(fontsize=6, frameon=False)
    keep(figure, "dictionaries-trust")


DRAWINGS: dict[str, Callable[[], None]] = {
    "gef": gef,
    "qge": qge,
    "fidelity": fidelity,
    "surf": surf,
    "meta": meta,
    "dictionaries": dictionaries,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore", vd.errors.VeridicalWarning)
    with matplotlib.rc_context(STYLE):
        for chosen in sys.argv[1:] or DRAWINGS:
            DRAWINGS[chosen]()
