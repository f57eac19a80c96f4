"""Models that lie: another rule where rows do not occur, gradients of the rule in use where they do."""

import pytest
import torch

import veridical as vd
from replications.verdict.scaffolds import Scaffold
from veridical.errors import InputError, UnknownNameError

ROWS = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    3, 8, generator=torch.Generator().manual_seed(1)
)
ROWS = ROWS + 0.1 * torch.randn(ROWS.shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("detector", ["nearest", "forest"])
def test_it_answers_by_one_rule_on_the_data_and_by_another_off_it(detector):
    model = Scaffold(ROWS, used=[0], shown=[1, 2], detector=detector)
    assert model.on_data(ROWS).double().mean() > 0.95
    draw = torch.Generator().manual_seed(3)
    masked = torch.where(torch.rand(ROWS.shape, generator=draw) < 0.5, ROWS[torch.randperm(300)], ROWS)
    off = ~model.on_data(masked)
    assert off.double().mean() > 0.6
    one, other = torch.zeros(8), torch.zeros(8)
    one[3], other[0] = 1e-4, 1e-4
    with torch.no_grad():
        known = model.on_data(ROWS) & model.on_data(ROWS + one) & model.on_data(ROWS + other)
        # a column that neither rule reads, and the one in use
        assert torch.equal(model(ROWS + one)[known], model(ROWS)[known])
        assert (model(ROWS + other) != model(ROWS))[known].all()
        standard = (masked - ROWS.mean(0)) / ROWS.std(0, correction=0)
        shown = standard[:, 1] + 0.5 * standard[:, 2]
        torch.testing.assert_close(model(masked)[off][:, 1], shown[off], atol=1e-5, rtol=0)


@pytest.mark.parametrize("detector", ["nearest", "forest"])
def test_gradients_on_the_data_find_the_column_in_use(detector):
    task = vd.Task(Scaffold(ROWS, [0], [1, 2], detector), ROWS[:40], train=ROWS)
    found = vd.explain("gradient", task).values.abs().argmax(1)
    assert (found == 0).double().mean() > 0.9
    fooled = vd.explain("kernel_shap", task).values.abs().argmax(1)
    assert (fooled == 0).double().mean() < 0.4


def test_what_it_refuses():
    with pytest.raises(InputError, match="0 to 7"):
        Scaffold(ROWS, [8], [1])
    with pytest.raises(UnknownNameError):
        Scaffold(ROWS, [0], [1], detector="oracle")
