"""Fidelity: overhead of the removal metrics over their bare evaluations, and ROAR's cost beside FFid's.

PYTHONPATH=src python -m benchmarks.fidelity [--samples 32] [--draws 20] [--rounds 3] [--device cuda]
"""

from __future__ import annotations

import argparse

import torch

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.timing import Timing, compare, seconds, table
from veridical.fidelity.removal import SIGNS


def lenet_task(samples: int, device: str) -> vd.Task:
    """Random images are enough: what is timed is the work, not the score."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples + 512, 1, 28, 28, generator=generator)
    task = vd.Task(lenet(), x[:samples], train=x[samples:], name="LeNet, 28 px")
    return task.to(device)


def overheads(task: vd.Task, draws: int, rounds: int) -> list[Timing]:
    """Each metric, and one pass for both signs: rows asked, seconds, bare seconds, ratio."""
    explanation = vd.explain("random", task)
    truth = task.predictions
    levels = vd.fidelity.RFid().sizes

    def both() -> vd.Cost:
        before = task.predictor.meter.cost
        vd.fidelity.measure(task, explanation, truth, levels=levels, beta=0.1, draws=draws, signs=SIGNS)
        return task.predictor.meter.cost - before

    metrics = [vd.fidelity.Fid(), vd.fidelity.RFid(draws=draws), vd.fidelity.RFid("minus", draws=draws)]
    metrics.append(vd.fidelity.RFid(draws=draws, bernoulli=True))
    out = []
    for metric in metrics:
        name = metric.name + (" bernoulli" if metric.removal["bernoulli"] else "")
        out.append(compare(name, lambda m=metric: m(task, explanation).cost, task, rounds))
    out.append(compare("both signs in one pass", both, task, rounds))
    return out


def costs(task: vd.Task, draws: int) -> vd.fidelity.CostComparison:
    """One epoch of each kind of training and one evaluation, in seconds, for the break-even."""
    import tempfile

    explanation = vd.explain("gradient", task)
    roar = vd.fidelity.ROAR(sizes=(0.5,), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        tuning = seconds(lambda: vd.fidelity.finetune(task, epochs=1, cache=folder), task.device)
    metric = vd.fidelity.RFid(draws=draws)
    judging = seconds(lambda: metric(task, explanation), task.device)
    retraining = seconds(lambda: roar(task, _gradient()), task.device)
    explaining = seconds(lambda: vd.explain("gradient", task), task.device) * 512 / len(task)
    return vd.fidelity.CostComparison(
        explaining, retraining, 0.0, tuning, 2 * judging, sizes=len(metric.sizes)
    )


def _gradient() -> vd.Explainer:
    from veridical.explainers import Gradient

    return Gradient()


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    task = lenet_task(chosen.samples, chosen.device)
    print(table(overheads(task, chosen.draws, chosen.rounds)))
    print("\nSeconds, one epoch each:")
    print(costs(task, chosen.draws))


if __name__ == "__main__":
    main()
