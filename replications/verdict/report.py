"""Tables of the verdict's page, from what the parts wrote.

    python -m replications.verdict.report --results FOLDER [--page docs/understand/verdict-statistics.md]

Prints the tables in Markdown; with `--page` writes them between the marks of that page.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.special import betaincinv

from replications.verdict.betting import FAIR, RATES
from replications.verdict.groups import SCENARIOS, SIZES
from replications.verdict.partial_lies import ABOUT_A_FEATURE, HALF, IN_SOME_SAMPLES
from veridical.testing.red_team import CHEATS


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}%"


def betting_tables(found: dict[str, Any]) -> dict[str, str]:
    """False positives by shape of the units, and power by win rate."""
    wrong = {(row["shape"], row["samples"]): row for row in found["false positives"]}
    names = ("betting", "wilcoxon", "wilcoxon, looking at 24, 64, 200")
    rows = [
        [
            shape,
            *(percent(wrong[shape, size][name]) for size in SIZES for name in names[:2]),
            percent(wrong[shape, SIZES[-1]][names[2]]),
        ]
        for shape in FAIR
    ]
    head = ["units"] + [f"{name} {size}" for size in SIZES for name in ("betting", "Wilcoxon")]
    kinds = list(dict.fromkeys(row["units"] for row in found["power"]))
    known = {(row["win rate"], row["samples"], row["units"]): row for row in found["power"]}
    power = [
        [
            percent(rate, 0),
            kind,
            *(percent(known[rate, size, kind][what], 0) for size in SIZES for what in STATES),
        ]
        for rate in RATES
        for kind in kinds
    ]
    covered = [
        [percent(row["win rate"], 0), row["units"], percent(row["missed after any sample"], 2)]
        + [percent(row[f"width at {size}"], 0) for size in SIZES]
        for row in found["coverage"]
    ]
    return {
        "false positives": table([*head, "Wilcoxon, three looks"], rows),
        "power": table(["win rate", "units", *(f"{what}, {n}" for n in SIZES for what in STATES)], power),
        "coverage": table(
            ["win rate", "units", "missed after any of 200", *(f"width, {size}" for size in SIZES)], covered
        ),
    }


STATES = ("shown", "fails")


def group_tables(found: dict[str, Any]) -> dict[str, str]:
    """Groups by scenario."""
    rows = []
    for name in SCENARIOS:
        for size in SIZES:
            row = found[f"{name}, {size}"]
            equal = name.startswith("equal")
            holds, race_holds = (
                "" if equal else percent(row[what])
                for what in ("holds the best", "eliminated: holds the best")
            )
            alone, race = percent(row["one group"]), percent(row["eliminated: one group"])
            rows.append([name, size, alone, f"{row['mean size']:.1f}", holds, race, race_holds])
    head = ["methods", "samples", "one group", "mean size", "holds the best"]
    return {
        "groups": table([*head, "eliminated: one group", "eliminated: holds the best"], rows),
    }


def lie_tables(found: dict[str, Any]) -> dict[str, str]:
    """What the verdict says of lies and honest methods, on families it was tuned on and on others."""
    groups = [
        [what, *(share(found[part]["groups"][what]) for part in ("report", "tuning"))]
        for what in found["report"]["groups"]
    ]
    names = sorted({name for part in ("report", "tuning") for name in found[part]["methods"]})
    lists: dict[str, list[list[object]]] = {"cheats": [], "partial lies": [], "honest": []}
    for name in names:
        here = [
            found[part]["methods"][name] for part in ("report", "tuning") if name in found[part]["methods"]
        ]
        counts = Counter[str]()
        for one in here:
            counts.update(one["words"])
        where = Counter(family for one in here for family in one["trusted in"])
        audits, good = sum(one["audits"] for one in here), counts["trusted"] + counts["provisional"]
        told = ", ".join(f"{family} {count}" for family, count in where.items())
        grades = [f"{one['grade']:.0%}" for one in here if one["grade"] is not None]
        row: list[object] = [f"`{name}`", audits, good]
        if name in CHEATS:
            lists["cheats"].append([*row, percent(upper_bound(good, audits)), told])
        else:
            kind = "partial lies" if name in ABOUT_A_FEATURE | HALF | IN_SOME_SAMPLES else "honest"
            words = ("refuted", "not decided", "adds nothing shown")
            lists[kind].append([*row, *(counts[word] for word in words), ", ".join(grades)])
    head = ["method", "audits", "trusted"]
    words_of = [*head, "refuted", "not decided", "adds nothing", "median grade, fresh and tuning"]
    return {
        "lies": table(["what is counted", "fresh families", "tuning families"], groups),
        "cheats": table([*head, "95% upper bound", "where"], lists["cheats"]),
        "partial lies": table(words_of, lists["partial lies"]),
        "honest": table(words_of, lists["honest"]),
    }


def share(row: dict[str, Any]) -> str:
    """A share with its interval."""
    if not row["pairs"]:
        return "-"
    return f"{percent(row['share'])} [{percent(row['low'])}, {percent(row['high'])}] of {row['pairs']}"


def upper_bound(hits: int, audits: int, level: float = 0.95) -> float:
    """The largest rate that makes as few hits as these not unlikely (one-sided, Clopper and Pearson 1934)."""
    return 1.0 if hits >= audits else float(betaincinv(hits + 1, audits - hits, level))


def stability_tables(found: dict[str, Any]) -> dict[str, str]:
    """The leading group at each effort, by task and seed, and what became of it."""

    def group(row: dict[str, Any]) -> str:
        best = row["best"]
        others = [name for name in row["leading"] if name != best]
        return "nobody is trusted" if best is None else ", ".join([f"**{best}**", *others])

    efforts = ("glance", "quick", "standard")
    rows = [
        [row["task"], row["seed"], *(group(row[effort]) for effort in efforts)]
        + [str(len(row[effort]["trusted"])) for effort in efforts]
        for row in found["audits"]
    ]
    head = ["task", "seed", *efforts, *(f"trusted, {effort}" for effort in efforts)]
    return {"stability": table(head, rows)}


def near_tables(found: dict[str, Any]) -> dict[str, str]:
    """How often maps of the next model win, along the way to a fresh one."""
    shares = [one["to"] for one in next(iter(next(iter(found.values())).values()))]
    rows = [
        [family, f"`{name}`", *(f"{one['neighbour wins']:.2f} ({one['p']:.3f})" for one in steps)]
        for family, methods in found.items()
        for name, steps in methods.items()
    ]
    return {"near": table(["world", "method", *(f"to {share:.0%}" for share in shares)], rows)}


def write(page: Path, tables: dict[str, str]) -> None:
    """Put the tables that the page has marks for between them, `<!-- name -->` and `<!-- end -->`."""
    text = page.read_text()
    for name, content in tables.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda found, new=content: f"{found[1]}\n{new}\n\n{found[2]}", text)  # type: ignore[misc]
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    makers = {
        "betting": betting_tables,
        "groups": group_tables,
        "lies": lie_tables,
        "stability": stability_tables,
        "near": near_tables,
    }
    for name, make in makers.items():
        file = given.results / f"{name}.json"
        if not file.is_file():
            continue
        found = json.loads(file.read_text())
        tables = make(found)
        for title, content in tables.items():
            print(f"\n{title}\n\n{content}")
        if given.page:
            write(given.page, tables)


if __name__ == "__main__":
    main()
