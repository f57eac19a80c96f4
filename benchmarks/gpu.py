"""Everything that is measured on a GPU, the most important first, each row written as soon as it is there.

python -m benchmarks.gpu [--out FOLDER] [--seconds 400] [--part NAME ...] [--device cuda]

Writes `results.jsonl` and `tables.md`, with machine, versions and date; rows for which no time is left are
missing, never guessed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import veridical as vd
from benchmarks import explainers, maps, masks, scaling
from benchmarks.launches import costliest, counted
from benchmarks.metrics import FINE_TUNED, cases, tasks, timings
from benchmarks.results import Results
from benchmarks.timing import bare, compare, seconds
from veridical.explainers import Explainer, registry
from veridical.explainers import applicable as known
from veridical.metrics import applicable

MANY = 8192
UNSEEN = [
    *("relative_input_stability", "relative_representation_stability", "region_perturbation", "rfid_plus"),
    *("rfid_minus", "selectivity", "sensitivity_n", "sufficiency"),
]
"""Metrics that runs cut off before their turn: first at ResNet-18 size."""
SHORT = [
    *("road", "completeness", "max_sensitivity", "mprt", "efficient_mprt", "random_logit", "consistency"),
    *("relative_output_stability", "input_invariance", "continuity", "sufficiency"),
]
"""Metrics that ask so little of a LeNet that a thousand samples are over before they can be timed."""
PROFILED = ("road", "efficient_mprt", "mprt", "max_sensitivity", "completeness")
LOSING = (*PROFILED, "smooth_mprt", "random_logit", "relative_output_stability", "infidelity", "insertion")
CHANNELS_LAST = ("pixel_flipping", "max_sensitivity", "deletion", "irof")


def metrics_at_resnet18(results: Results, device: str) -> None:
    """Every metric at ResNet-18 size."""
    _metrics(results, device, "resnet18", None, None, UNSEEN)


def metrics_at_lenet(results: Results, device: str) -> None:
    """Every metric at LeNet size, on as many samples as the peers were measured on."""
    _metrics(results, device, "lenet", None, None)


def short_metrics(results: Results, device: str) -> None:
    """The metrics that ask little, on samples enough to time them."""
    _metrics(results, device, "lenet", MANY, SHORT)


def quick(results: Results, device: str) -> None:
    """The metrics that lose most, at both sizes, and the profiles of a few."""
    for size in ("lenet", "resnet18"):
        _metrics(results, device, size, None, list(LOSING))
    _profiles(results, device)


def road(results: Results, device: str) -> None:
    """ROAD alone at LeNet size, where its own kernel fills the holes."""
    for samples in (None, MANY):
        _metrics(results, device, "lenet", samples, ["road"])


def _metrics(
    results: Results,
    device: str,
    size: str,
    samples: int | None,
    names: list[str] | None,
    first: Sequence[str] = (),
) -> None:
    task = tasks(device, size, samples)
    if names is None:
        # those that have lost most come first, in case that time runs out
        rest = [name for name in applicable(task) if name not in FINE_TUNED]
        names = list(dict.fromkeys([*first, *LOSING, *rest]))
    title = f"{task.name}, {len(task)} samples, {task.predictor.rows} rows a chunk"
    for timing in timings(task, size, names):
        results.timing(title, timing)
        if results.late:
            return


def probe_alone(results: Results, device: str) -> None:
    """Asking about masks, by kind of mask."""
    for size in ("lenet", "resnet18"):
        for timing in masks.measure(device, size):
            results.timing(f"The probe alone, {size}", timing)


def explaining(results: Results, device: str) -> None:
    """Every explainer."""
    for size in ("resnet18", "lenet"):
        task = tasks(device, size)
        skipped, chosen = explainers.left_out(size, device == "cpu"), explainers.settings(size)
        for name in known(task):
            if name in skipped:
                continue
            explainer = registry.make(name, **chosen.get(name, {}))
            work = partial(_cost_of, explainer, task)
            results.timing(f"Explainers, {size}", compare(name, work, task))
            if results.late:
                return


def _cost_of(explainer: Explainer, task: vd.Task) -> vd.models.Cost:
    return vd.explain(explainer, task).cost


def many_maps(results: Results, device: str) -> None:
    """Ten thousand maps of 224 x 224 pixels."""
    for row in maps.rows(10_000, 224, device):
        results.add("10,000 maps of 224 x 224", **row)
        if results.late:
            return


def channels_last(results: Results, device: str) -> None:
    """The same metrics with images laid out channel by channel, and with channels last."""
    plain = tasks(device, "resnet18")
    moved = plain.with_plan(replace(plain.predictor.plan, channels_last=True))
    for name in CHANNELS_LAST:
        both = [next(iter(cases(task, "resnet18", [name]))) for task in (plain, moved)]
        spent = []
        for case in both:
            # the layout of the weights goes with that of the images
            form = torch.channels_last if case.task is moved else torch.contiguous_format
            case.task.predictor.model.to(memory_format=form)  # type: ignore[call-overload]
            case()
            runs = sorted(seconds(case, case.task.device) for _ in range(3))
            spent.append(runs[1])
        row = {"what": name, "seconds": spent[0], "channels last": spent[1]}
        results.add("Channels last, ResNet-18 size", **row, ratio=round(spent[1] / spent[0], 3))
        if results.late:
            return


def where_time_goes(results: Results, device: str) -> None:
    """Operations and waits of every metric at LeNet size, and profiles of a few."""
    task = tasks(device, "lenet")
    for case in cases(task, "lenet"):
        cost = case()
        seen, floor = counted(case), counted(bare(task, cost, case.batch))
        row = {"what": case.metric.name, "operations": seen.operations, "bare": floor.operations}
        results.add("Operations a score starts, LeNet", **row, waits=seen.waits)
        if results.late:
            return
    _profiles(results, device)


def _profiles(results: Results, device: str) -> None:
    """The costliest operations of a few metrics, in a file of their own."""
    if results.folder is None:
        return
    for size in ("lenet", "resnet18"):
        for case in cases(tasks(device, size), size, list(PROFILED)):
            case()
            text = f"\n{size} {case.metric.name}\n{costliest(case, device)}\n"
            with (results.folder / "profiles.txt").open("a", encoding="utf-8") as out:
                out.write(text)


def growing(results: Results, device: str) -> None:
    """Time and memory over samples, features and draws."""
    for axis in scaling.CURVES:
        for row in scaling.points(axis, device, small=False):
            results.add("Scaling", **row)
        if results.late:
            return


PARTS: dict[str, Callable[[Results, str], None]] = {
    "road": road,
    "resnet18": metrics_at_resnet18,
    "lenet": metrics_at_lenet,
    "short": short_metrics,
    "channels-last": channels_last,
    "maps": many_maps,
    "explainers": explaining,
    "scaling": growing,
    "probe": probe_alone,
    "operations": where_time_goes,
}
SHARES = {
    "road": 0.06,
    "resnet18": 0.4,
    "lenet": 0.2,
    "short": 0.08,
    "channels-last": 0.06,
    "maps": 0.08,
    "explainers": 0.12,
}
"""How much of `--seconds` a part may take, where it is not the last; what it leaves others have."""
EXTRA = {"quick": quick}
"""Not part of everything: for a first look."""


def main() -> None:
    """Run the parts in order until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmark_gpu"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--part", choices=[*PARTS, *EXTRA], action="append")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    results = Results(given.out, given.device, given.seconds)
    for name in given.part or PARTS:
        if results.late:
            print(f"no time left for {name}", flush=True)
            continue
        share = SHARES.get(name)
        results.begin(None if share is None or given.seconds is None else share * given.seconds)
        (PARTS | EXTRA)[name](results, given.device)
        results.begin(None)
        if given.device != "cpu":
            torch.cuda.empty_cache()
    print(results.markdown())


if __name__ == "__main__":
    main()
