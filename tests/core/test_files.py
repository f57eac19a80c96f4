"""Files: whole or not there, damage found by a checksum, never written through a link."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save, save_file

import veridical as vd
from veridical.core import files
from veridical.errors import FormatError, StorageError
from veridical.meta.result import KIND as META_KIND
from veridical.report import rendering
from veridical.study.cells import META, from_parquet, to_parquet
from veridical.values.tables import write_csv, write_table


def test_every_bit_counts() -> None:
    whole = files.pack_json({"a": [1, 2.5, None], "ü": "x"}, "toy", 1, "here")
    assert files.unpack_json(whole, "f", "toy", 1, "here") == {"a": [1, 2.5, None], "ü": "x"}
    for at in range(len(whole)):
        for bit in range(8):
            sick = bytearray(whole)
            sick[at] ^= 1 << bit
            with pytest.raises(FormatError):
                files.unpack_json(bytes(sick), "f", "toy", 1, "here")
        with pytest.raises(FormatError):
            files.unpack_json(whole[:at], "f", "toy", 1, "here")


def test_a_whole_file_in_the_wrong_place_is_refused() -> None:
    whole = files.pack_json({}, "toy", 2, "here")
    for kind, version, address in (("other", 2, "here"), ("toy", 2, "there"), ("toy", 1, "here")):
        with pytest.raises(FormatError):
            files.unpack_json(whole, "f", kind, version, address)


def test_what_looks_like_a_checksum_is_not_mistaken_for_one() -> None:
    with pytest.raises(FormatError, match="more than one checksum"):
        files.pack_json({"label": files.NO_CHECKSUM}, "toy", 1)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """The names a page used to be written under first can be guessed; a link there led elsewhere."""
    precious = tmp_path / "precious"
    frame = pd.DataFrame({"a": [1]})
    writers = {
        "page.html": lambda p: rendering.save({"kind": "audit"}, p),
        "t.csv": lambda p: write_csv(frame, p),
        "t.parquet": lambda p: write_table(frame, p),
        "x.bin": lambda p: files.write_file(p, b"1"),
    }
    for name, writer in writers.items():
        precious.write_text("keep me")
        for link in (name, f"{name}.part"):
            (tmp_path / link).unlink(missing_ok=True)
            (tmp_path / link).symlink_to(precious)
        writer(tmp_path / name)
        assert precious.read_text() == "keep me", name
        assert not (tmp_path / name).is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_values_are_private_and_pages_are_not(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        assert stat.S_IMODE(files.write_file(tmp_path / "a", b"").stat().st_mode) == 0o600
        assert stat.S_IMODE(files.write_file(tmp_path / "b", b"", private=False).stat().st_mode) == 0o644
    finally:
        os.umask(mask)


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "may write to")]
)
def test_faults_are_sentences_and_leave_nothing(
    tmp_path: Path, monkeypatch, number: int, remedy: str
) -> None:
    def fail(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(StorageError, match=remedy) as told:
        files.write_file(tmp_path / "f", b"1")
    assert told.value.errno == number
    assert list(tmp_path.iterdir()) == []


def small_task() -> vd.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return vd.Task(torch.nn.Linear(4, 3), torch.randn(3, 4))


@pytest.mark.parametrize("kind", ["explanation", "scores"])
def test_sealed_files_of_odd_content_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    task = small_task()
    found: Any = vd.explain("gradient", task)
    found = found if kind == "explanation" else vd.score("pixel_flipping", task, found)
    tensors, header = files.load_tensors(found.save(tmp_path / "whole"), kind)
    own = {name: value for name, value in header.items() if name not in files.new_header(kind, 3)}
    odd = [(tensors, dict.fromkeys(own, 3)), ({}, own)]
    odd += [(tensors, {n: v for n, v in own.items() if n != name}) for name in own if name != "curve"]
    for held, about in odd:
        with pytest.raises(FormatError, match="something else than it should"):
            type(found).load(files.save_tensors(tmp_path / "odd", kind, held, about))
    bare = {"veridical": json.dumps({"format": 3, "checksum": files.NO_CHECKSUM})}
    (tmp_path / "bare").write_bytes(files.with_checksum(save(tensors, bare)))
    with pytest.raises(FormatError, match="holds a None"):
        type(found).load(tmp_path / "bare")


def test_sealed_cells_of_odd_content_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="something else than it should"):
        vd.meta.load(files.save_tensors(tmp_path / "odd", META_KIND, {}, {}))
    labels = {"task": "t", "explainer": "e", "metric": "m", "seed": 0}
    whole = to_parquet(vd.score("sparseness", small_task(), "gradient"), labels, {})
    about = json.loads(pq.read_schema(io.BytesIO(whole)).metadata[META])
    del about["direction"]
    table, sink = pq.read_table(io.BytesIO(whole)), io.BytesIO()
    bare = json.dumps({**about, "checksum": files.NO_CHECKSUM}).encode()
    pq.write_table(table.replace_schema_metadata({META: bare}), sink, compression="zstd")
    with pytest.raises(FormatError, match="something else than it should"):
        from_parquet(files.with_checksum(sink.getvalue()), "cell")


TENSORS = {"a": torch.arange(3), "b": torch.eye(2).T[:, :1]}


def test_files_that_are_not_ours_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no file"):
        files.load_tensors(tmp_path / "none", "toy")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(FormatError, match="not a safetensors file"):
        files.load_tensors(tmp_path / "text", "toy")
    save_file(dict(TENSORS) | {"b": torch.ones(1)}, tmp_path / "plain")
    with pytest.raises(FormatError, match="not written by veridical"):
        files.load_tensors(tmp_path / "plain", "toy")
    path = files.save_tensors(tmp_path / "other", "other", TENSORS, {})
    with pytest.raises(FormatError, match="holds a other, expected a toy"):
        files.load_tensors(path, "toy")
    newer = {"veridical": json.dumps({"format": files.FORMAT_VERSION + 1, "kind": "toy"})}
    save_file({"a": torch.ones(1)}, tmp_path / "newer", newer)
    with pytest.raises(FormatError, match="this version reads up to"):
        files.load_tensors(tmp_path / "newer", "toy")
