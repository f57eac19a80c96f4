"""Rows that the other programs wrote, as a table.

    python -m replications.qge.tables --rows FILE.jsonl ... --out FILE.csv

Takes sampled.jsonl or tabular.jsonl of any number of runs; of rows that repeat, the last one counts.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FACTS = ("set", "network", "model", "grain", "metric", "values", "features", "accuracy", "inputs of")
STRATA = (".5-1", "1-1.5", "1.5-2", "2-2.5", ">=2.5")


def rounded(value: Any, digits: int) -> Any:
    """A number with so many decimals, or nothing where there is none."""
    if value is None or value != value:
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else value


def sampled(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One line a row: gains with their spread and interval, then tau of QGE and QRAND_1..10."""
    line = {name: rounded(row.get(name), 4) for name in FACTS}
    line["metric"] = line["metric"] or "kept features (eq. 6)"
    line |= {name: row[name] for name in ("inputs", "rankings")} | {"sigma(q)": rounded(row["sigma"], 6)}
    for name in ("tau", "rho"):
        gain = row[f"gain_{name}"]
        line[f"gain {name}"] = rounded(gain["mean"], 4)
        line |= {f"{part} ({name})": rounded(gain[part], 4) for part in ("sd", "low", "high")}
    transforms = ("QGE", *(f"QRAND_{k}" for k in range(1, len(row["tau"]))))
    yield line | {f"tau {t}": rounded(tau, 4) for t, tau in zip(transforms, row["tau"], strict=True)}


def tabular(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One line an input and transform, with tau in each stratum of quality."""
    study = row["study"]
    for i, sample in enumerate(study["ids"]):
        for t in range(len(study["tau"][i])):
            yield {
                **{name: rounded(row[name], 4) for name in ("set", "model", "accuracy", "inputs of")},
                "id": sample,
                "sigma(q)": rounded(study["spread"][i], 6),
                "transform": f"QRAND_{t}" if t else "QGE",
                "tau": rounded(study["tau"][i][t], 5),
                "rho": rounded(study["rho"][i][t], 5),
                **{
                    f"tau in stratum {name}": rounded(study["stratum_tau"][i][s][t], 5)
                    for s, name in enumerate(STRATA)
                },
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in args.rows:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[
                tuple(row.get(name) for name in ("set", "network", "model", "grain", "metric", "values"))
            ] = row
    lines = [line for row in rows.values() for line in (sampled if "sigma" in row else tabular)(row)]
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
