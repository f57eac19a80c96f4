"""The threat model of SECURITY.md: each line has its test, and those that have no better place are here."""

import ast
import os
import pickle
import re
import stat
import time
import tracemalloc
from importlib.metadata import version as version_of
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import veridical as vd
from scripts import hash_pins, sbom
from scripts.check_pins import Finding, identity, pins, releases, told
from veridical.errors import VeridicalError

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "veridical"
NETWORK = {"urllib.request", "http", "http.client", "requests", "httpx", "aiohttp", "ftplib", "smtplib"}


class Trap:
    """A pickle of this leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.mark), "w")


def small_task() -> vd.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return vd.Task(torch.nn.Linear(4, 3), torch.randn(3, 4))


# --- the page itself --------------------------------------------------------------------------------


def test_every_line_names_a_test_that_exists() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) > 12
    for row in rows:
        named = re.findall(r"`((?:replications/\w+/)?tests/[\w/]+\.py)::(\w+)`", row.rsplit("|", 2)[1])
        assert named, f"no test in: {row[:80]}"
        for file, test in named:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


# --- stored values ------------------------------------------------------------------------


def test_a_pickle_in_the_place_of_a_map_is_not_run(tmp_path: Path) -> None:
    place = tmp_path / "maps.safetensors"
    place.write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(vd.errors.FormatError):
        vd.Explanation.load(place)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists(), "the trap would have shown"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_stored_files_are_private(tmp_path: Path) -> None:
    task = small_task()
    maps = vd.explain("gradient", task)
    scores = vd.score("sparseness", task, maps)
    for path in (maps.save(tmp_path / "maps.safetensors"), scores.save(tmp_path / "scores.safetensors")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    study = {"tasks": ["known/linear"], "samples": 3, "explainers": ["random"], "metrics": ["sparseness"]}
    vd.study.run(study, tmp_path / "study", executor="in-process", progress=False)
    kept = [path for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert {path.parent.name for path in kept} >= {"study", "cells", "explanations", "log"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


# --- study files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "task: !!python/object/apply:os.system ['true']\n",
        "task: !!python/name:os.system\n",
        "!!python/object/new:subprocess.Popen [[true]]\n",
    ],
)
def test_yaml_makes_no_objects(text: str) -> None:
    from veridical.study.study_file import parse_study

    with pytest.raises(VeridicalError):
        parse_study(text, "study.yaml")


def test_code_in_a_study_needs_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from veridical.study.resolve import imported

    (tmp_path / "trap_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nthing = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(VeridicalError, match="allow"):
        imported("trap_module:thing", False)
    assert not (tmp_path / "ran").exists()
    assert imported("trap_module:thing", True) == 1
    assert (tmp_path / "ran").exists()


# --- files that unfold ----------------------------------------------------------------------------------

STUDY = "tasks: [known/linear]\nexplainers: [gradient]\nmetrics: [sparseness]\n"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LAUGHS + STUDY, "VERIDICAL_MAX_YAML_NODES"),
        (STUDY + "name: &a [*a]\n", "stands inside what it names"),
        (STUDY + "plan: {threads: 10000000}\n", "plan.threads: .* less than or equal to 1024"),
        (STUDY + "name: " + "[" * 5000, "VERIDICAL_MAX_YAML_DEPTH"),
        (STUDY + "name: " + "{a: " * 5000, "VERIDICAL_MAX_YAML_DEPTH"),
        (STUDY + "seeds: [" + "9" * 5000 + "]\n", "cannot be read"),
        (STUDY + "name: 2026-99-99\n", "cannot be read"),
        (STUDY + "# " + "x" * 2**21, "VERIDICAL_MAX_YAML_KIB"),
        (STUDY + "{[1, 2]: 3}", "not YAML|cannot be read"),
    ],
    ids=["laughs", "self", "threads", "deep list", "deep map", "digits", "date", "long", "odd key"],
)
def test_study_files_cannot_fill_the_machine(text: str, told: str) -> None:
    from veridical.study.study_file import parse_study

    began = time.process_time()
    with pytest.raises(VeridicalError, match=told):
        parse_study(text, "study.yaml")
    assert time.process_time() - began < 5


def test_a_grid_of_too_many_points_is_refused_before_it_is_made() -> None:
    from veridical.study.study_file import expand, read_study

    axes = {f"a{i}": list(range(100)) for i in range(9)}
    study = {"tasks": ["known/linear"], "explainers": [{"name": "gradient", "grid": axes}], "metrics": ["x"]}
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_GRID_POINTS"):
        expand(read_study(study))


def test_a_study_of_too_many_cells_is_refused_before_it_is_planned() -> None:
    from veridical.study.study_file import expand, read_study

    many = list(range(1, 101))
    study = {
        "tasks": ["known/linear"],
        "explainers": [{"name": "smoothgrad", "grid": {"samples": many, "steps": many}}],
        "metrics": [{"name": "rfid_plus", "grid": {"draws": many, "alpha": many}}],
    }
    with pytest.raises(VeridicalError, match=r"100,000,000 cells.*VERIDICAL_MAX_CELLS"):
        expand(read_study(study))


def test_every_bound_is_documented_and_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    from veridical.core.files import LIMITS, check_limit, limit

    page = (ROOT / "SECURITY.md").read_text()
    for name, (most, _) in LIMITS.items():
        variable = f"VERIDICAL_MAX_{name.upper()}"
        assert re.search(rf"`{variable}` \({most}\)", page), variable
        assert limit(name) == most
        monkeypatch.setenv(variable, "7")
        check_limit(name, 7, "it")
        with pytest.raises(VeridicalError, match=variable):
            check_limit(name, 8, "it")


def test_arrays_that_unfold_are_refused_by_their_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veridical.data.files import read_arrays, read_table
    from veridical.data.model_files import read_weights

    monkeypatch.setenv("VERIDICAL_MAX_ARRAY_MIB", "1")
    np.savez_compressed(tmp_path / "a.npz", inputs=np.zeros(2**20))
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_ARRAY_MIB"):
        read_arrays(tmp_path / "a.npz")
    torch.save({"w": torch.zeros(2**20)}, tmp_path / "w.pt")
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_ARRAY_MIB"):
        read_weights(tmp_path / "w.pt")
    pd.DataFrame({"a": np.arange(2**20) % 7919}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_ARRAY_MIB"):
        read_table(tmp_path / "t.parquet")
    monkeypatch.setenv("VERIDICAL_MAX_ARRAY_MIB", "64")
    (tmp_path / "wide.csv").write_text(",".join("c" * 100_001) + "\n1")
    pd.DataFrame(np.zeros((1, 11))).to_parquet(tmp_path / "wide.parquet")
    monkeypatch.setenv("VERIDICAL_MAX_COLUMNS", "10")
    for name in ("wide.csv", "wide.parquet"):
        with pytest.raises(VeridicalError, match="VERIDICAL_MAX_COLUMNS"):
            read_table(tmp_path / name)
    assert read_arrays(tmp_path / "a.npz")["inputs"].shape == (2**20,)
    monkeypatch.setenv("VERIDICAL_MAX_FILE_MIB", "0")
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_FILE_MIB"):
        read_arrays(tmp_path / "a.npz")
    monkeypatch.setenv("VERIDICAL_MAX_FILE_MIB", "many")
    with pytest.raises(VeridicalError, match="whole number"):
        read_arrays(tmp_path / "a.npz")


def test_images_are_bounded_as_they_are_scaled(tmp_path: Path) -> None:
    from PIL import Image

    from veridical.data.images import image_rule, read_image

    Image.new("L", (500_000, 1)).save(tmp_path / "thin.png")
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_IMAGE_PIXELS"):
        read_image(tmp_path / "thin.png", 224)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 60000, "width": 60000}}')
    with pytest.raises(VeridicalError, match="VERIDICAL_MAX_IMAGE_PIXELS"):
        read_image(tmp_path / "thin.png", **image_rule(tmp_path / "preprocessor_config.json"))
    with pytest.raises(VeridicalError, match="positive number"):
        read_image(tmp_path / "thin.png", -3)
    (tmp_path / "preprocessor_config.json").write_text('{"size": ' + "[" * 100_000)
    with pytest.raises(VeridicalError):
        image_rule(tmp_path / "preprocessor_config.json")


def test_a_few_of_very_many_rows_are_drawn_without_a_permutation_of_all() -> None:
    from veridical.data.files import some_rows

    tracemalloc.start()
    rows = some_rows(10**12, 1000, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows.unique()) == 1000
    assert int(rows.max()) > 10**11
    assert most < 2**22
    assert rows.equal(some_rows(10**12, 1000, 0))


# --- the source -----------------------------------------------------------------------------------------


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call of a file by its dotted name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            try:
                found.append((ast.unparse(node.func), node))
            except ValueError:
                continue
    return found


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def dangerous(path: Path) -> list[str]:
    """Calls that run or unpickle what they are given."""
    out = []
    for name, call in calls(path):
        bad = name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "__import__")
        bad |= name.split(".")[-1] in ("loads", "load") and name.split(".")[0] in (
            "pickle",
            "cloudpickle",
            "joblib",
            "dill",
            "marshal",
        )
        bad |= name.endswith("torch.load") and keyword(call, "weights_only") != "True"
        bad |= name in ("np.load", "numpy.load") and keyword(call, "allow_pickle") != "False"
        bad |= name.startswith("subprocess.") and keyword(call, "shell") not in (None, "False")
        bad |= keyword(call, "trust_remote_code") == "True"
        if bad:
            out.append(f"{path.name}: {name}")
    return out


ALLOWED = {
    "battery.py: pickle.loads": "the battery pickles a metric it was given and reads it back",
    "model_files.py: joblib.load": "behind --allow-code: tests/data_tests/test_load_task.py",
    "pools.py: pickle.loads": "a call that this process pickled for a process it started",
}


def test_the_source_has_no_dangerous_call() -> None:
    found = [bad for path in sorted(SOURCE.rglob("*.py")) for bad in dangerous(path)]
    assert set(found) == set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)",
        "pickle.load(f)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p)",
        "yaml.load(t, L)",
        "subprocess.run(c, shell=True)",
        "AutoModel.from_pretrained(p, trust_remote_code=True)",
    ],
)
def test_the_scan_would_notice(line: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(line)
    assert dangerous(tmp_path / "bad.py")


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_nothing_speaks_to_the_network() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    speaking = {str(path.relative_to(SOURCE)) for path in files if imports(path) & NETWORK}
    # a server that the user names, and its prompts only if they say so
    assert speaking == {"models/servers.py"}
    # the name of the machine is all that is asked of sockets
    asked = {name.split("(")[0] for path in files for name, _ in calls(path) if name.startswith("socket.")}
    # and, of the head of a Ray cluster that the user named, whether it still answers
    assert asked <= {"socket.gethostname", "socket.create_connection"}


def test_no_archive_writes_outside_its_folder() -> None:
    for folder in (SOURCE, ROOT / "replications", ROOT / "scripts", ROOT / "benchmarks"):
        for path in folder.rglob("*.py"):
            for name, call in calls(path):
                if name.split(".")[-1] in ("extractall", "unpack_archive"):
                    assert keyword(call, "filter") == "'data'", path


# --- pins -----------------------------------------------------------------------------------------------

PAGE = """
<a href="x" >Some_Thing-1.0-py3-none-any.whl</a><br/>
<a href="y" data-yanked="broken">some_thing-1.1-py3-none-any.whl</a>
<a href="z" data-yanked="">some-thing-1.1.tar.gz</a>
<a href="w">some-thing-1.10.tar.gz</a>
"""


def test_withdrawn_and_vulnerable_pins_are_told() -> None:
    assert pins("# a\nSome_Thing==1.0\nother.one==2.0+cpu  # why\n") == [
        ("some-thing", "1.0"),
        ("other-one", "2.0+cpu"),
    ]
    assert identity("some_thing-1.0-cp311-cp311-linux_x86_64.whl") == ("some-thing", "1.0")
    assert releases(PAGE, "some-thing", "1.0") == [False]
    assert releases(PAGE, "some-thing", "1.1") == [True, True]
    assert releases(PAGE, "some-thing", "2.0") == []
    report, wrong = told([Finding("a", "1", vulnerabilities=[]), Finding("b", "2", withdrawn=True)])
    assert wrong
    assert "withdrawn: b 2" in report
    assert "NOT checked for 1 of them" in report
    assert told([Finding("a", "1", vulnerabilities=["CVE-1"])])[1]
    assert not told([Finding("a", "1", vulnerabilities=[])])[1]


HASHES = """
<a href="f/a_b-1.0-py3-none-any.whl#sha256={0}">a_b-1.0-py3-none-any.whl</a>
<a href="f/a_b-1.0.tar.gz#sha256={1}">a_b-1.0.tar.gz</a>
<a href="x#sha256={2}">a_b-1.1-cp311-cp311-manylinux_2_17_x86_64.whl</a>
<a href="f/a_b-1.1-cp311-cp311-win_amd64.whl#sha256={3}">a_b-1.1-cp311-cp311-win_amd64.whl</a>
<a href="x#sha256={4}">a_b-1.1-cp39-abi3-manylinux_2_17_x86_64.whl</a>
<a href="f/a_b-1.2-cp311-cp311-win_amd64.whl#sha256={3}">a_b-1.2-cp311-cp311-win_amd64.whl</a>
<a href="f/a_b-1.2.tar.gz#sha256={1}">a_b-1.2.tar.gz</a>
<a href="f/a_b-1.3-py3-none-any.whl" >a_b-1.3-py3-none-any.whl</a>
<a href="f/a_b-1.4-py3-none-any.whl#sha256={0}" data-yanked="">a_b-1.4-py3-none-any.whl</a>
""".format(*(str(digit) * 64 for digit in range(5)))


def test_hashes_are_those_of_files_that_linux_installs() -> None:
    for version, want in (("1.0", "0"), ("1.1", "24"), ("1.2", "1"), ("1.3", ""), ("1.4", "")):
        assert hash_pins.hashes(HASHES, "A.b", version) == [digit * 64 for digit in want]


def test_pins_without_a_hash_or_of_one_machine_are_refused() -> None:
    assert hash_pins.chosen("b==2\n", "a==1\n") == [("a", "1"), ("b", "2")]
    text = hash_pins.written([("a", "1", ["0" * 64, "1" * 64])])
    first, second = (f"--hash=sha256:{digit * 64}" for digit in "01")
    assert text.splitlines()[1:] == ["a==1 \\", f"    {first} \\", f"    {second}"]
    with pytest.raises(SystemExit, match=r"torch 2.13.0\+cpu is in no index"):
        hash_pins.chosen("torch==2.13.0+cpu\n")
    with pytest.raises(SystemExit, match="pinned to 1 and to 2"):
        hash_pins.chosen("a==1\n", "a==2\n")
    with pytest.raises(SystemExit, match="no file with a hash for: a 1"):
        hash_pins.written([("a", "1", [])])


def test_every_pin_has_a_hash_of_the_version_that_is_pinned() -> None:
    wanted = hash_pins.chosen(*((ROOT / name).read_text() for name in hash_pins.FILES))
    hashed = (ROOT / "requirements-hashed.txt").read_text()
    assert (
        re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", hashed, re.MULTILINE) == wanted
    )


def test_the_bill_of_materials_names_all_that_is_installed() -> None:
    made = sbom.bill("veridical", [])
    assert made == sbom.bill("veridical", [])
    names = {each["name"] for each in made["components"]}
    assert {"torch", "numpy", "sympy"} <= names  # what torch needs as well
    assert "ray" not in names
    assert "pillow" in {each["name"] for each in sbom.bill("veridical", ["vision"])["components"]}
    assert len({each["bom-ref"] for each in made["components"]}) == len(made["components"])
    known = {each["bom-ref"] for each in [made["metadata"]["component"], *made["components"]]}
    assert {each["ref"] for each in made["dependencies"]} == known
    assert all(set(each["dependsOn"]) <= known for each in made["dependencies"])
    assert made["metadata"]["component"]["version"] == version_of("veridical")
    assert sbom.sizes(made)[0][0] == "torch"
    with pytest.raises(SystemExit, match="not installed"):
        sbom.bill("no-such-package", [])
