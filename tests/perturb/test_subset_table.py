"""The answers to masks of few features: equal to brute force, asked once, shared, and bounded in memory."""

from __future__ import annotations

from itertools import combinations
from math import ceil, floor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Text, mlp
from veridical.core.space import Space
from veridical.explainers.base import registry as explainer_registry
from veridical.fidelity import RFid
from veridical.fidelity.falls import measure
from veridical.fidelity.metrics import LEVELS
from veridical.metrics.base import Metric
from veridical.metrics.base import registry as metric_registry
from veridical.metrics.re_explaining import stacked
from veridical.models import Memo
from veridical.perturb import subset_table
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import places_of

SIZES = list(range(1, 9))


def columns(n: int, rows: int = 5) -> vd.Task:
    generator = torch.Generator().manual_seed(n)
    net = mlp(n, 3).double()
    x, train = (torch.randn(k, n, generator=generator).double() for k in (3, rows))
    return vd.Task(net, x, train=train)


def tokens(n: int) -> vd.Task:
    torch.manual_seed(n)
    ids = torch.randint(1, 20, (3, n + 6))
    valid = torch.zeros(3, n + 6, dtype=torch.bool)
    for i, size in enumerate((n, max(1, n - 1), n + 6)):
        valid[i, :size] = True
    return vd.Task(Text().double().eval(), ids, space=Space.tokens(n + 6, valid), fill=vd.fills.Token(0))


def patches(n: int) -> vd.Task:
    torch.manual_seed(n)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4 * n, 3)).double()
    x = torch.randn(3, 1, 2, 2 * n).double()
    return vd.Task(net, x, space=Space.patches((1, 2, 2 * n), (2, 2)))


def by_hand(task: vd.Task, sample: int, gone: tuple[int, ...]) -> Tensor:
    """Probabilities (fill rows, C) of one sample without some of its features, asked straight."""
    removed = torch.zeros(1, task.space.n_features, dtype=torch.bool)
    removed[0, list(gone)] = True
    where = task.space.expand(removed, torch.tensor([sample]))
    behind = task.train if task.train is not None else torch.zeros_like(task.inputs[:1])
    row = torch.where(where, behind, task.inputs[sample : sample + 1])
    with torch.no_grad():
        return task.model(row).softmax(-1)


def features_of(task: vd.Task, sample: int) -> list[int]:
    valid = task.space.valid
    return list(range(task.space.n_features)) if valid is None else valid[sample].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("make", [columns, tokens, patches])
@pytest.mark.parametrize("n", SIZES)
def test_every_mask_answers_as_by_hand(make, n: int) -> None:
    task = make(n)
    asked = probe(task, AllSubsets(places_of(task), 2**n - 1), with_clean=True)
    for i in range(3):
        there = features_of(task, i)
        for code in range(2**n):
            gone = tuple(f for bit, f in enumerate(there) if code >> bit & 1)
            want = by_hand(task, i, gone)[:, task.targets[i]].mean()
            assert float(asked[i, code]) == pytest.approx(float(want), abs=1e-8)


@pytest.mark.parametrize("make", [columns, patches, tokens])
@pytest.mark.parametrize("longest", SIZES[1:])
@pytest.mark.parametrize("beta", [None, 0.3])
def test_rfid_is_its_expectation(make, longest: int, beta: float | None) -> None:
    task = make(longest)
    maps = torch.rand(3, task.space.n_features)
    found = measure(task, task_map(task, maps), task.targets, levels=LEVELS, alpha=0.5, beta=beta, draws=500)
    for i in range(3):
        there = features_of(task, i)
        n = len(there)
        if n > 8:
            continue  # the longest text, whose draws are drawn
        cap = n if beta is None else max(1, floor(beta * n + 1e-9))
        best = sorted(there, key=lambda f: -float(maps[i, f]))
        sizes = found["plus"].sizes[i].tolist()
        once = found["plus"].once[i].tolist()
        assert sorted(size for size, own in zip(sizes, once, strict=True) if own) == [*range(1, n)] or n == 1
        for at, size in enumerate(sizes):
            if not once[at] or n == 1:
                continue
            for sign, part, k in (
                ("plus", best[:size], min(floor(size / 2), cap)),
                ("minus", best[size:], min(ceil((n - size) / 2), cap)),
            ):
                got = [float(getattr(found[sign], name)[i, at]) for name in ("indicator", "probability")]
                if k < 1:
                    assert np.isnan(got).all()
                    continue
                each = [by_hand(task, i, gone) for gone in combinations(part, k)]
                clean = by_hand(task, i, ())[:1]
                c = int(task.targets[i])
                said = [float((p.argmax(-1) == c).double().mean()) for p in (clean, *each)]
                chance = [float(p[:, c].mean()) for p in (clean, *each)]
                for mine, (first, *rest) in zip(got, (said, chance), strict=True):
                    assert mine == pytest.approx(first - np.mean(rest), abs=1e-8)


