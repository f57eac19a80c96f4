"""Whole audits in which explainers lie, wholly or in part: what does the verdict say of them?

    python -m replications.verdict.lies --out results [--families linear wine] [--seeds 10] [--samples 64]

Every audit has other rows, and another model where the family trains one (`worlds.py`). Every finished audit
is kept as a line of `lies.jsonl`, so that the same call goes on after it was ended. Families on which
thresholds were set are summed up apart from the others. There are four kinds of audits:

    lies        honest methods, the red team and partial lies together, as in a user's audit
    reference   honest methods on many samples (--reference 500): who wins at least .8 under every test there
                is called honest, and should be trusted
    equal       five methods that are equal by construction: the same true map with noise of its own each
    scaffold    a model with one rule on its data and another off it, on tables: LIME reads the wrong one
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import torch
from scipy.special import betaincinv

import veridical as vd
from replications.common import rounded, work_off
from replications.verdict import worlds
from replications.verdict.partial_lies import ABOUT_A_FEATURE, HALF, IN_SOME_SAMPLES, PartialLie, partial_lies
from replications.verdict.scaffolds import DETECTORS, Scaffold
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.explainers import Explainer, as_explainer
from veridical.testing import red_team
from veridical.testing.red_team import CHEATS

HONEST = (
    "integrated_gradients",
    "input_x_gradient",
    "gradient_shap",
    "kernel_shap",
    "lime",
    "occlusion",
)
SHOWS = 0.7
"""The grade below which a half blend is given away."""
WINS = 0.8
"""The win rate from which on a method of a reference run is honest."""


KINDS = ("lies", "reference", "equal", "scaffold")
ON_DATA = ("integrated_gradients", "input_x_gradient")
"""Methods that read a model where its data are."""


class Job(NamedTuple):
    """One audit."""

    family: str
    seed: int
    samples: int
    effort: str
    kind: str


def scaffolded(task: vd.Task, seed: int) -> vd.Task:
    """A model that uses one column on these rows, and two others elsewhere; even seeds know rows exactly."""
    assert task.train is not None
    columns = keyed.permutation(Key(seed) / "scaffold", torch.tensor([0]), 0, task.space.n_features)[
        0
    ].tolist()
    rows, detector = torch.cat([task.inputs, task.train]), DETECTORS[seed % 2]
    model = Scaffold(rows, columns[:1], columns[1:3], detector=detector, seed=seed)  # type: ignore[arg-type]
    return vd.Task(model.eval(), task.inputs, train=task.train, ids=task.ids)


def members(job: Job, task: vd.Task) -> dict[str, Explainer]:
    """The methods of an audit."""
    if job.kind == "equal":
        return {f"equal {draw}": PartialLie(lie="half_noise", draw=draw) for draw in range(5)}
    found: dict[str, Explainer] = {name: as_explainer(name) for name in HONEST}
    found = {name: who for name, who in found.items() if who.inapplicable_reason(task) is None}
    if job.kind == "lies":
        other = None
        if job.family not in worlds.ONE_MODEL:
            other = worlds.make(job.family, job.seed + 10_000, job.samples).predictor.source.module
        found |= red_team(task) | partial_lies(task, other)
    return found


def audited(job: Job) -> dict[str, Any]:
    """One audit as plain data."""
    start = time.time()
    task = worlds.make(job.family, job.seed, job.samples)
    if job.kind == "scaffold":
        task = scaffolded(task, job.seed)
    found = vd.audit(
        task,
        explainers=members(job, task),
        effort=job.effort,
        samples=job.samples,
        seed=job.seed,
        concepts=(),
        progress=False,
    )
    result = {
        "family": job.family,
        "seed": job.seed,
        "kind": job.kind,
        "samples": found.verdict.samples,
        "seconds": time.time() - start,
        "rows": sum(cost.forward + cost.backward for cost in found.costs.values()),
        "why none": found.verdict.why_none,
        "leading": list(found.verdict.leading),
        "failures": [f"{one.explainer}, {one.metric}: {one.message}" for one in found.evaluation.failures],
        "methods": {place.explainer: said_of(place) for place in found.ranking},
    }
    return cast(dict[str, Any], rounded(result))


def said_of(place: Any) -> dict[str, Any]:
    """What a verdict says of one method, as plain data."""
    grade = place.grade
    return {
        "word": place.status,
        "grade": None if grade is None else grade._asdict(),
        "vetoes": [vars(veto) for veto in place.vetoes if veto.fell or veto.samples],
        "tests": [[t.criterion, t.rival, t.state, t.rate, t.samples] for t in place.tests],
    }


# --- rates over audits that share a task ------------------------------------------------------------------


class Share(NamedTuple):
    """A share of (method, audit) pairs, with its 95% interval."""

    share: float
    low: float
    high: float
    pairs: int


def clustered(hits: Mapping[str, Sequence[bool]], level: float = 0.95) -> Share:
    """The share of hits over families, each a cluster of pairs that are alike.

    The interval is Clopper and Pearson's, with as many independent pairs as the variance between families
    leaves: n_eff = p (1 - p) / var, var = K / (K - 1) sum_k (h_k - p n_k)^2 / n^2 (Korn and Graubard 1998).
    """
    counts = [(sum(some), len(some)) for some in hits.values() if some]
    pairs, families = sum(n for _, n in counts), len(counts)
    if not pairs:
        return Share(float("nan"), float("nan"), float("nan"), 0)
    p = sum(h for h, _ in counts) / pairs
    alone = float(pairs)
    if families > 1 and 0 < p < 1:
        variance = families / (families - 1) * sum((h - p * n) ** 2 for h, n in counts) / pairs**2
        alone = min(alone, p * (1 - p) / variance) if variance else alone
    tail, x = (1 - level) / 2, p * alone
    low = 0.0 if p == 0 else float(betaincinv(x, alone - x + 1, tail))
    high = 1.0 if p == 1 else float(betaincinv(x + 1, alone - x, 1 - tail))
    return Share(p, low, high, pairs)


def trusted(said: Mapping[str, Any]) -> bool:
    """Whether it is trusted, provisionally or not."""
    return said["word"] in ("trusted", "provisional")


def given_away(said: Mapping[str, Any]) -> bool:
    """Whether a half blend is not trusted, or graded low."""
    grade = said["grade"]
    return not trusted(said) or (grade is not None and grade["value"] < SHOWS)


COLUMN = "about a named column: refuted or not decided"
PLACE = "about one pixel, patch or step of many: refuted or not decided"
"""The same lies, of tables and of what has no names."""
GROUPS: dict[str, tuple[frozenset[str], Any]] = {
    "whole lies: trusted": (frozenset(CHEATS), trusted),
    COLUMN: (ABOUT_A_FEATURE, lambda said: not trusted(said)),
    PLACE: (ABOUT_A_FEATURE, lambda said: not trusted(said)),
    "in some samples: refuted or not decided": (IN_SOME_SAMPLES, lambda said: not trusted(said)),
    f"half blends: not trusted, or graded below {SHOWS:.0%}": (HALF, given_away),
}
"""What is counted, over which methods."""


def honest_methods(audits: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Families and methods that win at least .8 under every test of every reference audit."""
    rates: dict[tuple[str, str], list[float]] = {}
    for one in audits:
        for name, said in one["methods"].items() if one["kind"] == "reference" else ():
            asked = [test[3] for test in said["tests"] if test[4]]
            rates.setdefault((one["family"], name), []).append(min(asked, default=0.0))
    return {pair for pair, each in rates.items() if min(each) >= WINS}


