"""The page of an atlas: findings in words, heat maps, a table per kind of input, how it was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmarks.atlas.heat_map import heat_map
from benchmarks.atlas.schema import METRICS
from benchmarks.atlas.verdicts import UNMEASURED, VERDICTS, WAITING, Summary, summarised
from benchmarks.atlas.words import overall, plural, sentences
from veridical.atlas import Atlas
from veridical.core.files import write_file
from veridical.report import rendering
from veridical.report.rendering import plain

TEMPLATES = Path(__file__).parent / "templates"
PAGES = {"html": "index.html", "md": "atlas.md"}
PICTURES = {
    "power": ("Sees planted damage (AUROC)", 0.5),
    "agreement": ("Follows the truth (rank correlation)", 0.0),
}


def write_atlas(atlas: Atlas, folder: str | Path) -> list[Path]:
    """Write the page, its Markdown form and the pictures into a folder."""
    home, shown = Path(folder), contents(atlas)
    made = [write_file(home / page, render(shown, format), private=False) for format, page in PAGES.items()]
    return made + [
        write_file(home / f"{name}.svg", pictured(atlas, name), private=False) for name in PICTURES
    ]


def render(shown: dict[str, Any], format: str = "html") -> str:
    """The page of these contents."""
    return rendering.render({**shown, "heat_map": heat_map}, format, TEMPLATES)


def contents(atlas: Atlas) -> dict[str, Any]:
    """Everything the page shows, as plain data; drawings are made of it by the template."""
    run = {key: value for key, value in atlas.run.items() if key != "seconds"}
    measured = [row for row in atlas.rows if not row["reason"]]
    waiting = sum(row["reason"] == WAITING for row in atlas.rows)
    since, until = run.get("since", run["date"]), run["date"]
    return plain(
        {
            **rendering.opening("atlas", "atlas"),
            "made": atlas.run["date"],
            "run": run,
            "facts": {
                "metrics": len({row["metric"] for row in measured}),
                "tasks": len({row["task"] for row in measured}),
                "samples per task": run["samples"],
                "size": run["size"],
                "seed": run["seed"],
                "measured": until if since == until else f"{since} to {until}",
                "on": f"{run['device']}, {run['workers']} process{'' if run['workers'] == 1 else 'es'}",
                **({WAITING: f"{waiting} of {len(atlas.rows)} cells"} if waiting else {}),
            },
            "overall": overall(atlas),
            "parts_of": [_part(atlas, modality) for modality in atlas.modalities],
            "pictures": {name: _grid(atlas, name) for name in PICTURES},
            "titles": {name: title for name, (title, _) in PICTURES.items()},
            "chances": {name: chance for name, (_, chance) in PICTURES.items()},
            "address": "",
            "columns": {name: said for name, (_, said) in METRICS.items()},
        }
    )


def pictured(atlas: Atlas, name: str) -> Markup:
    """One heat map as a file of its own."""
    grid, (title, chance) = _grid(atlas, name), PICTURES[name]
    return heat_map(title, grid["names"], grid["columns"], grid["values"], chance)


def _part(atlas: Atlas, modality: str) -> dict[str, Any]:
    found = [s for s in summarised(atlas.rows).values() if s.modality == modality]
    tasks = dict.fromkeys(
        row["task"] for row in atlas.rows if row["modality"] == modality and not row["reason"]
    )
    near = [row for row in atlas.explainers if row["modality"] == modality]
    return {
        "name": plural(modality),
        "tasks": list(tasks),
        "sentences": [{"verdict": verdict, "text": said} for verdict, said in sentences(atlas, modality)],
        "rows": [_row(atlas, s) for s in found if s.tasks],
        "unmeasured": [
            {"metric": s.metric, "reason": s.complaints[0].said} for s in found if s.verdict == UNMEASURED
        ],
        "explainers": sorted(near, key=lambda row: (row["task"], -(row["nearness"] or -2.0))),
    }


def _row(atlas: Atlas, summary: Summary) -> dict[str, Any]:
    rows = [r for r in atlas.rows if (r["metric"], r["modality"]) == (summary.metric, summary.modality)]
    seconds = [atlas.run["seconds"].get(f"{row['task']} | {row['metric']}") for row in rows]
    known = [value for value in seconds if value is not None]
    return {
        **{field: getattr(summary, field) for field in ("metric", "verdict", "figures")},
        "complaints": [one.said for one in summary.complaints],
        "order": VERDICTS.index(summary.verdict),
        "milliseconds": 1000 * sum(known) / len(known) if known else None,
    }


def _grid(atlas: Atlas, name: str) -> dict[str, Any]:
    """The figures of a heat map: metrics that were measured anywhere, best mean first."""
    columns = atlas.modalities
    summaries = summarised(atlas.rows)
    table = {s.metric: list[float | None]() for s in summaries.values() if s.tasks}
    for metric, line in table.items():
        for modality in columns:
            summary = summaries.get((metric, modality))
            line.append(summary.figures[name] if summary else None)

    def worth(metric: str) -> float:
        values = [value for value in table[metric] if value is not None]
        return sum(values) / len(values) if values else -2.0

    names = sorted(table, key=lambda metric: (-worth(metric), metric))
    return {"names": names, "columns": columns, "values": [table[metric] for metric in names]}
