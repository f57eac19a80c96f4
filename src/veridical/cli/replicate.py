"""`veridical replicate`: run a paper's tables with the programs that lie beside the source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from veridical.cli.app import Status, app, end
from veridical.cli.sources import Device, Folder
from veridical.errors import InputError, unknown_name

PAPERS = {name: name.replace("-", "_") for name in ("gef", "qge", "f-fidelity", "surf", "metaquantus")}
"""What a user types, and the folder of that name in `replications/`."""


def checkout(source: Path | None) -> Path:
    """The folder that holds replications/: the one given, or the one this package was installed from.

    Never the current folder: a program that happens to lie there must not run because of its name.
    """
    root = Path(__file__).resolve().parents[3] if source is None else source.resolve()
    if (root / "replications" / "common.py").is_file():
        return root
    if source is not None:
        raise InputError(f"{root} holds no replications/common.py; give the root of a checkout of veridical")
    raise InputError(
        "the replications come with veridical's source, not with the installed package. Get the source "
        "(git clone, or unpack the source distribution) and give its folder: "
        "veridical replicate PAPER --source FOLDER"
    )


@app.command()
def replicate(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}.")],
    data: Annotated[Path | None, typer.Option(help="The paper's data. [default: $VERIDICAL_DATA]")] = None,
    folder: Folder = Path("replication"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Some parts only; repeat for several.")] = None,
    device: Device = None,
    show: Annotated[bool, typer.Option("--list", help="Name the parts and what each needs.")] = False,
    source: Annotated[Path | None, typer.Option(help="A checkout of veridical's source.")] = None,
) -> None:
    """Run a paper's experiments. Parts without their data are left out, with a note on where to get them.

    Example: veridical replicate qge --quick --out results
    """
    if paper not in PAPERS:
        raise unknown_name("paper", paper, PAPERS)
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data} is not a folder")
    root = checkout(source)
    words = ["--out", str(folder.resolve())]
    words += [] if data is None else ["--data", str(data.resolve())]
    words += ["--quick"] * quick + ["--list"] * show
    words += [] if device is None else ["--device", device]
    words += ["--only", *only] if only else []
    paths = [str(root / "src"), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # the current folder comes first in the path of `python -m`: start where the programs lie
    module = f"replications.{PAPERS[paper]}"
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=root, env=env, check=False)
    known = {0: Status.GOOD, 2: Status.USAGE, 130: Status.INTERRUPTED, -signal.SIGINT: Status.INTERRUPTED}
    end(known.get(done.returncode, Status.FAILED))
