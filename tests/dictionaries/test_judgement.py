"""The judgement: closed forms of its statistics, known orders, and that cheats are seen through."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.reference.dictionaries import permutation_p
from veridical.cli.app import app
from veridical.core.key import Key
from veridical.dictionaries import (
    Bench,
    Standing,
    Superposition,
    TopK,
    Trust,
    controls,
    damaged,
    family,
    judge,
    judge_one,
    plot_trust,
    train,
)
from veridical.dictionaries.standing import beyond
from veridical.dictionaries.trust import agreement, concordance, separation, smallest_difference, verdict
from veridical.values.scores import Direction

mpl.use("Agg")
WORLD = Superposition(features=32, dimensions=16, active=2.0, groups=4)
RECIPE = TopK(32, steps=120, batch=64, rate=1e-2, active=3)
FAST = ["explained variance", "tpp", "stability"]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.planted(WORLD, 256, 2048, labels=6)


@pytest.fixture(scope="module")
def found(bench: Bench) -> Trust:
    return judge(bench, RECIPE, seeds=3, measures=FAST)


def test_separation_is_an_exact_permutation_test() -> None:
    better, worse = [3.0, 2.5, 4.0], [1.0, 2.6, 0.5]
    assert separation(torch.tensor(better), torch.tensor(worse)) == pytest.approx(
        permutation_p(better, worse)
    )
    assert separation(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == pytest.approx(1 / 6)
    assert separation(torch.ones(3), torch.ones(3)) == 1.0
    assert math.isnan(separation(torch.tensor([1.0, math.nan]), torch.ones(2)))


def test_the_smallest_difference_is_found_four_times_in_five() -> None:
    from scipy.stats import ttest_ind

    draws = torch.randn(4000, 2, 5, generator=torch.Generator().manual_seed(0)).double()
    flat = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]], dtype=torch.float64)
    gap = smallest_difference(flat) / math.sqrt(2.5)  # in standard deviations
    hits = ttest_ind(draws[:, 0].numpy() + gap, draws[:, 1].numpy(), axis=1).pvalue < 0.05
    # the usual formula is a little generous with few seeds
    assert hits.mean() == pytest.approx(0.8, abs=0.03)
    spread = torch.tensor([[0.0, 2.0]] * 4, dtype=torch.float64)  # the same for every seed, yet noisy
    assert smallest_difference(spread) > 0
    assert math.isnan(smallest_difference(torch.ones(1, 4)))


def test_rank_agreement_and_known_orders() -> None:
    truth = torch.arange(8.0)
    assert agreement(truth**3, truth) == pytest.approx((1.0, 1.0, 1.0))
    assert agreement(-truth, truth)[0] == pytest.approx(-1.0)
    low, high = agreement(torch.tensor([0.0, 2, 1, 3, 5, 4, 7, 6]), truth)[1:]
    assert 0 < low < 0.95 < high <= 1.0
    values = {"a": torch.tensor([3.0, 3.0]), "b": torch.tensor([2.0, 4.0]), "c": torch.tensor([1.0, 1.0])}
    assert concordance(values, [("a", "b", "c")]) == pytest.approx(5 / 6)
    assert concordance(values, [("a", "x")]) != concordance(values, [("a", "b")])


def test_the_order_of_planted_dictionaries_is_recovered(found: Trust) -> None:
    """Truth itself must order them, and reconstruction and stability follow it here."""
    assert (
        concordance(dict(found.truth["mcc"]), [("true atoms", "trained", "25% random", "50% random")]) == 1.0
    )
    rows = found.table.set_index("metric")
    assert rows.loc["explained variance", "order"] > 0.9
    assert rows.loc["explained variance", "p"] <= 0.05
    assert rows.loc["stability", "trained"] > 0.5
    assert list(found.means().index) == list(found.entries)


def test_a_metric_that_reads_nothing_is_not_used() -> None:
    """Planted errors: a constant, an order in the last bits, the wrong sign, and pure noise."""
    entries = ("trained", "true atoms", *(f"{n}% random" for n in (25, 50, 75)), "frozen decoder", "shuffled")
    slope = torch.linspace(0, 0.1, 4)[:, None].expand(4, 8)
    good = {entry: slope - i for i, entry in enumerate(entries)}
    good["trained"], good["true atoms"] = good["true atoms"] + 1.5, good["trained"] + 3
    noise = torch.Generator().manual_seed(0)
    values = {
        "good": good,
        "constant": {e: torch.ones(4, 8) for e in entries},
        "rounding": {e: 1 + 1e-7 * v for e, v in good.items()},
        "turned": {e: -v for e, v in good.items()},
        "noise": {e: torch.randn(4, 8, generator=noise) for e in entries},
        "unread": {**good, "shuffled": torch.full((4, 8), torch.nan)},
    }
    truth = {"mcc": {e: v.mean(1).double() for e, v in good.items()}}
    trust = Trust(values, truth, dict.fromkeys(values, Direction.HIGHER), entries, {}, {})
    verdicts = dict(zip(trust.table["metric"], trust.table["verdict"], strict=True))
    assert verdicts["good"] == "use"
    assert {verdicts[name] for name in ("constant", "rounding", "turned", "noise")} == {"do not use"}
    assert verdicts["unread"] != "use"
    assert trust.table["metric"].iloc[0] == "good"


def test_verdicts_need_both() -> None:
    row = {"p": 0.01, "least p": 0.01, "steps": 3.0, "rank with truth": 0.9, "low": 0.5}
    assert verdict(row | {"steps": 0.5}, True) == "follows truth only"
    assert verdict(row | {"steps": math.nan}, True) == "use"  # no spread at all
    assert verdict(row, True) == "use"
    assert verdict(row | {"low": -0.1}, True) == "separates only"
    assert verdict(row | {"p": 0.2}, True) == "follows truth only"
    assert verdict(row | {"p": math.nan}, False) == "do not use"
    assert verdict(row | {"rank with truth": math.nan}, False) == "separates only"
    assert verdict(row | {"p": 1 / 6, "least p": 1 / 6}, True) == "not decided"  # two seeds
    assert verdict(row | {"p": math.nan, "least p": math.nan}, False) == "not decided"  # no controls


def test_copies_of_a_loaded_dictionary_are_no_seeds(bench: Bench) -> None:
    """They gave p = .05 and a stability of 1."""
    loaded = train(bench.train, RECIPE).dictionary
    entries = {"trained": lambda *_: loaded, "frozen decoder": controls(bench)["frozen decoder"]}
    found = judge(bench, RECIPE, seeds=3, entries=entries, measures=["explained variance", "stability"])
    assert found.values["explained variance"]["trained"].shape == (1, 8)
    assert found.table["p"].item() == 0.25
    assert found.table["verdict"].item() == "not decided"
    assert "second dictionary" in found.refused["stability"]
    alone = judge(bench, RECIPE, seeds=3, entries={"trained": lambda *_: loaded}, measures=["tpp"])
    assert alone.table["verdict"].item() == "not decided"


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_one_more_control_is_seldom_called_better(spread: float) -> None:
    """The paired noise of samples against the spread over seeds: the bound is one-sided 2.5%."""
    noise = torch.Generator().manual_seed(0)
    found = []
    for _ in range(1000):
        shared = 3 * torch.randn(8, generator=noise)
        four = spread * torch.randn(4, 1, generator=noise) + shared + torch.randn(4, 8, generator=noise)
        found.append(beyond(four[0], four[1:])[1] > 0)
    assert np.mean(found) <= 0.035
    own, rest = torch.full((8,), 2.0), torch.tensor([[1.0], [1.2], [0.8]]).expand(3, 8)
    mean, _, high = beyond(own, rest)
    # Crawford and Howell: (2 - 1) / (s sqrt(1 + 1 / 3)) with two degrees of freedom
    assert (mean, high - mean) == pytest.approx((1.0, 4.302653 * 0.2 * math.sqrt(4 / 3)), abs=1e-5)
    assert math.isnan(beyond(own, rest[:2])[1])


def test_one_dictionary_is_judged_beside_controls(bench: Bench) -> None:
    own, read = train(bench.train, RECIPE, 7).dictionary, ["explained variance", "active atoms", "stability"]
    found = judge_one(own, bench, RECIPE, measures=read)
    rows = found.table.set_index("metric")
    assert list(rows["verdict"]) == ["better", "not told apart"]
    best = rows.iloc[0]
    assert best["low"] < best["value"] < best["high"]
    assert 0 < best["from"] < best["ahead by"] < best["to"]
    assert "Better than every control: explained variance.\nNot told apart" in repr(found)
    assert "second dictionary" in found.refused["stability"]
    pair = {name: controls(bench)[name] for name in ("frozen decoder", "frozen encoder")}
    random = pair["frozen decoder"](bench, RECIPE, Key(99))
    assert "better" not in set(judge_one(random, bench, RECIPE, entries=pair, measures=FAST).table["verdict"])
    for few in ({"seeds": 2, "entries": pair}, {"entries": {}}):
        found = judge_one(own, bench, RECIPE, measures=["tpp"], **few)
        assert list(found.table["verdict"]) == ["unknown"]
        assert "Unknown (no controls, or fewer than 3 trainings of each): tpp." in repr(found)


def test_a_row_shows_the_control_that_decides_and_says_what_has_no_value() -> None:
    """A dictionary worse than a steady control stood beside a noisy one that it was not told apart from."""
    own, spread = torch.linspace(0.99, 1.01, 8)[None], torch.tensor([[-1.0], [0.0], [1.0]])
    controls = {"noisy": own + 0.5 * spread, "steady": own + 0.1 + 1e-3 * spread}
    without = {name: value * torch.nan for name, value in {"dictionary": own, **controls}.items()}
    found = Standing({"tpp": {"dictionary": own, **controls}, "scr": without}, {}, "About")
    row = found.table.iloc[0]
    assert (row["verdict"], row["nearest control"]) == ("worse", "steady")
    assert row["to"] < 0
    assert repr(found) == "About\nWorse than a control: tpp.\nWithout a value on these samples: scr."


def test_damage_is_nested(bench: Bench) -> None:
    whole = train(bench.train, RECIPE).dictionary
    half, most = damaged(whole, 0.5, Key(1)), damaged(whole, 0.75, Key(1))
    changed = [(d.decoder != whole.decoder).any(1) for d in (half, most)]
    assert int(changed[0].sum()) == 16
    assert int(changed[1].sum()) == 24
    assert bool((changed[1] | ~changed[0]).all())
    assert torch.equal(half.decoder[changed[0]], most.decoder[changed[0]])


def test_controls_know_nothing_and_are_trained_as_long(bench: Bench) -> None:
    made = {name: maker(bench, RECIPE, Key(0)) for name, maker in controls(bench).items()}
    assert set(made) == {"frozen decoder", "frozen encoder", "pca", "k-means", "shuffled", "untrained model"}
    assert all(d.decoder.shape == (32, 16) for d in made.values())
    unit = made["pca"].decoder
    assert torch.allclose(unit[::2] @ unit[::2].T, torch.eye(16), atol=1e-4)
    assert torch.allclose(unit[::2], -unit[1::2])
    best = torch.linalg.eigh(torch.cov(bench.train.double().T)).eigenvectors[:, -1]
    assert abs(float(unit[0].double() @ best)) == pytest.approx(1.0, abs=1e-6)
    assert int((made["k-means"].encode(bench.test) != 0).sum(1).max()) == 1
    assert "true atoms" in family(RECIPE, bench)


def test_results_are_written_and_drawn(found: Trust, tmp_path: Path) -> None:
    folder = found.save(tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == [
        "about.json",
        "means.csv",
        "readings.csv",
        "trust.csv",
    ]
    assert len(found.to_frame()) == len(FAST) * len(found.entries) * 3 * 8
    assert plot_trust(found).get_xlabel().startswith("(trained")
    assert "dictionary metrics" in repr(found)


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    line = "dictionaries --features 24 --dimensions 12 --active 2 --steps 5 --seeds 2 --out"
    result = CliRunner().invoke(app, [*line.split(), str(tmp_path / "d"), "-m", "explained variance"])
    assert result.exit_code == 0, result.output
    assert "explained variance" in result.output
    assert (tmp_path / "d" / "trust.png").is_file()
