"""Training a dictionary against its bare matrix products and optimiser step, in one run.

`python -m benchmarks.dictionaries [--device cuda] [--atoms 16384] [--batch 4096]`: prints the time of a
training step, of the five dense products that a TopK autoencoder is made of (encode, decode, and the three of
their gradients) with Adam's step on its weights, and the ratio of the two; beside it the same step with whole
products in place of gathered atoms. Every figure is the median over rounds that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from veridical.concepts import dictionary_training as training
from veridical.core.key import Key
from veridical.dictionaries import TopK


def timed(run: Callable[[int], None], steps: int, device: str) -> float:
    """Milliseconds per step."""
    begin = time.perf_counter()
    for step in range(steps):
        run(step)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def bare(rows: torch.Tensor, atoms: int, batch: int) -> Callable[[int], None]:
    """The products alone, on tensors that are there already, and Adam."""
    dimension = rows.shape[1]
    weights = [torch.randn(atoms, dimension, device=rows.device) for _ in range(2)]
    weights += [torch.zeros(atoms, device=rows.device), torch.zeros(dimension, device=rows.device)]
    for weight in weights:
        weight.grad = torch.randn_like(weight) * 1e-3
    optimiser = torch.optim.Adam(weights, fused=rows.is_cuda)
    x, codes = rows[:batch].clone(), torch.randn(batch, atoms, device=rows.device)
    left = torch.randn_like(x)
    held = [torch.empty(batch, atoms, device=rows.device), torch.empty_like(x), torch.empty_like(weights[0])]

    def run(_: int) -> None:
        torch.mm(x, weights[0].T, out=held[0])  # encode
        torch.mm(codes, weights[1], out=held[1])  # decode
        torch.mm(left, weights[1].T, out=held[0])  # gradient of the codes
        torch.mm(codes.T, left, out=held[2])  # gradient of the decoder
        torch.mm(codes.T, x, out=held[2])  # gradient of the encoder
        optimiser.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--atoms", type=int, default=16384)
    parser.add_argument("--dimension", type=int, default=576)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    rows = torch.randn(4 * chosen.batch, chosen.dimension, device=chosen.device)
    recipe = TopK(chosen.atoms, 10**6, chosen.batch, active=chosen.active)
    run = training.Run(rows, recipe, Key(0), None)
    products = bare(rows, chosen.atoms, chosen.batch)
    found: dict[str, list[float]] = {"step": [], "step, whole products": [], "products and Adam": []}
    usual = training.WIDE
    for round_ in range(chosen.rounds + 1):
        with torch.enable_grad():
            gathered = timed(run.step, chosen.steps, chosen.device)
            training.WIDE = 10**9
            whole = timed(run.step, chosen.steps, chosen.device)
            training.WIDE = usual
        alone = timed(products, chosen.steps, chosen.device)
        if round_:  # the first round warms up
            for name, value in zip(found, (gathered, whole, alone), strict=True):
                found[name].append(value)
    middle = {name: statistics.median(values) for name, values in found.items()}
    base = middle["products and Adam"]
    result = {**vars(chosen), "milliseconds": middle, "rounds": found}
    result["ratio"] = middle["step"] / base
    result["ratio, whole products"] = middle["step, whole products"] / base
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
