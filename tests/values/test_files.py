"""Files: tensors in safetensors, the rest in their header, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from veridical.errors import FormatError
from veridical.values import files

TENSORS = {"a": torch.arange(3), "b": torch.eye(2).T[:, :1]}


def test_round_trip(tmp_path: Path) -> None:
    path = files.write(tmp_path / "new" / "file", "toy", TENSORS, {"note": [1, "two", None]})
    tensors, header = files.read(path, "toy")
    assert all(torch.equal(tensors[n], TENSORS[n]) for n in TENSORS)
    assert header["note"] == [1, "two", None]
    assert header["format"] == files.FORMAT_VERSION
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_what_was_there_and_no_rest(tmp_path: Path) -> None:
    path = files.write(tmp_path / "file", "toy", TENSORS, {})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        files.write(path, "toy", TENSORS, {"note": object()})
    with pytest.raises((TypeError, AttributeError)):
        files.write(path, "toy", {"a": "no tensor"}, {})  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_not_ours_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no file"):
        files.read(tmp_path / "none", "toy")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(FormatError, match="not a safetensors file"):
        files.read(tmp_path / "text", "toy")
    save_file(dict(TENSORS) | {"b": torch.ones(1)}, tmp_path / "plain")
    with pytest.raises(FormatError, match="not written by veridical"):
        files.read(tmp_path / "plain", "toy")
    path = files.write(tmp_path / "other", "other", TENSORS, {})
    with pytest.raises(FormatError, match="holds a other, expected a toy"):
        files.read(path, "toy")
    newer = {"veridical": json.dumps({"format": files.FORMAT_VERSION + 1, "kind": "toy"})}
    save_file({"a": torch.ones(1)}, tmp_path / "newer", newer)
    with pytest.raises(FormatError, match="this version reads up to"):
        files.read(tmp_path / "newer", "toy")
