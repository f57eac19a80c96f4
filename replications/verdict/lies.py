"""Whole audits in which explainers lie, wholly or in part: what does the verdict say of them?

    python -m replications.verdict.lies --out results [--families linear wine] [--seeds 10] [--samples 64]

Every audit has other rows, and another model where the family trains one (`worlds.py`). Honest methods, the
red team and partial lies run together, as they would in a user's audit. Every finished audit is kept under
its content hash, so that the same call goes on after it was ended. Families on which thresholds were set are
summed up apart from the others. With `--reference 500` honest methods are audited on so many samples, too:
who wins at least .8 under every test there is called honest, and should be trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from scipy.special import betaincinv

import veridical as vd
from replications.verdict import worlds
from veridical.explainers import as_explainer
from veridical.jobs import Store, content_hash, resume
from veridical.testing import partial_lies, red_team
from veridical.testing.red_team import ABOUT_A_FEATURE, CHEATS, HALF, IN_SOME_SAMPLES

HONEST = (
    "integrated_gradients",
    "input_x_gradient",
    "gradient_shap",
    "kernel_shap",
    "lime",
    "occlusion",
)
KIND = "audits"
SHOWS = 0.7
"""The grade below which a half blend is given away."""
WINS = 0.8
"""The win rate from which on a method of a reference run is honest."""


class Job(NamedTuple):
    """One audit."""

    family: str
    seed: int
    samples: int
    effort: str
    reference: bool
    late: float
    """After this time it is not started."""

    @property
    def hash(self) -> str:
        """What its result is kept under."""
        return content_hash([vd.__version__, torch.__version__, *self[:-1]])


def audited(job: Job) -> dict[str, Any]:
    """One audit in a process of its own; what raises is a result without methods."""
    about = {"family": job.family, "seed": job.seed, "reference": job.reference}
    if time.time() > job.late:
        return {**about, "late": True}
    torch.set_num_threads(1)
    start = time.time()
    try:
        task = worlds.make(job.family, job.seed, job.samples)
        methods = {name: as_explainer(name) for name in HONEST}
        methods = {name: who for name, who in methods.items() if who.inapplicable_reason(task) is None}
        if not job.reference:
            other = None
            if job.family not in worlds.ONE_MODEL:
                other = worlds.make(job.family, job.seed + 10_000, job.samples).predictor.source.module
            methods |= red_team(task) | partial_lies(task, other)
        found = vd.audit(
            task,
            explainers=methods,
            effort=job.effort,
            samples=job.samples,
            seed=job.seed,
            concepts=(),
            progress=False,
        )
    except Exception as error:
        return {**about, "error": f"{type(error).__name__}: {error}"}
    return {
        **about,
        "samples": found.verdict.samples,
        "seconds": time.time() - start,
        "rows": sum(cost.forward + cost.backward for cost in found.costs.values()),
        "why none": found.verdict.why_none,
        "leading": list(found.verdict.leading),
        "methods": {place.explainer: said_of(place) for place in found.ranking},
    }


def said_of(place: Any) -> dict[str, Any]:
    """What a verdict says of one method, as plain data."""
    grade = place.grade
    return {
        "word": place.status,
        "grade": None if grade is None else grade._asdict(),
        "vetoes": [vars(veto) for veto in place.vetoes],
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


GROUPS: dict[str, tuple[frozenset[str], Any]] = {
    "whole lies: trusted": (frozenset(CHEATS), trusted),
    "about a feature: refuted or not decided": (ABOUT_A_FEATURE, lambda said: not trusted(said)),
    "in some samples: refuted or not decided": (IN_SOME_SAMPLES, lambda said: not trusted(said)),
    f"half blends: not trusted, or graded below {SHOWS:.0%}": (HALF, given_away),
}
"""What is counted, over which methods."""


def honest_methods(audits: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Families and methods that win at least .8 under every test of every reference audit."""
    rates: dict[tuple[str, str], list[float]] = {}
    for one in audits:
        for name, said in one["methods"].items() if one["reference"] else ():
            asked = [test[3] for test in said["tests"] if test[4]]
            rates.setdefault((one["family"], name), []).append(min(asked, default=0.0))
    return {pair for pair, each in rates.items() if min(each) >= WINS}


