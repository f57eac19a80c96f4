"""The report of an audit: all it shows as plain data, and the page made of that data alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veridical.auditing import Audit
from veridical.auditing.evidence import Grid
from veridical.auditing.recheck import Baseline
from veridical.auditing.sentences import grade_of, headline, in_words, reason_of
from veridical.auditing.verdict import Place
from veridical.core.files import write_file
from veridical.functional.significance import win_units
from veridical.report import systems
from veridical.report.charts import TESTS
from veridical.report.citations import STATISTICS, SYSTEMS, bibtex
from veridical.report.evaluation import FACTS, curves, failed, flagged, metric_facts, papers, settings, table
from veridical.report.first_page import first_page
from veridical.report.gallery import gallery
from veridical.report.rendering import CONTENTS, opening, plain, save, write
from veridical.report.verification import PAGES, checksums, identity, tables
from veridical.values.scores import Scores


def write_folder(audit: Audit, folder: str | Path) -> Path:
    """Write the report with its contents, the verdict as data and the tables; the page's place."""
    folder = Path(folder)
    found = contents(audit)
    for name, text in tables(audit).items():
        write_file(folder / name, text, private=False)
    save(found, folder / CONTENTS)
    Baseline.of(audit).save(folder)
    return write(found, folder / PAGES["html"])


def write_audit(audit: Audit, path: str | Path, format: str = "html") -> Path:
    """Write the report: one HTML file that loads nothing from anywhere, or Markdown."""
    return write(contents(audit), path, format)


def contents(audit: Audit) -> dict[str, Any]:
    """Everything the report shows, as plain data; the same audit gives the same, but for `made`."""
    statuses = {place.explainer: status(place, audit.best) for place in audit.verdict.places}
    evaluation, damage = audit.evaluation, audit.damage
    found = {
        **opening("audit", audit.task.name),
        "task": repr(audit.task),
        "verdict": _verdict(audit),
        "first_page": first_page(audit),
        "identity": identity(audit),
        "facts": _facts(audit),
        "ranking": [_place(place, statuses[place.explainer], audit) for place in audit.verdict.ranking],
        "evidence": _evidence(audit, statuses),
        "pairs": [vars(pair) for pair in audit.verdict.pairs],
        "beside": [vars(test) for test in audit.beside],
        "checks": [vars(check) for check in audit.checks.checks],
        "metrics": _metrics(audit),
        "damage": None if damage is None else {"reference": damage.reference, "samples": damage.counted},
        "reliability": _reliability(audit),
        "heat": _heat(audit, statuses),
        "curves": [
            curve
            for curve in curves(evaluation, statuses, list(statuses))
            if not systems.is_path(evaluation, curve["metric"])
        ],
        "gef": systems.paths(evaluation, statuses),
        "robustness": systems.robustness(audit.robustness),
        "standings": [systems.standing(standing) for standing in audit.standings.values()],
        "concepts": None if audit.concepts is None else systems.concepts(audit.task, audit.concepts),
        "gallery": _gallery(audit, statuses),
        "flags": flagged(evaluation),
        "failures": failed(evaluation.failures),
        "interrupted": evaluation.interrupted,
        "skipped": {
            "explainers": _by_reason(audit.skipped_explainers),
            "metrics": _by_reason(audit.skipped_metrics),
        },
        "notes": list(audit.notes),
        "settings": _settings(audit),
        "cost": _cost(audit),
        "bibtex": bibtex(_papers(audit)),
    }
    shown: dict[str, Any] = plain(found)
    return {**shown, "checksums": checksums(shown, tables(audit))}


def _by_reason(skipped: Mapping[str, str]) -> list[dict[str, Any]]:
    """Names that share a reason, together."""
    reasons: dict[str, list[str]] = {}
    for name, why in skipped.items():
        reasons.setdefault(why, []).append(name)
    return [{"names": names, "why": why} for why, names in reasons.items()]


def status(place: Place, best: str | None) -> str:
    """How a method is coloured: best, trusted, untrusted or control."""
    if place.control:
        return "control"
    if place.explainer == best:
        return "best"
    return "trusted" if place.trusted else "untrusted"


def _gallery(audit: Audit, statuses: Mapping[str, str]) -> dict[str, Any]:
    """Maps of the samples that all methods have, best method first."""
    held = audit.evaluation.explanations
    order = [place.explainer for place in audit.verdict.places]
    count = min((len(maps) for maps in held.values()), default=0)
    few = slice(0, count)
    shown = {who: held[who].take(few) for who in [*order, *held] if who in held}
    return gallery(audit.task[few] if count else audit.task, shown, statuses, checks=audit.prompts)


# --- the verdict ------------------------------------------------------------------------------------


def _verdict(audit: Audit) -> dict[str, Any]:
    """A headline, the rest of the first paragraph, and remarks."""
    verdict = audit.verdict
    tone = "silent" if verdict.why_none else "none" if verdict.best is None else "found"
    first, *others = verdict.words.answer or ("",)
    head = headline(verdict)
    rest = first.removeprefix(f"{head}: ").removesuffix(f"{head}.")
    return {
        "tone": tone,
        "headline": head,
        "best": verdict.best,
        "answer": [one for one in (rest[:1].upper() + rest[1:], *others) if one],
        "remarks": [said for said in verdict.words.remarks if said not in audit.notes],
    }


