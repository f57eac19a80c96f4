"""Commands of one system each: `veridical gef`, `veridical meta ...`, `veridical dictionaries`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veridical as vd
from veridical.cli.app import Status, app, end, parse_json, print_table, save_plot, say
from veridical.cli.sources import AllowCode, Explainers, Folder, Metrics, Seed, Source, with_options
from veridical.data.model_files import import_attribute
from veridical.errors import InputError
from veridical.gef.perturbation_log import incomplete
from veridical.values.tables import write_csv

if TYPE_CHECKING:
    import pandas as pd


@app.command()
@with_options(samples=64)
def gef(
    source: Source,
    explainer: Explainers = None,
    form: Annotated[str, typer.Option(help="fast, arc, reference or jacobian.")] = "fast",
    perturb: Annotated[str, typer.Option(help="What gets the noise: weights or input.")] = "weights",
    draws: Annotated[
        int | None, typer.Option(min=1, help="Noisy models per level; 5, or 20 with --iso-sigma.")
    ] = None,
    iso_sigma: Annotated[bool, typer.Option("--iso-sigma", help="Correlate at fixed noise.")] = False,
    resolution: Annotated[
        float | None, typer.Option(help="Draws of --iso-sigma: to see a correlation this small in 80%.")
    ] = None,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="Check GEF's assumptions too.")] = False,
    folder: Folder = Path("gef"),
    seed: Seed = 0,
) -> None:
    """Score explainers by how well they follow the model under noise, beside the ceiling they can reach.

    Example: veridical gef -t digits -e gradient -e saliency -e random
    """
    chosen = source.load()
    kind, usual = (vd.gef.FastGEF if form == "fast" else vd.gef.GEF), 5
    if iso_sigma:
        kind, usual = vd.gef.IsoSigma, 20
    metric = kind(form=form, perturb=perturb, draws=draws or usual)  # type: ignore[arg-type]
    explainers = list(dict.fromkeys(explainer or ["gradient", "saliency", "random"]))
    metrics: dict[str, vd.gef.GEF] = dict.fromkeys(explainers, metric)
    if resolution is not None:
        if not isinstance(metric, vd.gef.IsoSigma) or draws is not None:
            raise InputError("--resolution chooses the draws of --iso-sigma; leave --draws out")
        for name in explainers:
            metrics[name] = vd.gef.with_draws_for(chosen, name, resolution, metric=metric, seed=seed)
    scores = {name: vd.score(metrics[name], chosen, name, seed=seed) for name in explainers}
    say(f"noise path: {metric.noise_path(chosen, vd.core.Key(seed))}")
    _show_gef(scores)
    _tables(folder, gef=_gef_frame(scores))
    save_plot(lambda: vd.gef.plot_scores_by_explainer(scores), folder / "scores.png")
    save_plot(lambda: vd.gef.plot_path(scores), folder / "path.png")
    if assumptions:
        found = vd.gef.assumptions(chosen, seed=seed)
        say(repr(found))
        _tables(folder, assumptions=found.to_frame())
    say(f"table and pictures are in {folder}")


def _show_gef(scores: dict[str, vd.Scores]) -> None:
    rows = []
    for name, own in sorted(scores.items(), key=lambda pair: -pair[1].mean(skip_nan=True)):
        # of iso-sigma draws are the unit: samples share the noisy models
        low, high = own.provenance.get("iso_sigma", {}).get("interval") or own.ci()
        ceiling, partial = (float(own.details[what].nanmean()) for what in ("ceiling", "partial"))
        flagged = sum(own.flagged.values())
        mean = own.mean(skip_nan=True)
        rows.append((name, mean, f"{low:.3f} to {high:.3f}", ceiling, partial, flagged or ""))
    print_table(("explainer", "score", "95% interval", "ceiling", "given the level", "flagged"), rows)
    for name, own in scores.items():
        if (sure := own.provenance.get("iso_sigma")) is not None:
            low, high = sure["interval"]
            say(
                f"{name}: at fixed noise {sure['mean']:.3f}, p = {sure['p_value']:.3f}, 95% of draws "
                f"{low:.3f} to {high:.3f}; with {sure['draws']} draws 0.2 is seen in {sure['power']:.0%}"
            )
    for sentence in incomplete(scores.values()):
        say(sentence)


def _gef_frame(scores: dict[str, vd.Scores]) -> pd.DataFrame:
    import pandas as pd

    shown = ["explainer", "id", "value", "ceiling", "rho_sigma_explanation", "partial"]
    frame = pd.concat([own.to_frame().assign(explainer=name)[shown] for name, own in scores.items()])
    return frame.rename(columns={"id": "sample", "value": "score"})


@app.command("training-rows")
def training_rows(
    recipe: Annotated[
        str, typer.Argument(help="module:name or file.py:name of a vd.data.Retraining, or what makes one.")
    ],
    maps: Annotated[Path, typer.Argument(help="An .npz of relevance (tests, training rows) by method.")],
    retrainings: Annotated[int, typer.Option(help="How many subsets of the rows to train on.", min=48)] = 160,
    share: Annotated[float, typer.Option(help="The share of the rows that each keeps.")] = 0.5,
    allow_code: AllowCode = False,
    folder: Folder = Path("training_rows"),
) -> None:
    """Do the training rows that a method names change the answers when they are left out?

    Example: veridical training-rows recipe.py:rows maps.npz --allow-code
    """
    from veridical.auditing import audit_training_rows
    from veridical.data.files import read_maps

    found = import_attribute(recipe, allow_code)
    rows = found() if callable(found) else found
    if not isinstance(rows, vd.data.Retraining):
        raise InputError(f"{recipe} is a {type(rows).__name__}; expected a vd.data.Retraining")
    audit = audit_training_rows(rows, read_maps(maps), retrainings, share)
    for line in repr(audit).splitlines():
        say(line)
    _tables(folder, training_rows=audit.to_frame())
    save_plot(audit.plot, folder / "training_rows.png")
    say(f"table and picture are in {folder}")
    words = [place.status for place in audit.places]
    end(Status.GOOD if audit.best else Status.OPEN if "not decided" in words else Status.FINDING)


commands = typer.Typer(
    no_args_is_help=True,
    help="Which metric deserves to be believed: does it stay under slight noise and react to disruption?",
)
app.add_typer(commands, name="meta")

METRICS = ["sparseness", "complexity", "pixel_flipping", "faithfulness_correlation", "max_sensitivity"]
EXPLAINERS = ["gradient", "saliency", "input_x_gradient"]
TESTS = ("ipt", "mpt")
SCORES = "meta.safetensors"


@dataclass(frozen=True)
class Trial:
    """The options of commands that perturb metrics: what is tried, and how often."""

    explainer: Explainers = None
    draws: Annotated[int, typer.Option(help="Perturbations per iteration.", min=1)] = 3
    iterations: Annotated[int, typer.Option(help="Repeats, whose spread is reported.", min=1)] = 2
    test: Annotated[list[str] | None, typer.Option(help="ipt, mpt, combined. [default: ipt, mpt]")] = None

    def options(self) -> dict[str, Any]:
        """What `meta_evaluate` and `search_settings` take."""
        repeats = {"draws": self.draws, "iterations": self.iterations}
        return {"explainers": self.explainer or EXPLAINERS, "tests": self.test or TESTS, **repeats}


@commands.command()
@with_options(samples=48)
def benchmark(
    source: Source,
    trial: Trial,
    metric: Metrics = None,
    published: Annotated[bool, typer.Option("--published", help="Follow the published program.")] = False,
    folder: Folder = Path("meta"),
    seed: Seed = 0,
) -> None:
    """Rank metrics by meta-consistency inside each category, with area charts.

    Its scores stay in meta.safetensors, which `vd.meta.load` reads.

    Example: veridical meta benchmark -t digits -m sparseness -m pixel_flipping -e gradient -e saliency
    """
    result = vd.meta.meta_evaluate(
        source.load(), metric or METRICS, seed=seed, published=published, **trial.options()
    )
    _tables(folder, reliability=result.to_frame(), by_category=vd.meta.by_category(result))
    if len(result.metrics) > 1:
        _tables(folder, pairs=result.compare())
    save_plot(lambda: result.plot()[0, 0], folder / "areas.png")
    result.save(folder / SCORES)
    _done(folder, result)


@commands.command()
@with_options(samples=24)
def damage(
    source: Source,
    metric: Metrics = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Whose maps are damaged. [default: exact or occlusion]")
    ] = None,
    folder: Folder = Path("meta"),
    seed: Seed = 0,
) -> None:
    """Which metrics are admissible here: known damage is planted on the maps of one reference method.

    Example: veridical meta damage -t digits -m pixel_flipping -m sparseness
    """
    chosen = source.load()
    found = vd.meta.planted_damage(chosen, metric or METRICS, reference=reference, seed=seed)
    _tables(folder, damage=found.to_frame())
    save_plot(found.plot, folder / "damage.png")
    rows = []
    for label, tested in found.metrics.items():
        mean, low, high = tested.mean()
        numbers = ("", "") if tested.untested else (f"{mean:.2f}", f"{low:.2f} to {high:.2f}")
        rows.append((label, "yes" if tested.admissible else "no", *numbers, tested.reason))
    columns = ("metric", "admissible", "concordance", "interval", "why not")
    print_table(columns, rows, left="admissible, why not")
    say(f"damage on maps of {found.reference}, {found.cost}")
    say(f"tables and pictures are in {folder}")


@commands.command()
@with_options(samples=48)
def search(
    metric: Annotated[str, typer.Argument(help="The metric whose settings are searched.")],
    settings: Annotated[str, typer.Option(help="Values to try, as '{\"runs\": [20, 100]}'.")],
    source: Source,
    trial: Trial,
    folder: Folder = Path("meta"),
    seed: Seed = 0,
) -> None:
    """Find the settings of a metric that make it most reliable.

    Example: veridical meta search faithfulness_correlation --settings '{"runs": [20, 100]}' -t digits
    """
    chosen = source.load()
    values = parse_json(settings, '{"runs": [20, 100]}', lambda values: isinstance(values, list))
    best, result = vd.meta.search_settings(chosen, metric, values, seed=seed, **trial.options())
    _tables(folder, settings=result.to_frame())
    save_plot(lambda: vd.meta.plot_settings(result), folder / "settings.png")
    _done(folder, result)
    say(f"most reliable: {json.dumps(best.to_json())}")


def _tables(folder: Path, **frames: pd.DataFrame) -> None:
    for name, frame in frames.items():
        write_csv(frame, folder / f"{name}.csv")


def _done(folder: Path, result: vd.meta.MetaEvaluation) -> None:
    """Print the consistencies of every metric, what is odd, and where the files are."""
    columns = ("metric", "test", *vd.meta.ENTRIES, "mc", "mc_std", "dependence")
    print_table(columns, result.to_frame()[list(columns)].itertuples(index=False), left="test")
    say("dependence: share of scores that change with permuted maps; no MC counts without it")
    for label, scores in result.scores.items():
        for words in filter(None, (scores.dependence.remark, result.why_no_value(label))):
            say(f"{label}: {words}")
    for failure in result.failures:
        say(f"failed {failure.metric or ''}: {failure.message}")
    say(f"tables and pictures are in {folder}")
    end(Status.FAILED if result.failures else Status.GOOD)


KINDS = ("topk", "batchtopk", "relu")
SHOWN = ("metric", "trained", "best random", "its value", "smallest difference", "rank with truth", "verdict")


@app.command()
def dictionaries(
    features: Annotated[int, typer.Option(min=4, help="Planted features.")] = 128,
    dimensions: Annotated[int, typer.Option(min=2, help="Dimensions they share; fewer than features.")] = 32,
    active: Annotated[int, typer.Option(min=1, help="Atoms that are active in a row.")] = 4,
    kind: Annotated[str, typer.Option(help="topk, batchtopk or relu.")] = "topk",
    width: Annotated[int | None, typer.Option(min=1, help="Atoms. [default: as many as features]")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training, also of the controls.")] = 1500,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings of every dictionary.")] = 4,
    metric: Metrics = None,
    folder: Folder = Path("dictionaries"),
    seed: Seed = 0,
) -> None:
    """Plant features, train dictionaries and controls on them, and say which metric tells them apart.

    Example: veridical dictionaries --steps 200 --seeds 3 -m "explained variance" -m tpp
    """
    if kind not in KINDS:
        raise InputError(f"--kind is {', '.join(KINDS)}; got {kind!r}")
    made = vd.dictionaries
    planted = made.Superposition(features, dimensions, active=max(1.0, active - 1.0), seed=seed)
    shared = (width or features, steps, 256, 5e-3)
    recipe: vd.dictionaries.Recipe
    if kind == "relu":
        recipe = made.ReLU(*shared)
    else:
        recipe = (made.TopK if kind == "topk" else made.BatchTopK)(*shared, active=active)
    found = made.judge(planted, recipe, seeds=seeds, measures=metric, seed=seed)
    rows = [
        [f"{held:.3g}" if isinstance(held, float) else held for held in row]
        for row in found.table[list(SHOWN)].itertuples(index=False)
    ]
    print_table(SHOWN, rows, left="best random, verdict")
    found.save(folder)
    save_plot(lambda: made.plot_trust(found), folder / "trust.png")
    say(f"written to {folder}: trust.csv, means.csv, readings.csv, about.json, trust.png")
