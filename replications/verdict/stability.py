"""Does the answer hold when more is asked? Four users' audits at glance, quick and standard.

    python -m replications.verdict.stability --out results [--workers 16] [--seeds 2]

A user may stop at any effort, so a higher one may tell apart what a lower one could not, and find what it
could not show; it may not call wrong what was said. By task and seed: the leading group stays or narrows, a
method that was trusted stays so, and the method to use is one that was leading.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import veridical as vd
from replications.verdict import worlds
from scripts import product_reviews as writing
from veridical.auditing.effort import EFFORTS
from veridical.core.key import Key
from veridical.data.load import from_huggingface

ORDER = ("glance", "quick", "standard")
SAMPLES = 200
TEXTS = 1500


def hugging_face_folder(seed: int) -> tuple[vd.Task, Any]:
    """A small BERT, trained on reviews and saved with its tokenizer, read from the folder."""
    import transformers

    texts = [" ".join(w for w in words if w != writing.PAD) for words in _words(seed)]
    labels = writing.write_reviews(TEXTS, Key(seed)).labels
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *writing.VOCABULARY[1:]]
        (folder / "vocab.txt").write_text("\n".join(words))
        tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
        config = transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=40,
        )
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification(config).train()
        optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
        for epoch in range(4):
            for rows in torch.randperm(TEXTS - SAMPLES, generator=torch.Generator().manual_seed(epoch)).split(
                64
            ):
                batch = tokenizer(
                    [texts[i + SAMPLES] for i in rows.tolist()], padding=True, return_tensors="pt"
                )
                loss = nn.functional.cross_entropy(model(**batch).logits, labels[rows + SAMPLES])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return from_huggingface(folder, texts[:SAMPLES], labels=labels[:SAMPLES]), None


def _words(seed: int) -> list[list[str]]:
    return writing.words_of(writing.write_reviews(TEXTS, Key(seed)).tokens)


def boosted_table(seed: int) -> tuple[vd.Task, Any]:
    """Boosted trees on eight columns of the breast cancer table; the user named nobody."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import train_test_split

    data = load_breast_cancer(as_frame=True)
    rows = data.data.iloc[:, :8]
    train, test, truth, labels = train_test_split(
        rows, data.target, random_state=seed, stratify=data.target, test_size=SAMPLES
    )
    model = HistGradientBoostingClassifier(max_iter=40, random_state=seed).fit(train, truth)
    return vd.Task(model, test, labels=labels.to_numpy(), train=train), None


def mine(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """A user's own method: the gradient at half the input, times the input."""
    half = (inputs / 2).requires_grad_(True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(model(half).gather(1, targets[:, None]).sum(), half)
    return inputs * slope


def own_network(seed: int) -> tuple[vd.Task, Any]:
    """A CNN on digits, with an explainer of the user's own among ours."""
    methods = ["integrated_gradients", "input_x_gradient", "occlusion", "saliency", "gradcam", "lime"]
    return worlds.digits(seed, SAMPLES), {**{name: name for name in methods}, "mine": mine}


def world(family: str) -> Callable[[int], tuple[vd.Task, Any]]:
    return lambda seed: (worlds.make(family, seed, SAMPLES), None)


TASKS: dict[str, Callable[[int], tuple[vd.Task, Any]]] = {
    "Hugging Face folder (reviews)": hugging_face_folder,
    "boosted table (breast cancer, 8 columns)": boosted_table,
    "own CNN and explainer (digits)": own_network,
    "network on a table (breast cancer)": world("cancer"),
    "images, planted patch": world("patch"),
    "series, planted window": world("window"),
    "table, interactions": world("interactions"),
}


def one(job: tuple[str, int, str]) -> dict[str, Any]:
    """One audit, in a process of its own."""
    torch.set_num_threads(1)
    name, seed, effort = job
    start = time.time()
    try:
        task, explainers = TASKS[name](seed)
        plan = replace(EFFORTS[effort], describe=False)
        found = vd.audit(task, explainers=explainers, effort=plan, seed=seed, concepts=(), progress=False)
    except Exception as error:
        return {"task": name, "seed": seed, "effort": effort, "error": f"{type(error).__name__}: {error}"}
    return {
        "task": name,
        "seed": seed,
        "effort": effort,
        "samples": found.verdict.samples,
        "best": found.best,
        "leading": sorted(found.verdict.leading),
        "trusted": sorted(place.explainer for place in found.ranking if place.trusted),
        "started": sorted(place.explainer for place in found.ranking),
        "rows": sum(cost.forward + cost.backward for cost in found.costs.values()),
        "seconds": time.time() - start,
    }


def steps(less: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """What became of an answer when more was asked."""
    before, after = set(less["leading"]), set(more["leading"])
    both = set(less["started"]) & set(more["started"])
    if not before:
        group = "none was trusted before" if after else "the same"
    elif after == before:
        group = "the same"
    elif after and after <= before:
        group = "narrower"
    elif after & both <= before:
        group = "narrower, and others that were not tried before"
    else:
        group = "changed"
    return {
        "group": group,
        "lost": sorted((set(less["trusted"]) & both) - set(more["trusted"])),
        "new leaders": sorted((after & both) - before) if before else [],
        "best led": not before or more["best"] in before,
    }


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per task and seed: the group at each effort, and what each step did to it."""
    known = {(row["task"], row["seed"], row["effort"]): row for row in found if "error" not in row}
    out = []
    for name, seed in sorted({(task, seed) for task, seed, _ in known}):
        three = [known.get((name, seed, effort)) for effort in ORDER]
        if any(row is None for row in three):
            continue
        rows = [row for row in three if row is not None]
        out.append(
            {
                "task": name,
                "seed": seed,
                **{
                    row["effort"]: {k: row[k] for k in ("best", "leading", "trusted", "samples")}
                    for row in rows
                },
                "glance to quick": steps(rows[0], rows[1]),
                "quick to standard": steps(rows[1], rows[2]),
                "glance to standard": steps(rows[0], rows[2]),
            }
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--efforts", nargs="+", default=list(ORDER), choices=ORDER)
    parser.add_argument("--tasks", nargs="+", type=int, help="the numbers of some tasks")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    names = [name for i, name in enumerate(TASKS) if given.tasks is None or i in given.tasks]
    # the long ones first, so that the last worker does not wait for one of them
    jobs = [
        (name, given.first + seed, effort)
        for effort in reversed(given.efforts)
        for name in names
        for seed in range(given.seeds)
    ]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.workers) as pool, (given.out / "stability.jsonl").open("w") as kept:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            row = done.result()
            found.append(row)
            kept.write(json.dumps(row) + "\n")
            kept.flush()
            told = row.get("error") or f"{row['seconds']:.0f} s, {row['best']} of {row['leading']}"
            print(
                f"{len(found)} of {len(jobs)} {row['task']} {row['seed']} {row['effort']}: {told}", flush=True
            )
    result = {"audits": summary(found), "errors": [row for row in found if "error" in row]}
    (given.out / "stability.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
