"""Settings, one case, real explainers and both models' maps side by side, and boundaries under masks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from torch import nn

import veridical as vd
from replications.f_fidelity.case import case_study
from replications.f_fidelity.comparing import OTHER_ROWS, SAME_ROWS, compare_explainers
from replications.f_fidelity.preservation import boundary_study, map_agreement, maps_side_by_side
from replications.f_fidelity.sensitivity import sensitivity
from veridical.errors import InputError, UnknownNameError
from veridical.explainers.gradients import InputXGradient
from veridical.fidelity import Fid, finetune, ranking_study
from veridical.fidelity.ranking import PAIRS

pytestmark = pytest.mark.slow
QUICK = {"epochs": 1, "rate": 1e-4}


def linear_task(samples: int = 24, columns: int = 20) -> vd.Task:
    """A linear classifier whose input x gradient is the exact share of each column."""
    draw = torch.Generator().manual_seed(0)
    model = nn.Linear(columns, 2)
    with torch.no_grad():
        scale = torch.linspace(0.2, 2.0, columns)
        model.weight.copy_(torch.stack([-scale, scale]))
        model.bias.zero_()
    x = torch.randn(samples + 200, columns, generator=draw)
    labels = model(x).argmax(1)
    return vd.Task(
        model, x[:samples], labels=labels[:samples], train=(x[samples:], labels[samples:]), fill="zero"
    )


@pytest.fixture(scope="module")
def task() -> vd.Task:
    return linear_task()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fine-tuned")


def test_sensitivity_varies_one_setting_at_a_time(task: vd.Task, folder: Path) -> None:
    found = sensitivity(
        task,
        InputXGradient(),
        draws=(2, 50),
        betas=(0.1, 0.3),
        alphas=(0.5,),
        sizes=(0.2, 0.5, 0.8),
        cache=folder,
        progress=False,
        **QUICK,
    )
    assert set(found.studies) == {("draws", 2), ("draws", 50), ("beta", 0.1), ("beta", 0.3), ("alpha", 0.5)}
    # the defaults appear in every list and are one study
    assert found.studies["draws", 50] is found.studies["beta", 0.1] is found.studies["alpha", 0.5]
    assert found.studies["draws", 2] is not found.studies["draws", 50]
    frame = found.to_frame()
    assert len(frame) == 5 * len(PAIRS)
    assert set(found.macro("beta")) == {0.1, 0.3}
    # the map is exact: better removal must follow its degradation, whatever the settings
    assert all(values[0] < -0.8 for values in found.macro("beta").values())
    assert "beta" in repr(found)
    for study in found.studies.values():
        study.resolvable["FFid"]["plus"] = False
    assert repr(found).count("not resolvable") >= 2 * 5  # as the study says
    ax = found.plot("beta")
    assert [list(line.get_xdata()) for line in ax.get_lines()[:3]] == [[0.1, 0.3]] * 3
    pyplot.close("all")
    with pytest.raises(UnknownNameError, match="no setting is called 'gamma'"):
        found.plot("gamma")


def test_sensitivity_needs_something_to_vary(task: vd.Task) -> None:
    with pytest.raises(InputError, match="at least one value"):
        sensitivity(task, "saliency", draws=(), betas=(), alphas=())


def test_case_study_follows_one_sample(task: vd.Task, folder: Path) -> None:
    tuned = finetune(task, cache=folder, progress=False, **QUICK)
    found = case_study(task, 3, InputXGradient(), finetuned=tuned, draws=10, variant="probability")
    assert set(found.falls) == {"Fid", "RFid", "FFid", "Fid + fine-tuning"}
    plus = found.falls["Fid"]["plus"]
    assert plus.shape == (1, 6, 19)
    # no sample of the study but this one is asked: the same falls come from the task of one row
    alone = case_study(task[3:4], 0, InputXGradient(), finetuned=tuned, draws=10, variant="probability")
    assert torch.equal(plus, alone.falls["Fid"]["plus"])
    assert found.agreements["Fid"].macro["MoRF vs GT"][0] < -0.5
    assert len(found.curves()) == 4 * 2 * 6 * 19
    assert len(found.plot().axes) == 8
    # finished maps of the whole task, and sizes of each metric's own
    maps = vd.explain(InputXGradient(), task.with_targets(task.labels))
    own = {"A": Fid(sizes=(0.1, 0.5, 0.9)), "B": Fid(sizes=(0.2, 0.4, 0.6, 0.8))}
    curves = case_study(task, 3, maps, metrics=own).curves()
    assert sorted(set(curves[curves.metric == "B"]["size"])) == [0.2, 0.4, 0.6, 0.8]
    by_maps = case_study(task, 3, maps, metrics={"Fid": Fid(variant="probability")})
    assert torch.equal(plus, by_maps.falls["Fid"]["plus"])


def test_case_study_refuses_what_is_not_there(task: vd.Task) -> None:
    with pytest.raises(InputError, match="none of the 24"):
        case_study(task, 24)
    with pytest.raises(InputError, match="finetuned"):
        case_study(task, 0)


def test_explainers_are_told_apart_and_the_mode_is_named(task: vd.Task, folder: Path) -> None:
    table = compare_explainers(
        task, [InputXGradient(), "random"], draws=20, beta=0.3, cache=folder, progress=False, **QUICK
    )
    assert table.mode == OTHER_ROWS
    assert table.best == {"plus": "input_x_gradient", "minus": "input_x_gradient"}
    assert table.scores["input_x_gradient"]["plus"].mean() > table.scores["random"]["plus"].mean()
    assert OTHER_ROWS in repr(table)
    assert list(table.to_frame()["explainer"]) == ["input_x_gradient", "random"]

    same = compare_explainers(
        task, ["random"], on_evaluated=True, draws=2, cache=folder, progress=False, **QUICK
    )
    assert same.mode == SAME_ROWS
    assert same.scores["random"]["plus"].provenance["finetuned"]["epochs"] == 1


def test_rows_that_were_trained_on_are_counted(folder: Path) -> None:
    base = linear_task()
    mixed = vd.Task(
        base.model,
        base.inputs,
        labels=base.labels,
        train=(torch.cat([base.train, base.inputs[:5]]), torch.cat([base.train_labels, base.labels[:5]])),
        fill="zero",
    )
    table = compare_explainers(mixed, ["random"], draws=2, cache=folder, progress=False, **QUICK)
    assert "5 of 24" in table.mode


def test_a_model_at_chance_ranks_no_explainers(task: vd.Task, folder: Path) -> None:
    wrong = vd.Task(task.model, task.inputs, labels=1 - task.labels, train=task.train, fill="zero")
    with pytest.raises(InputError, match="at chance"):
        compare_explainers(wrong, ["random"], draws=2, cache=folder, progress=False, **QUICK)


def test_two_models_at_once_are_refused(task: vd.Task, folder: Path) -> None:
    tuned = finetune(task, cache=folder, progress=False, **QUICK)
    with pytest.raises(InputError, match="not both"):
        compare_explainers(task, ["random"], finetuned=tuned, on_evaluated=True)


def test_a_tie_has_no_best_and_the_judge_is_spoken_of(task: vd.Task, folder: Path) -> None:
    few = (task.train[:60], task.train_labels[:60])
    tuned = finetune(task, few, cache=folder, progress=False, **QUICK)
    maps = vd.explain(InputXGradient(), task.with_targets(task.labels))
    same = {"one": maps, "other": replace(maps, explainer="other")}
    table = compare_explainers(task, list(same.values()), finetuned=tuned, draws=2)
    assert table.best == {"plus": None, "minus": None}
    assert "*" not in repr(table)
    assert "checked on 6 held-out rows" in repr(table)
    study = ranking_study(task, InputXGradient(), finetuned=tuned, repeats=1, draws=2)
    assert "checked on 6 held-out rows" in repr(study)


class Bright(nn.Module):
    """Class 1 where at least `need` of the features are 1, plus a trainable shift of no effect."""

    def __init__(self, need: float) -> None:
        super().__init__()
        self.need = need
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = x.mean(1) - self.need + 0.0 * self.shift
        return torch.stack([-margin, margin], 1) * 50


def task_needing(need: float) -> vd.Task:
    x = torch.ones(30, 40)
    x[:10] = 0.0
    labels = (torch.arange(30) >= 10).long()
    return vd.Task(Bright(need), x, labels=labels, train=(x, labels), fill="zero")


def test_boundary_study_follows_the_masked_share(tmp_path: Path) -> None:
    task = task_needing(0.68)
    study = boundary_study(task, (0.1, 0.3), shares=(0.0, 0.3, 0.5), epochs=1, cache=tmp_path)
    assert list(study.accuracy) == ["original", "fine-tuned, beta 0.1", "fine-tuned, beta 0.3"]
    assert study.accuracy["original"] == (1.0, 1.0, pytest.approx(1 / 3))
    assert "50%" in repr(study)
    frame = study.to_frame()
    assert len(frame) == 3 * 3
    assert set(frame.columns) == {"model", "masked", "accuracy", "agreement", "same_input"}
    # masks that change no answer of the original leave both readings alike; where they do, only one
    assert study.same_input["original"] == (1.0, 1.0, 1.0)
    assert study.agreement["original"][2] == pytest.approx(1 / 3)
    assert len(study.plot().get_lines()) == 3 * 3
    pyplot.close("all")


def test_maps_of_the_same_model_agree_and_of_another_do_not(tmp_path: Path) -> None:
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    task = vd.Task(model, x[:10], train=x, fill="zero")
    same = finetune(task, epochs=1, optimiser=partial(torch.optim.SGD, lr=0.0), key="still", cache=tmp_path)
    assert torch.allclose(map_agreement(task, same), torch.ones(10, dtype=torch.float64))
    other = finetune(task, epochs=20, rate=0.02, cache=tmp_path)
    assert other.header["best_epoch"] > 0
    assert map_agreement(task, other).mean() < 0.99


def test_maps_lie_side_by_side_with_their_rank_correlation(tmp_path: Path) -> None:
    x = torch.rand(30, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
    task = vd.Task(model, x[:6], train=x, fill="zero")
    pair = maps_side_by_side(task, finetune(task, epochs=3, rate=0.05, cache=tmp_path))
    assert torch.equal(
        pair.correlation, map_agreement(task, finetune(task, epochs=3, rate=0.05, cache=tmp_path))
    )
    assert pair.before.explainer == pair.after.explainer == "saliency"
    figure = pair.plot(task.inputs, samples=3)
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == f"rank corr. {float(pair.correlation[0]):+.2f}"
    assert "6 samples" in repr(pair)
