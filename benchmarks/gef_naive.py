"""Fast-GEF against the loop that anybody would write: a deep copy, noise, a gradient, for every noisy model.

PYTHONPATH=src python -m benchmarks.gef_naive [--rounds 5] [--profile]

Both in turn in one run, one thread, CPU time; the smallest of the rounds counts. The path is given, so that
neither searches one. A ratio above 1 says that ours is slower.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import pstats
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import veridical as vd
from benchmarks.gef import lenet_task

PATH, DRAWS = (0.001, 0.5, 1.0, 1.5, 2.0), 5


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation of each row, without ties."""
    ranks = [each.argsort(1).argsort(1).double() for each in (a, b)]
    centred = [each - each.mean(1, keepdim=True) for each in ranks]
    return (centred[0] * centred[1]).sum(1) / (centred[0].norm(dim=1) * centred[1].norm(dim=1))


def naive(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """Fast-GEF of the gradient: 25 lines, nothing shared, nothing checked."""

    def answered(net: nn.Module) -> tuple[Tensor, Tensor]:
        rows = x.clone().requires_grad_(True)
        own = net(rows).gather(1, targets[:, None])[:, 0]
        map_ = torch.autograd.grad(own.sum(), rows)[0].flatten(1)
        return own.detach(), map_ / map_.square().mean(1, keepdim=True).sqrt()

    clean, map_ = answered(copy.deepcopy(model).eval())
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(DRAWS):
        moved, drifted = [], []
        for sigma in PATH:
            noisy = copy.deepcopy(model).eval()
            with torch.no_grad():
                for parameter in noisy.parameters():
                    parameter.mul_(1 + sigma * torch.randn_like(parameter))
            own, other = answered(noisy)
            moved.append((own - clean).abs())
            drifted.append((other - map_).norm(dim=1))
        total += spearman(torch.stack(moved, 1), torch.stack(drifted, 1)) / DRAWS
    return total


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    metric = vd.gef.FastGEF(path=PATH, draws=DRAWS)
    digits = vd.tasks.load("digits")
    shown = {"digits, 64": digits[:64], "digits, 256": digits[:256], "LeNet, 64": lenet_task(64)}
    for name, task in shown.items():
        pairs = [
            (
                seconds(lambda task=task: naive(task.model, task.inputs, task.targets)),
                seconds(lambda task=task: vd.score(metric, task, "gradient").values),
            )
            for _ in range(options.rounds)
        ]
        loop, ours = (min(column) for column in zip(*pairs, strict=True))
        print(f"{name}: naive {loop:.3f} s, ours {ours:.3f} s, ratio {ours / loop:.2f}")
        if options.profile:
            with cProfile.Profile() as profile:
                vd.score(metric, task, "gradient")
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
