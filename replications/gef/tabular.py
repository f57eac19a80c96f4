"""Table A.4 and figure A.9: do GEF's forms rank methods alike on tables, and does iso-sigma?

    VERIDICAL_DATA=FOLDER python -m replications.gef.tabular --out results [--samples 250] [--only COMPAS]

Figure A.9 compares orders that one draw gave. An order agrees with another no better than with itself under
other noise, so each is made under two seeds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import veridical as vd
from replications.gef.data import accuracy
from replications.gef.run import METHODS, agreements, table
from replications.gef.tables import TABLES
from veridical.gef import IsoSigma

ORDERED = tuple(label for label in METHODS if label != "RAN")
FORMS: dict[str, vd.gef.GEF] = {
    "reference": vd.gef.GEF(form="reference", path="published"),
    "fast": vd.gef.FastGEF(path="published"),
    "arc": vd.gef.GEF(form="arc", path="published"),
    "iso": IsoSigma(path="published"),
}
SINGLE: dict[str, vd.gef.GEF] = {form: replace(FORMS[form], draws=1) for form in ("reference", "fast")}
"""As figure A.9 was made: one draw."""
AGAIN = " again"


def both_seeds(task: vd.Task, metrics: dict[str, vd.gef.GEF]) -> dict[str, Any]:
    """Each metric's table, and the same under other noise on the same path."""
    out: dict[str, Any] = {}
    for name, metric in metrics.items():
        print(f" {name}", flush=True)
        out[name] = table(task, metric, tuple(METHODS))
        out[name + AGAIN] = table(task, metric, tuple(METHODS), seed=1)
    return out


def study(task: vd.Task) -> dict[str, Any]:
    """All forms on one table, with five draws (iso-sigma: 20) and with one."""
    out: dict[str, Any] = {"accuracy": accuracy(task), "samples": len(task)}
    out["path"] = str(FORMS["fast"].noise_path(task))
    for name, metrics in (("forms", FORMS), ("one draw", SINGLE)):
        out[name] = both_seeds(task, metrics)
        out[f"{name}: agreement"] = agreements(out[name], ORDERED)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        try:
            task = TABLES[name](given.samples, 0)
        except FileNotFoundError as error:
            print(f"{name} is left out: {error.filename} is not there", flush=True)
            continue
        print(name, flush=True)
        found = study(task)
        (given.out / f"tabular_{name.replace(' ', '_').lower()}.json").write_text(json.dumps(found, indent=1))
        for pair, own in found["forms: agreement"].items():
            print(f"  {pair}: {own}", flush=True)


if __name__ == "__main__":
    main()
