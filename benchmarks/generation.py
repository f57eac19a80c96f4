"""`python -m benchmarks.generation`: prompts of a language model, explained and judged, against bare rows.

Rows per prompt come first, then seconds beside those of the same rows asked bare (the model itself, at its
best batch) in the same run. `--weights random` makes a network of SmolLM2's shape where its file is not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import veridical as vd

EXPLAINERS = ("occlusion", "exact_shapley", "kernel_shap", "lime", "gradient", "input_x_gradient")
METRICS = ("pixel_flipping", "insertion", "comprehensiveness", "rfid_plus", "faithfulness_correlation")
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


class Numbers:
    """A tokenizer of numbers: each token is its number in six characters."""

    def encode(self, text: str) -> list[int]:
        return [int(text[at : at + 6]) for at in range(0, len(text), 6)]

    def decode(self, tokens: list[int]) -> str:
        return "".join(f"{token:6d}" for token in tokens)


def language_model(weights: str, device: str, dtype: torch.dtype, shape: dict[str, Any]) -> nn.Module:
    """SmolLM2 from its file, or a random network of the same shape."""
    if weights == "smollm2":
        from veridical.data.huggingface import causal_model

        return causal_model(vd.tasks.smollm2_file())[0].to(device, dtype)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**shape)).eval().to(device, dtype)


def prompts(model: nn.Module, count: int, tokens: int, units: int, off: str) -> vd.models.Generation:
    """Random prompts of so many tokens, cut into units of about the same length behind a question."""
    drawn = torch.Generator().manual_seed(1)
    words, most = Numbers(), int(model.config.vocab_size)
    ids = torch.randint(1, most, (count, tokens + 2), generator=drawn).tolist()
    question = tokens // 10
    edges = [round((tokens - question) * place / units) for place in range(units + 1)]
    spans = [list(pairwise(edges))] * count
    return vd.models.Generation(
        model,
        words,
        [words.decode(row[:tokens]) for row in ids],
        [words.decode(row[-2:-1]) for row in ids],
        foils=[words.decode(row[-1:]) for row in ids],
        units=spans,
        spans="token",
        off=off,
        neutral=words.decode([7]) if off == "fill" else None,
    )


def timed(run: Callable[[], Any]) -> float:
    """Seconds: of the processor on a CPU, whoever else is at work there; by the clock where a GPU is."""
    gpu = torch.cuda.is_available()
    clock = time.perf_counter if gpu else time.process_time
    if gpu:
        torch.cuda.synchronize()
    begin = clock()
    run()
    if gpu:
        torch.cuda.synchronize()
    return clock() - begin


def bare(
    task: vd.models.Generation, model: nn.Module, cost: vd.models.Cost, batches: tuple[int, ...]
) -> dict[str, float]:
    """Seconds of as many rows forward, and forward and backward, on the model itself at its best batch."""
    tokens = task.side["tokens"]

    def ask(batch: int, grad: bool) -> None:
        rows = tokens[torch.arange(batch, device=tokens.device) % len(tokens)]
        with torch.set_grad_enabled(grad):
            embedded = model.get_input_embeddings()(rows).detach().requires_grad_(grad)
            logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1).logits
            if grad:
                torch.autograd.grad(logits[..., 0].sum(), embedded)

    def pace(grad: bool) -> float:
        each = []
        for batch in batches:
            ask(batch, grad)
            times = max(1, 8 // batch)
            each.append(timed(lambda b=batch, n=times: [ask(b, grad) for _ in range(n)]) / (times * batch))
        return min(each)

    for weight in model.parameters():
        weight.requires_grad_(False)
    forward, both = pace(False), pace(True) if cost.backward else 0.0
    plain = (cost.forward - cost.backward) * forward
    return {"row": forward, "row_with_gradient": both, "seconds": plain + cost.backward * both}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Explain and judge, then the same rows bare."""
    shape = {**SHAPE, "num_hidden_layers": given.layers}
    model = language_model(given.weights, given.device, getattr(torch, given.dtype), shape)
    task = prompts(model, given.prompts, given.tokens, given.units, given.off)
    first = prompts(model, 1, given.tokens, given.units, given.off)
    for name in ("occlusion", "gradient"):  # a GPU's first rows wait for its libraries
        vd.score("pixel_flipping", first, vd.explain(name, first))
    meter = task.predictor.meter
    before = meter.cost

    def work() -> None:
        for name in given.explainers:
            explanation = vd.explain(name, task)
            for metric in METRICS:
                vd.score(metric, task, explanation)

    seconds = timed(work)
    cost = meter.cost - before
    found: dict[str, Any] = {
        "weights": given.weights,
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
        "prompts": len(task),
        "tokens": given.tokens,
        "units": given.units,
        "rows_forward_per_prompt": cost.forward / len(task),
        "rows_backward_per_prompt": cost.backward / len(task),
        "rows_of_masks_per_prompt": (cost.forward - cost.backward) / len(task),
        "seconds": seconds,
        "rows_per_chunk": task.predictor.rows,
        "threads": torch.get_num_threads(),
    }
    batches = (1, 2, 4) if given.device == "cpu" else (16, 64)
    plain = bare(task, model, cost, batches)
    found |= {f"bare_{name}": value for name, value in plain.items()}
    found["ratio"] = seconds / plain["seconds"]
    if given.gef:
        start = meter.cost
        names = ("gradient", "input_x_gradient")
        # together: each noisy world is made once for both, and drawn on the host
        found["gef_path_seconds"] = timed(lambda: vd.gef.FastGEF().noise_path(task))
        found["gef_seconds"] = timed(lambda: vd.evaluate(task, names, vd.gef.FastGEF(), progress=False))
        spent = meter.cost - start
        found |= {"gef_rows_forward": spent.forward, "gef_rows_backward": spent.backward}
    if given.device == "cuda":
        small = task[:2]
        here = vd.explain("gradient", small.to("cpu")).values
        there = vd.explain("gradient", small).values.cpu()
        found["cpu_gpu_apart"] = float((here - there).abs().max() / here.abs().max())
    return found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--weights", choices=("smollm2", "random"), default="smollm2")
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--dtype", default="float32")
    ask.add_argument("--prompts", type=int, default=16)
    ask.add_argument("--tokens", type=int, default=161)
    ask.add_argument("--units", type=int, default=6)
    ask.add_argument("--layers", type=int, default=30)
    ask.add_argument("--off", default="fill")
    ask.add_argument("--explainers", nargs="*", default=EXPLAINERS)
    ask.add_argument("--gef", action="store_true")
    ask.add_argument("--out", type=Path)
    given = ask.parse_args()
    found = measure(given)
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        name = f"generation_{given.device}_{given.units}.json"
        (given.out / name).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
