"""`veridical gef`: does each explanation move as the model moves?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import veridical as vd
from veridical.cli import sources
from veridical.cli.app import app, out, save_figure
from veridical.errors import InputError
from veridical.gef.perturbation_log import incomplete
from veridical.plots import pyplot
from veridical.values.tables import write_csv


@app.command()
@sources.on_a_task(samples=64)
def gef(
    source: sources.Source,
    explainer: Annotated[
        list[str] | None, typer.Option("--explainer", "-e", help="Repeat for several.")
    ] = None,
    form: Annotated[str, typer.Option(help="fast, arc, reference or jacobian.")] = "fast",
    perturb: Annotated[str, typer.Option(help="What gets the noise: weights or input.")] = "weights",
    draws: Annotated[
        int | None, typer.Option(min=1, help="Noisy models per level; 5, or 20 with --iso-sigma.")
    ] = None,
    iso_sigma: Annotated[
        bool, typer.Option("--iso-sigma", help="Correlate at fixed noise: beyond what the level explains.")
    ] = False,
    resolution: Annotated[
        float | None,
        typer.Option(help="With --iso-sigma: as many draws as show a correlation this small in 80%."),
    ] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="Check GEF's assumptions too.")] = False,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where table and pictures go.")] = Path("gef"),
    seed: sources.Seed = 0,
) -> None:
    """Score explainers by how well they follow the model under noise, beside the ceiling they can reach.

    Example: veridical gef -t digits -e gradient -e saliency -e random
    """
    chosen = source.load()
    kind, usual = (vd.gef.IsoSigma, 20) if iso_sigma else (vd.gef.GEF, 5)
    metric = kind(form=form, perturb=perturb, draws=draws or usual)  # type: ignore[arg-type]
    explainers = list(dict.fromkeys(explainer or ["gradient", "saliency", "random"]))
    metrics: dict[str, vd.gef.GEF] = dict.fromkeys(explainers, metric)
    if resolution is not None:
        if not isinstance(metric, vd.gef.IsoSigma) or draws is not None:
            raise InputError("--resolution chooses the draws of --iso-sigma; leave --draws out")
        for name in explainers:
            metrics[name] = vd.gef.with_draws_for(chosen, name, resolution, metric=metric, seed=seed)
    scores = {name: vd.score(metrics[name], chosen, name, seed=seed) for name in explainers}
    out.print(f"noise path: {escape(str(metric.noise_path(chosen, vd.core.Key(seed))))}", soft_wrap=True)
    _show(scores)
    _say(scores)
    _write(scores, folder)
    if assumptions:
        found = vd.gef.assumptions(chosen, seed=seed)
        out.print(escape(repr(found)), soft_wrap=True)
        write_csv(found.to_frame(), folder / "assumptions.csv")
    out.print(f"table and pictures are in [bold]{escape(str(folder))}[/bold]", soft_wrap=True)


def _show(scores: dict[str, vd.Scores]) -> None:
    table = Table(box=None)
    for title in ("explainer", "score", "95% interval", "ceiling", "given the level", "flagged"):
        table.add_column(title, justify="left" if title == "explainer" else "right")
    for name, own in sorted(scores.items(), key=lambda pair: -pair[1].mean(skip_nan=True)):
        # of iso-sigma draws are the unit: samples share the noisy models
        low, high = own.provenance.get("iso_sigma", {}).get("interval") or own.ci()
        ceiling, partial = (float(own.details[what].nanmean()) for what in ("ceiling", "partial"))
        flagged = sum(own.flagged.values())
        cells = (
            f"{own.mean(skip_nan=True):.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{ceiling:.3f}",
            f"{partial:.3f}",
        )
        table.add_row(escape(name), *cells, str(flagged) if flagged else "")
    out.print(table)


def _say(scores: dict[str, vd.Scores]) -> None:
    """What is sure of iso-sigma, and what noise did not reach."""
    for name, own in scores.items():
        if (sure := own.provenance.get("iso_sigma")) is not None:
            low, high = sure["interval"]
            out.print(
                f"{escape(name)}: at fixed noise {sure['mean']:.3f}, p = {sure['p_value']:.3f}, 95% of draws "
                f"{low:.3f} to {high:.3f}; with {sure['draws']} draws 0.2 is seen in {sure['power']:.0%}",
                soft_wrap=True,
            )
    for sentence in incomplete(scores.values()):
        out.print(escape(sentence), soft_wrap=True)


def _write(scores: dict[str, vd.Scores], folder: Path) -> None:
    import pandas as pd

    rows = [
        {
            "explainer": name,
            "sample": sample,
            "score": value,
            **{
                what: own.details[what][place].item()
                for what in ("ceiling", "rho_sigma_explanation", "partial")
            },
        }
        for name, own in scores.items()
        for place, (sample, value) in enumerate(zip(own.ids.tolist(), own.values.tolist(), strict=True))
    ]
    write_csv(pd.DataFrame(rows), folder / "gef.csv")
    for name, draw in (("scores", vd.gef.plot_scores_by_explainer), ("path", vd.gef.plot_path)):
        figure = pyplot().Figure(
            figsize=(5.5, 1.5 + 0.4 * len(scores) if name == "scores" else 3.4), layout="constrained"
        )
        draw(scores, figure.subplots())
        save_figure(figure, folder / f"{name}.png")
