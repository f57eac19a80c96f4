"""Files of every format we read, with bytes changed at random: read, or refused with a VeridicalError."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import veridical as vd
from tests.fuzz.calls import Tally
from veridical.core import files
from veridical.data.files import read_arrays, read_table
from veridical.data.images import image_rule, read_image
from veridical.data.model_files import read_weights
from veridical.report import rendering
from veridical.study.cells import from_parquet, to_parquet
from veridical.study.study_file import read_study


def formats(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """One whole file of each format, and how it is read."""
    from PIL import Image

    rng = np.random.default_rng(0)
    task = vd.Task(torch.nn.Linear(4, 3), torch.ones(3, 4))
    maps = vd.explain("gradient", task)
    scores = vd.score("sparseness", task, maps)
    frame = pd.DataFrame({"text": ["a", "b"], "x": [1.5, 2.0], "label": [0, 1]})
    place = {name: folder / f"file.{name}" for name in ("npy", "npz", "csv", "parquet", "jsonl", "png", "pt")}
    np.save(place["npy"], rng.random((4, 3)))
    np.savez_compressed(place["npz"], inputs=rng.random((4, 3)), labels=np.arange(4))
    frame.to_csv(place["csv"], index=False)
    frame.to_parquet(place["parquet"])
    frame.to_json(place["jsonl"], orient="records", lines=True)
    Image.fromarray((rng.random((9, 9)) * 255).astype(np.uint8)).save(place["png"])
    torch.save({"w": torch.rand(3), "b": torch.rand(2)}, place["pt"])
    labels = {"task": "t", "explainer": "e", "metric": "m", "seed": 0}
    rule = folder / "rule.json"
    rule.write_text(json.dumps({"size": {"height": 8, "width": 8}, "image_mean": [0.5], "resample": 2}))
    study = folder / "study.yaml"
    study.write_text(
        "tasks: [known/linear]\nexplainers: [gradient]\nmetrics: [{name: gef, grid: {draws: [1]}}]"
    )
    plan = files.write_file(folder / "plan.json", files.pack_json({"a": [1, {"b": None}]}, "plan", 1, "x"))
    report = rendering.save({"kind": "audit", "format": 1, "name": "n"}, folder / "report.json")
    return {
        "npy": (place["npy"], read_arrays),
        "npz": (place["npz"], read_arrays),
        "csv": (place["csv"], read_table),
        "parquet": (place["parquet"], read_table),
        "jsonl": (place["jsonl"], read_table),
        "png": (place["png"], lambda p: read_image(p, 8, channels=1)),
        "weights": (place["pt"], read_weights),
        "image rule": (rule, image_rule),
        "study": (study, read_study),
        "report": (report, rendering.read),
        "our maps": (maps.save(folder / "maps.safetensors"), vd.Explanation.load),
        "our scores": (scores.save(folder / "scores.safetensors"), vd.Scores.load),
        "our cell": (
            files.write_file(folder / "cell.parquet", to_parquet(scores, labels, {}, "x")),
            lambda p: from_parquet(p.read_bytes(), p.name, "x", 3),
        ),
        "our plan": (plan, lambda p: files.unpack_json(p.read_bytes(), p.name, "plan", 1, "x")),
    }


def changed(whole: bytes, chance: random.Random) -> bytes:
    """Some bytes replaced, cut or put in."""
    sick = bytearray(whole)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(sick) or 1)
        end = min(len(sick), at + chance.choice([0, 1, 2, 8, 64, len(sick)]))
        held = bytes(sick[at:end])
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in held)
        longer = held + chance.randbytes(4)
        sick[at:end] = chance.choice([flipped, flipped, b"", held * 2, bytes(end - at), b"\xff" * 4, longer])
    return bytes(sick)


def run(mutations: int, seed: int, folder: Path) -> Tally:
    """Read this many changed files; our own must all be refused."""
    tally, known = Tally(), formats(folder)
    contents = {name: path.read_bytes() for name, (path, _) in known.items()}
    for number in range(mutations):
        chance = random.Random(f"{seed}/{number}")
        name = list(known)[number % len(known)]
        path, read = known[name]
        sick = changed(contents[name], chance)
        if sick == contents[name]:
            continue
        victim = path.with_name(f"sick-{path.name}")
        victim.write_bytes(sick)

        problem = "a changed file was taken for a whole one" if name.startswith("our") else None
        tally.attempt(f"{seed}/{number} {name}", partial(read, victim), lambda _, found=problem: found)
    return tally