def _facts(audit: Audit) -> list[dict[str, str]]:
    verdict, seconds = audit.verdict, sum(audit.seconds.values())
    trusted = sum(place.trusted for place in verdict.ranking)
    facts = {
        "samples": f"{verdict.samples:,}",
        "explainers trusted": f"{trusted} of {len(verdict.ranking)}",
        "controls": str(len(verdict.controls)),
        "questions": ", ".join(verdict.criteria),
        "deciding metrics": f"{len(verdict.deciding)} of {sum(role.decides for role in verdict.metrics)}",
        "model evaluations": f"{sum(cost.forward + cost.backward for cost in audit.costs.values()):,}",
        "time": f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min",
        "effort": audit.effort.name,
    }
    return [{"label": label, "value": value} for label, value in facts.items()]


def _place(place: Place, colour: str, audit: Audit) -> dict[str, Any]:
    shown = ("explainer", "score", "low", "high", "group", "samples", "rows", "dropped")
    grade = place.grade
    return {
        **{name: getattr(place, name) for name in shown},
        "trusted": place.trusted,
        "word": place.status,
        "colour": "untrusted" if place.status == "refuted" else colour if place.trusted else "",
        "status": colour,
        "grade": None if grade is None else {**grade._asdict(), "said": grade_of(place)},
        "why": reason_of(place, audit.task.head, audit.verdict),
        "questions": [
            {"criterion": q.criterion, "state": q.state, "reason": q.reason} for q in place.questions
        ],
    }


def _evidence(audit: Audit, statuses: Mapping[str, str]) -> dict[str, Any]:
    """Every method against everything it has to beat."""
    head = audit.task.head
    tests = [test for place in audit.verdict.ranking for test in place.tests]
    columns = list(dict.fromkeys((test.criterion, in_words(test.rival, head)) for test in tests))
    rows = []
    for place in audit.verdict.ranking:
        held = {(test.criterion, in_words(test.rival, head)): vars(test) for test in place.tests}
        rows.append(
            {
                "explainer": place.explainer,
                "status": statuses[place.explainer],
                "cells": [held.get(column) for column in columns],
            }
        )
    heads = [{"criterion": line, "rival": rival} for line, rival in columns]
    return {"columns": heads, "rows": rows}


# --- metrics ----------------------------------------------------------------------------------------


def _metrics(audit: Audit) -> list[dict[str, Any]]:
    """Each metric with its card, its role, and its four consistencies under each test."""
    facts = {one["metric"]: one for one in metric_facts(audit.evaluation)}
    nothing, meta = dict.fromkeys((*FACTS, "direction"), ""), audit.reliability
    shown = []
    for role in audit.verdict.metrics:
        areas = {}
        if meta is not None and role.metric in meta.scores:
            areas = {TESTS.get(test, test): meta[role.metric, test].vector for test in meta.tests}
        one = {**nothing, **facts.get(role.metric, {}), **vars(role)}
        shown.append({**one, "admissible": role.admissible, "areas": areas})
    return shown


def _reliability(audit: Audit) -> dict[str, Any] | None:
    """On what the metrics were meta-evaluated."""
    found = audit.reliability
    if found is None:
        return None
    kept = next(iter(found.kept.values()))
    return {
        "explainers": list(found.explainers),
        "samples": kept.shape[-1],
        "iterations": kept.shape[0],
        "draws": kept.shape[1],
        "amounts": [
            f"{TESTS.get(test, test)}, {'slightly' if mode == 'nr' else 'to disrupt'}: {amount}"
            for (test, mode), amount in found.amounts.items()
        ],
        "remarks": list(found.remarks),
        "failures": failed(list(found.failures)),
    }


def _heat(audit: Audit, statuses: Mapping[str, str]) -> dict[str, Any]:
    """Explainers by metrics: the share of samples in which noise is beaten, and the raw mean."""
    metrics, scores = audit.evaluation.metrics, audit.evaluation.scores
    rows = table(audit.evaluation, list(statuses))
    chance = next((place.explainer for place in audit.verdict.controls), None)
    grid = Grid.of(audit.task)
    for row in rows:
        who = row["explainer"]
        row["status"] = statuses[who]
        for what, cell in zip(metrics, row["cells"], strict=True):
            rival = None if chance in (None, who) else scores.get((chance, what))
            if cell is not None:
                cell["share"] = None if rival is None else _beaten(scores[who, what], rival, grid)
    return {
        "metrics": [{"metric": what} for what in metrics],
        "rows": rows,
        "rival": None if chance is None else in_words(chance),
    }


def _beaten(own: Scores, rival: Scores, grid: Grid) -> float:
    count = min(len(own), len(rival))
    won = win_units(own.utility[:count].cpu(), rival.utility[:count].cpu(), grid.share, scale=grid.scale)
    return float(won.mean())


# --- how it was done --------------------------------------------------------------------------------


def _settings(audit: Audit) -> dict[str, Any]:
    return {
        "seed": audit.seed,
        "effort": vars(audit.effort),
        "versions": dict(audit.versions),
        "model": type(audit.task.model).__name__,
        **settings(audit.evaluation),
    }


def _cost(audit: Audit) -> dict[str, Any]:
    """Seconds and rows of each stage."""
    costs = {stage: audit.costs.get(stage) for stage in audit.seconds}
    return {
        "stages": [
            {
                "stage": stage,
                "seconds": audit.seconds[stage],
                "forward": cost and cost.forward,
                "backward": cost and cost.backward,
            }
            for stage, cost in costs.items()
        ]
    }


def _papers(audit: Audit) -> list[str]:
    """The papers of the systems, metrics, explainers and tests that took part."""
    named = [SYSTEMS["F-Fidelity"], SYSTEMS["QGE"]]
    if "gef_iso" in audit.evaluation.metrics:
        named.append(SYSTEMS["GEF"])
    if audit.reliability is not None:
        named.append(SYSTEMS["MetaQuantus"])
    if audit.concepts is not None:
        named.append(SYSTEMS["SURF"])
    return [*named, *papers(audit.evaluation), *STATISTICS]
