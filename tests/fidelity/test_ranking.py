"""Degradation, correlations, and the ranking study."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import functional as reference
from tests.reference.fidelity import micro_rank
from veridical.errors import InputError
from veridical.fidelity import FFid, Fid, RFid, finetune, ranking_study
from veridical.fidelity.ranking import PAIRS, Agreement, agreement, micro_ranks

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def linear(samples: int = 60, features: int = 20) -> vd.Task:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(features, 2)
    with torch.no_grad():
        weight = torch.randn(features, generator=generator) * torch.linspace(0.2, 2, features)
        model.weight.copy_(torch.stack([-weight, weight]))
        model.bias.zero_()
    x = torch.randn(samples + 200, features, generator=generator)
    y = (x @ weight > 0).long()
    return vd.Task(model, x[:samples], labels=y[:samples], train=(x[samples:], y[samples:]), fill="zero")


def true_maps(task: vd.Task) -> torch.Tensor:
    return task.model.weight.detach()[task.labels] * task.inputs


def explanation_of(task: vd.Task, maps: torch.Tensor) -> vd.Explanation:
    return vd.Explanation(maps, task.space, task.targets, task.ids)


def correlations_are_right(found: Agreement, plus: torch.Tensor, minus: torch.Tensor, levels) -> bool:
    areas = [
        [reference.area_under_curve(row.tolist(), levels) for row in values[0]] for values in (plus, minus)
    ]
    known = [
        reference.spearman(areas[0], RATIOS),
        reference.spearman(areas[1], RATIOS),
        reference.spearman(areas[0], areas[1]),
    ]
    macro = [found.macro[pair][0] for pair in PAIRS]
    by_size = [reference.spearman(plus[0, :, size].tolist(), RATIOS) for size in range(plus.shape[-1])]
    defined = [value for value in by_size if not math.isnan(value)]
    return (
        torch.allclose(torch.tensor(macro), torch.tensor(known))
        and abs(found.micro["MoRF vs GT"][0] - sum(defined) / len(defined)) < 1e-9
        and found.undefined["MoRF vs GT"] == len(by_size) - len(defined)
    )


def test_correlations_equal_the_slow_rewrite_and_a_flipped_sign_is_caught() -> None:
    generator = torch.Generator().manual_seed(4)
    plus = torch.randint(0, 5, (1, 6, 7), generator=generator).double()
    minus = torch.randint(0, 5, (1, 6, 7), generator=generator).double()
    plus[0, :, 2] = 1.0  # all ratios alike: no correlation there
    levels = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9]
    found = agreement(plus, minus, RATIOS, levels)
    assert correlations_are_right(found, plus, minus, levels)
    assert not correlations_are_right(agreement(-plus, minus, RATIOS, levels), plus, minus, levels)


def test_a_constant_is_no_correlation_and_not_zero() -> None:
    flat = torch.ones(2, 6, 3, dtype=torch.float64)
    falling = -torch.tensor(RATIOS, dtype=torch.float64)[None, :, None].expand(2, 6, 3)
    found = agreement(flat, falling, RATIOS, (0.1, 0.5, 0.9))
    assert math.isnan(found.macro["MoRF vs GT"][0])
    assert found.macro["LeRF vs GT"] == (-1.0, 0.0)
    assert math.isnan(found.micro["MoRF vs LeRF"][0])
    assert found.undefined["MoRF vs GT"] == 6
    # sums in another order differ in the last bits; that is no order
    noisy = flat + torch.randn(2, 6, 3, dtype=torch.float64) * 1e-15
    assert math.isnan(agreement(noisy, falling, RATIOS, (0.1, 0.5, 0.9)).macro["MoRF vs GT"][0])


def ranks_of(rows: dict[str, list[float]], sizes: dict[str, tuple[float, ...]] | None = None):
    """Micro ranks of metrics with these correlations at each size."""
    made = {}
    for name, row in rows.items():
        values = torch.tensor([row], dtype=torch.float64)
        own = (sizes or {}).get(name, (0.1, 0.5, 0.9)[: len(row)])
        made[name] = Agreement({}, {}, {}, {}, dict.fromkeys(PAIRS, values), own)
    return micro_ranks(made)


def test_micro_ranks_give_ties_the_best_rank_and_undefined_the_last() -> None:
    rows = {"a": [-1.0, -1.0, math.nan], "b": [-1.0, 0.5, -0.2], "c": [0.0, math.nan, -0.2]}
    found = ranks_of(rows)
    for pair, sign in PAIRS.items():
        expected = micro_rank(rows, sign)
        assert {name: found[name][pair][0] for name in rows} == pytest.approx(expected)
    fewer = ranks_of({"a": [-1.0, 0.0, -1.0], "b": [-0.5]}, {"b": (0.5,)})
    assert fewer["b"]["MoRF vs GT"][0] == 1.0
    assert fewer["a"]["MoRF vs GT"][0] == pytest.approx(4 / 3)
    # where no metric is defined there is no rank
    assert math.isnan(ranks_of({"a": [math.nan], "b": [math.nan]})["a"]["MoRF vs GT"][0])
    assert ranks_of({"a": [math.nan] * 2, "b": [math.nan, -1.0]})["a"]["MoRF vs GT"][0] == 2.0


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[vd.Task, vd.fidelity.Finetuned, Path]:
    task = linear()
    folder = tmp_path_factory.mktemp("ranking")
    return task, finetune(task, epochs=2, cache=folder), folder


def test_a_linear_model_is_ranked_right_by_all(studied) -> None:
    task, tuned, folder = studied
    before = task.predictor.meter.here.forward
    study = ranking_study(task, true_maps(task), finetuned=tuned, repeats=2, draws=6, cache=folder)
    sizes, asked = 19, 1 + 6 + 6 + 1
    assert task.predictor.meter.here.forward - before == 60 * sizes * 2 * asked * (6 + 5)
    for name in ("Fid", "RFid", "FFid", "Fid + fine-tuning"):
        macro = study.agreements[name].macro
        assert macro["MoRF vs GT"][0] < -0.9, name
        assert macro["LeRF vs GT"][0] > 0.9, name
        assert macro["MoRF vs LeRF"][0] < -0.9, name
    assert study.falls["FFid"]["plus"].shape == (2, 6, 19)
    assert "macro MoRF vs GT" in repr(study)
    assert len(study.to_frame()) == 12


def test_a_model_that_ignores_its_input_has_no_order(studied) -> None:
    task, _, _ = studied
    blind = nn.Linear(20, 2)
    with torch.no_grad():
        blind.weight.zero_()
        blind.bias.copy_(torch.tensor([0.0, 1.0]))
    own = vd.Task(blind, task.inputs, fill="zero")
    study = ranking_study(own, torch.rand(60, 20), metrics={"Fid": Fid(), "RFid": RFid(draws=3)}, repeats=1)
    assert math.isnan(study.agreements["Fid"].macro["MoRF vs GT"][0])
    assert "not resolvable" in repr(study)
    assert " -" in repr(study)
    with pytest.raises(InputError, match="at chance: it is right on"):
        ranking_study(
            vd.Task(blind, task.inputs, labels=task.labels, fill="zero"), torch.rand(60, 20), metrics={}
        )


def test_bad_ratios_are_refused(studied) -> None:
    task, tuned, _ = studied
    with pytest.raises(InputError, match="three ascending ratios"):
        ranking_study(task, true_maps(task), finetuned=tuned, ratios=(0.0, 1.0))
    with pytest.raises(InputError, match="repeats"):
        ranking_study(task, true_maps(task), finetuned=tuned, repeats=0)


# --- ties: whatever a map does not rank is averaged --------------------------------------------------------


@pytest.mark.parametrize("kind", ["constant", "six"])
def test_ties_are_not_broken_by_position(kind: str) -> None:
    draw = torch.Generator().manual_seed(2)
    model = nn.Linear(30, 2, bias=False)
    with torch.no_grad():  # the later a column, the more it matters: to rank by position is a good map
        model.weight.copy_(torch.stack([-(torch.linspace(0, 1, 30) ** 3), torch.linspace(0, 1, 30) ** 3]))
    labels = torch.arange(80) % 2
    x = torch.where(labels[:, None] == 1, 1.0, -1.0) + torch.randn(80, 30, generator=draw)
    task = vd.Task(model, x, labels=labels, fill="zero")
    noise = torch.rand(80, 30, generator=draw)
    maps = torch.ones(80, 30) if kind == "constant" else (noise.argsort(-1).argsort(-1) > 23).float()
    metrics = {"Fid": Fid(variant="probability"), "by position": Fid(variant="probability", ties="stable")}
    study = ranking_study(task, maps, metrics=metrics, repeats=2)
    assert study.agreements["by position"].macro["MoRF vs GT"][0] < -0.9
    assert study.resolves("by position", "MoRF vs GT")
    assert not study.resolves("Fid", "MoRF vs GT")
    for name, metric in metrics.items():
        score = vd.score(metric, task.with_targets(task.labels), maps)
        assert torch.allclose(score.curve.y.mean(0), study.falls[name]["plus"][0, 0])


# --- settings are obeyed or refused -----------------------------------------------------------------------


def test_metrics_keep_their_own_settings_and_others_are_refused(studied) -> None:
    task, tuned, _ = studied
    maps, both = true_maps(task), {"i": Fid(), "p": Fid(variant="probability")}
    own = ranking_study(task, maps, metrics=both, repeats=1)
    assert not torch.equal(own.falls["i"]["plus"], own.falls["p"]["plus"])
    forced = ranking_study(task, maps, metrics=both, repeats=1, variant="probability")
    assert torch.equal(forced.falls["i"]["plus"], own.falls["p"]["plus"])
    wrong = vd.Task(task.model, task.inputs, labels=1 - task.labels, fill="zero")
    predicted = ranking_study(wrong, maps, metrics={"Fid": Fid(reference="prediction")}, repeats=1)
    assert torch.equal(predicted.falls["Fid"]["plus"], own.falls["i"]["plus"])
    with pytest.raises(InputError, match="name two"):
        ranking_study(task, maps, metrics={"Fid": Fid(reference="prediction")}, reference="label")
    for ignored in ({"draws": 3}, {"sizes": (0.5,)}, {"beta": 0.3}, {"finetuned": tuned}):
        with pytest.raises(InputError, match=f"{next(iter(ignored))} would be ignored"):
            ranking_study(task, maps, metrics=both, **ignored)
    with pytest.raises(InputError, match=r"fine-tuned with beta 0\.1, not 0\.3"):
        ranking_study(task, maps, finetuned=tuned, beta=0.3)


def test_deviations_are_over_repeats_and_over_sizes(studied) -> None:
    task, _, _ = studied
    maps, metrics = true_maps(task), {"Fid": Fid()}
    once = ranking_study(task, maps, metrics=metrics, repeats=1)
    assert not any("±" in line for line in repr(once).splitlines()[1:] if "macro" in line)
    found = once.agreements["Fid"]
    assert math.isnan(found.macro["MoRF vs GT"][1])
    expected = found.by_size["MoRF vs GT"][0]
    expected = expected[~expected.isnan()].std(correction=0)
    assert once.to_frame()["micro std over sizes"][0] == pytest.approx(float(expected))
    assert f"±{float(expected):.2f}" in repr(once)


def test_curves_and_picture_show_all_falls(studied) -> None:
    task, _, _ = studied
    metrics = {"Fid": Fid(sizes=(0.2, 0.5)), "R": RFid(draws=2)}
    study = ranking_study(task, true_maps(task), metrics=metrics, repeats=2)
    frame = study.curves()
    assert len(frame) == 2 * 6 * (2 + 19)
    first = frame.iloc[0]
    assert first["fall"] == pytest.approx(float(study.falls["Fid"]["plus"][:, 0, 0].mean()))
    assert len(study.plot().axes) == 4


def test_noise_gives_an_order_too_and_plain_data_hold_all(studied) -> None:
    task, _, _ = studied
    metrics = {"R": RFid(draws=2, alpha=1.0, alpha_minus=0.5)}
    study = ranking_study(task, true_maps(task), metrics=metrics, repeats=2, degradation="noise")
    assert study.agreements["R"].macro["MoRF vs GT"][0] < -0.8
    data = json.loads(json.dumps(study.to_json()))
    assert data["settings"]["degradation"] == "noise"
    assert len(data["falls"]) == len(study.curves())
    assert data["correlations"][0]["macro"] == pytest.approx(study.to_frame()["macro"][0])


# --- maps that are not there, or for another class --------------------------------------------------------


def test_samples_without_a_map_are_left_out_and_said(studied) -> None:
    task, _, _ = studied
    maps = true_maps(task)
    half = maps.clone()
    half[::2] = math.nan
    metrics = {"Fid": Fid(sizes=(0.2, 0.5))}
    found = ranking_study(task, half, metrics=metrics, repeats=1)
    alone = ranking_study(task[1::2], maps[1::2], metrics=metrics, repeats=1)
    assert torch.equal(found.falls["Fid"]["plus"], alone.falls["Fid"]["plus"])
    assert found.rows == 30
    assert "30 of 60 samples have no map and are left out" in repr(found)
    assert "left out" not in repr(alone)
    with pytest.raises(InputError, match="none of the 60 samples has a map"):
        ranking_study(task, torch.full_like(maps, math.nan), metrics=metrics, repeats=1)


def test_finished_maps_for_another_class_are_said(studied) -> None:
    task, _, _ = studied
    other = vd.Explanation(true_maps(task), task.space, 1 - task.labels, task.ids)
    found = ranking_study(task, other, metrics={"Fid": Fid(sizes=(0.5,))}, repeats=1)
    assert "60 maps explain another class than the one judged" in repr(found)
    with pytest.raises(InputError, match="ids are not the task's"):
        ranking_study(task, other.take(torch.arange(59, -1, -1)), metrics={"Fid": Fid()}, repeats=1)


def test_one_short_sample_does_not_hide_the_table() -> None:
    base = linear(60, 20)
    valid = torch.ones(60, 20, dtype=torch.bool)
    valid[0, 3:] = False
    valid[1, 1:] = False
    space = vd.Space.columns(20)
    task = vd.Task(
        base.model, base.inputs, labels=base.labels, fill="zero", space=replace(space, valid=valid)
    )
    study = ranking_study(task, true_maps(task), metrics={"RFid": RFid(draws=4)}, repeats=1)
    assert study.resolvable["RFid"] == {"plus": True, "minus": True}
    assert study.agreements["RFid"].macro["MoRF vs GT"][0] < -0.9
    assert "not resolvable" not in repr(study)


def test_metrics_inside_others_come_back_equal_from_json() -> None:
    for metric in (RFid("minus"), Fid("minus"), FFid("minus"), RFid()):
        wrapped = vd.qge.QGE(metric)
        assert vd.qge.metric_from_json(wrapped.to_json()) == wrapped
    assert RFid("minus") != RFid("minus", draws=3)
    assert len({RFid("minus"), RFid("minus"), RFid()}) == 2
    assert RFid() != Fid()
