"""One shape for all replications: `python -m replications.<paper> --data FOLDER --out FOLDER [--quick]`.

A replication is a list of parts, each a program of its own with the data it needs. Parts whose data are not
there are left out and named, the others run one after the other, and what they write lies in the out folder.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

Work = TypeVar("Work")

ROOT = Path(__file__).resolve().parents[1]
MNIST = ("mnist/mnist_lenet.pt", "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")
MNIST_TRAIN = (*MNIST, "mnist/mnist_train_60k.npz")
CIFAR = ("cifar10/cifar10_jpg_test10k.tar.gz", "cifar10/resnet20-12fca82f.th")
CIFAR_TRAIN = (*CIFAR, "cifar10/cifar10_jpg_train10k.tar.gz")
AVILA = ("avila/avila-tr.txt", "avila/avila-ts.txt")
WHERE = {
    "mnist": "MNIST: idx files of the test set from http://yann.lecun.com/exdb/mnist/, the 60,000 training "
    "images as npz, and the weights of a LeNet 6-16-120-84-10 (mnist_lenet.pt)",
    "cifar10": "CIFAR-10: https://www.cs.toronto.edu/~kriz/cifar.html, as archives of JPEG files in one "
    "folder a class, and the public ResNet-20 weights resnet20-12fca82f.th",
    "avila": "Avila: https://doi.org/10.24432/C5K02X",
    "adult": "Adult: https://doi.org/10.24432/C5XW20",
    "tabular_ann_weights": "the MLP on Adult that OpenXAI publishes, as ann_adult.pt",
    "minilm.npz": "MiniLM and snippets: python -m replications.gef.minilm --prepare FOLDER",
    "sms_spam": "SMS Spam: https://doi.org/10.24432/C5CC84",
    "trec": "TREC questions: https://cogcomp.seas.upenn.edu/Data/QA/QC/, as TREC.train.all and TREC.test.all",
    "efficientnet.npz": "photos and weights: python -m replications.gef.efficientnet --prepare FOLDER",
    "surf": "embeddings: python -m replications.surf.prepared FOLDER makes them",
    "dictionaries": "tokens: python -m replications.dictionaries.smollm2 FOLDER/dictionaries --data FOLDER",
    "sequences": "series and texts: python -m replications.f_fidelity.sequences FOLDER makes them",
}


@dataclass(frozen=True)
class Part:
    """A program and its arguments, `{out}` and `{data}` for folders; `quick` joins them for a small run."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    in_quick: bool = True
    """Whether a quick run has this part at all."""

    def line(self, out: Path, data: Path | None, quick: bool, device: str | None) -> list[str]:
        """The command line: a module after -m, or a script."""
        words = [*self.command, *(self.quick if quick else ())]
        filled = [word.replace("{out}", str(out)).replace("{data}", str(data)) for word in words]
        if filled[0].endswith(".py"):
            filled[0] = str(ROOT / filled[0])
        return [sys.executable, *filled, *(["--device", device] if device else [])]

    def lacks(self, data: Path | None) -> list[str]:
        """The files that are not in the data folder."""
        return [name for name in self.needs if data is None or not (data / name).is_file()]


