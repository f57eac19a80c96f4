"""Explainers beside captum's and zennit's in one run: the same network, inputs, targets and steps.

python -m benchmarks.rivals [--device cuda] [--samples 64] [--size resnet18]

Seconds are the best of several calls after a warm-up. zennit is compared where it can be imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
from torch import nn

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import seconds

STEPS, DRAWS = 32, 16


def by_captum(task: vd.Task) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Pairs of a call of ours and captum's call of the same method."""
    from captum import attr

    model, x, targets = deepcopy(task.model), task.inputs.clone(), task.targets
    last = [m for m in model.modules() if isinstance(m, nn.Conv2d)][-1]
    rows = task.predictor.rows
    together = max(1, rows // len(x))
    tunnel = attr.NoiseTunnel(attr.Saliency(model))
    yield (
        "deeplift",
        lambda: vd.explain("deeplift", task),
        lambda: attr.DeepLift(model).attribute(x, target=targets),
    )
    yield (
        "integrated_gradients",
        lambda: vd.explain("integrated_gradients", task, steps=STEPS),
        lambda: attr.IntegratedGradients(model).attribute(
            x, target=targets, n_steps=STEPS, internal_batch_size=rows
        ),
    )
    yield (
        "smoothgrad",
        lambda: vd.explain("smoothgrad", task, samples=DRAWS),
        lambda: tunnel.attribute(x, nt_samples=DRAWS, nt_samples_batch_size=together, target=targets),
    )
    yield (
        "gradcam",
        lambda: vd.explain("gradcam", task),
        lambda: attr.LayerAttribution.interpolate(
            attr.LayerGradCam(model, last).attribute(x, target=targets), tuple(x.shape[-2:])
        ),
    )
    yield (
        "guided_backprop",
        lambda: vd.explain("guided_backprop", task),
        lambda: attr.GuidedBackprop(model).attribute(x, target=targets),
    )


def by_zennit(task: vd.Task) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """LRP by zennit's epsilon rule with z-plus in convolutions, and ours of the same kind."""
    from zennit.attribution import Gradient
    from zennit.composites import EpsilonPlus

    model, x = deepcopy(task.model), task.inputs.clone()  # they write into the model
    chosen = torch.nn.functional.one_hot(task.targets, task.n_outputs).to(x)

    def theirs() -> object:
        with Gradient(model, EpsilonPlus()) as attributor:
            return attributor(x, chosen)

    yield "lrp", lambda: vd.explain("lrp", task), theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=None)
    parser.add_argument("--size", default="resnet18")
    parser.add_argument("--calls", type=int, default=7)
    chosen = parser.parse_args()
    task = tasks(chosen.device, chosen.size, chosen.samples)
    print(f"{task.name}, {len(task)} samples on {task.device}: milliseconds of ours, of theirs, ratio")
    pairs = [by_captum, by_zennit]
    for rival in pairs:
        try:
            for name, ours, theirs in rival(task):
                ours(), theirs(), ours(), theirs()
                read = [[seconds(run, task.device) for run in (ours, theirs)] for _ in range(chosen.calls)]
                mine, other = (1000 * min(column) for column in zip(*read, strict=True))
                print(f"{name:<22} {mine:9.1f} {other:9.1f} {mine / other:6.2f}", flush=True)
        except ImportError as error:
            print(f"{rival.__name__}: {error}")


if __name__ == "__main__":
    main()
