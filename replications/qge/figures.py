"""The paper's figures from what the other programs wrote.

    python -m replications.qge.figures --results results --out figures [--meta FILE.csv]

Reads tabular.jsonl (figures 2 to 6), sampled.csv (the gains of Tables 1 and 6 with their intervals) and, for
figure 7, the table of consistencies that `replications.metaquantus.run --table qge-5` writes; figure 1 is
told with the embedded digits.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import veridical as vd
from replications.qge.study import STRATA, STRATUM_NAMES, PaperStudy
from veridical.meta.plots import CORNERS, ORDER
from veridical.plots import COLOURS

NAMES = {"avila": "Avila, 10!", "wine9": "wine, 9!"}


def read(path: Path) -> dict[tuple[str, str], PaperStudy]:
    """The studies by set and model; of lines that repeat, the last."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["set"], row["model"]): PaperStudy.from_json(row["study"]) for row in lines}


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.8) -> tuple[Figure, Any]:
    """A figure and its axes (rows, columns)."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def figure_1() -> Figure:
    """Two explanations of about the same quality whose places among all rankings differ most."""
    task = vd.tasks.load("digits")[:32].with_space(vd.Space.patches((1, 8, 8), (4, 2)))
    place = vd.qge.standing(task, vd.qge.KeptFeatures(), "gradient")
    apart = (place.percentile[:, None] - place.percentile).abs()
    alike = (place.quality[:, None] - place.quality).abs() < 0.01
    best = int((apart * alike).argmax())
    figure, grid = panels(1, 4, 2.6, 2.6)
    for column, sample in enumerate((best // len(task), best % len(task))):
        grid[0, 2 * column].imshow(task.inputs[sample, 0], cmap="gray")
        grid[0, 2 * column].set_axis_off()
        grid[0, 2 * column].set_title(f"quality {float(place.quality[sample]):.3f}", fontsize=9)
        ax = place.plot(sample, grid[0, 2 * column + 1])
        ax.get_legend().remove()
        ax.set_xlabel("quality: kept features", fontsize=9)
        ax.set_title(
            f"better than {100 * float(place.percentile[sample]):.0f}% of rankings\n"
            f"QGE {float(place.gap[sample]):+.3f}",
            fontsize=9,
        )
    figure.legend(
        *ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    return figure


def over_k(studies: dict[tuple[str, str], PaperStudy], rho: bool) -> Figure:
    """Figures 2 and 5: agreement over K beside that of QGE."""
    figure, grid = panels(1, len(NAMES))
    for ax, (name, title) in zip(grid[0], NAMES.items(), strict=True):
        studies[name, "trained"].plot(ax, rho=rho).set_title(title, fontsize=9)
    return figure


def by_stratum(studies: dict[tuple[str, str], PaperStudy]) -> Figure:
    """Figure 3: tau among the rankings of each stratum of quality."""
    figure, grid = panels(len(NAMES), len(STRATA), 2.4, 2.3)
    for row, (name, title) in zip(grid, NAMES.items(), strict=True):
        for place, ax in enumerate(row):
            study = studies[name, "trained"]
            there = int((~study.stratum_tau[:, place, 0].isnan()).sum())
            if not there:
                ax.set_axis_off()
                continue
            study.plot(ax, stratum=place)
            ax.set_title(f"{title}, q in {STRATUM_NAMES[place]} sd ({there} inputs)", fontsize=7)
            ax.set_ylim(-0.25, 1)
            if place:
                ax.set_ylabel("")
                ax.get_legend().remove()
    return figure


def gaps(studies: dict[tuple[str, str], PaperStudy]) -> Figure:
    """Figure 4: the density of QGE over all rankings."""
    figure, grid = panels(1, len(NAMES))
    for ax, (name, title) in zip(grid[0], NAMES.items(), strict=True):
        studies[name, "trained"].plot_distribution(ax).set_title(title, fontsize=9)
    return figure


def qualities(studies: dict[tuple[str, str], PaperStudy]) -> Figure:
    """Figure 6: the density of q under three models."""
    models = ("trained", "ood-mean", "untrained")
    figure, grid = panels(len(NAMES), len(models))
    for row, (name, title) in zip(grid, NAMES.items(), strict=True):
        for ax, model in zip(row, models, strict=True):
            studies[name, model].plot_distribution(ax, of="quality").set_title(
                f"{title}, {model}", fontsize=9
            )
    return figure


# what the paper prints for the network of a set: set, network and side of a patch, then mean and deviation
PRINTED = {
    ("MNIST", "LeNet", "1"): [(0.214, 0.04)],
    ("CIFAR-10", "ResNet-20", "4"): [(0.054, 0.04)],
    ("CIFAR-10", "ResNet-20", "1"): [(0.054, 0.03)],
    ("ImageNet", "EfficientNet-lite0", "32"): [
        (0.110, 0.02),
        (0.150, 0.03),
        (0.108, 0.08),
        (0.139, 0.03),
        (0.132, 0.08),
    ],
    ("ImageNet", "EfficientNet-lite0", "1"): [
        (0.018, 0.01),
        (0.019, 0.01),
        (0.016, 0.01),
        (0.040, 0.02),
        (0.017, 0.02),
    ],
}


def gains(path: Path) -> Figure:
    """Tables 1 and 6: the gain in tau of every set and model with its interval, and what is printed."""
    with path.open() as file:
        rows = [r for r in csv.DictReader(file) if r["metric"] == "kept features (eq. 6)" and r["gain tau"]]
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows:
        if "embedded" not in row["set"]:
            groups.setdefault((row["set"], row["network"], row["grain"]), []).append(row)
    figure = Figure(figsize=(7, 0.17 * (len(rows) + 2 * len(groups))), layout="constrained")
    ax = figure.subplots()
    place, names = 0.0, {}
    for group, members in groups.items():
        side = f", {group[2]} x {group[2]}" if group[2] not in ("", "1") else ""
        names[place] = f"{group[0]}, {group[1]}{side}"
        for printed, deviation in PRINTED.get(group, ()):
            ax.errorbar(printed, place, xerr=deviation, color="0.55", marker="D", markersize=4, linewidth=1)
        place += 1
        for row in members:
            mean, low, high = (float(row[name]) for name in ("gain tau", "low (tau)", "high (tau)"))
            ax.plot([low, high], [place, place], color=COLOURS[0], linewidth=2)
            ax.plot(mean, place, color=COLOURS[0], marker="o", markersize=4)
            names[place] = f"{row['model']} ({row['inputs']})"
            place += 1
        place += 0.6
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set_yticks(list(names), list(names.values()), fontsize=7)
    ax.set_ylim(place, -1)
    what = "blue: ours (inputs) and the 95% interval of the mean; grey: printed, with its deviation"
    ax.set_xlabel(f"tau(q, QGE) - tau(q, QRAND$_1$)\n{what}", fontsize=8)
    return figure


def areas(path: Path) -> Figure:
    """Figure 7: the four consistencies of each metric, alone, less a random partner, less its inverse."""
    with path.open() as file:
        rows = {(row["metric"], row["test"]): row for row in csv.DictReader(file)}
    figure, grid = panels(3, 3, 2.2, 2.4)
    for line, prefix in zip(grid, ("", "QRAND-1 ", "QGE "), strict=True):
        for ax, metric in zip(line, ("PF", "RRA", "RMA"), strict=True):
            ax.fill([x for _, x, _ in CORNERS], [y for *_, y in CORNERS], color="0.92")
            for test, colour in (("ipt", COLOURS[0]), ("mpt", COLOURS[1])):
                row = rows[f"{prefix}{metric}", test]
                vector = [float(row[entry]) for entry in ("iac_nr", "iac_ar", "iec_nr", "iec_ar")]
                corners = zip(ORDER, CORNERS, strict=True)
                xs, ys = zip(*((vector[at] * x, vector[at] * y) for at, (_, x, y) in corners), strict=True)
                ax.fill(xs, ys, color=colour, alpha=0.35, label={"ipt": "inputs", "mpt": "model"}[test])
            for name, x, y in CORNERS:
                ax.text(1.2 * x, 1.2 * y, name, ha="center", va="center", fontsize=7)
            score = sum(float(rows[f"{prefix}{metric}", test]["mc"]) for test in ("ipt", "mpt")) / 2
            ax.set_title(f"{prefix}{metric} ({score:.3f})", fontsize=8)
            ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
            ax.set_axis_off()
    grid[0, 0].legend(fontsize=7, frameon=False, loc="lower left")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--meta", type=Path, help="consistencies of qge-5, for figure 7")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    studies = read(args.results / "tabular.jsonl")
    drawn = {
        "figure1": figure_1(),
        "figure2": over_k(studies, rho=False),
        "figure3": by_stratum(studies),
        "figure4": gaps(studies),
        "figure5": over_k(studies, rho=True),
        "figure6": qualities(studies),
    }
    if (args.results / "sampled.csv").is_file():
        drawn["gains"] = gains(args.results / "sampled.csv")
    if args.meta is not None:
        drawn["figure7"] = areas(args.meta)
    for name, figure in drawn.items():
        figure.savefig(args.out / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
