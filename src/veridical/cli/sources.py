"""Options that commands share: where the task comes from, explainers, metrics, seed, folder of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

import veridical as vd
from veridical.errors import InputError

DEFAULT_TASK = "digits"

Arch = Annotated[str | None, typer.Option(help="The function that builds the network, as module:function.")]
Labels = Annotated[str | None, typer.Option(help="The column (or array) that holds the true classes.")]
Text = Annotated[str | None, typer.Option(help="The column that holds the texts.")]
Output = Annotated[int | None, typer.Option(help="Which of several targets to explain, from 0.", min=0)]
Train = Annotated[Path | None, typer.Option(help="Reference rows, in any format --data takes.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run Python code: --arch, .joblib, import paths.")
]
Samples = Annotated[
    int | None, typer.Option("--samples", "-n", help="Use only N samples, a fixed random choice.", min=1)
]
Device = Annotated[str | None, typer.Option(help="Where to compute, such as cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="All randomness follows from this number.")]
Explainers = Annotated[list[str] | None, typer.Option("--explainer", "-e", help="Repeat for several.")]
Maps = Annotated[
    list[Path] | None,
    typer.Option(help="Finished maps: .npz (an array a method), .npy, .csv or .safetensors. Repeat."),
]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Repeat for several.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="The folder where results go.")]
MODEL = (
    "Your model: a Hugging Face folder (or hf:owner/name from the hub), weights (.safetensors, .pt) with "
    "--arch, .joblib, .onnx, or a language model as a folder or .gguf file."
)
DATA = "Your data: .npz, .npy, .parquet, .csv, .tsv, .jsonl (also of prompts) or a folder of images."


@dataclass(frozen=True)
class Source:
    """The options of one command that give its task; `load` makes the task."""

    task: Annotated[
        str | None, typer.Option("--task", "-t", help="An embedded task; see: veridical list tasks.")
    ] = None
    model: Annotated[str | None, typer.Option(help=MODEL)] = None
    data: Annotated[Path | None, typer.Option(help=DATA)] = None
    arch: Arch = None
    labels: Labels = None
    train: Train = None
    text: Text = None
    output: Output = None
    units: Annotated[
        str | None,
        typer.Option(help="Parts of a text: token, word; of a prompt also sentence, passage, example, turn."),
    ] = None
    off: Annotated[
        str | None, typer.Option(help="What a part that is off becomes: fill, drop, pad, mask, zero.")
    ] = None
    allow_code: AllowCode = False
    samples: Samples = None
    device: Device = None

    def load(self) -> vd.Task:
        """The task these options describe; options that contradict each other are refused."""
        from veridical.data import load_task
        from veridical.values.input_checks import as_device

        own = ("data", "arch", "labels", "train", "text", "units", "off", "output")
        given = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        if self.model is None:
            if given:
                options = " and ".join(f"--{name}" for name in given)
                raise InputError(f"{options} describe your own model's data; name it with --model")
            chosen = vd.tasks.load(self.task or DEFAULT_TASK, self.samples)
            return chosen if self.device is None else chosen.to(as_device(self.device))
        if self.task is not None:
            raise InputError("--task is an embedded task and --model your own; give one of them")
        if self.data is None:
            raise InputError("--model needs --data: the samples to explain")
        how: dict[str, Any] = {"allow_code": self.allow_code, "samples": self.samples, "device": self.device}
        return load_task(self.model, **given, **how)


def with_maps(explainers: list[str] | None, files: list[Path] | None, task: vd.Task) -> Any:
    """Explainers by name and finished maps beside them; maps of all rows are cut to those that were drawn."""
    from veridical.data.files import read_maps

    given: dict[str, Any] = {name: name for name in explainers or ()}
    for file in files or ():
        for label, maps in read_maps(file).items():
            rows = task.ids.tolist()
            if not isinstance(maps, vd.Explanation) and len(rows) < len(maps) and max(rows) < len(maps):
                maps = maps.iloc[rows] if hasattr(maps, "iloc") else maps[rows]
            given[label] = maps
    return given or None


def with_options(
    without: Sequence[str] = ("units", "off"), **defaults: Any
) -> Callable[[Callable[..., None]], Any]:
    """Let a command take every field of its parameters that are dataclasses as an option of its own.

    Parameters
    ----------
    without
        Fields that this command does not take.
    defaults
        Defaults that are others than those of the dataclass.

    Returns
    -------
    Callable
        A decorator of commands. A field that the command takes itself goes to both.
    """

    def decorate(command: Callable[..., None]) -> Any:
        own = signature(command, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)
        }
        shown = []
        for name, parameter in own.items():
            if name not in groups:
                shown.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
                continue
            for option, kind in get_type_hints(groups[name], include_extras=True).items():
                if option not in own and option not in without:
                    default = defaults.get(option, getattr(groups[name], option))
                    shown.append(Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

        def run(**values: Any) -> None:
            made = {
                name: group(
                    **{field.name: values[field.name] for field in fields(group) if field.name in values}
                )
                for name, group in groups.items()
            }
            command(**{name: values[name] for name in own if name not in groups}, **made)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        return run

    return decorate
