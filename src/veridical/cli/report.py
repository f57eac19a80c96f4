"""`veridical report`: a page from what an audit or a study left in its folder; no model is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from veridical.cli.app import Status, app, end, say


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an audit or a study, or a report.json.")],
    format: Annotated[
        str, typer.Option("--format", "-f", help="html or md; of an audit also evidence or card.")
    ] = "html",
    path: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the page goes. [default: beside the results]")
    ] = None,
) -> None:
    """Write the report of an audit or a study; it reads results only.

    Example: veridical report audit --format md
    """
    from veridical.core.files import write_file
    from veridical.report.check import evidence_page, model_card
    from veridical.report.rendering import write
    from veridical.report.verification import PAGES

    home = folder if folder.is_dir() else folder.parent
    if format == "evidence":
        page = evidence_page(folder, path or home / "evidence.html")
    elif format == "card":
        page = write_file(path or home / "model_card.md", model_card(folder), private=False)
    else:
        page = write(_contents(folder), path or home / PAGES.get(format, "report"), format)
    say(f"report written to {page}")


@app.command()
def verify(
    folder: Annotated[str, typer.Argument(help="The folder of a study, or of an audit's report.")],
) -> None:
    """Check every file of a study or an audit's report against its checksum; no model is run.

    Exit status 1 says that something is wrong.

    Example: veridical verify audit
    """
    from veridical.report.verification import foreign_files, is_report, verify_report
    from veridical.study import verify as verify_study

    wrong = []
    both = is_report(folder) and (Path(folder) / "plan.json").is_file()
    if is_report(folder):
        wrong = verify_report(folder)
        for name in foreign_files(folder) if not both else ():
            say(f"not of this audit: {name}")
        if not wrong:
            say("the checksum holds: inputs, settings, scores and report belong together")
    if both or not is_report(folder):
        found = verify_study(folder)
        for name in found.foreign:
            say(f"not of this study: {name}")
        if found.ok:
            say(f"{found.sound} files are sound; {len(found.missing)} cells and maps are to do")
        wrong += found.problems
    for line in wrong:
        say(line)
    end(Status.FINDING if wrong else Status.GOOD)


def _contents(folder: Path) -> dict[str, Any]:
    from veridical.report.rendering import CONTENTS, read

    if (folder / "plan.json").is_file() and not (folder / CONTENTS).is_file():
        from veridical.report.study import contents
        from veridical.study import open as open_study

        return contents(open_study(folder))
    return read(folder)
