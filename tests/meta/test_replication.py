"""The replication's data: MNIST's object masks are bounding boxes, as the 50 that come with the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import veridical as vd
from replications.metaquantus.data import bounding_boxes
from replications.metaquantus.printed import TABLE_3
from replications.metaquantus.run import other_table, whole_draws
from replications.metaquantus.tables import OTHERS, ten


def unpacked(name):
    stored = np.load(Path(__file__).parents[1] / "data" / "mnist_boxes.npz")[name]
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


def test_printed_rows_average_to_their_mc():
    for metric, rows in TABLE_3.items():
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
    result = vd.meta_evaluate(
        table, ["sparseness"], ["gradient", "saliency"], draws=3, iterations=2, ar="published", resamples=0
    )
    books = result.books["sparseness"].scores
    full = books["ipt", "nr"].clone()
    for place, scores in books.items():
        scores[0, 2 if place == ("ipt", "nr") else 1 :] = torch.nan  # the second draw stopped half-way
        scores[1] = torch.nan
    part = whole_draws(result)
    kept = part.books["sparseness"].scores["ipt", "nr"]
    assert torch.equal(kept, full[:1, :1])
    assert part.kept["ipt", "nr"].shape[:2] == (1, 1)
    for scores in books.values():
        scores[:] = torch.nan
    assert whole_draws(result) is None


def test_a_table_of_another_paper_stands_beside_what_is_printed(table):
    chosen = OTHERS["qge-5"](True, 2)
    metrics = {"PF": "sparseness", "QGE PF": "complexity"}
    frame = vd.meta_evaluate(
        table, metrics, ["gradient", "saliency"], draws=1, iterations=1, ar="published", resamples=0
    ).to_frame()
    lines = other_table(chosen, {("published", "six methods"): [frame]}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| PF", "| QGE PF"]
    assert "| 0.801 |" in lines[3]
