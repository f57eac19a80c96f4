"""Seconds of ours and of the peers for the same metric on the same network, in one process.

    benchmarks/peer_env.sh .peer && PYTHONPATH=src:. .peer/bin/python -m benchmarks.peers [--samples 16]

Quantus for most, captum for its two metrics. Definitions agree up to what `docs/how-to/coming-from.md` lists;
hyper-parameters are set alike. Seconds are of the processor, so that what else a machine does counts less.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.results import Results
from benchmarks.timing import bare, seconds
from veridical.metrics import AnyMetric, registry


def gradients(model: nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
    """The explainer of both sides: plain gradients, as the peer wants them."""
    x = torch.as_tensor(inputs).detach().clone().float().requires_grad_(True)
    chosen = torch.as_tensor(targets).long()
    model(x).gather(1, chosen[:, None]).sum().backward()
    assert x.grad is not None
    return x.grad.numpy()


@dataclass(frozen=True)
class Pair:
    """One of our metrics, and a call that does the same by a peer."""

    name: str
    ours: AnyMetric
    peer: str
    call: Callable[[], Any]


def by_quantus(model: nn.Module, x: Tensor, targets: Tensor) -> list[Pair]:
    """The metrics that Quantus has too."""
    import quantus

    quiet = {"disable_warnings": True, "display_progressbar": False, "return_aggregate": False}
    black = {"perturb_baseline": "black", **quiet}
    given = {
        "model": model,
        "x_batch": x.numpy(),
        "y_batch": targets.numpy(),
        "a_batch": gradients(model, x, targets),
        "explain_func": gradients,
        "device": "cpu",
    }
    both = {
        "pixel flipping, 28 steps": (
            registry.make("pixel_flipping", per_step=28),
            quantus.PixelFlipping(features_in_step=28, **black),
        ),
        "faithfulness correlation, 100 runs": (
            registry.make("faithfulness_correlation", runs=100, subset_size=224),
            quantus.FaithfulnessCorrelation(nr_runs=100, subset_size=224, **black),
        ),
        "faithfulness estimate, 28 steps": (
            registry.make("faithfulness_estimate", steps=28),
            quantus.FaithfulnessEstimate(features_in_step=28, **black),
        ),
        "max-sensitivity, 10 draws": (
            registry.make("max_sensitivity", draws=10),
            quantus.MaxSensitivity(nr_samples=10, **quiet),
        ),
        "local Lipschitz, 10 draws": (
            registry.make("local_lipschitz", draws=10),
            quantus.LocalLipschitzEstimate(nr_samples=10, **quiet),
        ),
        "relative input stability, 10 draws": (
            registry.make("relative_input_stability", draws=10),
            quantus.RelativeInputStability(nr_samples=10, **quiet),
        ),
        "MPRT": (registry.make("mprt"), quantus.MPRT(**quiet)),
        "efficient MPRT": (registry.make("efficient_mprt"), quantus.EfficientMPRT(**quiet)),
        "random logit": (registry.make("random_logit"), quantus.RandomLogit(num_classes=10, **quiet)),
        "ROAD, 9 shares": (
            registry.make("road"),
            quantus.ROAD(percentages=list(range(10, 100, 10)), **quiet),
        ),
        "sparseness": (registry.make("sparseness"), quantus.Sparseness(**quiet)),
        "complexity": (registry.make("complexity"), quantus.Complexity(**quiet)),
    }
    label = f"Quantus {quantus.__version__}"
    return [Pair(name, own, label, lambda peer=peer: peer(**given)) for name, (own, peer) in both.items()]


def by_captum(model: nn.Module, x: Tensor, targets: Tensor) -> list[Pair]:
    """The two metrics that captum has."""
    import captum
    from captum.attr import Saliency
    from captum.metrics import infidelity, sensitivity_max

    maps = torch.as_tensor(gradients(model, x, targets))
    saliency = Saliency(model)

    def squares(inputs: Tensor) -> tuple[Tensor, Tensor]:
        """One square of 4 x 4 pixels set to zero in each row: what was taken away, and what is left."""
        corner = torch.randint(0, 25, (len(inputs), 2))
        place = torch.arange(28)
        rows, columns = (
            (place >= at[:, None]) & (place < at[:, None] + 4) for at in (corner[:, 0], corner[:, 1])
        )
        gone = inputs * (rows[:, :, None] & columns[:, None])[:, None]
        return gone, inputs - gone

    label = f"captum {captum.__version__}"
    return [
        Pair(
            "infidelity, 100 squares",
            registry.make("infidelity", draws=100),
            label,
            lambda: infidelity(model, squares, x, maps, target=targets, n_perturb_samples=100),
        ),
        Pair(
            "max-sensitivity, 10 draws (captum)",
            registry.make("max_sensitivity", draws=10),
            label,
            lambda: sensitivity_max(
                lambda rows, target: saliency.attribute(rows, target, abs=False),
                x,
                perturb_radius=0.1,
                n_perturb_samples=10,
                target=targets,
            ),
        ),
    ]


def main() -> None:
    """Print one row a metric, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    model = lenet().eval()
    x = torch.rand(given.samples, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    task = vd.Task(model, x, fill=0.0)
    maps = vd.explain("gradient", task)
    results = Results(given.out, "cpu")
    for pair in [*by_captum(model, x, task.targets), *by_quantus(model, x, task.targets)]:
        subject = "gradient" if isinstance(pair.ours, vd.metrics.ExplainerMetric) else maps
        cost = vd.score(pair.ours, task, subject).cost
        spent = []
        for run in (bare(task, cost), lambda p=pair, s=subject: vd.score(p.ours, task, s)):
            spent.append(min(seconds(run, task.device, clock="cpu") for _ in range(3)))
        try:
            other = seconds(pair.call, task.device, clock="cpu")
        except Exception as error:
            print(f"  {pair.name}: {pair.peer} fails, {type(error).__name__}: {error}", flush=True)
            continue
        results.add(
            f"Peers, LeNet, {given.samples} samples",
            **{
                "what": pair.name,
                "rows": cost.forward,
                "bare seconds": spent[0],
                "ours": spent[1],
                "peer": pair.peer,
                "peer's seconds": other,
                "times ours": round(other / spent[1], 1),
            },
        )


if __name__ == "__main__":
    main()
