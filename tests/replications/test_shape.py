"""All replications have one shape: parts that say what they need, options that all share."""

import importlib
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replications.common import ROOT, WHERE, Part, main, work_off
from replications.metaquantus.data import pickled_arrays
from veridical.cli.replicate import PAPERS


@pytest.mark.parametrize("folder", PAPERS.values())
def test_every_paper_has_parts_and_a_page(folder: str) -> None:
    parts = importlib.import_module(f"replications.{folder}.__main__").PARTS
    assert (ROOT / "replications" / folder / "README.md").is_file()
    assert len({part.name for part in parts}) == len(parts) > 0
    for part in parts:
        assert all(name.split("/")[0] in WHERE for name in part.needs)
        module = part.command[1].replace(".", "/") + ".py" if part.command[0] == "-m" else part.command[0]
        assert (ROOT / module).is_file()


def test_parts_without_data_are_named_and_do_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "ran"
    parts = [Part("needy", ("-c", f"open({str(mark)!r}, 'w')"), ("mnist/mnist_lenet.pt",))]
    assert main("", parts, argv=["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().out
    assert "left out: needy" in told
    assert "mnist/mnist_lenet.pt" in told
    assert "http" in told
    assert not mark.exists()


def test_parts_run_with_data_out_and_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "avila").mkdir()
    (tmp_path / "avila" / "here").touch()
    program = (
        "import os, pathlib, sys; "
        "pathlib.Path(sys.argv[1]).write_text(' '.join([*sys.argv[2:], os.environ['VERIDICAL_DATA']]))"
    )
    parts = [
        Part("good", ("-c", program, "{out}/good"), ("avila/here",), ("--small",)),
        Part("slow", ("-c", program, "{out}/slow"), in_quick=False),
        Part("bad", ("-c", "raise SystemExit(3)")),
    ]
    out = tmp_path / "out"
    assert main("", parts, argv=["--data", str(tmp_path), "--out", str(out), "--quick"]) == 1
    assert (out / "good").read_text() == f"--small {tmp_path}"
    assert not (out / "slow").exists()
    told = capsys.readouterr().out
    assert "failed: bad" in told
    assert "1 of 2 parts ran" in told
    assert main("", parts[1:2], argv=["--data", str(tmp_path), "--out", str(out)]) == 0
    assert (out / "slow").read_text() == str(tmp_path)


def test_a_device_reaches_only_programs_that_take_one(tmp_path: Path) -> None:
    part = Part("one", ("-c", "pass"))
    assert "--device" not in part.line(tmp_path, None, False, None)
    assert part.line(tmp_path, None, False, "cuda")[-2:] == ["--device", "cuda"]


class Trap:
    """A pickle of this leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.mark), "w")


def test_pickled_arrays_are_read_and_nothing_else(tmp_path: Path) -> None:
    for name, content in (("good", np.arange(3)), ("bad", Trap(tmp_path / "ran"))):
        held = np.empty((), dtype=object)
        held[()] = {"x": content}
        np.save(tmp_path / f"{name}.npy", held, allow_pickle=True)
    assert pickled_arrays(tmp_path / "good.npy")["x"].tolist() == [0, 1, 2]
    with pytest.raises(pickle.UnpicklingError, match="only arrays"):
        pickled_arrays(tmp_path / "bad.npy")
    assert not (tmp_path / "ran").exists()


def slept(seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    if not seconds:
        raise ValueError("nothing to do")
    return {"slept": seconds}


def test_a_long_run_keeps_what_is_done_stops_in_time_and_goes_on(tmp_path: Path) -> None:
    jobs, file = {"none": 0.0, "short": 0.01}, tmp_path / "results.jsonl"
    found = work_off(jobs, slept, file, workers=2)
    assert found == [{"error": "ValueError: nothing to do"}, {"slept": 0.01}]
    more = {"short": 0.01, "long": 500.0}
    assert work_off(more, slept, tmp_path / "more.jsonl", minutes=1e-4, also=[file]) == [{"slept": 0.01}]
    assert len(file.read_text().splitlines()) == 2
