"""What ties do to QGE at pixel level: maps full of ties, ranked by the raster and by all rankings that agree.

    python -m replications.qge.ties --data $VERIDICAL_DATA --out results [--device cuda]

The rankings of Tables 1 and 6 are permutations, which have no ties; maps that explainers make do. A line of
ties.jsonl for each (network, explainer): QGE of eq. 6 under `ties="stable"` (raster order, as published
programs do) and `ties="average"`, and in how many inputs the sign turns.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import veridical as vd
from replications.qge import data, networks
from replications.qge.models import chosen_inputs
from veridical.metrics.tie_orders import TIES_DECIDE

MAPS = {
    "input x gradient": ("input_x_gradient", None),
    "input x gradient, positive part": ("input_x_gradient", "relu"),
    "input x gradient, its top tenth as 0/1": ("input_x_gradient", "top"),
    "guided backprop, positive part": ("guided_backprop", "relu"),
    "random": ("random", None),
}


def tied(explanation: vd.Explanation, how: str | None) -> vd.Explanation:
    """A map with the ties that a positive part or a cut brings."""
    values = explanation.values
    if how == "relu":
        return explanation.with_values(values.clamp(min=0))
    if how == "top":
        top = explanation.descending_ranks < values.shape[-1] // 10
        return explanation.with_values(top.to(values.dtype))
    return explanation


def row(task: vd.Task, name: str) -> dict[str, float]:
    """QGE under both treatments of ties."""
    explainer, how = MAPS[name]
    explanation = tied(vd.explain(explainer, task), how)
    scores = {
        ties: vd.qge.QGE(vd.qge.KeptFeatures(levels=20, ties=ties))(task, explanation)  # type: ignore[arg-type]
        for ties in ("stable", "average")
    }
    stable, average = (scores[ties].values for ties in ("stable", "average"))
    return {
        "inputs": len(task),
        "tied pairs": float(scores["average"].details["tied pairs"].mean()),
        "stable": float(stable.mean()),
        "average": float(average.mean()),
        "moved, mean of absolute": float((stable - average).abs().mean()),
        "moved, largest": float((stable - average).abs().max()),
        "sign turns": int(((stable > 0) != (average > 0)).sum()),
        "ties decide": int(scores["average"].flagged.get(TIES_DECIDE, 0)),
        "rows, stable": scores["stable"].cost.forward,
        "rows, average": scores["average"].cost.forward,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("VERIDICAL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--inputs", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", nargs="*", default=("mnist", "cifar"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.sets:
        table = getattr(data, name)(Path(args.data))
        net = (networks.given_lenet if name == "mnist" else networks.given_resnet20)(Path(args.data)).eval()
        rows = chosen_inputs(net, table, args.inputs)
        task = vd.Task(net, table.test[rows], targets=table.test_labels[rows], fill=0.0, ids=rows)
        task = task.to(args.device)
        for which in MAPS:
            line = json.dumps({"set": table.name, "maps": which, **row(task, which)})
            print(line, flush=True)
            with (args.out / "ties.jsonl").open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
