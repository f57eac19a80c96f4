"""`veridical report`: a page from what an audit or a study left in its folder; no model is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from veridical.cli.app import app, out

PAGES = {"html": "index.html", "md": "report.md"}


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an audit or a study, or a report.json.")],
    format: Annotated[str, typer.Option("--format", "-f", help="html or md.")] = "html",
    path: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the page goes. [default: beside the results]")
    ] = None,
) -> None:
    """Write the report of an audit or a study; it reads results only.

    Example: veridical report audit --format md
    """
    from veridical.report.rendering import write

    home = folder if folder.is_dir() else folder.parent
    page = write(_contents(folder), path or home / PAGES.get(format, "report"), format)
    out.print(f"report written to {page}", soft_wrap=True, markup=False, highlight=False)


def _contents(folder: Path) -> dict[str, Any]:
    from veridical.report.rendering import CONTENTS, read

    if (folder / "plan.json").is_file() and not (folder / CONTENTS).is_file():
        from veridical.report.study import contents
        from veridical.study import open as open_study

        return contents(open_study(folder))
    return read(folder)
