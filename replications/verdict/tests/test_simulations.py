"""The proof of the verdict's statistics and the audits with cheats, at a size that takes seconds."""

import importlib

import pytest
import torch

from replications.common import ROOT
from replications.verdict import betting, groups, lies, worlds
from veridical.functional import betting_p
from veridical.testing.red_team import CHEATS


def test_all_parts_are_programs() -> None:
    for part in importlib.import_module("replications.verdict.__main__").PARTS:
        assert part.command[0] == "-m"
        assert (ROOT / (part.command[1].replace(".", "/") + ".py")).is_file()


def test_betting_is_valid_where_wilcoxon_is_not() -> None:
    repeats = 400
    slack = 3 * (0.05 * 0.95 / repeats) ** 0.5
    rows = betting.false_positives(repeats)
    assert all(row["betting"] <= 0.05 + slack for row in rows)  # type: ignore[operator]
    worst = max(row["wilcoxon"] for row in rows)  # type: ignore[type-var]
    assert worst > 0.9  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["one coin", "four metrics that agree", "four draws of noise"])
def test_simulated_units_have_the_win_rate_they_are_said_to_have(kind: str) -> None:
    units = betting.alternative(kind, 0.75, 500, 64, torch.Generator().manual_seed(0))
    assert float(units.mean()) == pytest.approx(0.75, abs=0.01)
    assert (betting_p(units) <= 0.05).double().mean() > 0.9


@pytest.mark.parametrize("name", groups.SCENARIOS)
def test_simulated_win_rates_are_the_true_ones(name: str) -> None:
    units, truth = groups.simulate(groups.SCENARIOS[name], 20_000, seed=3)
    found = units.mean(-1).fill_diagonal_(0.0).sum(1) / (groups.METHODS - 1)
    torch.testing.assert_close(found, truth, atol=0.015, rtol=0)
    if "equal" in name and "disagree" not in name:
        torch.testing.assert_close(truth, torch.full((groups.METHODS,), 0.5, dtype=torch.float64))


def test_groups_hold_the_best_and_trials_are_counted() -> None:
    trials = [groups.trial(name, seed) for name in ("equal", "clear") for seed in range(8)]
    told = groups.summary(trials)
    clear = told["clear, 200"]
    assert clear["holds the best"] == 1.0  # type: ignore[index]
    assert clear["mean size"] < 3  # type: ignore[index]
    assert told["equal, 24"]["one group"] > 0.7  # type: ignore[index]


def test_power_and_coverage_are_what_an_audit_promises() -> None:
    rows = betting.power(300)
    for row in rows:
        assert row["shown"] >= row["fails"] - 0.1  # type: ignore[operator]  # failing asks for more
    sure = [row["shown"] for row in rows if (row["win rate"], row["samples"]) in ((0.86, 24), (0.74, 64))]
    assert min(sure) > 0.7  # type: ignore[type-var]
    assert all(row["missed after any sample"] <= 0.03 for row in betting.coverage(200))  # type: ignore[operator]


@pytest.mark.parametrize("family", sorted(worlds.TRUE))
def test_worlds_differ_by_seed_and_repeat(family: str) -> None:
    one, again, other = (worlds.make(family, seed, 8) for seed in (3, 3, 4))
    assert torch.equal(one.inputs, again.inputs)
    assert not torch.equal(one.inputs, other.inputs)
    assert len(one) == 8
    assert one.train_labels is not None
    assert torch.equal(one.predictions, one.labels)


@pytest.mark.slow
def test_trained_worlds_have_a_split_and_a_model_of_their_own() -> None:
    one, other = (worlds.make("cancer", seed, 24) for seed in (3, 4))
    assert set(one.ids.tolist()) != set(other.ids.tolist())
    assert not torch.equal(one.outputs, other.with_inputs(one.inputs).outputs)
    assert (one.predictions == one.labels).double().mean() > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "interactions"])
def test_an_audit_trusts_true_methods_and_no_cheat(family: str) -> None:
    found = lies.audited(lies.Job(family, 1000, 64, "quick", "lies"))
    trusted = {name for name, said in found["methods"].items() if lies.trusted(said)}
    assert set(worlds.TRUE[family]) <= trusted
    assert not trusted & set(CHEATS)
    assert not found["failures"]
