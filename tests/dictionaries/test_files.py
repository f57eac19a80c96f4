"""Dictionaries on disk, and those of other packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from veridical.dictionaries import (
    Bench,
    Dictionary,
    Superposition,
    TopK,
    judge_one,
    load,
    save,
    train,
)
from veridical.errors import FormatError

ROWS = Superposition(features=16, dimensions=8, active=2.0, groups=2).rows(100)


def test_plain_arrays_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    parts = {"encoder": ROWS[:6], "encoder_bias": torch.zeros(6), "decoder": ROWS[6:12].contiguous()}
    path = tmp_path / "plain.safetensors"
    save_file({k: v.contiguous() for k, v in parts.items()}, path)
    with pytest.raises(FormatError, match="lacks decoder_bias"):
        load(path)
    save_file({**parts, "encoder": ROWS[:6].clone(), "decoder_bias": torch.zeros(8)}, path)
    plain = load(path)
    assert isinstance(plain, Dictionary)
    assert torch.equal(plain.encode(ROWS), (ROWS @ parts["encoder"].T).clamp(min=0))
    save_file({**parts, "encoder": ROWS[:6].clone(), "decoder_bias": torch.zeros(3)}, path)
    with pytest.raises(FormatError, match="decoder_bias has shape"):
        load(path)
    with pytest.raises(FormatError, match="neither a file nor a folder"):
        load(tmp_path / "nothing")


def test_several_axes_are_encoded_as_rows_are() -> None:
    own = train(ROWS, TopK(16, 5, 8, active=2)).dictionary
    cube = ROWS[:24].reshape(2, 3, 4, 8)
    assert torch.allclose(own.encode(cube).reshape(24, 16), own.encode(ROWS[:24]), atol=1e-6)
    assert own.decode(own.encode(cube)).shape == cube.shape


W = {
    name: torch.randn(size, generator=torch.Generator().manual_seed(i))
    for i, (name, size) in enumerate(
        {"e": (8, 16), "be": (16,), "d": (16, 8), "bd": (8,), "r": (16,), "g": (16,), "m": (16,)}.items()
    )
}
TURNED = {"encoder.weight": W["e"].T.contiguous(), "decoder.weight": W["d"].T.contiguous()}
LINEAR, LENGTH = {**TURNED, "encoder.bias": W["be"]}, W["d"].norm(dim=1)
BEFORE, CENTRED = ROWS @ W["e"] + W["be"], (ROWS - W["bd"]) @ W["e"] + W["be"]


def kept(before: Tensor, count: int, signed: bool = False) -> Tensor:
    """The largest codes, by a sort of every row."""
    codes = before if signed else before.clamp(min=0)
    least = codes.abs().sort(dim=-1, descending=True).values[:, [count - 1]]
    return torch.where(codes.abs() >= least, codes, 0.0)


def jump(before: Tensor, threshold: Any) -> Tensor:
    return torch.where(before > threshold, before.clamp(min=0), 0.0)


def gated() -> Tensor:
    """By the formulas of its paper: a gate, a magnitude, and codes of atoms of length 1."""
    shared = (ROWS - W["bd"]) @ W["e"]
    return (shared + W["g"] > 0) * (W["r"].exp() * shared + W["m"]).clamp(min=0) * LENGTH


K, T, MATRICES = torch.tensor(3), torch.tensor(0.4), {"W_enc": W["e"], "b_enc": W["be"], "W_dec": W["d"]}
JUMP = {**MATRICES, "b_dec": W["bd"], "threshold": W["r"].abs()}
FILES: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], Tensor]] = {
    "Gemma Scope": ("layer_5/params.npz", JUMP, {}, jump(BEFORE, W["r"].abs())),
    "sparsify": (
        "layers.5/sae.safetensors",
        {**LINEAR, "W_dec": W["d"], "b_dec": W["bd"]},
        {"k": 3},
        kept(CENTRED, 3),
    ),
    "sparsify, signed": (
        "layers.5/sae.safetensors",
        {**LINEAR, "W_dec": W["d"], "b_dec": W["bd"]},
        {"k": 3, "signed": True},
        kept(CENTRED, 3, True),
    ),
    "AutoEncoder": ("ae.pt", {**LINEAR, "bias": W["bd"]}, {"layer": 5}, CENTRED.clamp(min=0)),
    "AutoEncoderNew": ("ae.pt", {**LINEAR, "decoder.bias": W["bd"]}, {}, BEFORE.clamp(min=0)),
    "AutoEncoderTopK": ("ae.pt", {**LINEAR, "b_dec": W["bd"], "k": K, "threshold": -T}, {}, kept(CENTRED, 3)),
    "BatchTopKSAE": ("ae.pt", {**LINEAR, "b_dec": W["bd"], "k": K, "threshold": T}, {}, jump(CENTRED, 0.4)),
    "MatryoshkaBatchTopKSAE": (
        "ae.pt",
        {**MATRICES, "b_dec": W["bd"], "k": K, "threshold": T},
        {},
        jump(CENTRED, 0.4),
    ),
    "GatedAutoEncoder": (
        "ae.pt",
        {**TURNED, "decoder_bias": W["bd"], "r_mag": W["r"], "gate_bias": W["g"], "mag_bias": W["m"]},
        {},
        gated(),
    ),
    "JumpReluAutoEncoder": ("ae.pt", JUMP, {}, jump(BEFORE, W["r"].abs()) * LENGTH),
}


def written(folder: Path, name: str) -> Path:
    """The folder as the package leaves it."""
    place, arrays, config, _ = FILES[name]
    file = folder / place
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".npz":
        np.savez(file, **{n: t.numpy() for n, t in arrays.items()})
    elif file.suffix == ".pt":
        torch.save(arrays, file)
        trainer = {"dict_class": name, "submodule_name": "resid_post_layer_5", "lm_name": "org/small"}
        (file.parent / "config.json").write_text(json.dumps({"trainer": trainer | config}))
    else:
        save_file(arrays, file)
        (file.parent / "cfg.json").write_text(json.dumps(config))
    return file.parent


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_packages_give_their_codes(tmp_path: Path, name: str) -> None:
    found = load(written(tmp_path, name))
    assert torch.allclose(found.encode(ROWS), FILES[name][3], atol=1e-5)
    codes = found.encode(ROWS) / (LENGTH if name[:2] in ("Ga", "Ju") else 1)
    assert torch.allclose(found.decode(found.encode(ROWS)), codes @ W["d"] + W["bd"], atol=1e-4)
    again = load(save(found, tmp_path / "own.safetensors"))
    assert torch.equal(again.encode(ROWS), found.encode(ROWS))
    assert again.hook is not None
    assert "5" in again.hook


def _damage(folder: Path, name: str, what: str, content: bytes) -> Path:
    (written(folder, name) / what).write_bytes(content)
    return folder / Path(FILES[name][0]).parent


def _damage_arrays(folder: Path, change: Callable[[Tensor], Tensor]) -> Path:
    held = FILES["AutoEncoder"][1]
    held = {**held, "encoder.weight": change(held["encoder.weight"])}
    torch.save(held, written(folder, "AutoEncoder") / "ae.pt")
    return folder


def _without(folder: Path, name: str, array: str) -> Path:
    torch.save({n: t for n, t in FILES[name][1].items() if n != array}, written(folder, name) / "ae.pt")
    return folder


WRONG = {
    "without unpickling": lambda f: _damage(f, "Gemma Scope", "params.npz", b"junk"),
    "is not a safetensors file": lambda f: _damage(f, "sparsify", "sae.safetensors", b"junk"),
    "no file of weights that torch reads": lambda f: _damage(f, "AutoEncoder", "ae.pt", b"junk"),
    "is no JSON": lambda f: _damage(f, "sparsify", "cfg.json", b"{"),
    "a transcoder": lambda f: _damage(f, "sparsify", "cfg.json", b'{"k": 3, "transcode": true}'),
    "groupmax": lambda f: _damage(f, "sparsify", "cfg.json", b'{"k": 3, "activation": "groupmax"}'),
    "how many atoms": lambda f: _damage(f, "sparsify", "cfg.json", b"{}"),
    "TopK or BatchTopK": lambda f: _damage(f, "BatchTopKSAE", "config.json", b"{}"),
    "do not belong together: invalid literal": lambda f: _damage(f, "sparsify", "cfg.json", b'{"k": "x"}'),
    "do not belong together: 'int' object": lambda f: _damage(
        f, "AutoEncoder", "config.json", b'{"trainer": 3}'
    ),
    "99 atoms of 16": lambda f: _damage(f, "sparsify", "cfg.json", b'{"k": 99}'),
    "encoder holds something else": lambda f: _damage_arrays(f, lambda t: t * torch.nan),
    "encoder has shape": lambda f: _damage_arrays(f, lambda t: t[:-1]),
    "lacks W_dec": lambda f: _without(f, "AutoEncoder", "decoder.weight"),
    "holds none of": lambda f: f,
    "no .safetensors, .npz or .pt": lambda f: _damage(f, "AutoEncoder", "notes.txt", b"x") / "notes.txt",
}


@pytest.mark.parametrize("said", WRONG)
def test_damaged_files_are_named(tmp_path: Path, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        load(WRONG[said](tmp_path))


def test_a_pursuit_is_saved_judged_and_taken_greedily(tmp_path: Path) -> None:
    """Row by row: the atom of the largest product, until what is left is short."""
    zeros = torch.zeros(16)
    own = Dictionary(W["d"], zeros, W["d"], torch.zeros(8), "pursuit", steps=5, left=0.2, repeats=True)
    again = load(save(own, tmp_path / "p.safetensors"))
    assert torch.equal(again.encode(ROWS), own.encode(ROWS))
    world = Superposition(features=16, dimensions=8, active=2.0, groups=2)
    standing = judge_one(again, Bench.planted(world, 64, 128, labels=4), entries={})
    assert {"gef", "tpp", "loss recovered", "surf", "disentanglement"} <= set(standing.values)
    for row, codes in zip(ROWS[:10], own.encode(ROWS[:10]), strict=True):
        left, expected = row.clone(), zeros.clone()
        for _ in range(5):
            best = int((W["d"] @ left).argmax())
            step = (W["d"][best] @ left).clamp(min=0)
            expected[best] += step
            left = left - step * W["d"][best]
            if left.norm() < 0.2:
                break
        assert torch.allclose(codes, expected, atol=1e-4)
