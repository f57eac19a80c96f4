"""LLM-x on SMS Spam with a real, small language model: SmolLM2-135M-Instruct (figure 9, Table A.6).

    VERIDICAL_DATA=... python -m replications.gef.llm.study --out results [--samples 16] [--minutes 2]

Needs the extra `llm` and the package that holds the model. Replies are kept by prompt in the out folder, so a
run that was stopped, or that `--minutes` stops, goes on where it was. 16 messages, three levels and one draw
are 64 prompts and more (LLM-x explains the unperturbed world too): enough for two cores, and a rough figure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from replications.gef.llm import LLMx, LocalModel, parse_reply
from replications.gef.sms import tasks
from veridical.explainers import IntegratedGradients, RandomK, TopK
from veridical.functional import bootstrap_interval

BEGIN = '{"tokens": {"1": "'
"""What every reply begins with."""


class OutOfTimeError(Exception):
    """The time given is over; what was answered is kept."""


class Remembered:
    """A generator whose replies are kept in a file by prompt, until the time is over."""

    def __init__(self, generate: Any, path: Path, seconds: float) -> None:
        self.generate, self.path, self.end = generate, path, time.monotonic() + seconds
        self.replies: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}

    def __call__(self, prompt: str) -> str:
        name = hashlib.sha256(prompt.encode()).hexdigest()
        if name not in self.replies:
            if time.monotonic() > self.end:
                raise OutOfTimeError
            self.replies[name] = self.generate(prompt)
            self.path.write_text(json.dumps(self.replies, indent=1))
        return self.replies[name]


def summary(found: list[vd.Scores]) -> dict[str, Any]:
    """Mean with a bootstrap interval over messages, and why some have no value."""
    values = torch.cat([scores.values for scores in found])
    kept = values[~values.isnan()]
    low, high = bootstrap_interval(kept) if len(kept) > 1 else (math.nan, math.nan)
    flags = Counter(name for scores in found for name, hit in scores.flags.items() if bool(hit.any()))
    return {
        "values": [None if value != value else round(value, 4) for value in values.tolist()],
        "mean": float(kept.mean()) if len(kept) else None,
        "interval": [float(low), float(high)] if len(kept) > 1 else None,
        "messages": len(values),
        "with a value": len(kept),
        "flagged": dict(flags),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    _, task, accuracy = next(tasks(given.samples))
    file = vd.tasks.smollm2_file()
    # left to itself it chats (of 25 replies 3 were JSON), and once begun as JSON it goes round in circles
    model = LocalModel(
        str(file.parent), file.name, given.new_tokens, begin=BEGIN, stop="}", repetition_penalty=1.15
    )
    said = Remembered(model, given.out / "llm_replies.json", 60 * given.minutes)
    metric = vd.gef.FastGEF(levels=given.levels, draws=given.draws)
    explainers = {
        "LLM-X": LLMx(said, about="tell spam from wanted text messages", labels=("ham", "spam"), k=given.k),
        "L-INTG": TopK(IntegratedGradients(steps=10), k=given.k),
        "RAN": RandomK(k=given.k),
    }
    out: dict[str, Any] = {"accuracy": accuracy, "path": str(metric.noise_path(task)), "k": given.k}
    start = time.perf_counter()
    for who, explainer in explainers.items():
        found: list[vd.Scores] = []
        # one message at a time, so that those it was asked about stay when the time is over
        for i in range(len(task)):
            try:
                found.append(vd.score(metric, task[i], explainer))
            except OutOfTimeError:
                print(f"{len(said.replies)} replies so far; run again to go on", flush=True)
                break
            out[who] = summary(found) | {"seconds": round(time.perf_counter() - start, 1)}
            (given.out / "llm.json").write_text(json.dumps(out, indent=1))
        print(who, json.dumps(out.get(who)), flush=True)
    unread = sum(parse_reply(reply, given.k) is None for reply in said.replies.values())
    out |= {"replies": len(said.replies), "replies that are no JSON": unread}
    (given.out / "llm.json").write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
