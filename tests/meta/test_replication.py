"""The replication's data: MNIST's object masks are bounding boxes, as the 50 that come with the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from replications.metaquantus.data import bounding_boxes
from replications.metaquantus.printed import TABLE_3


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
