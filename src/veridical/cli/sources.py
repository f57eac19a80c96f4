"""Options that commands share: where the task comes from, explainers, metrics, seed, folder of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

import veridical as vd
from veridical.errors import InputError

DEFAULT_TASK = "digits"

TaskName = Annotated[
    str | None,
    typer.Option("--task", "-t", help="An embedded task (digits unless told); see: veridical list tasks."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Your model: a Hugging Face folder (or hf:owner/name from the hub), weights (.safetensors, "
        ".pt) with --arch, .joblib, .onnx, or a language model as a folder or .gguf file.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Your data: .npz, .npy, .parquet, .csv, .tsv, .jsonl (also of prompts) or a folder of images.",
    ),
]
Arch = Annotated[
    str | None,
    typer.Option("--arch", help="The function that builds the network of the weights, as module:function."),
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="The column (or array) that holds the true classes.")
]
Text = Annotated[str | None, typer.Option("--text", help="The column that holds the texts.")]
Units = Annotated[
    str | None,
    typer.Option(
        "--units", help="Parts of a prompt that are judged: word, sentence, passage, example, turn."
    ),
]
Off = Annotated[
    str | None, typer.Option("--off", help="What becomes of a part that is off: fill, drop, pad, mask, zero.")
]
Output = Annotated[
    int | None,
    typer.Option("--output", help="Which target to explain, from 0, of an estimator of several.", min=0),
]
Train = Annotated[Path | None, typer.Option("--train", help="Reference rows, in any format --data takes.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run Python code that comes with the model (--arch, .joblib).")
]
Samples = Annotated[
    int | None,
    typer.Option("--samples", "-n", help="Use only N samples, a fixed random choice.", min=1),
]
Device = Annotated[str | None, typer.Option("--device", help="Where to compute, such as cpu or cuda.")]
Seed = Annotated[int, typer.Option("--seed", help="All randomness follows from this number.")]
Explainers = Annotated[list[str] | None, typer.Option("--explainer", "-e", help="Repeat for several.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Repeat for several.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="The folder where results go.")]


@dataclass(frozen=True)
class Source:
    """The options of one command that say where its task comes from; `load` makes the task."""

    task: TaskName = None
    model: Model = None
    data: Data = None
    arch: Arch = None
    labels: Labels = None
    train: Train = None
    text: Text = None
    output: Output = None
    units: Units = None
    off: Off = None
    allow_code: AllowCode = False
    samples: Samples = None
    device: Device = None

    def load(self) -> vd.Task:
        """The task these options describe; options that contradict each other are told apart."""
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


def on_a_task(samples: int | None, prompts: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Let a command that has a parameter `source` take the options of one, with this many samples by default.

    `prompts` adds those that only a language model has.
    """
    left_out = () if prompts else ("units", "off")
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind in get_type_hints(Source, include_extras=True).items()
        for default in [samples if name == "samples" else getattr(Source, name)]
        if name not in left_out
    ]

    def decorate(command: Callable[..., None]) -> Any:
        others = signature(command, eval_str=True).parameters
        before = [name for name in others if name != "source"]
        places = list(others).index("source")
        shown = [others[name].replace(kind=Parameter.KEYWORD_ONLY) for name in before]
        shown[places:places] = options

        def run(**values: Any) -> None:
            source = Source(**{option.name: values.pop(option.name) for option in options})
            command(source=source, **values)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        return run

    return decorate