def task_map(task: vd.Task, maps: Tensor) -> vd.Explanation:
    return vd.Explanation(maps, task.space, task.targets, task.ids)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_faithfulness_correlation_is_over_all_subsets(n: int) -> None:
    task, maps = columns(n), torch.randn(3, n).double()
    size = max(1, round(0.4 * n))
    scores = vd.score("faithfulness_correlation", task, maps, subset_size=0.4)
    for i in range(3):
        sets = list(combinations(range(n), size))
        c = task.targets[i]
        falls = [float(by_hand(task, i, ())[0, c] - by_hand(task, i, s)[:, c].mean()) for s in sets]
        sums = [float(maps[i, list(s)].sum()) for s in sets]
        assert float(scores.values[i]) == pytest.approx(np.corrcoef(falls, sums)[0, 1], abs=1e-6)
    again = vd.score("faithfulness_correlation", task, maps, subset_size=0.4, seed=9)
    assert torch.equal(scores.values, again.values)  # nothing is drawn any more


NOT_BY_MASKS = {
    "monotonicity_correlation": "replaces features by random values",
    "non_sensitivity": "moves one feature by random values",
    "permutation_importance": "takes each feature's values from other rows",
    "axe": "reads predictions of whole rows",
    **dict.fromkeys(("average_drop", "average_increase", "average_gain"), "multiplies inputs by the map"),
}
"""What asks about other inputs than those with features missing."""


def test_on_eight_columns_whoever_asks_by_masks_asks_each_once() -> None:
    """Every map metric, black-box explainer, QGE, QRAND and exact Shapley, all in one call on one task."""
    n, rows = 8, 5
    task = columns(n, rows)
    _ = task.outputs
    meter, before = task.predictor.meter, task.predictor.meter.here.forward
    black_boxes, memo = [], Memo()
    for name in explainer_registry:
        made = explainer_registry.make(name)
        foreign = (
            "gradient" in made.needs or made.inapplicable_reason(task) is not None or name == "partition_shap"
        )
        if not foreign and name not in NOT_BY_MASKS:
            black_boxes.append(made(task, memo=memo))
    metrics = [name for name in metric_registry if isinstance(metric_registry.make(name), Metric)]
    metrics += [
        "qge:pixel_flipping",
        "qge:faithfulness_correlation",
        "qrand:pixel_flipping",
        "qge:infidelity",
    ]
    judging = [m for m in metrics if m not in NOT_BY_MASKS and not m.startswith("ffid")]
    judging = [m for m in judging if metric_registry.make(m).inapplicable_reason(task) is None]
    for metric in judging:
        for e in black_boxes[: 3 if metric in ("rfid_plus", "pixel_flipping") else 1]:
            metric_registry.make(metric)(task, e, memo=memo)  # type: ignore[operator]
    metric_registry.make("random_logit")(task, explainer_registry.make("exact_shapley"), memo=memo)  # type: ignore[operator]
    assert len(black_boxes) > 8
    assert len(judging) > 20
    assert meter.here.forward - before <= 3 * (2**n - 1) * rows


def test_subsets_and_other_targets_share_the_answers() -> None:
    task = columns(5)
    memo, metric = Memo(), vd.api.as_metric("pixel_flipping")
    RFid()(task, task_map(task, torch.rand(3, 5)), memo=memo)
    before = task.predictor.meter.here.forward
    part = task[torch.tensor([2, 0])].with_targets([1, 1])
    maps = torch.rand(2, 5)
    got = metric(part, task_map(part, maps), memo=memo)
    assert task.predictor.meter.here.forward == before
    alone = vd.score("pixel_flipping", columns(5)[torch.tensor([2, 0])].with_targets([1, 1]), maps)
    torch.testing.assert_close(got.values, alone.values)


