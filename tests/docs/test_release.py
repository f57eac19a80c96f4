"""What a release says of itself in several places is the same in all of them."""

import re
import tomllib
from pathlib import Path

import yaml

import veridical as vd

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def test_every_optional_part_is_named_wherever_they_are_listed() -> None:
    parts = set(PROJECT["optional-dependencies"]) - {"dev"}
    readme = re.search(r"adds optional parts \(([^)]+)\)", text("README.md"))
    home = re.search(r"Optional parts: (.+?), as in", text("docs/index.md"), re.DOTALL)
    wheel = re.search(r"\$wheel\[([\w,]+)\]\" > ", text("scripts/check_wheel.sh"))
    make = re.search(r"EXTRA_NAMES +:= ([\w,]+)", text("Makefile"))
    for where in (readme, home, wheel, make):
        assert where is not None
        assert set(re.findall(r"\w+", where[1])) == parts


def test_version_and_date_are_the_same_everywhere() -> None:
    cited = yaml.safe_load(text("CITATION.cff"))
    newest = re.search(r"^## \[(.+?)\] - (\S+)$", text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == cited["version"] == vd.__version__
    assert newest[2] == str(cited["date-released"])
    assert f"{cited['date-released']:%d %B %Y}" in text("paper.md")
    minor = vd.__version__.rpartition(".")[0]
    assert f"The newest minor version gets fixes: {minor} now." in text("SECURITY.md")


def test_interpreters_are_those_that_can_install_it() -> None:
    named = re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert f">={named[0]}" == PROJECT["requires-python"]
    assert f"Python {named[0]} or newer" in text("README.md")


def test_every_cited_work_of_the_paper_is_in_its_bibliography() -> None:
    cited = set(re.findall(r"@([a-z]+\d{4}\w*|holm1979)", text("paper.md")))
    assert cited <= set(re.findall(r"^@\w+\{([^,]+),", text("paper.bib"), re.MULTILINE))
