"""Record what SAELens makes of its own files: `python scripts/record_saelens.py` rewrites the test data.

SAELens brings wandb, datasets and transformer-lens along, too much for a test environment, so it runs once,
in an environment of its own: `pip install sae-lens==6.54.12 safetensors`. Every architecture is filled with
random weights and saved by SAELens; the weights, the configuration, some inputs and its own answers to them
go to `tests/data/saelens.safetensors`, from which `tests/concepts/test_saelens.py` reads.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import sae_lens as sl
import torch
from safetensors.torch import load_file, save_file

TARGET = Path(__file__).parents[1] / "tests" / "data" / "saelens.safetensors"
SIZE = {"d_in": 6, "d_sae": 10}


def dictionaries() -> dict[str, sl.SAE]:
    """Dictionaries for inference, with and without their choices."""
    made: dict[str, sl.SAE] = {}
    for centred in (True, False):
        some, end = dict(SIZE, apply_b_dec_to_input=centred), "" if centred else " uncentred"
        made["standard" + end] = sl.StandardSAE(sl.StandardSAEConfig(**some))
        made["gated" + end] = sl.GatedSAE(sl.GatedSAEConfig(**some))
        made["jumprelu" + end] = sl.JumpReLUSAE(sl.JumpReLUSAEConfig(**some))
        pursuit = sl.MatchingPursuitSAEConfig(**some, residual_threshold=0.3)
        made["matching pursuit" + end] = sl.MatchingPursuitSAE(pursuit)
        for scaled in (True, False):
            last = end + (" rescaled" if scaled else "")
            more = dict(some, k=3, rescale_acts_by_decoder_norm=scaled)
            made["topk" + last] = sl.TopKSAE(sl.TopKSAEConfig(**more))
            made["abstopk" + last] = sl.AbsTopKSAE(sl.AbsTopKSAEConfig(**more))
    across = dict(SIZE, d_out=5, apply_b_dec_to_input=False)
    made["transcoder"] = sl.Transcoder(sl.TranscoderConfig(**across))
    made["skip transcoder"] = sl.SkipTranscoder(sl.SkipTranscoderConfig(**across))
    made["jumprelu transcoder"] = sl.JumpReLUTranscoder(sl.JumpReLUTranscoderConfig(**across))
    made["jumprelu skip transcoder"] = sl.JumpReLUSkipTranscoder(sl.JumpReLUSkipTranscoderConfig(**across))
    temporal = sl.TemporalSAEConfig(d_in=6, d_sae=8, n_heads=2, bottleneck_factor=2)
    made["temporal"] = sl.TemporalSAE(temporal)
    return made


def trained() -> dict[str, sl.TrainingSAE]:
    """Dictionaries as training leaves them."""
    nested = sl.MatryoshkaBatchTopKTrainingSAEConfig(**SIZE, k=3, matryoshka_widths=[3, 6, 10])
    return {
        "standard": sl.StandardTrainingSAE(sl.StandardTrainingSAEConfig(**SIZE)),
        "topk": sl.TopKTrainingSAE(sl.TopKTrainingSAEConfig(**SIZE, k=3)),
        "abstopk": sl.AbsTopKTrainingSAE(sl.AbsTopKTrainingSAEConfig(**SIZE, k=3)),
        "batchtopk": sl.BatchTopKTrainingSAE(sl.BatchTopKTrainingSAEConfig(**SIZE, k=3)),
        "matryoshka": sl.MatryoshkaBatchTopKTrainingSAE(nested),
        "gated": sl.GatedTrainingSAE(sl.GatedTrainingSAEConfig(**SIZE)),
        "jumprelu": sl.JumpReLUTrainingSAE(sl.JumpReLUTrainingSAEConfig(**SIZE)),
        "matching pursuit": sl.MatchingPursuitTrainingSAE(sl.MatchingPursuitTrainingSAEConfig(**SIZE)),
    }


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    rows = torch.randn(12, SIZE["d_in"])
    tensors, configs = {"inputs": rows}, {}

    def keep(name: str, folder: str, reader: sl.SAE | None) -> None:
        configs[name] = json.loads((Path(folder) / "cfg.json").read_text())
        held = load_file(Path(folder) / "sae_weights.safetensors")
        tensors.update({f"{name}/{key}": value for key, value in held.items()})
        if reader is not None:
            tensors[f"{name}/answer codes"] = reader.encode(rows).contiguous()
            tensors[f"{name}/answer outputs"] = reader(rows).contiguous()

    for name, sae in dictionaries().items():
        fill(sae)
        with tempfile.TemporaryDirectory() as folder:
            sae.save_model(folder)
            keep(name, folder, None if name == "temporal" else sae)
    for name, sae in trained().items():
        fill(sae)
        with tempfile.TemporaryDirectory() as folder:
            sae.save_inference_model(folder)
            keep(f"trained {name}", folder, sl.SAE.load_from_disk(folder))
        with tempfile.TemporaryDirectory() as folder:
            sae.save_model(folder)
            keep(f"checkpoint {name}", folder, None if name in ("batchtopk", "matryoshka") else sae)
    TARGET.parent.mkdir(exist_ok=True)
    save_file(tensors, TARGET, {"configs": json.dumps(configs), "sae_lens": sl.__version__})


def fill(sae: sl.SAE) -> None:
    """Random weights in place of zeros and tied ones; thresholds above 0, unit atoms for matching pursuit."""
    for name, held in sae.named_parameters():
        held.copy_(torch.randn_like(held) * (0.5 if held.dim() > 1 else 0.3))
        if "threshold" in name:
            held.abs_()
    if "MatchingPursuit" in type(sae).__name__:
        sae.W_dec.copy_(torch.nn.functional.normalize(sae.W_dec, dim=-1))
    if hasattr(sae, "topk_threshold"):
        sae.topk_threshold = torch.tensor(0.4, dtype=torch.double)


if __name__ == "__main__":
    main()
