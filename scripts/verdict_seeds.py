"""Is the verdict right where the answer is known? Audit planted patches under many seeds and count.

    python scripts/verdict_seeds.py --seeds 20 --workers 4

Right means: a method that sees the plant is best, all of them beat every control for certain, and neither
noise nor edges, entered under other names as if they were explainers, is trusted.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SEEING = ("saliency", "input_x_gradient", "integrated_gradients")


def judged(seed: int) -> dict[str, object]:
    """The verdict of one seed: other samples, other draws."""
    import torch

    import veridical as vd

    torch.set_num_threads(1)
    task = vd.tasks.load("known/planted_patch", seed=seed)

    def noise(model, inputs, targets):
        salt = int(1e3 * inputs.abs().sum()) % 2**31
        return torch.rand(inputs.shape, generator=torch.Generator().manual_seed(salt + seed))

    def edges(model, inputs, targets):
        return vd.explain("sobel", vd.Task(model, inputs, targets=targets)).maps()

    given = {**{name: name for name in SEEING}, "gradcam": "gradcam", "my_noise": noise, "my_edges": edges}
    result = vd.audit(task, explainers=given, seed=seed)
    trusted = {p.explainer for p in result.ranking if p.trusted}
    right = result.best in SEEING and set(SEEING) <= trusted and not trusted & {"my_noise", "my_edges"}
    return {"seed": seed, "right": right, "best": result.best, "trusted": sorted(trusted)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.workers) as pool:
        rows = []
        for row in pool.map(judged, range(given.seeds)):
            rows.append(row)
            print(row, flush=True)
    print(f"right: {sum(bool(row['right']) for row in rows)} of {len(rows)}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
