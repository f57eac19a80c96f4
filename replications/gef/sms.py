"""Top-K explanations of SMS Spam classifiers (Tables A.6 and A.7, figure 9), under weight and input noise.

    VERIDICAL_DATA=... python -m replications.gef.sms --out results [--samples 64]

The paper's BERT-tiny is not at hand; two classifiers are trained here in seconds: a convolution over word
embeddings, and a logistic regression over words. SHAP-P needs the extra `shap` and is named where it is left
out; it explains one message after the other, so it gets fewer of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from veridical.core import key as keyed
from veridical.explainers import IntegratedGradients, PartitionShap, RandomK, TopK

LENGTH, WORDS, WIDTH = 48, 3000, 32
PAPER = {
    "SHAP-P-5": 0.62,
    "SHAP-P-10": 0.62,
    "RAN-5": 0.08,
    "RAN-10": 0.03,
    "L-INTG-5": 0.58,
    "L-INTG-10": 0.58,
}
"""Fast-GEF on SMS Spam with BERT-tiny (Table A.6); LLM-X there: 0.06 (5) and 0.05 (10)."""


class Convolution(nn.Module):
    """Words to vectors, three neighbouring words at a time, the strongest answer of each filter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        there = keep[:, None].to(self.head.weight.dtype)
        seen = self.embed(ids).transpose(1, 2) * there
        answers: Tensor = self.head((self.relu(self.conv(seen)) * there).amax(-1))
        return answers


class Logistic(nn.Module):
    """One weight a word and class, summed over the message's words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 2)
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        answers: Tensor = (self.embed(ids) * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).sqrt()
        return answers + self.bias


def messages() -> tuple[Tensor, Tensor, Tensor, list[list[str]]]:
    """Word ids (N, length), which are there, 1 for spam, and the words; 0 is padding, 1 a rare word."""
    folder = os.environ.get("VERIDICAL_DATA")
    if not folder:
        raise SystemExit("set VERIDICAL_DATA to the folder that holds sms_spam/ (see README.md)")
    lines = (Path(folder) / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t", 1) for line in lines if line.startswith(("ham\t", "spam\t"))]
    texts = [re.findall(r"[a-z']+|\d+|[!?£$]", text.lower())[:LENGTH] or ["?"] for _, text in rows]
    counts = Counter(word for words in texts for word in words)
    known = {word: place + 2 for place, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for row, words in enumerate(texts):
        ids[row, : len(words)] = torch.tensor([known.get(word, 1) for word in words])
    named = [words + [""] * (LENGTH - len(words)) for words in texts]
    return ids, ids > 0, torch.tensor([label == "spam" for label, _ in rows]).long(), named


def fitted(net: nn.Module, ids: Tensor, keep: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """Adam on the cross-entropy, each class with equal weight."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        weight = len(labels) / (2 * labels.bincount().double()).float()
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(epochs):
            for rows in torch.randperm(len(ids)).split(128):
                loss = F.cross_entropy(net(ids[rows], keep[rows]), labels[rows], weight)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return net.eval()


def tasks(samples: int) -> Iterator[tuple[str, vd.Task, float]]:
    """Both classifiers on the same held-out messages, half of them spam, with their accuracy."""
    ids, keep, labels, words = messages()
    order = keyed.permutation(vd.core.Key(0) / "sms", torch.zeros(1, dtype=torch.int64), 0, len(ids))[0]
    test, train = order[:1000], order[1000:]
    spam, ham = test[labels[test] == 1], test[labels[test] == 0]
    chosen = torch.cat([spam[: samples // 2], ham[: samples - samples // 2]]).sort().values
    for name, net, epochs in (("convolution", Convolution(), 3), ("logistic regression", Logistic(), 12)):
        model = fitted(net, ids[train], keep[train], labels[train], epochs)
        with torch.no_grad():
            right = float((model(ids[test], keep[test]).argmax(1) == labels[test]).double().mean())
        space = vd.Space.tokens(LENGTH, keep[chosen], [words[i] for i in chosen.tolist()])
        about: dict[str, Any] = {"labels": labels[chosen], "ids": chosen, "name": name}
        yield name, vd.Task(model, ids[chosen], side=(keep[chosen],), space=space, **about), right


def explainers() -> dict[str, vd.Explainer]:
    """What Table A.6 compares, less the language model; the whole map of L-INTG beside its top words."""
    path = IntegratedGradients(steps=8)
    out: dict[str, vd.Explainer] = {"L-INTG": path}
    for k in (5, 10):
        out |= {f"L-INTG-{k}": TopK(path, k), f"RAN-{k}": RandomK(k)}
        if importlib.util.find_spec("shap") is not None:
            out[f"SHAP-P-{k}"] = TopK(PartitionShap(budget=64), k)
    return out


def cell(task: vd.Task, metric: vd.gef.GEF, explainer: vd.Explainer) -> dict[str, Any]:
    start = time.perf_counter()
    scores = vd.score(metric, task, explainer)
    kept = scores.values[~scores.values.isnan()]
    return {
        "mean": float(kept.mean()) if len(kept) else None,
        "error": float(kept.std() / len(kept) ** 0.5) if len(kept) > 1 else None,
        "samples": len(kept),
        "ceiling": float(scores.details["ceiling"].nanmean()),
        "still": sum(scores.flagged.values()),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--shap-samples", type=int, default=8, help="messages of SHAP-P")
    parser.add_argument("--draws", type=int, default=5)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    metrics = {
        "Fast-GEF": vd.gef.FastGEF(path="published", draws=given.draws),
        "Fast-GEF, Pearson": vd.gef.FastGEF(path="published", draws=given.draws, correlation="pearson"),
        "Fast-GEF, input noise": vd.gef.FastGEF(perturb="input", draws=given.draws),
        "GEF (reference, M = 3)": vd.gef.GEF(form="reference", path="published", draws=3),
    }
    found: dict[str, Any] = {"paper": PAPER}
    for name, task, accuracy in tasks(given.samples):
        found[name] = {"accuracy": accuracy}
        print(f"{name}: {accuracy:.1%} of 1,000 held-out messages", flush=True)
        for what, metric in metrics.items():
            found[name][what] = {"path": str(metric.noise_path(task)), "scores": {}}
            for label, explainer in explainers().items():
                slow = label.startswith("SHAP")
                if slow and what != "Fast-GEF":
                    continue
                few = task[:: max(1, len(task) // given.shap_samples)] if slow else task
                found[name][what]["scores"][label] = one = cell(few, metric, explainer)
                print(
                    f"  {what}, {label}: {one['mean']:.3f} ± {one['error']:.3f}, {one['seconds']} s",
                    flush=True,
                )
                (given.out / "sms.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
