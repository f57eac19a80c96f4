"""All rankings from all subsets, against one ranking after another; the paper's R1 and R2."""

import itertools

import numpy as np
import pytest
import torch

import veridical as vd
from tests.qge.conftest import respond, table
from tests.reference import qge as reference
from veridical.errors import InputError
from veridical.functional import kendall_tau_b
from veridical.qge.study import transforms_of
from veridical.qge.subsets import RankingScores


def lexicographic(task: vd.Task) -> tuple[np.ndarray, np.ndarray]:
    return reference.all_kept(respond(task, 0), task.inputs[0].numpy())


def agrees(scores: RankingScores, task: vd.Task) -> bool:
    q, gap = lexicographic(task)
    return np.allclose(scores.scores.numpy(), q, atol=1e-8) and np.allclose(
        scores.gaps.numpy(), gap, atol=1e-8
    )


@pytest.mark.parametrize("features", [2, 3, 5])
def test_every_ranking_one_by_one(features: int) -> None:
    task = table(features, 1)
    assert agrees(vd.qge.rankings_of(task), task)


@pytest.mark.parametrize("steps", [None, 2, 3])
def test_fewer_steps_count_their_levels_only(steps: int | None) -> None:
    task = table(6, 1)
    metric = vd.qge.KeptFeatures() if steps is None else vd.qge.KeptFeatures(levels=steps)
    found = vd.qge.rankings_of(task, metric)
    generator = torch.Generator().manual_seed(0)
    orders = list(itertools.permutations(range(6)))
    for place in torch.randint(720, (5,), generator=generator).tolist():
        # the ranking whose least relevant feature goes first, as lexicographic removal order says
        ranks = torch.empty(1, 6).double()
        ranks[0, list(orders[place])] = torch.arange(6.0).double()
        assert float(vd.score(metric, task, ranks).values[0]) == pytest.approx(
            float(found.scores[place]), abs=1e-8
        )


def test_qge_is_exactly_antisymmetric_over_all_rankings() -> None:
    gaps = vd.qge.rankings_of(table(7, 1)).gaps.sort().values
    assert torch.allclose(gaps, -gaps.flip(0), atol=1e-11)
    assert abs(float(gaps.mean())) < 1e-12


# --- R1 and R2 on a model whose best ranking is known ------------------------------------------------------


def additive(weights: list[float]) -> vd.Task:
    """One output sum_i w_i x_i at x = 1: the best ranking sorts by weight, and the worst is its inverse."""
    net = torch.nn.Linear(len(weights), 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([weights]).double())
    return vd.Task(net, torch.ones(1, len(weights)).double(), head="regression", fill=0.0)


def test_r1_sign_of_the_gap_tells_above_from_below_average() -> None:
    task = additive([5.0, 3.0, 2.0, 1.0, 0.5, -1.0])
    found = vd.qge.rankings_of(task, vd.qge.KeptFeatures(response="logit"))
    above = found.scores - found.scores.mean()
    clear = above.abs() > 1e-9
    assert bool((above[clear].sign() == found.gaps[clear].sign()).all())
    # on an additive model the inverse is as far below the mean as the ranking is above: QGE = 2 (q - mean)
    assert torch.allclose(found.gaps, 2 * above, atol=1e-9)


# --- the baseline's own expectation ---------------------------------------------------------------------


def test_one_independent_random_ranking_keeps_half_of_the_order() -> None:
    quality = torch.randn(20000, generator=torch.Generator().manual_seed(3), dtype=torch.float64).exp()
    _, *drawn = transforms_of(RankingScores(quality, -quality), vd.core.Key(0), 3)
    tau = [kendall_tau_b(quality, other) for other in drawn]
    assert float(tau[0]) == pytest.approx(0.5, abs=0.01)
    assert float(tau[2]) > float(tau[1]) > float(tau[0])
    shared = quality - quality[7]  # one ranking for all: only a constant is subtracted
    assert float(kendall_tau_b(quality, shared)) == pytest.approx(1.0)


# --- studies --------------------------------------------------------------------------------------------


def test_exhaustive_study_reports() -> None:
    task = table(5, 3)
    study = vd.qge.exhaustive_study(task, draws=3, progress=False)
    assert study.tau.shape == (3, 4)
    assert study.rankings == 120
    assert study.cost.forward == 3 * 31
    frame = study.to_frame()
    assert list(frame["transform"].unique()) == ["QGE", "QRAND_1", "QRAND_2", "QRAND_3"]
    assert "120 all rankings" in repr(study)
    q, gap = lexicographic(task[0])
    assert float(study.tau[0, 0]) == pytest.approx(
        float(kendall_tau_b(torch.tensor(q).round(decimals=9), torch.tensor(gap).round(decimals=9))), abs=1e-6
    )
    assert float(study.spread[0]) == pytest.approx(q.std(), abs=1e-8)
    again = vd.qge.exhaustive_study(task[1], draws=3, progress=False)
    assert torch.equal(again.tau[0], study.tau[1])


def test_sampled_study_approaches_the_exhaustive_one() -> None:
    task = table(6, 2)
    whole = vd.qge.exhaustive_study(task, draws=1, progress=False)
    for rankings, independent in ((800, False), (200, True)):
        few = vd.qge.sampled_study(
            task, rankings=rankings, draws=1, independent_draws=independent, progress=False
        )
        assert torch.allclose(few.tau[:, 0], whole.tau[:, 0], atol=0.12)
        assert torch.allclose(few.tau[:, 1], torch.tensor(0.5).double(), atol=0.12)


def test_sampled_study_of_metrics_that_read_values() -> None:
    task = table(14, 2)  # of fewer features all subsets are taken, and no draw is left that could differ
    same = vd.qge.sampled_study(task, "faithfulness_correlation", rankings=30, progress=False)
    # the same subsets for a map and its inverse: the correlation changes its sign, and QGE keeps the order
    assert bool((same.tau[:, 0] > 0.9).all())
    apart = vd.qge.sampled_study(
        task, "faithfulness_correlation", rankings=30, independent_draws=True, progress=False
    )
    assert bool((apart.tau[:, 0] < same.tau[:, 0]).all())


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="2 to 10 features"):
        vd.qge.exhaustive_study(table(11, 1))
    with pytest.raises(InputError, match="does not"):
        vd.qge.rankings_of(table(4, 1), "faithfulness_correlation")
    with pytest.raises(InputError, match="judges methods"):
        vd.qge.exhaustive_study(table(4, 1), "max_sensitivity")
    with pytest.raises(InputError, match="one sample at a time"):
        vd.qge.rankings_of(table(4, 2))


def test_a_study_takes_maps_as_they_come_and_names_wrong_counts() -> None:
    task = table(5, 2)
    maps = torch.rand(2, 5).double()
    study = vd.qge.sampled_study(task, "pixel_flipping", rankings=5, explanation=maps, progress=False)
    assert len(study) == 2
    with pytest.raises(InputError, match="whole number"):
        vd.qge.sampled_study(task, "pixel_flipping", rankings=5, draws=1.5, progress=False)
    with pytest.raises(InputError, match="whole number"):
        vd.qge.sampled_study(task, "pixel_flipping", rankings=5.5, progress=False)