def of_equals(one: Mapping[str, Any]) -> tuple[bool, bool | None]:
    """Whether methods that are equal get opposite words, and whether all get the same.

    The second is None where their mean rate in the hardest test is neither high enough nor low enough for
    samples to show it.
    """
    words = {said["word"] for said in one["methods"].values()}
    rates: dict[tuple[str, str], list[float]] = {}
    for said in one["methods"].values():
        for criterion, rival, _, rate, samples in said["tests"]:
            rates.setdefault((criterion, rival), []).extend([rate] if samples else [])
    hardest = min((sum(each) / len(each) for each in rates.values() if each), default=0.0)
    clear = hardest >= WINS or hardest <= 0.5
    opposite = bool(words & {"trusted", "provisional"}) and "refuted" in words
    return opposite, (len(words) == 1) if clear else None


def of_scaffold(one: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Of a model that lies: LIME is trusted, a method that reads the data is refuted, one of these leads."""
    said = one["methods"]
    refuted = any(said[name]["word"] == "refuted" for name in ON_DATA)
    return trusted(said["lime"]), refuted, bool(set(ON_DATA) & set(one["leading"]))


OF_AUDITS: dict[str, tuple[str, Any]] = {
    "equal methods: opposite words": ("equal", lambda one: of_equals(one)[0]),
    f"equal methods that win {WINS:.0%} or more, or half or less: the same word": (
        "equal",
        lambda one: of_equals(one)[1],
    ),
    "scaffolds: LIME trusted": ("scaffold", lambda one: of_scaffold(one)[0]),
    "scaffolds: a method that reads the data refuted": ("scaffold", lambda one: of_scaffold(one)[1]),
    "scaffolds: such a method leads": ("scaffold", lambda one: of_scaffold(one)[2]),
}
"""What is counted once an audit, of which kind of audits."""


def summary(audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The shares of every group and every method, tuning families apart from the others."""
    done = [one for one in audits if "methods" in one]
    honest = honest_methods(done)
    found: dict[str, Any] = {
        "errors": [one for one in audits if "error" in one],
        "honest": sorted(map(list, honest)),
    }
    for part in ("tuning", "report"):
        here = [one for one in done if (one["family"] in worlds.TUNING) == (part == "tuning")]
        lies = [one for one in here if one["kind"] == "lies"]
        pairs = [(one["family"], name, said) for one in lies for name, said in one["methods"].items()]
        hits: dict[str, list[tuple[str, bool]]] = {
            what: [(family, hit(said)) for family, name, said in pairs if name in chosen]
            for what, (chosen, hit) in GROUPS.items()
        }
        hits[COLUMN] = [pair for pair in hits[COLUMN] if pair[0] in worlds.TABLES]
        hits[PLACE] = [pair for pair in hits[PLACE] if pair[0] not in worlds.TABLES]
        hits["honest methods: trusted"] = [
            (family, trusted(said)) for family, name, said in pairs if (family, name) in honest
        ]
        for what, (kind, hit) in OF_AUDITS.items():
            each = [(one["family"], hit(one)) for one in here if one["kind"] == kind]
            hits[what] = [(family, found_so) for family, found_so in each if found_so is not None]
        found[part] = {
            "audits": {kind: sum(one["kind"] == kind for one in here) for kind in KINDS},
            "families": sorted({one["family"] for one in here}),
            "samples": sorted({one["samples"] for one in lies}),
            "groups": {what: by_family(rows)._asdict() for what, rows in hits.items()},
            "methods": {name: words_of(name, pairs) for name in sorted({name for _, name, _ in pairs})},
        }
    return found


def by_family(rows: Sequence[tuple[str, bool]]) -> Share:
    """The share of hits, clustered by family."""
    hits: dict[str, list[bool]] = {}
    for family, hit in rows:
        hits.setdefault(family, []).append(hit)
    return clustered(hits)


def words_of(method: str, pairs: Sequence[tuple[str, str, Mapping[str, Any]]]) -> dict[str, Any]:
    """How often each word was said of a method, its median grade, and the vetoes that fell."""
    every = [said for _, name, said in pairs if name == method]
    words = [said["word"] for said in every]
    grades = [said["grade"]["value"] for said in every if said["grade"] is not None]
    grades = [grade for grade in grades if grade == grade]
    vetoes = [veto["name"] for said in every for veto in said["vetoes"] if veto["fell"]]
    return {
        "audits": len(every),
        "trusted in": sorted(family for family, name, said in pairs if name == method and trusted(said)),
        "words": {word: words.count(word) for word in sorted(set(words))},
        "grade": median(grades) if grades else None,
        "vetoes": {name: vetoes.count(name) for name in sorted(set(vetoes))},
    }


# --- the run ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of downloaded data; default $VERIDICAL_DATA")
    parser.add_argument("--families", nargs="+", default=list(worlds.MAKERS), choices=list(worlds.MAKERS))
    parser.add_argument("--seeds", type=int, default=10, help="audits of each family")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--reference", type=int, default=0, help="samples of a reference audit; 0: none")
    parser.add_argument(
        "--kinds", nargs="+", default=["lies"], choices=[k for k in KINDS if k != "reference"]
    )
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e5, help="after these whatever still runs is ended")
    parser.add_argument("--also", nargs="*", type=Path, default=[], help="lies.jsonl of earlier runs")
    given = parser.parse_args()
    if given.data is not None:
        os.environ["VERIDICAL_DATA"] = str(given.data.resolve())
    data = Path(os.environ.get("VERIDICAL_DATA", ""))
    there = [
        name for name in given.families if name not in worlds.NEEDS or (data / worlds.NEEDS[name]).is_file()
    ]
    for name in sorted(set(given.families) - set(there)):
        print(f"left out: {name} (the data folder lacks {worlds.NEEDS[name]})")
    # seed by seed, so that a run that is ended has audits of every family
    jobs = [
        Job(family, given.first + i, given.samples, given.effort, kind)
        for i in range(given.seeds)
        for kind in given.kinds
        for family in there
        if kind != "scaffold" or family in worlds.COLUMNS_ONLY
    ]
    if given.reference:
        many = [name for name in there if name not in worlds.FEW_ROWS]
        jobs += [Job(family, given.first, given.reference, given.effort, "reference") for family in many]
    results = work_off(
        {" ".join(map(str, job)): job for job in jobs},
        audited,
        given.out / "lies.jsonl",
        given.workers,
        given.minutes,
        given.also,
    )
    found = summary(results)
    (given.out / "lies.json").write_text(json.dumps(rounded(found), indent=1))
    for part in ("tuning", "report"):
        for what, row in found[part]["groups"].items():
            low, high = f"{row['low']:.1%}", f"{row['high']:.1%}"
            print(f"{part}: {what}: {row['share']:.1%} [{low}, {high}] of {row['pairs']}")


if __name__ == "__main__":
    main()
