"""Seconds of ours and of Quantus for the same metric on the same network, in one process.

    benchmarks/peer_env.sh .peer && PYTHONPATH=src:. .peer/bin/python -m benchmarks.peers [--samples 16]

Definitions agree up to what `docs/how-to/coming-from.md` lists; hyper-parameters are set alike.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.timing import bare
from veridical.metrics import registry


def gradients(model: torch.nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
    """The explainer of both sides: plain gradients, as the peer wants them."""
    x = torch.as_tensor(inputs).float().requires_grad_(True)
    chosen = torch.as_tensor(targets).long()
    model(x).gather(1, chosen[:, None]).sum().backward()
    return x.grad.numpy()


def pairs(quantus: Any) -> dict[str, tuple[Any, Any]]:
    """Our metric and the peer's, by name."""
    quiet = {"disable_warnings": True, "display_progressbar": False, "return_aggregate": False}
    return {
        "pixel flipping, 28 steps": (
            registry.make("pixel_flipping", per_step=28),
            quantus.PixelFlipping(features_in_step=28, perturb_baseline="black", **quiet),
        ),
        "faithfulness correlation, 100 runs": (
            registry.make("faithfulness_correlation", runs=100, subset_size=224),
            quantus.FaithfulnessCorrelation(nr_runs=100, subset_size=224, perturb_baseline="black", **quiet),
        ),
        "max-sensitivity, 10 draws": (
            registry.make("max_sensitivity", draws=10),
            quantus.MaxSensitivity(nr_samples=10, **quiet),
        ),
        "local Lipschitz, 10 draws": (
            registry.make("local_lipschitz", draws=10),
            quantus.LocalLipschitzEstimate(nr_samples=10, **quiet),
        ),
        "MPRT": (registry.make("mprt"), quantus.MPRT(**quiet)),
        "sparseness": (registry.make("sparseness"), quantus.Sparseness(**quiet)),
    }


def seconds(run: Callable[[], Any]) -> float:
    """Wall time of one call after one that warms up."""
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Print one row a metric."""
    import quantus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=16)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model = lenet().eval()
    x = torch.rand(given.samples, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    task = vd.Task(model, x, fill=0.0)
    maps = vd.explain("gradient", task)
    theirs_x, theirs_y = x.numpy(), task.targets.numpy()
    theirs_maps = gradients(model, theirs_x, theirs_y)
    print(f"LeNet, {given.samples} samples, torch {torch.__version__}, quantus {quantus.__version__}")
    print("| metric | rows | bare seconds | ours | overhead | Quantus | overhead | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (ours, peer) in pairs(quantus).items():
        subject = "gradient" if isinstance(ours, vd.ExplainerMetric) else maps
        cost = vd.score(ours, task, subject).cost
        floor = seconds(bare(task, cost))
        own = seconds(lambda ours=ours, subject=subject: vd.score(ours, task, subject))
        other = seconds(
            lambda peer=peer: peer(
                model=model,
                x_batch=theirs_x,
                y_batch=theirs_y,
                a_batch=theirs_maps,
                explain_func=gradients,
                device="cpu",
            )
        )
        over = [f"{value / floor:.1f}" if cost.forward else "" for value in (own, other)]
        print(
            f"| {name} | {cost.forward} | {floor:.3f} | {own:.3f} | {over[0]} | {other:.3f} | {over[1]} "
            f"| {other / own:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
