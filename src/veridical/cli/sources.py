"""Where a command's task comes from: an embedded one by name, or the user's own model and data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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


def task_from_options(
    task: str | None,
    model: str | None,
    data: Path | None,
    arch: str | None,
    labels: str | None,
    train: Path | None,
    allow_code: bool,
    samples: int | None,
    device: str | None,
    text: str | None = None,
    units: str | None = None,
    off: str | None = None,
    output: int | None = None,
) -> vd.Task:
    """The task these options describe; options that contradict each other are told apart."""
    from veridical.loading import checked_device, load_task

    if model is None:
        own: dict[str, Any] = {
            "--data": data,
            "--arch": arch,
            "--labels": labels,
            "--train": train,
            "--text": text,
        }
        own |= {"--units": units, "--off": off, "--output": output}
        given = [option for option, value in own.items() if value is not None]
        if given:
            raise InputError(f"{' and '.join(given)} describe your own model's data; name it with --model")
        chosen = vd.tasks.load(task or DEFAULT_TASK, samples)
        place = checked_device(device)
        return chosen if place is None else chosen.to(place)
    if task is not None:
        raise InputError("--task is an embedded task and --model your own; give one of them")
    if data is None:
        raise InputError("--model needs --data: the samples to explain")
    asked = {"units": units, "off": off, "output": output}
    settings: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return load_task(
        model,
        data,
        arch=arch,
        labels=labels,
        train=train,
        allow_code=allow_code,
        samples=samples,
        device=device,
        text=text,
        **settings,
    )
