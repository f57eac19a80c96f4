"""Tables 3 and 4 of the SURF paper on two small heads.

`VERIDICAL_DATA=... python -m replications.surf.run mnist` (or `cifar`) prints both tables and writes them to
`results/<name>.json` beside this file. `--quick` takes fewer rows and one draw of C-SHAP-Eval.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import veridical as vd
from replications.surf import data
from veridical import surf

COUNT = 5


def table_three(task: vd.Task) -> dict[str, object]:
    """The measures that learn nothing, over 10 draws."""
    table = surf.sanity(task, draws=10, measures=("ICE-Eval", "SURF"))
    print(table, flush=True)
    return {
        "rows": table.to_frame().to_dict("records"),
        "ordered": {column: table.ordered("SURF", column) for column in ("mae", "emd")},
        "norms": [float(table.norms.min()), float(table.norms.max())],
    }


def learned_rows(task: vd.Task, draws: int) -> list[dict[str, object]]:
    """C-SHAP-Eval with both losses, trained on 500 rows: it costs most, so it comes last."""
    table = surf.sanity(task, 0, draws, ("C-SHAP-Eval (CEL)", "C-SHAP-Eval (L1)"), training_rows=500)
    print(table, flush=True)
    return table.to_frame().to_dict("records")


def table_four(task: vd.Task, crop: int) -> list[dict[str, object]]:
    """Every method with five concepts a class, fitted on train rows by predicted class."""
    parts = surf.split(task)
    train, test, head = parts.train(), parts.test(), parts.head
    unpooled = parts.train(spatial=True) if parts.map_layer is not None else train
    crops = surf.crop_embeddings(parts, task.train[:: max(1, len(task.train) // 1000)], crop)
    plan = [
        (surf.PCA(COUNT), train),
        (surf.KMeans(COUNT), train),
        (surf.ICA(COUNT), train),
        (surf.NMF(COUNT), train),
        (surf.CDISCO(COUNT), train),
        (surf.ICE(COUNT), train),
        (surf.CRAFT(COUNT), crops),
        (surf.ConceptSHAP(COUNT), train),
        (surf.MCD(COUNT), train),
        (surf.SAE(COUNT), unpooled),
    ]
    rows: list[dict[str, object]] = []
    for method, rows_of in plan:
        start = time.perf_counter()
        concepts = method.fit(rows_of, head)
        seconds = time.perf_counter() - start
        found = surf.judge(concepts, test, head)
        split = surf.error_split(concepts, train, test, head)
        print(f"{seconds:6.1f} s  {found}\n          {split}", flush=True)
        rows.append(
            {"method": method.name, "seconds": seconds, **found.summary}
            | {"concepts_error": split.concepts, "importances_error": split.importances}
            | {"notes": list(concepts.notes)}
        )
    best = surf.judge(surf.rank_optimum(train, head, COUNT), test, head)
    print(f"          {best}", flush=True)
    rows.append({"method": "rank-5 optimum (shared)", **best.summary})
    return rows


def main(name: str, quick: bool) -> None:
    torch.set_num_threads(1)
    sizes = (2000, 1000) if quick else (10_000, 10_000)
    task = (data.mnist if name == "mnist" else data.cifar)(*sizes)
    right = float((task.predictions == task.labels).double().mean())
    print(f"{task.name}: {task}; accuracy {right:.3f}", flush=True)
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    found: dict[str, object] = {"task": task.name, "rows": list(sizes), "accuracy": right}

    def note(part: str, value: object) -> None:
        found[part] = value
        (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")

    note("table3", table_three(task))
    note("table4", table_four(task, crop=14 if name == "mnist" else 16))
    note("table3_learned", learned_rows(task, 1 if quick else 3))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("mnist", "cifar"):
        raise SystemExit(__doc__)
    main(sys.argv[1], "--quick" in sys.argv)
