"""Fidelity: overhead of the removal metrics over their bare evaluations, and ROAR's cost beside FFid's.

PYTHONPATH=src python -m benchmarks.fidelity [--size resnet18] [--samples 32] [--draws 20] [--device cuda]

The overhead is the median over rounds of work and bare evaluations taken in turn. Every metric must evaluate
samples x sizes x draws rows.
"""

from __future__ import annotations

import argparse
import tempfile

import torch

import veridical as vd
from benchmarks.networks import lenet, resnet18
from benchmarks.timing import Timing, compare, seconds, table
from replications.f_fidelity.costs import CostComparison
from replications.f_fidelity.roar import ROAR
from veridical.fidelity.removal import SIGNS


def lenet_task(samples: int, device: str) -> vd.Task:
    """Random images are enough: what is timed is the work, not the score."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples + 512, 1, 28, 28, generator=generator)
    task = vd.Task(lenet(), x[:samples], train=x[samples:], name="LeNet, 28 px")
    return task.to(device)


def resnet_task(samples: int, device: str) -> vd.Task:
    """The same at 224 pixels, a network the size of a ResNet-18."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples + 8, 3, 224, 224, generator=generator)
    space = vd.Space.pixels((3, 224, 224))
    task = vd.Task(resnet18(), x[:samples], train=x[samples:], space=space, name="ResNet-18 size, 224 px")
    return task.to(device)


def overheads(task: vd.Task, draws: int, rounds: int, clock: str) -> list[Timing]:
    """Each metric, and one pass for both signs: rows asked, seconds, bare seconds, ratio."""
    explanation = vd.explain("random", task)
    truth = task.predictions
    levels = vd.fidelity.RFid().sizes

    def both() -> vd.models.Cost:
        before = task.predictor.meter.cost
        vd.fidelity.measure(task, explanation, truth, levels=levels, beta=0.1, draws=draws, signs=SIGNS)
        return task.predictor.meter.cost - before

    with tempfile.TemporaryDirectory() as folder:
        tuned = vd.fidelity.finetune(task, epochs=1, cache=folder)
        metrics = [vd.fidelity.Fid(), vd.fidelity.RFid(draws=draws), vd.fidelity.RFid("minus", draws=draws)]
        metrics += [vd.fidelity.FFid(sign, draws=draws, finetuned=tuned) for sign in SIGNS]
        metrics.append(vd.fidelity.RFid(draws=draws, bernoulli=True))
        out = []
        for metric in metrics:
            name = metric.name + (" bernoulli" if metric.removal["bernoulli"] else "")
            rows = len(task) * len(metric.sizes) * metric.removal["draws"]
            timing = compare(name, lambda m=metric: m(task, explanation).cost, task, rounds, clock=clock)
            if timing.forward != rows:
                raise SystemExit(f"{name} evaluated {timing.forward} rows, not {rows}")
            out.append(timing)
    out.append(compare("both signs in one pass", both, task, rounds, clock=clock))
    return out


def costs(task: vd.Task, draws: int) -> CostComparison:
    """One epoch of each kind of training and one evaluation, in seconds, for the break-even."""
    explanation = vd.explain("gradient", task)
    roar = ROAR(sizes=(0.5,), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        tuning = seconds(lambda: vd.fidelity.finetune(task, epochs=1, cache=folder), task.device)
    metric = vd.fidelity.RFid(draws=draws)
    judging = seconds(lambda: metric(task, explanation), task.device)
    retraining = seconds(lambda: roar(task, _gradient()), task.device)
    explaining = seconds(lambda: vd.explain("gradient", task), task.device) * 512 / len(task)
    return CostComparison(explaining, retraining, 0.0, tuning, 2 * judging, sizes=len(metric.sizes))


def _gradient() -> vd.Explainer:
    from veridical.explainers import Gradient

    return Gradient()


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--size", choices=["lenet", "resnet18"], default="lenet")
    parser.add_argument("--samples", type=int, help="32 (LeNet) or 2 on a CPU, 1024 or 64 on a GPU")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: on a busy machine")
    chosen = parser.parse_args()
    small, make = chosen.size == "lenet", lenet_task if chosen.size == "lenet" else resnet_task
    usual = (32 if small else 2) if chosen.device == "cpu" else (1024 if small else 64)
    task = make(chosen.samples or usual, chosen.device)
    print(
        f"{task.name}, {len(task)} samples, {task.predictor.rows} rows a chunk, {chosen.device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(table(overheads(task, chosen.draws, chosen.rounds, chosen.clock)), flush=True)
    if small:
        print("\nSeconds, one epoch each:")
        print(costs(task, chosen.draws))


if __name__ == "__main__":
    main()