def summary(audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The shares of every group and every method, tuning families apart from the others."""
    done = [one for one in audits if "methods" in one]
    honest, plain = honest_methods(done), [one for one in done if not one["reference"]]
    parts = {"tuning": lambda family: family in worlds.TUNING, "report": lambda f: f not in worlds.TUNING}
    found: dict[str, Any] = {
        "errors": [one for one in audits if "error" in one],
        "honest": sorted(map(list, honest)),
    }
    for part, belongs in parts.items():
        here = [one for one in plain if belongs(one["family"])]
        pairs = [(one["family"], name, said) for one in here for name, said in one["methods"].items()]

        def share(chosen: Any, hit: Any, pairs: Any = pairs) -> Share:
            hits: dict[str, list[bool]] = {}
            for family, name, said in pairs:
                if chosen(family, name):
                    hits.setdefault(family, []).append(hit(said))
            return clustered(hits)

        rows = {
            what: share(lambda _, name, members=members: name in members, hit)
            for what, (members, hit) in GROUPS.items()
        }
        rows["honest methods: trusted"] = share(lambda family, name: (family, name) in honest, trusted)
        found[part] = {
            "audits": len(here),
            "families": sorted({one["family"] for one in here}),
            "samples": sorted({one["samples"] for one in here}),
            "groups": {what: row._asdict() for what, row in rows.items()},
            "methods": {name: words_of(name, pairs) for name in sorted({name for _, name, _ in pairs})},
        }
    return found


def words_of(method: str, pairs: Sequence[tuple[str, str, Mapping[str, Any]]]) -> dict[str, Any]:
    """How often each word was said of a method, its median grade, and the vetoes that fell."""
    every = [said for _, name, said in pairs if name == method]
    words = [said["word"] for said in every]
    grades = [said["grade"]["value"] for said in every if said["grade"] is not None]
    grades = [grade for grade in grades if grade == grade]
    vetoes = [veto["name"] for said in every for veto in said["vetoes"] if veto["fell"]]
    return {
        "audits": len(every),
        "words": {word: words.count(word) for word in sorted(set(words))},
        "grade": median(grades) if grades else None,
        "vetoes": {name: vetoes.count(name) for name in sorted(set(vetoes))},
    }


# --- the run ----------------------------------------------------------------------------------------------


def run(
    jobs: Sequence[Job], store: Store, workers: int, progress: bool | None = None
) -> list[dict[str, Any]]:
    """The results of all audits that are done, those of earlier runs included."""

    def load(hash: str, job: Job) -> dict[str, Any] | None:
        kept = store.read_cell(KIND, hash)
        return None if kept is None else kept[0]

    def save(hash: str, job: Job, result: dict[str, Any]) -> None:
        if "methods" in result:  # what failed or came too late is tried again
            store.write_cell(KIND, hash, result)
        said = result.get("error") or ("too late" if "late" in result else f"{result['seconds']:.0f} s")
        print(f"{job.family} {job.seed}{' (reference)' if job.reference else ''}: {said}", flush=True)

    pairs = [(job.hash, job) for job in jobs]
    if workers < 2:
        return resume(pairs, audited, load=load, save=save, what="audits", progress=progress)
    with ProcessPoolExecutor(workers) as pool:
        return resume(pairs, audited, load=load, save=save, executor=pool, what="audits", progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of downloaded data; default $VERIDICAL_DATA")
    parser.add_argument("--families", nargs="+", default=list(worlds.MAKERS), choices=list(worlds.MAKERS))
    parser.add_argument("--seeds", type=int, default=10, help="audits of each family")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--reference", type=int, default=0, help="samples of a reference audit; 0: none")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="no audit is started after this time")
    given = parser.parse_args()
    if given.data is not None:
        os.environ["VERIDICAL_DATA"] = str(given.data.resolve())
    data = Path(os.environ.get("VERIDICAL_DATA", ""))
    there = [
        name for name in given.families if name not in worlds.NEEDS or (data / worlds.NEEDS[name]).is_file()
    ]
    for name in sorted(set(given.families) - set(there)):
        print(f"left out: {name} (the data folder lacks {worlds.NEEDS[name]})")
    late = time.time() + 60 * given.minutes
    # seed by seed, so that a run that is ended has audits of every family
    jobs = [
        Job(family, given.first + i, given.samples, given.effort, False, late)
        for i in range(given.seeds)
        for family in there
    ]
    if given.reference:
        jobs += [Job(family, given.first, given.reference, given.effort, True, late) for family in there]
    found = summary(run(jobs, Store(given.out), given.workers))
    (given.out / "lies.json").write_text(json.dumps(found, indent=1))
    for part in ("tuning", "report"):
        for what, row in found[part]["groups"].items():
            low, high = f"{row['low']:.1%}", f"{row['high']:.1%}"
            print(f"{part}: {what}: {row['share']:.1%} [{low}, {high}] of {row['pairs']}")


if __name__ == "__main__":
    main()
