"""Explanations after a retraining: what holds, what is a finding, what is open, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import veridical as vd
from veridical.auditing import Audit, Baseline
from veridical.cli.app import app
from veridical.cli.audit import as_audited
from veridical.cli.sources import Source
from veridical.errors import InputError
from veridical.report.audit import write_folder
from veridical.report.check import junit, model_card, summary

torch.manual_seed(0)
X = torch.randn(80, 6)
METHODS = ["input_x_gradient", "integrated_gradients"]


def linear(*weights: float) -> nn.Module:
    """A two-class model with these coefficients."""
    net = nn.Linear(6, 2, bias=False)
    net.weight.data = torch.tensor([weights, [-w for w in weights]])
    return net


def task_of(*weights: float) -> vd.Task:
    return vd.Task(linear(*weights), X, train=X, fill=0.0, name="bank")


BEFORE = (2.0, -1.5, 1.0, 0.5, 0.2, 0.0)


@pytest.fixture(scope="module")
def old() -> Audit:
    return vd.audit(task_of(*BEFORE), explainers=METHODS, progress=False)


@pytest.fixture(scope="module")
def folder(old: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit")
    write_folder(old, place)
    return place


def test_the_same_model_holds_and_says_the_same(old: Audit, folder: Path) -> None:
    found = vd.check(folder / "audit.json", task_of(*BEFORE))
    assert found.status == 0
    assert {method.status for method in found.methods} == {"holds"}
    assert all(change.before == pytest.approx(change.after) for change in found.changes)
    assert found.rows <= found.audit_rows / 10
    assert vd.check(old, task_of(*BEFORE)).to_json() == found.to_json()
    assert "still hold" in repr(found)


@pytest.mark.parametrize(("budget", "asked"), [(3000, [True, True]), (1000, [False]), (500, [False, False])])
def test_no_more_rows_are_asked_than_the_budget_allows(old: Audit, budget: int, asked: list[bool]) -> None:
    found = vd.check(old, task_of(*BEFORE), budget=budget)
    assert found.rows <= budget
    assert [method.after != "-" for method in found.methods] == asked
    assert found.status == (3 if budget == 500 else 0)
    assert ("does not reach for it; a check takes about" in repr(found)) == (budget == 500)


def test_drift_is_that_of_shares_by_hand(old: Audit) -> None:
    after = (2.0, -1.5, 1.0, 0.5, 0.2, 4.0)
    found = vd.check(old, task_of(*after), explainers=["input_x_gradient"])
    rows, same = Baseline.of(old).samples_of(task_of(*after))
    assert rows is not None
    sizes = same.inputs * torch.tensor(after)
    expected = (sizes.abs() / sizes.abs().sum(1, keepdim=True)).mean(0)
    shares = {change.feature: change.after for change in found.changes if not change.group}
    assert list(shares.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    assert found.status == 1
    assert any(
        change.moved and "5" in change.feature and change.after > change.before for change in found.changes
    )
    assert "gained relevance" in repr(found)
    assert found.drift()["moved"].any()
    assert found.plot().get_yticklabels()


def test_a_null_of_retrainings_widens_what_counts(old: Audit) -> None:
    after = (1.7, -1.5, 1.0, 0.5, 0.2, 0.9)
    others = [linear(2.0, -1.5, 1.0, 0.5, 0.2, w) for w in (0.0, 0.8, 1.6, 2.4, 0.4)]
    strict = [linear(2.0, -1.5, 1.0, 0.5, 0.2, w) for w in (0.0, 0.01, 0.02, 0.01, 0.03)]
    tasks = [vd.Task(net, X, train=X, fill=0.0) for net in strict]
    wide, narrow = (vd.check(old, task_of(*after), others=some) for some in (others, tasks))
    assert wide.bound > narrow.bound
    assert not wide.moved
    assert narrow.moved


def test_groups_are_told_apart(old: Audit) -> None:
    groups = ["a" if x > 0 else "b" for x in X[:, 0].tolist()]
    found = vd.check(old, task_of(*BEFORE), groups=groups)
    assert {change.group for change in found.changes} >= {"", "group a", "group b"}


class Upside(nn.Module):
    """Turns round where some columns are masked: what was true of it is no more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = (x != 0).all(1)
        out = torch.where(whole, x @ torch.tensor(BEFORE), -3 * x @ torch.tensor(BEFORE))
        return torch.stack([out, -out], 1)


def test_a_model_on_which_maps_lose_is_a_finding(old: Audit) -> None:
    found = vd.check(old, vd.Task(Upside(), X, train=X, fill=0.0))
    assert found.status == 1
    assert {method.status for method in found.methods} & {"refuted", "shows less", "hides a feature"}


