"""The replication's data: MNIST's object masks are bounding boxes, as the 50 that come with the paper."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import veridical as vd
from replications.metaquantus import comparisons
from replications.metaquantus.cmnist import NETWORKS, pasted
from replications.metaquantus.data import bounding_boxes
from replications.metaquantus.parts import load_part, save_part, whole_draws
from replications.metaquantus.printed import TABLE_3, TABLE_4, TABLE_5
from replications.metaquantus.report import report
from replications.metaquantus.tables import A_5_2, OTHERS, SIX, grid, seven, ten
from replications.metaquantus.texts import other_table
from tests.meta.conftest import small_table
from veridical.meta import MetaEvaluation, joined
from veridical.meta.dependence import Dependence
from veridical.meta.perturbations import Amount
from veridical.meta.result import MetricScores
from veridical.values.scores import Direction

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table():
    return small_table()


def unpacked(name):
    stored = np.load(Path(__file__).parents[3] / "tests" / "data" / "mnist_boxes.npz")[name]
    return torch.from_numpy(np.unpackbits(stored, axis=1)).reshape(-1, 1, 28, 28).bool()


def test_boxes_equal_the_given_masks():
    lit, masks = unpacked("lit"), unpacked("masks")
    assert torch.equal(bounding_boxes(lit.float()), masks)
    assert not torch.equal(lit, masks)
    assert not torch.equal(bounding_boxes(lit[..., 1:].float()), masks[..., :-1]), "a shifted box must fail"


def test_a_box_spans_two_lit_pixels():
    image = torch.zeros(1, 1, 5, 6)
    image[0, 0, 1, 4] = image[0, 0, 3, 2] = 0.2
    box = torch.zeros(5, 6, dtype=torch.bool)
    box[1:4, 2:5] = True
    assert torch.equal(bounding_boxes(image)[0, 0], box)


@pytest.mark.parametrize("printed", [TABLE_3, TABLE_4, TABLE_5])
def test_printed_rows_average_to_their_mc(printed):
    for metric, rows in printed.items():
        for test in ("mpt", "ipt"):
            mc, *vector = rows[test]
            if mc == mc:
                assert abs(sum(vector) / 4 - mc) < 2e-3, (metric, test)
        pair = [rows[test][0] for test in ("mpt", "ipt")]
        if all(mc == mc for mc in pair):
            assert abs(sum(pair) / 2 - rows["mean"]) < 2e-3, metric


@pytest.mark.parametrize("name", list(OTHERS))
def test_tables_of_other_papers_have_every_printed_metric(name):
    table = OTHERS[name](True, 2)
    ours = [metric for group in table.groups for metric in group]
    assert set(table.printed) <= set(ours)
    assert len(ours) == len(set(ours))
    assert all(len(explainers) >= 2 for explainers in table.sets.values())


def test_the_ten_estimators_are_those_of_table_3():
    names = [metric if isinstance(metric, str) else metric.name for metric in ten(3)]
    assert names == list(TABLE_3)


def test_of_an_interrupted_run_the_whole_draws_are_kept(table):
    result = vd.meta.meta_evaluate(
        table, ["sparseness"], ["gradient", "saliency"], draws=3, iterations=1, ar="published", resamples=0
    )
    tables = result.scores["sparseness"].perturbed
    full = tables["ipt", "nr"].clone()
    for place, scores in tables.items():
        scores[0, 2 if place == ("ipt", "nr") else 1 :] = torch.nan  # the second draw stopped half-way
    part = whole_draws(result)
    assert torch.equal(part.scores["sparseness"].perturbed["ipt", "nr"], full[:, :1])
    assert part.kept["ipt", "nr"].shape[:2] == (1, 1)
    for scores in tables.values():
        scores[:] = torch.nan
    assert whole_draws(result) is None


def test_a_table_of_another_paper_stands_beside_what_is_printed(table):
    chosen = OTHERS["qge-5"](True, 2)
    metrics = {"PF": "sparseness", "QGE PF": "complexity"}
    frame = vd.meta.meta_evaluate(
        table, metrics, ["gradient", "saliency"], draws=1, iterations=1, ar="published", resamples=0
    ).to_frame()
    lines = other_table(chosen, {("published", "six methods"): [frame]}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| PF", "| QGE PF"]
    assert "| 0.801 |" in lines[3]


def test_digits_lie_in_their_boxes_on_the_photograph():
    g = torch.Generator().manual_seed(0)
    digit, photograph = torch.rand(3, 1, 16, 16, generator=g), torch.rand(3, 3, 32, 32, generator=g)
    top, left = torch.tensor([0, 5, 16]), torch.tensor([16, 2, 0])
    image, box = pasted(digit, photograph, top, left)
    assert box.sum((1, 2, 3)).tolist() == [256] * 3
    assert torch.equal(torch.where(box, 0.0, image), torch.where(box, 0.0, photograph))
    corner, under = image[1, :, 5:21, 2:18], photograph[1, :, 5:21, 2:18]
    assert torch.allclose(corner, under + (1 - under) * digit[1])
    assert not torch.allclose(image[1, :, 2:18, 5:21], under + (1 - under) * digit[1]), "transposed"


@pytest.mark.parametrize("name", list(NETWORKS))
def test_networks_of_colour_mnist_answer_ten_classes(name):
    assert NETWORKS[name][0]().eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_grid_has_the_twelve_settings_of_figure_10():
    found = grid()
    assert [label.split()[0] for label in found] == [f"P{number}" for number in range(1, 13)]
    assert found["P11 mean, 102"].subset_size == 102
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    filled = found["P11 mean, 102"].fill.background(None, x, torch.arange(2), vd.core.Key(0))
    assert filled.shape == (2, 1, 1, 2, 2)
    assert filled[:, 0, 0, 0, 0].tolist() == [1.5, 5.5]


def test_explainers_and_sets_are_those_of_the_paper():
    names = [explainer if isinstance(explainer, str) else explainer.name for explainer in seven(True)]
    assert tuple(names[:6]) == SIX
    assert all(set(some) <= set(names) for some in A_5_2)


def test_a_report_is_made_of_the_parts_of_several_processes(tmp_path):
    for number in (1, 0):
        save_part(_made_up(number), tmp_path / "parts" / f"table3_paper_{number}.npz")
    read = load_part(tmp_path / "parts" / "table3_paper_1.npz")
    assert torch.equal(read.scores["mprt"].unperturbed["ipt"], _made_up(1).scores["mprt"].unperturbed["ipt"])
    report(tmp_path, "3", quick=True, neighbours=2)
    text = (tmp_path / "table3.md").read_text()
    assert text.count("\n| sparseness |") == 3
    frame = pd.read_csv(tmp_path / "table3_paper.csv")
    both = comparisons.with_explainers(joined([_made_up(0), _made_up(1)]), SIX)
    row = frame[(frame["metric"] == "mprt") & (frame["test"] == "mean")].iloc[0]
    assert row["mc"] == pytest.approx(both.mc("mprt"))
    assert len(pd.read_csv(tmp_path / "table3_sets_paper.csv")) == 10 * len(A_5_2)
    assert (tmp_path / "table3_areas_paper.png").stat().st_size > 1000
    # the same from the vectors alone, which is all that is kept of a large run
    shutil.rmtree(tmp_path / "parts")
    (tmp_path / "table3_areas_paper.png").unlink()
    report(tmp_path, "3", quick=True, neighbours=2)
    assert (tmp_path / "table3.md").read_text() == text
    assert (tmp_path / "table3_areas_paper.png").stat().st_size > 1000


def _made_up(number):
    """One iteration of the ten estimators with made-up scores of seven explainers."""
    g = torch.Generator().manual_seed(number)
    places = [(test, mode) for test in ("ipt", "mpt") for mode in ("nr", "ar")]
    tables, names = {}, (*SIX, "input_x_gradient")
    for place, metric in enumerate(TABLE_3):
        table = MetricScores(
            metric, f"category {place // 2}", Direction.HIGHER, checks=dict.fromkeys(names, Dependence(1.0))
        )
        table.unperturbed = {test: torch.rand(7, 20, generator=g) for test in ("ipt", "mpt")}
        table.perturbed = {where: torch.rand(1, 2, 7, 20, generator=g) for where in places}
        tables[metric] = table
    kept = {where: torch.ones(1, 2, 20, dtype=torch.bool) for where in places}
    amounts = dict.fromkeys(places, Amount(0.1))
    return MetaEvaluation(tables, kept, names, ("ipt", "mpt"), amounts, resamples=0, iterations=(number,))
