"""Files of every format we read, with bytes changed at random: read, or refused with a VeridicalError."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import veridical as vd
from tests.fuzz.calls import Hang, Tally, deadline
from veridical.core import files
from veridical.data.files import read_arrays, read_table
from veridical.data.images import image_rule, read_image
from veridical.data.model_files import read_weights
from veridical.errors import VeridicalError
from veridical.report import rendering
from veridical.study.cells import from_parquet, to_parquet
from veridical.study.study_file import read_study

SECONDS = 20


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
    """Some bytes flipped, cut, doubled, zeroed or put in."""
    sick = bytearray(whole)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(sick) or 1)
        end = min(len(sick), at + chance.choice([1, 2, 8, 64]))
        match chance.choice(["flip", "flip", "cut", "end", "twice", "zero", "insert", "ones"]):
            case "flip" if sick:
                sick[at] ^= 1 << chance.randrange(8)
            case "cut":
                del sick[at:end]
            case "end":
                del sick[at:]
            case "twice":
                sick[at:at] = sick[at:end]
            case "zero":
                sick[at:end] = bytes(end - at)
            case "ones":
                sick[at:end] = b"\xff" * (end - at)
            case _:
                sick[at:at] = chance.randbytes(chance.choice([1, 4, 40]))
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
        try:
            with warnings.catch_warnings(), deadline(SECONDS):
                warnings.simplefilter("ignore")
                read(victim)
            tally.outcomes["answer"] += 1
            if name.startswith("our"):
                tally.wrong.append(f"{seed}/{number} {name}: a changed file was taken for a whole one")
        except VeridicalError:
            tally.outcomes["refused"] += 1
        except Hang:
            tally.wrong.append(f"{seed}/{number} {name}: did not come back in {SECONDS} s")
        except Exception as error:
            tally.outcomes["raw"] += 1
            tally.wrong.append(f"{seed}/{number} {name}: {type(error).__name__}: {str(error)[:120]}")
    return tally
