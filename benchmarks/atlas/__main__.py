"""`python -m benchmarks.atlas`: measure every metric on every kind of input, and write the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from benchmarks import atlas as atlases
from benchmarks.atlas.page import write_atlas
from veridical.api import as_metric
from veridical.cli.app import out
from veridical.cli.sources import AllowCode, Device, Seed
from veridical.cli.study import Workers, trust_this_folder
from veridical.core.registry import Registry
from veridical.explainers import as_explainer
from veridical.explainers import registry as explainer_registry
from veridical.metrics.base import registry as metric_registry
from veridical.study.resolve import imported

T = TypeVar("T")


app = typer.Typer(add_completion=False)


@app.command()
def atlas(
    folder: Annotated[
        Path, typer.Argument(help="Where results and pages go; what is there is not asked again.")
    ],
    size: Annotated[str, typer.Option("--size", help=f"{', '.join(atlases.SIZES)}.")] = "small",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="Repeat; a name, or module:class. [default: all]"),
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Repeat. [default: by size]")] = None,
    explainer: Annotated[
        list[str] | None,
        typer.Option("--explainer", "-e", help="One more to judge: a name, or module:function."),
    ] = None,
    workers: Workers = 1,
    seed: Seed = 0,
    device: Device = None,
    allow_code: AllowCode = False,
    only_kept: Annotated[
        bool, typer.Option("--only-kept", help="Measure nothing: the page of what is finished.")
    ] = False,
    page: Annotated[bool, typer.Option(help="Write the page as well as the data.")] = True,
) -> None:
    """Measure which metrics can be trusted where: planted damage, known answers, noise, blindness, cost.

    The same command goes on where an earlier one was ended; Ctrl-C writes the page of what is finished.

    Example: python -m benchmarks.atlas my-atlas --size tiny

    Example: python -m benchmarks.atlas my-atlas -m pixel_flipping -m my_package.metrics:Mine --allow-code
    """
    trust_this_folder(allow_code)
    judges = {name: _named(name, as_metric, metric_registry, allow_code) for name in metric or ()}
    measured = partial(
        atlases.measure,
        folder,
        size=size,
        metrics=judges or None,
        tasks=task,
        explainers={n: _named(n, as_explainer, explainer_registry, allow_code) for n in explainer or ()},
        seed=seed,
        workers=workers,
        device=device,
    )
    stopped = False
    try:
        found = measured(only_kept=only_kept)
    except KeyboardInterrupt:
        out.print("\nStopped; finished cells are kept, and the same command goes on from there.")
        found, stopped = measured(only_kept=True), True
    out.print(f"seed {seed}, size {size}", markup=False)
    out.print(repr(found), soft_wrap=True, markup=False, highlight=False)
    made = write_atlas(found, folder) if page else [folder / "atlas.json"]
    out.print(f"atlas written to {made[0]}", soft_wrap=True, markup=False, highlight=False)
    if stopped:
        raise typer.Exit(130)


def _named(name: str, read: Callable[[Any], T], registry: Registry[T], allow_code: bool) -> T:
    """What a registered name stands for, or an import path, which is code."""
    code = ":" in name and not registry.has_prefix(name)
    return read(imported(name, allow_code) if code else name)


if __name__ == "__main__":
    app()
