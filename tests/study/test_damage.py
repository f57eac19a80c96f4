"""What a folder can suffer: damaged, cut, copied and foreign files are found, said, and made again."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veridical import study as studies
from veridical.cli.app import app
from veridical.core import files
from veridical.errors import FormatError, InputError, StorageError, StudyError
from veridical.jobs import Lease, Store
from veridical.study import preparations
from veridical.study.cells import from_parquet, to_parquet
from veridical.study.plan import FORMAT, read_plan

STUDY: dict[str, Any] = {
    "name": "first",
    "tasks": [{"name": "known/linear", "samples": 6}],
    "explainers": ["gradient", "random"],
    "metrics": ["sparseness", {"name": "fast_gef", "settings": {"draws": 2, "levels": 3, "form": "fast"}}],
    "seeds": [0, 1],
    "plan": {"rows": 8},
}
KINDS = ("cells", "explanations", "prepared")


def run(folder: Path, study: Any = None, **options: Any) -> Any:
    return studies.run(study or STUDY, folder, executor="in-process", progress=False, **options)


def resume(folder: Path) -> Any:
    return studies.resume(folder, executor="in-process", progress=False)


def content(folder: Path) -> dict[str, bytes]:
    return {f"{k}/{p.name}": p.read_bytes() for k in KINDS for p in sorted((folder / k).glob("*.*"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("finished") / "study"
    assert run(where).status().complete
    return where


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "study")
    return tmp_path / "study"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    bytes_ = bytearray(path.read_bytes())
    bytes_[len(bytes_) // 2] ^= 4
    path.write_bytes(bytes(bytes_))


def copied(path: Path) -> None:
    other = next(p for p in sorted(path.parent.glob(f"*{path.suffix}")) if p != path)
    path.write_bytes(other.read_bytes())


def shortened(path: Path) -> None:
    """Fewer rows, with a checksum like a file of ours."""
    if path.suffix == ".parquet":
        from veridical.study.cells import metadata

        about = metadata(path.read_bytes(), "x")
        labels = {"task": "t", "explainer": "e", "metric": "m", "seed": 0}
        few = from_parquet(path.read_bytes()).take(slice(3))
        path.write_bytes(to_parquet(few, labels, about["settings"], path.stem))
    elif path.parent.name == "explanations":
        tensors, header = files.load_tensors(path, "explanation")
        few = {n: t[:3] if n in ("ids", "values", "order", "targets") else t for n, t in tensors.items()}
        files.save_tensors(path, "explanation", few, header, path.stem)
    else:
        path.write_bytes(files.pack_tensors("noise path", {}, {"data": {}}, "elsewhere"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [truncated, flipped, copied, shortened])
def test_damage_is_found_said_and_made_again(folder: Path, caplog, kind: str, damage: Any) -> None:
    before = content(folder)
    victim = sorted((folder / kind).glob("*.*"))[0]
    damage(victim)
    assert content(folder) != before
    found = studies.verify(folder)
    assert len(found.problems) == 1
    assert victim.stem in found.problems[0]
    if kind == "cells":
        state = studies.open(folder).status()
        assert (state.damaged, state.complete) == (1, False)
        with pytest.raises(FormatError, match="resume"):
            studies.open(folder).frame()
        with pytest.raises(FormatError, match="resume"):
            studies.open(folder).summary()
        with pytest.raises(FormatError):
            _ = [studies.open(folder)[name] for name in studies.open(folder).cells]
    assert resume(folder).status().complete
    assert f"{victim.name}" in caplog.text
    assert "made again" in caplog.text
    assert content(folder) == before
    assert studies.verify(folder).ok


@pytest.mark.slow
def test_a_cell_that_changes_after_it_was_looked_at_is_found_when_it_is_read(folder: Path) -> None:
    opened = studies.open(folder)
    assert len(opened.frame()) == 48
    one, other = sorted((folder / "cells").glob("*.parquet"))[:2]
    one.write_bytes(other.read_bytes())
    with pytest.raises(FormatError, match="resume"):
        opened.frame()
    assert opened.status().damaged == 1


@pytest.mark.parametrize("keep", [True, False])
def test_maps_that_a_copy_left_out_are_counted_and_made_again(tmp_path: Path, keep: bool) -> None:
    run(tmp_path / "s", {**STUDY, "metrics": ["sparseness"], "keep_explanations": keep})
    assert studies.verify(tmp_path / "s").missing == ()
    before = content(tmp_path / "s")
    maps = sorted((tmp_path / "s" / "explanations").glob("*.*"))
    assert len(maps) == 3 * keep
    for path in maps[:2]:
        path.unlink()
    found = studies.verify(tmp_path / "s")
    assert (found.ok, len(found.missing)) == (True, 2 * keep)
    said = CliRunner().invoke(app, ["verify", str(tmp_path / "s")]).output
    assert f"{2 * keep} cells and maps are to do" in said
    resume(tmp_path / "s")
    assert content(tmp_path / "s") == before
    assert studies.verify(tmp_path / "s").missing == ()


def test_foreign_files_are_named_and_left_alone(folder: Path) -> None:
    (folder / "cells" / "notes.txt").write_text("mine")
    found = studies.verify(folder)
    assert found.ok
    assert found.foreign == ("cells/notes.txt",)
    resume(folder)
    assert (folder / "cells" / "notes.txt").read_text() == "mine"


def test_garbage_in_the_log_or_a_record_of_failure_hides_nothing(folder: Path) -> None:
    before = studies.open(folder).status()
    (folder / "log" / "odd.jsonl").write_bytes(b'{"seconds": "x"}\n[1]\n{"seconds": null}\n\xff\n{"sec')
    assert studies.open(folder).status() == before


def test_a_damaged_plan_is_made_again_from_the_study(folder: Path) -> None:
    before, victim = content(folder), folder / "plan.json"
    for damage in (lambda path: path.write_text('{"format": 5, "plan": "not'), flipped):
        damage(victim)
        with pytest.raises(FormatError, match=r"not JSON|damaged"):
            studies.open(folder)
        assert not studies.verify(folder).ok
        assert resume(folder).status().complete
        assert content(folder) == before
    victim.unlink()
    with pytest.raises(FormatError, match="resume makes it again"):
        studies.open(folder)
    assert resume(folder).status().complete
    assert studies.verify(folder).ok


def test_a_changed_study_file_is_found_and_resume_says_so(folder: Path, caplog) -> None:
    path = folder / "study.yaml"
    text = path.read_text()
    path.write_text(text.replace("samples: 6", "samples: 7"))
    assert [line for line in studies.verify(folder).problems if "study.yaml was changed" in line]
    assert not caplog.text
    assert resume(folder).status().stale == 8
    assert "computes what it says now" in caplog.text
    assert studies.verify(folder).ok
    path.unlink()
    assert "lacks its study.yaml" in studies.verify(folder).problems[0]


@pytest.mark.parametrize("data", [{}, [], {"name": 3}, "text", {"shard_size": "x"}, {"seeds": [1]}, 10**30])
def test_a_plan_of_odd_content_is_a_sentence(folder: Path, data: Any) -> None:
    whole = json.loads((folder / "plan.json").read_text())["data"]
    changed = {**whole, **data} if isinstance(data, dict) and data else data
    if isinstance(data, int):  # more rows than anybody can count through
        changed = {**whole, "tasks": [{**whole["tasks"][0], "samples": data}], "shard_size": 2}
    (folder / "plan.json").write_bytes(files.pack_json(changed, "plan", FORMAT))
    assert "plan.json is damaged" in studies.verify(folder).problems[0]
    assert resume(folder).status().complete


@pytest.mark.parametrize("name", ["a\0b", "s3://bucket/study"])
def test_a_folder_that_is_no_path_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="a path of this machine"):
        studies.open(name)


def test_a_damaged_record_of_a_failure_still_says_that_it_failed(code, tmp_path: Path) -> None:
    code["metrics"] = [{"code": "tests.study.user_code:Breaks"}]
    run(tmp_path, code, allow_code=True)
    truncated(next((tmp_path / "failures").iterdir()))
    failures = studies.open(tmp_path).failures
    assert len(failures) == 2
    assert sum("why is lost" in failure.error for failure in failures) == 1
    assert studies.open(tmp_path).status().failed == 2


# --- who may write ----------------------------------------------------------------------------------------


def refuse_writing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.open

    def refused(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)


def test_a_complete_study_opens_read_only_and_others_are_told(folder: Path, monkeypatch) -> None:
    import errno

    refuse_writing(monkeypatch, errno.EROFS)
    assert resume(folder).status().complete
    next((folder / "cells").iterdir()).unlink()
    with pytest.raises(StorageError, match="choose a folder that you may write to"):
        resume(folder)


def test_a_full_disk_is_a_sentence_and_loses_nothing(folder: Path, monkeypatch) -> None:
    import errno

    before = content(folder)
    lost = sorted((folder / "cells").iterdir())[:2]
    for path in lost:
        path.unlink()
    real = files.os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageError, match="free some space"):
        resume(folder)
    assert not list(folder.rglob("*.part"))
    monkeypatch.setattr(files.os, "fsync", real)
    assert resume(folder).status().complete
    assert content(folder) == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_what_is_unpacked_for_a_moment_lies_where_nobody_else_writes() -> None:
    """A model of a remote folder is read from a local file: in a known place, somebody could lay theirs."""
    here = preparations._here(b"ours", "abc")
    assert here.read_bytes() == b"ours"
    assert stat.S_IMODE(here.parent.stat().st_mode) == 0o700


# --- two runs at once -------------------------------------------------------------------------------------


def test_a_folder_in_use_by_another_study_is_refused(folder: Path) -> None:
    before, plan = content(folder), read_plan(Store(folder))
    with Lease(Store(folder), plan.digest, plan.name):
        with pytest.raises(StudyError, match="in use by another study, 'first'"):
            run(folder, {**STUDY, "name": "second", "seeds": [5]})
        assert content(folder) == before
        # the same study may come along
        assert run(folder).status().complete
        with Lease(Store(folder), plan.digest, plan.name) as other:
            assert other.shared
    assert list((folder / "leases").iterdir()) == []
    assert run(folder, {**STUDY, "seeds": [5]}).status().complete


RACE = """
import json, sys
from veridical import study
from veridical.errors import StudyError
try:
    made = study.run(json.loads(sys.argv[1]), sys.argv[2], executor="processes", workers=2, progress=False)
    sys.exit(0 if made.status().complete else 3)
except StudyError as error:
    print(error, file=sys.stderr)
    sys.exit(7)
"""


@pytest.mark.slow
def test_two_studies_begun_together_in_one_folder_never_mix(tmp_path: Path) -> None:
    """Same labels, other settings: the second is told, and what is there is the first's own."""
    base = {**STUDY, "metrics": [{"name": "sensitivity_n", "label": "m", "settings": {"draws": 6}}]}
    base["seeds"] = list(range(8))
    other = {**base, "metrics": [{"name": "sensitivity_n", "label": "m", "settings": {"draws": 7}}]}
    alone = {}
    for name, study in (("a", base), ("b", other)):
        run(tmp_path / name, study)
        alone |= content(tmp_path / name)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", RACE, json.dumps(s), str(tmp_path / "c")], env=env)
        for s in (base, other)
    ]
    codes = [process.wait() for process in both]
    assert set(codes) <= {0, 7}
    found = content(tmp_path / "c")
    assert all(alone[name] == bytes_ for name, bytes_ in found.items())
    assert studies.verify(tmp_path / "c").ok
