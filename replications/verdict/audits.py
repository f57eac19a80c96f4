"""Whole audits of independent worlds in which explainers cheat: whom does the verdict trust?

    python -m replications.verdict.audits --out results [--audits 207] [--samples 64] [--workers 16]

Every audit has other rows and another model (`worlds.py`). Three honest methods and the whole red team run
together, as they would in a user's audit; how many there are does not change the word of any.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from replications.verdict import worlds
from veridical.auditing.effort import EFFORTS
from veridical.auditing.evidence import HERE, SHOWN, SIZE
from veridical.explainers import as_explainer
from veridical.testing import red_team
from veridical.testing.red_team import CHEATS

WITHOUT_DESCRIPTION = {"gef_draws": 0, "meta_samples": 0, "standing_samples": 0}
"""What describes does not decide."""


def audit(family: str, seed: int, samples: int, effort: str = "quick") -> dict[str, Any]:
    """One audit: by method whether it was trusted, its p and its tests."""
    start = time.time()
    task = worlds.make(family, seed, samples)
    honest = {name: as_explainer(name) for name in worlds.GOOD}
    members = {name: who for name, who in honest.items() if who.inapplicable_reason(task) is None}
    plan = replace(EFFORTS[effort], samples=samples, **WITHOUT_DESCRIPTION)
    found = vd.audit(
        task, explainers=members | red_team(task), effort=plan, seed=seed, concepts=(), progress=False
    )
    return {
        "family": family,
        "seed": seed,
        "samples": found.verdict.samples,
        "seconds": time.time() - start,
        "rows": sum(cost.forward + cost.backward for cost in found.costs.values()),
        "why none": found.verdict.why_none,
        "absent": dict(found.verdict.absent),
        "leading": list(found.verdict.leading),
        "failures": [f"{f.explainer}, {f.metric}: {f.message}" for f in found.evaluation.failures],
        "methods": {
            place.explainer: {
                "trusted": place.trusted,
                "p": place.p,
                "status": place.status,
                "vetoes": [veto.name for veto in place.vetoes if veto.fell],
                "alike": place.alike,
                "tests": [[t.criterion, t.rival, t.rate, t.p, t.samples] for t in place.tests],
            }
            for place in found.ranking
        },
    }


def one(job: tuple[str, int, int, float]) -> dict[str, Any] | None:
    """An audit in a process of its own; None when it is too late to start; what raises is told, not lost."""
    *what, late = job
    if time.time() > late:
        return None
    torch.set_num_threads(1)
    try:
        return audit(*what)
    except Exception as error:
        return {"family": job[0], "seed": job[1], "error": f"{type(error).__name__}: {error}"}


def upper_bound(hits: int, audits: int, level: float = 0.95) -> float:
    """The largest rate that makes as few hits as these not unlikely (one-sided, Clopper and Pearson 1934)."""
    from scipy.stats import beta

    return 1.0 if hits >= audits else float(beta.ppf(level, hits + 1, audits - hits))


ASKED: dict[str, Callable[[str, str], bool]] = {
    "removal alone": lambda line, rival: line != "randomisation",
    "and maps of another model lose here": lambda line, rival: line != "randomisation" or rival in HERE,
    "and win there": lambda line, rival: rival != SIZE,
    "and beat the size of the input there": lambda line, rival: True,
}
"""Rules that ask more and more, up to all tests of the audit's own."""
NO_DOUBT = "and is about the sample, and not of these very weights alone"
"""The audit's own rule: what it trusted."""


def ablation(audits: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each method would be trusted if less were asked.

    At least so often: who fails one question of the swap is asked the others on fewer samples.
    """
    told = {}
    for rule, counts in ASKED.items():
        trusted: Counter[str] = Counter()
        for one in audits:
            p = {
                name: max((t[3] for t in method["tests"] if counts(t[0], t[1])), default=1.0)
                for name, method in one["methods"].items()
            }
            trusted.update(name for name, largest in p.items() if largest <= SHOWN)
        told[rule] = dict(trusted)
    told[NO_DOUBT] = dict(Counter(n for one in audits for n, m in one["methods"].items() if m["trusted"]))
    return told


def summary(audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often each cheat, and each method that is right, was trusted."""
    done = [a for a in audits if "error" not in a]
    cheats, true = {}, {}
    for name in CHEATS:
        runs = [a["methods"][name] for a in done if name in a["methods"]]
        hits = sum(run["trusted"] for run in runs)
        where = sorted({a["family"] for a in done if a["methods"].get(name, {}).get("trusted")})
        cheats[name] = {"audits": len(runs), "trusted": hits, "where": where}
        if runs:
            cheats[name]["upper bound"] = upper_bound(hits, len(runs))
    for family in worlds.MAKERS:
        here = [a for a in done if a["family"] == family]
        for name in worlds.GOOD:
            runs = [a["methods"][name] for a in here if name in a["methods"]]
            if runs:
                true[f"{family}: {name}"] = {
                    "audits": len(runs),
                    "trusted": sum(run["trusted"] for run in runs),
                    "known to be right": name in worlds.TRUE.get(family, ()),
                }
    known = [row for row in true.values() if row["known to be right"]]
    return {
        "audits": len(done),
        "errors": [a for a in audits if "error" in a],
        "cheats": cheats,
        "honest": true,
        "ablation": ablation(done),
        "true methods trusted": sum(r["trusted"] for r in known) / max(1, sum(r["audits"] for r in known)),
        "audits that trust any cheat": sum(
            any(a["methods"][n]["trusted"] for n in CHEATS if n in a["methods"]) for a in done
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--audits", type=int, default=207)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--families", nargs="+", default=list(worlds.MAKERS), choices=list(worlds.MAKERS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--also", nargs="*", type=Path, default=[], help="audits.jsonl of earlier runs")
    parser.add_argument("--minutes", type=float, default=1e9, help="no audit is started after this time")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (given.families[i % len(given.families)], given.first + i // len(given.families), given.samples)
        for i in range(given.audits)
    ]
    found: list[dict[str, Any]] = []
    late = time.time() + 60 * given.minutes
    with ProcessPoolExecutor(given.workers) as pool, (given.out / "audits.jsonl").open("w") as kept:
        for done in as_completed([pool.submit(one, (*job, late)) for job in jobs]):
            row = done.result()
            if row is None:
                continue
            found.append(row)
            kept.write(json.dumps(row) + "\n")
            kept.flush()
            trusted = [n for n, m in row.get("methods", {}).items() if m["trusted"]]
            told = row.get("error") or f"{row['seconds']:.0f} s, trusts {', '.join(trusted) or 'nobody'}"
            print(f"{len(found)} of {len(jobs)} {row['family']} {row['seed']}: {told}", flush=True)
    found += [json.loads(line) for file in given.also for line in file.read_text().splitlines()]
    result = {"samples": given.samples, **summary(found)}
    (given.out / "audits.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