def test_other_inputs_weights_fills_features_and_reference_rows_do_not() -> None:
    task, memo, metric = columns(5), Memo(), vd.api.as_metric("pixel_flipping")
    two = Space.column_groups([0, 0, 1, 1, 1])
    others = [
        task,
        task.with_inputs(task.inputs + 1),
        task.with_fill(0.0),
        task.with_fill(vd.fills.Constant(2.0)),
        task.with_noise(0.5, vd.core.Key(1)),
        task.changed(train=task.train + 1),
        task.with_space(two),
        task.with_space(Space.column_groups([0, 1, 1, 1, 1])),
    ]
    found = []
    for other in (*others, task):
        maps = task_map(other, torch.arange(15.0).reshape(3, 5)[:, : other.space.n_features])
        found.append(metric(other, maps, memo=memo).values)
        assert torch.equal(found[-1], metric(other, maps).values)
    assert len({tuple(values.tolist()) for values in found}) == len(others)


def test_noisy_copies_of_an_input_are_not_taken_for_it() -> None:
    task = columns(4)
    copies = stacked(task, 3, torch.cat([task.inputs, task.inputs + 0.1, task.inputs - 0.5]))
    assert copies.ids.tolist() == [0, 1, 2] * 3
    together = vd.explain("exact_shapley", copies).values
    for k in range(3):
        alone = vd.explain("exact_shapley", task.with_inputs(copies.inputs[3 * k : 3 * k + 3])).values
        torch.testing.assert_close(together[3 * k : 3 * k + 3], alone)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    want = vd.score("pixel_flipping", columns(6), torch.arange(18.0).reshape(3, 6)).values
    monkeypatch.setattr(subset_table, "KEPT_BYTES", 3 * 3 * 8 * 10)
    task, memo, metric = columns(6), Memo(), vd.api.as_metric("pixel_flipping")
    for maps in (*torch.rand(4, 3, 6), torch.arange(18.0).reshape(3, 6)):
        got = metric(task, vd.explain(maps, task), memo=memo).values
    torch.testing.assert_close(got, want)
    (table,) = memo._kept[task.predictor].values()
    assert table.held[1].numel() * 8 <= 3 * 3 * 8 * (10 + 18)


def test_short_texts_among_long_ones_are_exact() -> None:
    torch.manual_seed(0)
    ids, valid = torch.randint(1, 20, (4, 30)), torch.zeros(4, 30, dtype=torch.bool)
    for i, size in enumerate((5, 30, 9, 1)):
        valid[i, :size] = True
    task = vd.Task(Text().double().eval(), ids, space=Space.tokens(30, valid), fill=vd.fills.Token(0))
    maps = torch.rand(4, 30)
    one, two = (vd.score(RFid(variant="probability"), task, maps, seed=s) for s in (0, 1))
    still = one.values == two.values
    assert still[:3].tolist() == [True, False, True]
    assert one.values.isnan().tolist() == [False, False, False, True]  # one token has nothing beside it
    # ties of the long text share its draws out, those of short ones are looked at in full and ask no more
    tied = maps.clone()
    tied[:, :4] = 0.5
    plain, ties = (vd.score(RFid(), fresh(task), e).cost.forward for e in (maps, tied))
    assert ties <= plain + 8 * 19


def fresh(task: vd.Task) -> vd.Task:
    return vd.Task(task.model, task.inputs, space=task.space, fill=task.fill)


def test_ties_share_the_draws_of_rfid() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    task = vd.Task(net, torch.rand(4, 1, 4, 4).double() + 0.1)
    maps = torch.rand(4, 16)
    plain = vd.score(RFid(draws=40), task, maps)
    tied = maps.clone()
    tied[1:, :8] = 0.0
    scores = vd.score(RFid(draws=40), task, tied)
    assert scores.cost == plain.cost
    assert torch.equal(scores.values[0], plain.values[0])
    assert scores.details["tied pairs"].tolist() == [0.0] + [28 / 120] * 3
