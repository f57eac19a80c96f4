"""Dictionaries of SAELens give the answers that SAELens gives.

`tests/data/saelens.safetensors` holds files of every architecture of SAELens 6.54.12 with its own answers
(`scripts/record_saelens.py` makes it).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from veridical.concepts import Embeddings, Head, judge
from veridical.dictionaries import load
from veridical.errors import FormatError

RECORD = Path(__file__).parents[1] / "data" / "saelens.safetensors"
with safe_open(RECORD, "pt") as held:
    CONFIGS = json.loads(held.metadata()["configs"])
TENSORS = load_file(RECORD)
WHY = {
    "transcoder": "another layer than it reads",
    "temporal": "the texts before",
    "checkpoint batchtopk": "save_inference_model",
    "checkpoint matryoshka": "save_inference_model",
}
REFUSED = {n: why for n in CONFIGS for part, why in WHY.items() if part in n}
ANSWERED = [n for n in CONFIGS if n not in REFUSED]


def files(folder: Path, name: str, **changed: object) -> Path:
    """The two files of one recorded dictionary."""
    own = {k.removeprefix(f"{name}/"): t for k, t in TENSORS.items() if k.startswith(f"{name}/")}
    own = {key: tensor for key, tensor in own.items() if not key.startswith("answer ")}
    save_file(own, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps(CONFIGS[name] | changed))
    return folder


@pytest.mark.parametrize("name", ANSWERED)
def test_codes_and_reconstructions_are_those_of_saelens(tmp_path, name):
    loaded = load(files(tmp_path, name))
    rows = TENSORS["inputs"]
    codes = loaded.codes(rows)[:, 0]
    outputs = TENSORS[f"{name}/answer outputs"]
    assert torch.allclose(codes, TENSORS[f"{name}/answer codes"], atol=1e-5)
    assert torch.allclose(codes @ loaded.decoder + loaded.decoder_bias, outputs, atol=1e-5)
    head = Head(torch.linspace(-1, 1, 18).reshape(3, 6), torch.tensor([0.1, 0.2, 0.3]))
    concepts = loaded.concepts(head)
    assert torch.allclose(concepts.surrogate(rows, head), head.outputs(outputs), atol=1e-5)
    shown = CONFIGS[name].get("k") or float((codes != 0).double().sum(-1).mean())
    assert judge(concepts, Embeddings.of(rows, head), head).concepts == pytest.approx(shown)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_explain_a_layer_by_itself_is_refused_with_the_reason(tmp_path, name):
    with pytest.raises(FormatError, match=REFUSED[name]):
        load(files(tmp_path, name))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"normalize_activations": "layer_norm"}, "layer_norm"),
        ({"normalize_activations": "constant_norm_rescale"}, "constant_norm_rescale"),
        ({"normalize_activations": True}, "expected_average_only_in"),
        ({"reshape_activations": "hook_z"}, "hook_z"),
        ({"architecture": "brand new"}, "brand new"),
        ({"architecture": "gated"}, "lacks b_gate, b_mag, r_mag"),
        ({"architecture": "topk", "k": None}, "how many atoms"),
        ({"activation_fn": "gelu", "activation_fn_str": "gelu"}, "the activation is 'gelu'"),
        ({"finetuning_scaling_factor": True}, "finetuned"),
    ],
)
def test_settings_that_change_the_answer_are_never_ignored(tmp_path, changed, said):
    with pytest.raises(FormatError, match=said):
        load(files(tmp_path, "standard", **changed))
