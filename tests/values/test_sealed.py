"""Sealed files: whole or not there, noticed when one bit is other, and never written through a link."""

import errno
import os
import stat
from pathlib import Path

import pandas as pd
import pytest
import torch

import veridical as vd
from veridical.errors import FormatError, StorageError
from veridical.explainers import as_explainer
from veridical.explainers.cache import ExplanationCache
from veridical.report import rendering
from veridical.values import sealed
from veridical.values.table_files import quoted, write_csv, write_table


def test_every_bit_counts() -> None:
    whole = sealed.pack_json({"a": [1, 2.5, None], "ü": "x"}, "toy", 1, "here")
    assert sealed.unpack_json(whole, "f", "toy", 1, "here") == {"a": [1, 2.5, None], "ü": "x"}
    for at in range(len(whole)):
        for bit in range(8):
            sick = bytearray(whole)
            sick[at] ^= 1 << bit
            with pytest.raises(FormatError):
                sealed.unpack_json(bytes(sick), "f", "toy", 1, "here")
        with pytest.raises(FormatError):
            sealed.unpack_json(whole[:at], "f", "toy", 1, "here")


def test_a_whole_file_in_the_wrong_place_is_refused() -> None:
    whole = sealed.pack_json({}, "toy", 2, "here")
    for kind, version, address in (("other", 2, "here"), ("toy", 2, "there"), ("toy", 1, "here")):
        with pytest.raises(FormatError):
            sealed.unpack_json(whole, "f", kind, version, address)


def test_what_looks_like_a_digest_is_not_mistaken_for_one() -> None:
    with pytest.raises(FormatError, match="more than one digest"):
        sealed.pack_json({"label": sealed.BLANK}, "toy", 1)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """The names a page used to be written under first can be guessed; a link there led elsewhere."""
    precious = tmp_path / "precious"
    frame = pd.DataFrame({"a": [1]})
    writers = {
        "page.html": lambda p: rendering.save({"kind": "audit"}, p),
        "t.csv": lambda p: write_csv(frame, p),
        "t.parquet": lambda p: write_table(frame, p),
        "x.bin": lambda p: sealed.put(p, b"1"),
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
        assert stat.S_IMODE(sealed.put(tmp_path / "a", b"").stat().st_mode) == 0o600
        assert stat.S_IMODE(sealed.put(tmp_path / "b", b"", private=False).stat().st_mode) == 0o644
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

    monkeypatch.setattr(sealed.os, "fsync", fail)
    with pytest.raises(StorageError, match=remedy) as told:
        sealed.put(tmp_path / "f", b"1")
    assert told.value.errno == number
    assert list(tmp_path.iterdir()) == []


def small_task() -> vd.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return vd.Task(torch.nn.Linear(4, 3), torch.randn(3, 4))


def test_a_flipped_bit_or_another_map_in_the_cache_is_made_again(tmp_path: Path, caplog) -> None:
    task, cache = small_task(), ExplanationCache(tmp_path)
    saliency, other = as_explainer("saliency"), as_explainer("random")
    right = cache.get(saliency, task, vd.core.Key(0))
    place = cache.path(saliency, task, vd.core.Key(0))
    whole = place.read_bytes()
    sick = bytearray(whole)
    sick[-3] ^= 1
    place.write_bytes(bytes(sick))
    assert cache.get(saliency, task, vd.core.Key(0)).values.equal(right.values)
    assert "damaged" in caplog.text
    assert place.read_bytes() == whole
    cache.get(other, task, vd.core.Key(0))
    place.write_bytes(cache.path(other, task, vd.core.Key(0)).read_bytes())
    assert cache.get(saliency, task, vd.core.Key(0)).values.equal(right.values)
    assert "another file than its place says" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["=1", "+1", "-1", "@x", " =1", "\n=1", "\t=1", "\r=1", "＝1", "＋1", " ＠x", "\u200b=1", "\xa0=1"],
)
def test_no_text_begins_a_formula(text: str, tmp_path: Path) -> None:
    assert quoted(text) == f"'{text}"
    back = pd.read_csv(write_csv(pd.DataFrame({text: [text]}), tmp_path / "x.csv"))
    assert str(back.columns[0]).startswith("'")
    assert str(back.iloc[0, 0]).startswith("'")


@pytest.mark.parametrize("text", ["", "a=1", "plain", " plain", "ü"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert quoted(text) == text