def chosen(given: Sequence[str] | None, doc: str, parts: Sequence[Part]) -> argparse.Namespace:
    """The options that all replications share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("VERIDICAL_DATA"),
        help="folder that holds the data; default $VERIDICAL_DATA",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("replication"), help="folder for what the parts write"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: that it runs, not what the tables say"
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in parts], help="some parts only")
    parser.add_argument("--device", help="where to compute, for programs that ask, such as cuda")
    parser.add_argument("--list", action="store_true", help="name the parts and what each needs; run nothing")
    return parser.parse_args(given)


def main(
    doc: str, parts: Sequence[Part], takes_device: bool = False, argv: Sequence[str] | None = None
) -> int:
    """Run the parts; 0 if all that were tried went well and at least one was."""
    options = chosen(argv, doc, parts)
    data = None if options.data is None else Path(options.data).resolve()
    wanted = [part for part in parts if part.name in (options.only or [p.name for p in parts])]
    if options.quick and not options.only:
        wanted = [part for part in wanted if part.in_quick]
    if options.list:
        for part in wanted:
            print(f"{part.name}: needs {', '.join(part.needs) or 'no data of yours'}")
        return 0
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # parts are started in the out folder, where their caches belong, and find the package all the same
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if data is not None:
        env["VERIDICAL_DATA"] = str(data)
    failed, left_out = [], []
    for part in wanted:
        missing = part.lacks(data)
        if missing:
            left_out.append((part.name, missing))
            continue
        print(f"== {part.name}", flush=True)
        line = part.line(out, data, options.quick, options.device if takes_device else None)
        if subprocess.run(line, cwd=out, env=env, check=False).returncode:
            failed.append(part.name)
    return told(len(wanted), failed, left_out, out, data)


def told(
    count: int, failed: list[str], left_out: list[tuple[str, list[str]]], out: Path, data: Path | None
) -> int:
    """Say what ran, what did not and where to get it; the exit status."""
    sets = {name.split("/")[0] for _, missing in left_out for name in missing}
    for name, missing in left_out:
        place = "no --data folder was given" if data is None else f"{data} lacks {', '.join(missing)}"
        print(f"left out: {name} ({place})")
    for name in sorted(sets):
        print(f"  {WHERE[name]}")
    for name in failed:
        print(f"failed: {name}")
    ran = count - len(failed) - len(left_out)
    print(f"{ran} of {count} parts ran; results are in {out}")
    return 1 if failed or not ran else 0


# --- long runs that go on where they ended ----------------------------------------------------------------


def work_off(
    jobs: Mapping[str, Work],
    work: Callable[[Work], dict[str, Any]],
    file: Path,
    workers: int = 1,
    minutes: float = 1e5,
    also: Sequence[Path] = (),
    alone: bool = False,
) -> list[dict[str, Any]]:
    """The results of all jobs that are done, by this run and earlier ones, in the order of `jobs`.

    Each is kept as a line of `file` as soon as it is there, and is not done again; one with an "error" is.
    After so many minutes whatever still runs is ended. `also` names files of other runs; `alone` gives every
    job a process of its own.
    """
    end, kept = time.time() + 60 * minutes, dict[str, dict[str, Any]]()
    for place in (*also, file):
        lines = place.read_text(encoding="utf-8").splitlines() if place.is_file() else []
        kept |= {name: result for name, result in map(json.loads, lines) if name in jobs}
    todo = [(name, job) for name, job in jobs.items() if "error" in kept.get(name, {"error": ""})]
    file.parent.mkdir(parents=True, exist_ok=True)
    if not todo or minutes <= 0:
        return [kept[name] for name in jobs if name in kept]
    context = multiprocessing.get_context("spawn")
    # leaving the pool ends what still runs
    with context.Pool(workers, maxtasksperchild=1 if alone else None) as pool, file.open("a") as out:
        done = pool.imap_unordered(partial(_one, work), todo)
        for count in range(1, len(todo) + 1):
            try:
                name, result = done.next(timeout=max(0.0, end - time.time()))
            except multiprocessing.TimeoutError:
                print(f"time is up: {len(todo) + 1 - count} of {len(jobs)} are not done", flush=True)
                break
            kept[name] = result
            out.write(json.dumps([name, result]) + "\n")
            out.flush()
            said = result.get("error") or f"{result.get('seconds', 0):.0f} s"
            print(f"{count} of {len(todo)}, {name}: {said}", flush=True)
    return [kept[name] for name in jobs if name in kept]


def _one(work: Callable[[Work], dict[str, Any]], job: tuple[str, Work]) -> tuple[str, dict[str, Any]]:
    """A job in a process of its own, on one thread; what raises is told, not lost."""
    import torch

    torch.set_num_threads(1)
    name, what = job
    try:
        return name, work(what)
    except Exception as error:
        return name, {"error": f"{type(error).__name__}: {error}"}


def rounded(value: Any) -> Any:
    """The same plain data with four digits of each number."""
    if isinstance(value, Mapping):
        return {name: rounded(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(held) for held in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
