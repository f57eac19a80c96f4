"""What one call evaluates once: masks that follow no map, and draws over the rankings of a tied map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core.key import Key
from veridical.explainers.base import registry as explainers
from veridical.fidelity import FFid, RFid, finetune
from veridical.metrics.base import Metric
from veridical.metrics.base import registry as metrics
from veridical.models import Memo
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given

MAP_FREE = {
    "faithfulness_correlation",
    "faithfulness_estimate",
    "infidelity",
    "monotonicity_correlation",
    "non_sensitivity",
    "sensitivity_n",
}
"""Metrics whose masks are the same for all maps."""
ONE_CURVE_PER_RANKING = {
    "comprehensiveness",
    "deletion",
    "fid_minus",
    "fid_plus",
    "insertion",
    "irof",
    "kept_features",
    "monotonicity",
    "pixel_flipping",
    "region_perturbation",
    "road",
    "selectivity",
    "text_sufficiency",
}
"""Metrics that draw nothing: each of up to 8 rankings removes other sets, and all are evaluated."""


def image(samples: int = 4) -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    masks = torch.zeros(samples, 1, 8, 8, dtype=torch.bool)
    masks[:, :, :4, :4] = True
    x, train = 0.1 + torch.rand(samples, 1, 8, 8), 0.1 + torch.rand(40, 1, 8, 8)
    with torch.no_grad():
        net[-1].bias -= net(train).mean(0)
        labels = net(train).argmax(-1)
    return vd.Task(net, x, labels=torch.arange(samples) % 5, masks=masks, train=(train, labels), fill=0.0)


def given(task: vd.Task, values: Tensor) -> vd.Explanation:
    return vd.Explanation(values, task.space, task.targets, task.ids, draw_ids=task.draw_ids)


def maps(seed: int, samples: int = 4) -> Tensor:
    return torch.randn(samples, 64, generator=torch.Generator().manual_seed(seed))


NAMES = [
    name
    for name in metrics
    if issubclass(type(metrics.make(name)), Metric)
    and not name.startswith("ffid")
    and metrics.make(name).inapplicable_reason(image()) is None
]


@pytest.mark.parametrize("name", NAMES)
def test_maps_share_masks_that_follow_no_map(name: str) -> None:
    task, memo, metric = image(), Memo(), metrics.make(name)
    assert isinstance(metric, Metric)
    first = metric(task, given(task, maps(0)), memo=memo)
    other = task.with_targets((task.targets + 1) % 5)
    part = task[1:3]
    again = [
        (task, maps(1)),
        (other, maps(0)),
        (part, maps(2)[1:3]),
    ]
    for on, values in again:
        alone = metric(on, given(on, values))
        shared = metric(on, given(on, values), memo=memo)
        assert torch.equal(shared.values.nan_to_num(9.0), alone.values.nan_to_num(9.0)), on
        if name in MAP_FREE:
            assert shared.cost.rows == 0
        else:
            assert (shared.cost.rows > 0) == (alone.cost.rows > 0)
    if name in MAP_FREE:
        assert first.cost.rows > 0


@pytest.mark.parametrize("name", [*NAMES, "ffid_plus", "ffid_minus"])
def test_a_tied_map_costs_hardly_more(name: str, tmp_path) -> None:
    task = image()
    metric = metrics.make(name)
    if isinstance(metric, FFid):
        metric = replace(metric, finetuned=finetune(task, epochs=1, cache=tmp_path))
    plain, tied = given(task, maps(0)), given(task, (2 * maps(0)).round() / 2)
    assert tied.has_ties
    assert not plain.has_ties
    own, more = (metric(task, each).cost.rows for each in (plain, tied))
    # 50 draws over 8 rankings are 7 each, and chunks are filled up
    most = 8 if name in ONE_CURVE_PER_RANKING else 1.15
    assert more <= most * own


@pytest.mark.parametrize("draws", [1, 4, 10, 12])
@pytest.mark.parametrize("name", ["rfid_plus", "rfid_minus", "ffid_plus"])
def test_few_draws_are_shared_out_over_rankings(name: str, draws: int, tmp_path) -> None:
    task = image()
    metric = replace(metrics.make(name), draws=draws)
    if isinstance(metric, FFid):
        metric = replace(metric, finetuned=finetune(task, epochs=1, cache=tmp_path))
    plain, tied = given(task, maps(0)), given(task, (2 * maps(0)).round() / 2)
    own, more = (metric(task, each) for each in (plain, tied))
    assert more.cost.forward == own.cost.forward == 4 * 19 * draws


def test_one_draw_follows_any_ranking_of_a_tied_map() -> None:
    torch.manual_seed(0)
    weight = torch.zeros(2, 14)
    weight[0, :3] = torch.tensor([3.0, 0.5, -2.0])
    net = nn.Linear(14, 2)
    with torch.no_grad():
        net.weight.copy_(weight)
    task = vd.Task(net, torch.ones(40, 14) + 0.01 * torch.randn(40, 14), targets=[0] * 40, fill=0.0)
    values = torch.zeros(40, 14)
    values[:, :3] = 1.0
    # one of the two strongest leaves: any of the three that tie, equally often
    metric = RFid(draws=1, sizes=(2 / 14,), variant="probability", reference="prediction")
    found = torch.cat([metric(task, given(task, values), Key(seed)).values for seed in range(20)])
    one = torch.eye(14, dtype=torch.bool)[None, :3]
    alone = task.clean_response("probability") - probe(task, Given(one))
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean() - alone.mean())) < 4 * error
    assert abs(float(found.mean() - alone[:, :2].mean())) > 8 * error


# --- what explains and what judges -------------------------------------------------------------------------

SEEN: list[Tensor] = []
JUDGES = ("faithfulness_correlation", "infidelity", "rfid_minus", "rfid_plus", "sensitivity_n")
DRAWN = ("kernel_shap", "lime", "rise", "hsic", "sobol", "shapley_sampling", "partition_shap")


class Noting(nn.Module):
    """A model of 50 columns that notes which of them are gone in each row it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(50, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(x == 0)
        return self.net(x)


def sets_seen(evaluate) -> set[bytes]:
    """The sets of removed features that were evaluated; those of hardly any, or of nearly all, are few."""
    SEEN.clear()
    evaluate()
    rows = torch.cat(SEEN)
    sizes = rows.sum(-1)
    return {row.numpy().tobytes() for row in rows[(sizes >= 5) & (sizes <= 45)]}


def test_no_judging_mask_was_seen_by_an_explainer() -> None:
    torch.manual_seed(0)
    task = vd.Task(Noting(), 0.5 + torch.rand(3, 50), labels=[0, 1, 2], fill=0.0)
    memo, found = Memo(), {}
    by = {name: sets_seen(lambda: found.update({name: vd.explain(name, task)})) for name in DRAWN}  # noqa: B023
    assert set(DRAWN) <= set(explainers)
    explaining = set().union(*by.values())
    # the two that share a bank are told to have seen the same sets
    assert by["kernel_shap"] == by["lime"]
    assert len(by["kernel_shap"]) > 300
    # in one call, as the audit has it
    for who in DRAWN:
        explainers.make(who)(task, Key(0), memo)
    for name in JUDGES:
        metric = metrics.make(name)
        judging = sets_seen(lambda: metric(task, found["kernel_shap"], Key(0), memo))  # noqa: B023
        assert len(judging) > 50, name
        assert not judging & explaining, name
