"""What the host does for one map: seconds and operations against one bare gradient of the same model.

python -m benchmarks.host_time [EXPLAINER ...]

On a GPU the host asks for kernels and the device runs them; where the host is the slower of the two, a map
takes the host's time. This needs no GPU: a network of ResNet-18's depth, so thin that its arithmetic is next
to nothing, on one small image. Operations are counted as a GPU would be asked for them (what is one kernel
there counts once). Bare: the model's forward pass, one output, its gradient, nothing around it. Bare rows are
as many as the meter counted: those of baselines without a gradient, in one call, and the gradient as often as
it was asked for.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import veridical as vd
from benchmarks.launches import counted
from benchmarks.networks import resnet18
from veridical.explainers import Explainer, as_explainer

NAMES = ["gradient", "lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "deeplift", "deeplift_shap"]
NAMES += ["guided_backprop"]
THIN = (4, 4, 6, 8, 10)
Run = Callable[[], object]


def thin_task() -> vd.Task:
    """One small image, a network of ResNet-18's depth, and eight reference rows."""
    x, *rows = torch.rand(9, 3, 32, 32, generator=torch.Generator().manual_seed(0)).split(1)
    return vd.Task(resnet18(THIN), x, train=torch.cat(rows), plan=vd.Plan(rows=8))


def bare(task: vd.Task, rows: int = 1, backs: int = 1) -> Run:
    """The model's gradient, gone back so often, and `rows` less one further rows forward in one call."""
    model, x, target = task.predictor.unwrapped, task.inputs, task.targets
    further = x.repeat(rows - 1, 1, 1, 1)

    def run() -> Tensor:
        leaf = x.detach().requires_grad_(True)
        total = model(leaf).gather(1, target[:, None]).sum()
        for left in reversed(range(backs)):
            (slope,) = torch.autograd.grad(total, leaf, retain_graph=left > 0)
        if rows > 1:
            with torch.no_grad():
                model(further)
        return slope

    return run


def mapped(explainer: Explainer, task: vd.Task) -> Run:
    """A map, inside a session, as whoever explains in many worlds or chunks asks for it."""
    return lambda: explainer.maps(task, vd.models.Context())


def milliseconds(runs: dict[str, Run], rounds: int = 15, times: int = 6) -> dict[str, float]:
    """What each run takes of this process, in turn, so that whatever slows one slows the others."""
    for run in runs.values():
        for _ in range(3):
            run()
    read: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(times):
                run()
            read[name].append((time.process_time() - start) / times * 1e3)
    return {name: statistics.median(each) for name, each in read.items()}


def operations(run: Run) -> int:
    """Operations of a run, once all that is prepared for it is there."""
    for _ in range(3):
        counted(run)
    return counted(run).operations


def main() -> None:
    """Print one line per explainer."""
    torch.set_num_threads(1)
    task = thin_task()
    print(f"{'explainer':<18}  host ms  bare ms  ratio  operations  bare  ratio")
    for name in sys.argv[1:] or NAMES:
        explainer = as_explainer(name)
        cost = explainer(task).cost
        with task.session(grad=True):
            runs = {"bare": bare(task, cost.forward, cost.backward), "map": mapped(explainer, task)}
            took = milliseconds(runs)
            done = {who: operations(run) for who, run in runs.items()}
        ratios = took["map"] / took["bare"], done["map"] / done["bare"]
        print(
            f"{name:<18}{took['map']:>9.2f}{took['bare']:>9.2f}{ratios[0]:>7.2f}"
            f"{done['map']:>12}{done['bare']:>6}{ratios[1]:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
