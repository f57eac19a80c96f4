"""Recover the size of explanations on colour digits: python -m replications.f_fidelity.size --out size.json

Needs no data but those of scikit-learn. The object mask is the map that must give the size back; real
explainers are reported without a target.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import veridical as vd
from veridical.data.known_answers import colour_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.10, 0.15, 0.20, 0.25])
    parser.add_argument("--explainers", nargs="*", default=["integrated_gradients"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path(".cache/f_fidelity"))
    given = parser.parse_args()
    sizes = tuple(percent / 100 for percent in range(1, 61))
    found = {}
    for share in given.shares:
        known = colour_digits(given.samples, 0, share)
        task = known.task.to(given.device)
        tuned = vd.fidelity.finetune(task, beta=0.25, epochs=6, rate=1e-3, cache=given.cache)
        for name in ["object mask", *given.explainers]:
            began = time.time()
            maps = known.truth if name == "object mask" else name
            size = vd.fidelity.explanation_size(task, maps, finetuned=tuned, sizes=sizes)
            found[f"{share:.2f} {name}"] = {
                "estimate": size.estimate,
                "interval": size.interval,
                "answer": size.answer,
                "onsets": {f"{beta:.3f}": pair for beta, pair in size.onsets.items()},
                "seconds": time.time() - began,
            }
            print(share, name, size.answer, f"{time.time() - began:.0f} s", flush=True)
            given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