def test_noise_is_not_decided_and_says_how_many_samples(old: Audit) -> None:
    flat = vd.Task(
        lambda x: 1e-3 * torch.stack([x.sin().sum(1) ** 2, x.cos().sum(1)], 1), X, train=X, fill=0.0
    )
    base = Baseline.of(old)
    random = Baseline(
        {"random": base.maps["input_x_gradient"]},
        {"random": vd.explainers.registry.make("random")},
        {"random": None},
        base.targets,
        base.draw_ids,
        0,
        10**6,
    )
    found = vd.check(random, flat)
    assert found.methods[0].status == "not decided"
    assert "samples would decide it" in found.methods[0].sentence


def test_other_samples_are_compared_as_sets(old: Audit) -> None:
    torch.manual_seed(1)
    new = vd.Task(linear(*BEFORE), torch.randn(80, 6), train=X, fill=0.0)
    found = vd.check(old, new)
    assert found.status == 0
    assert {change.group for change in found.changes} == {""}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda old: vd.check(old, task_of(*BEFORE), explainers=["lime"]), "does not trust lime"),
        (lambda old: vd.check(old, task_of(*BEFORE), groups=["a"]), "groups has 1 entries"),
        (lambda old: vd.check(old, task_of(*BEFORE), others=[3]), "int"),
        (lambda old: vd.check("nowhere", task_of(*BEFORE)), "an audit with --out writes it"),
    ],
)
def test_mistakes_are_sentences(old: Audit, call: Callable[[Audit], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(old)


def test_what_build_systems_read(old: Audit) -> None:
    good, bad = (vd.check(old, task_of(*weights)) for weights in (BEFORE, (2.0, -1.5, 1.0, 0.5, 0.2, 4.0)))
    assert ElementTree.fromstring(junit(good)).attrib["failures"] == "0"
    suite = ElementTree.fromstring(junit(bad))
    assert suite.attrib["failures"] == "1"
    assert suite.find("testcase[@name='drift']/failure") is not None
    assert summary(bad).startswith("### Explanations: Something changed")
    _, block, said = model_card(old).split("---\n", 2)
    card = yaml.safe_load(block)["model-index"][0]
    assert {result["metrics"][0]["value"] for result in card["results"]} <= {
        "trusted",
        "provisional",
        "not decided",
    }
    assert old.sentences[0].split()[0] in said


def test_the_evidence_page_claims_no_compliance(old: Audit, folder: Path) -> None:
    for kind in ("evidence", "card"):
        assert CliRunner().invoke(app, ["report", str(folder), "--format", kind]).exit_code == 0
    text = (folder / "evidence.html").read_text()
    assert "no\nclaim of compliance" in text or "no claim of compliance" in text
    assert text.count("To be filled in") == 4
    assert "Signatures" in text
    assert (folder / "model_card.md").read_text().split("---")[1] == model_card(old).split("---")[1]


def test_the_command_takes_data_from_the_audit(tmp_path: Path) -> None:
    call = "veridical audit --model old --data=rows.csv --labels y --output 1 --allow-code -n 64"
    (tmp_path / "audit.json").write_text(json.dumps({"call": call}))
    found = as_audited(Source(model="new"), tmp_path)
    assert found == Source(model="new", data=Path("rows.csv"), labels="y", output=1)
    assert as_audited(Source(model="new", output=0), tmp_path).output == 0


def test_the_command_ends_with_the_status(tmp_path: Path) -> None:
    place = tmp_path / "audit"
    words = ["--task", "known/linear", "-e", "input_x_gradient", "--effort", "glance", "--out", str(place)]
    assert CliRunner().invoke(app, ["audit", *words]).exit_code == 0
    held = json.loads((place / "audit.json").read_text())
    held["call"] = "veridical audit --task known/linear"
    (place / "audit.json").write_text(json.dumps(held))
    done = CliRunner().invoke(app, ["check", "--against", str(place), "--out", str(tmp_path / "check")])
    assert done.exit_code == 0, done.output
    written = {path.name for path in (tmp_path / "check").iterdir()}
    assert written >= {"check.json", "junit.xml", "summary.md", "drift.csv"}


pytest_plugins = ["pytester"]


def test_the_fixture_fails_on_a_finding(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(
        f"""
        import torch, veridical as vd

        torch.manual_seed(0)
        X = torch.randn(80, 6)

        def task_of(*weights):
            net = torch.nn.Linear(6, 2, bias=False)
            net.weight.data = torch.tensor([weights, [-w for w in weights]])
            return vd.Task(net, X, train=X, fill=0.0)

        def test_holds(veridical_check):
            veridical_check({str(folder)!r}, task_of(2.0, -1.5, 1.0, 0.5, 0.2, 0.0))

        def test_moved(veridical_check):
            veridical_check({str(folder)!r}, task_of(2.0, -1.5, 1.0, 0.5, 0.2, 4.0))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*gained relevance*"])
