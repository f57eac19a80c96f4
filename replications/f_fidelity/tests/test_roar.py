"""ROAR, its ranking study and what it costs beside F-Fidelity."""

import math

import pytest
import torch
from torch import nn

import veridical as vd
from replications.f_fidelity.costs import CostComparison
from replications.f_fidelity.roar import ROAR, roar_study
from veridical.errors import InputError

pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def task() -> vd.Task:
    return linear()


def test_roar_retrains_once_a_size_and_says_so(task: vd.Task) -> None:
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    metric = ROAR(sizes=(0.2, 0.6), epochs=3, batch=32)
    scores = vd.score(metric, task, "input_x_gradient")
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert scores.provenance["retrainings"] == 2
    assert scores.provenance["rows trained"] == 2 * 3 * 180
    assert scores.provenance["training rows explained"] == 200
    assert scores.details["indicator"].shape == (60, 2)
    assert torch.equal(vd.score(metric, task, "input_x_gradient").values, scores.values)
    assert ROAR("minus").name == "roar_minus"
    assert ROAR("minus").better == "lower"
    with pytest.raises(InputError, match="explains again"):
        vd.score(metric, task, torch.rand(60, 20))


def test_roar_finds_what_is_lost_when_all_that_matters_is_removed() -> None:
    """Two features tell the class: without them a retrained model is at chance, with only them right."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(500, 10, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = nn.Linear(10, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1, :2] = 4.0
        model.bias.zero_()
    task = vd.Task(model, x[:100], labels=y[:100], train=(x[100:], y[100:]), fill="zero")
    settings = {"sizes": (0.2,), "epochs": 30, "batch": 32, "rate": 1e-2}
    truth = lambda model, inputs, targets: torch.tensor([1.0] * 2 + [0.0] * 8).expand(len(inputs), -1)  # noqa: E731
    plus = vd.score(ROAR("plus", **settings), task, truth)
    minus = vd.score(ROAR("minus", **settings), task, truth)
    assert plus.mean() > 0.3
    assert abs(minus.mean()) < 0.1


def test_the_study_of_roar_counts_what_it_costs(task: vd.Task) -> None:
    roar = ROAR(sizes=(0.3, 0.7), epochs=1, batch=64, start="trained")
    study = roar_study(task, "input_x_gradient", roar, ratios=(0.0, 0.5, 1.0))
    assert study.notes["retrainings"] == 3 * 2 * 2
    assert study.notes["rows trained"] > 0
    assert set(study.agreements) == {"ROAR"}
    with pytest.raises(InputError, match="ROAR explains the training rows"):
        roar_study(task, true_maps(task), roar)


def test_roar_settings_are_checked() -> None:
    with pytest.raises(InputError, match="start is"):
        ROAR(start="warm")
    with pytest.raises(InputError, match="strictly between"):
        ROAR(sizes=(0.0,))
    assert ROAR.from_json(ROAR("minus").to_json()) == ROAR("minus")


def test_costs_of_table_13() -> None:
    """Ours for the paper's own seconds: 7378 s against 4026 s for two explainers."""
    costs = CostComparison(
        explain_training=(647 + 721) / 2,
        retraining=(2911 + 2861) / 2,
        roar_evaluation=(114 + 124) / 2,
        finetuning=2925,
        ffid_evaluation=(541 + 560) / 2,
        sizes=19,
    )
    assert costs.roar(2, published=True) == 7378
    assert costs.ffid(2) == 4026
    assert costs.retrainings(2) == 2 * 19 * 2
    assert costs.break_even(published=True) == pytest.approx(2925 / (7378 / 2 - 550.5))
    assert costs.break_even() < costs.break_even(published=True)
    dear = CostComparison(0, 1, 0, 5, 100, sizes=1)
    assert dear.break_even() == math.inf
    assert "break even" in repr(costs)


def test_the_training_of_roar_is_in_its_cost(task: vd.Task) -> None:
    scores = vd.score(ROAR(sizes=(0.2, 0.6), epochs=3, batch=32), task, "input_x_gradient")
    trained = 2 * 3 * 180
    explained = 60 + 200
    asked = 2 * 60
    held = 2 * (3 + 1) * 20
    assert scores.cost == vd.models.Cost(explained + trained + held + asked, explained + trained)


def test_roar_leaves_samples_without_a_map_out(task: vd.Task) -> None:

    def patchy(model, inputs, targets):
        maps = inputs.clone()
        if len(inputs) == 60:
            maps[3] = math.nan
        return maps

    scores = vd.score(ROAR(sizes=(0.5,), epochs=1), task, patchy)
    assert scores.values.isnan().nonzero().flatten().tolist() == [3]
    assert scores.flagged["no explanation"] == 1

    def gaps(model, inputs, targets):
        return torch.where(torch.arange(len(inputs))[:, None] % 100 == 99, math.nan, inputs)

    with pytest.raises(InputError, match="no map for 2 of the 200 training rows"):
        vd.score(ROAR(sizes=(0.5,), epochs=1), task, gaps)
