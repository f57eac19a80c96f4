"""Figure 2 of the SURF paper, errors over the number of concepts: `python -m replications.surf.curves NAME`.

Reads $VERIDICAL_DATA; 2,000 train and 1,000 test images. Each curve goes to `results/parsimony_NAME.json` as
soon as it is whole; `--plot` draws what lies there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import veridical as vd
from replications.surf import data, prepared
from replications.surf.run import at_home, here
from veridical.concepts import plateau
from veridical.concepts.measures import LABELS
from veridical.plots import COLOURS

COUNTS = (1, 2, 3, 5, 8, 12, 25)
METHODS: tuple[vd.concepts.ConceptMethod, ...] = (
    vd.concepts.PCA(),
    vd.concepts.KMeans(),
    vd.concepts.ICA(),
    vd.concepts.CDISCO(),
    vd.concepts.NMF(),
    vd.concepts.ICE(),
    vd.concepts.SAE(),
    vd.concepts.ConceptSHAP(),
    vd.concepts.MCD(),
    vd.concepts.CRAFT(),
    vd.concepts.HUMCD(),
)


def curves(name: str, out: Path, device: str, sizes: tuple[int, int], chosen: list[str]) -> None:
    """The chosen methods at every number of concepts."""
    task = getattr(data, name)(*sizes).to(device)
    parts = vd.concepts.split(task)
    train, test, head = here(parts.train()), here(parts.test()), at_home(parts.head)
    unpooled = here(parts.train(spatial=True)) if parts.map_layer is not None else train
    assert task.train is not None
    few = task.train[:: max(1, len(task.train) // 1000)]
    supply: dict[Any, vd.concepts.Embeddings] = {"positions": unpooled}
    if "craft" in chosen:
        supply["crops"] = here(vd.concepts.crop_embeddings(parts, few, task.train.shape[-1] // 2))
    if "hu-mcd" in chosen and name == "cifar":
        labels = prepared.load("segments")["labels"].long()
        own = data.cifar(prepared.SEGMENTED, 10).train
        assert own is not None
        supply["segments"] = here(vd.concepts.segment_embeddings(parts, own.to(device), lambda _: labels))
    found: dict[str, Any] = {"counts": COUNTS, "rows": sizes}
    for method in METHODS:
        if method.name not in chosen or (method.name == "hu-mcd" and "segments" not in supply):
            continue
        began = time.perf_counter()
        curve = vd.concepts.parsimony(method, train, test, head, COUNTS, materials=supply)
        found[method.name] = {
            "mae": curve.errors("mae"),
            "emd": curve.errors("emd"),
            "plateau": {measure: curve.suggested(measure) for measure in ("mae", "emd")},
            "shown": [judgement.concepts for judgement in curve.judgements],
            "seconds": time.perf_counter() - began,
        }
        print(curve, flush=True)
        (out / f"parsimony_{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def picture(names: list[str], folder: Path) -> None:
    """One panel a head and measure, the plateau of every method ringed; errors of 0 have no place there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(names) + 1, 6.4), layout="constrained")
    grid = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        found = json.loads((folder / f"parsimony_{name}.json").read_text())
        counts = found["counts"]
        for row, measure in enumerate(("mae", "emd")):
            ax = grid[row, column]
            methods = [m for m in found if isinstance(found[m], dict)]
            for place, method in enumerate(methods):
                errors, color = found[method][measure], COLOURS[place % len(COLOURS)]
                style = "o-" if place < len(COLOURS) else "s--"
                ax.plot(counts, errors, style, color=color, markersize=3, label=method)
                best = plateau(counts, errors)
                if best is None:
                    continue
                ax.plot(best, errors[counts.index(best)], "o", markersize=9, fillstyle="none", color=color)
            ax.set_yscale("log")
            ax.set_xticks(counts)
            ax.set_title(f"{name}: {LABELS[measure]}", fontsize=9)
            ax.spines[["top", "right"]].set_visible(False)
            ax.set_xlabel("concepts an output")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(folder / "parsimony.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=["mnist", "cifar"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--device", default="cpu", help="where the models run")
    parser.add_argument("--sizes", type=int, nargs=2, default=(2000, 1000), help="train and test images")
    known = [method.name for method in METHODS]
    parser.add_argument("--methods", nargs="+", choices=known, default=known)
    parser.add_argument("--plot", action="store_true", help="draw the curves that were found")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    if given.plot:
        picture(given.names, given.out)
        return
    for name in given.names:
        curves(name, given.out, given.device, tuple(given.sizes), given.methods)


if __name__ == "__main__":
    main()
