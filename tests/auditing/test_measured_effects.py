"""Measured effects: exact where they can be, and estimates whose errors are as large as they say."""

import pytest
import torch

import veridical as vd
from tests.reference import auditing as slow
from tests.reference.shapley import exact_shapley
from veridical.auditing.measured_effects import Effects, _estimated, fit_pairs, measured_effects
from veridical.core.key import Key
from veridical.explainers import as_explainer
from veridical.models.context import Context, Memo
from veridical.perturb.fills import Zero


class Curved(torch.nn.Module):
    """A network with interactions of many features."""

    def __init__(self, features):
        super().__init__()
        dice = torch.Generator().manual_seed(features)
        self.first = torch.nn.Parameter(torch.randn(features, 16, generator=dice) * 3 / features**0.5)
        self.shift = torch.nn.Parameter(torch.randn(16, generator=dice))
        self.last = torch.nn.Parameter(torch.randn(16, 2, generator=dice))

    def forward(self, x):
        return torch.tanh(x @ self.first + self.shift) @ self.last


def table(features, samples=12, model=None, **extra):
    rows = torch.randn(samples, features, generator=torch.Generator().manual_seed(1)).double()
    return vd.Task((model or Curved(features)).double(), rows, fill=Zero(), **extra)


def effects_of(task, seed=0, **settings):
    return measured_effects(
        task, Context.begun(task.predictor, Key(seed), settings.pop("memo", None)), **settings
    )


def test_few_features_are_exact():
    task = table(6)
    found = effects_of(task)
    assert found.exact
    assert found.rows == 12 * (2**6 - 1)
    torch.testing.assert_close(found.values, exact_shapley(task, 0.0), rtol=1e-7, atol=1e-9)
    assert float((found.errors / found.values.abs().sum(-1, keepdim=True)).max()) < 1e-8


def test_what_explainers_have_evaluated_is_not_evaluated_again():
    task, memo = table(6), Memo()
    made = as_explainer("exact_shapley")(task, Key(0), memo)
    found = effects_of(task, memo=memo)
    assert found.rows == 0
    torch.testing.assert_close(found.values, made.values)


def test_estimates_read_the_bank_of_kernel_shap():
    task, memo = table(14), Memo()
    made = as_explainer("kernel_shap")(task, Key(0), memo)
    found = effects_of(task, memo=memo)
    assert found.rows == 0
    torch.testing.assert_close(found.values, made.values, rtol=1e-6, atol=1e-8)


def test_an_additive_model_leaves_no_error():
    weight = torch.linspace(-2, 2, 20).double()
    model = torch.nn.Linear(20, 2)
    model.weight.data, model.bias.data = torch.stack([weight, -weight]), torch.zeros(2)
    task = table(20, model=model)
    found = effects_of(task)
    assert not found.exact
    sign = 1 - 2 * task.targets[:, None].double()
    torch.testing.assert_close(found.values, sign * weight * task.inputs, rtol=1e-6, atol=1e-6)
    assert float(found.errors.max()) < 1e-5


@pytest.mark.parametrize("count", [64, 512])
def test_errors_cover_what_they_should(count):
    """Two standard errors hold about 95% of the exact values."""
    covered, spread = [], []
    for features in (10, 12):
        task = table(features, samples=40)
        exact = effects_of(task).values
        for seed in range(3):
            # the seed draws other masks; the fill is the same
            values, errors = _estimated(task, Context.begun(task.predictor, Key(seed)), count)
            z = (values - exact) / errors
            covered.append(float((z.abs() <= 2).double().mean()))
            spread.append(float(z.std()))
    assert 0.93 <= sum(covered) / len(covered) <= 0.985
    assert 0.8 <= sum(spread) / len(spread) <= 1.1


def test_a_fit_agrees_with_the_slow_one():
    dice = torch.Generator().manual_seed(3)
    kept = torch.rand(2, 60, 7, generator=dice) < 0.5
    kept[:, ::2, 0], kept[:, ::2, 1] = True, False  # no set is empty or whole
    kept[:, 1::2, 2], kept[:, 1::2, 3] = True, False
    responses, total = (torch.randn(2, size, 2, generator=dice).double() for size in (60, 1))
    total = total[:, 0, :1]
    values, errors = fit_pairs(kept, responses, total, torch.ones(2, 7, dtype=torch.bool))
    for n in range(2):
        expected, error = slow.fitted_pairs(kept[n].numpy(), responses[n].numpy(), float(total[n]))
        torch.testing.assert_close(values[n], torch.tensor(expected), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(errors[n], torch.tensor(error), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(values.sum(-1), total[:, 0])


def test_too_few_pairs_show_nothing():
    """Values are still those of the smallest fit, as KernelSHAP's; their errors are not known."""
    task = table(40, samples=3)
    found = effects_of(task, count=64)
    assert bool(found.errors.isinf().all())
    made = as_explainer("kernel_shap", budget=64)(task, Key(0))
    torch.testing.assert_close(found.values, made.values, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("pairs", "known"), [(16, False), (17, True)])
def test_errors_need_eight_pairs_more_than_unknowns(pairs, known):
    kept = torch.rand(1, pairs, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    kept[:, :, 0], kept[:, :, 1] = True, False
    one = torch.ones(1, 1).double()
    _, errors = fit_pairs(kept, torch.randn(1, pairs, 2).double(), one, torch.ones(1, 7, dtype=torch.bool))
    assert bool(errors.isfinite().all()) is known
    assert bool(errors.isinf().all()) is not known


@pytest.mark.extras
def test_large_images_are_measured_in_cells():
    task = vd.tasks.load("mnist5k", samples=3)
    found = effects_of(task)
    assert found.cells is not None
    assert found.values.shape == (3, found.cells.count)
    assert "joined" in found.in_words
    over = found.over_features()
    assert over.shape == (3, task.space.n_features)
    torch.testing.assert_close(found.summed(over), found.values)


def test_padding_has_no_effect():
    task = vd.tasks.load("reviews", samples=6)
    found = effects_of(task, count=200)
    assert task.space.valid is not None
    assert bool((found.values[~task.space.valid] == 0).all())


def test_a_part_has_the_effects_of_the_whole():
    task = table(14, samples=5)
    whole, part = effects_of(task), effects_of(task[1:3])
    torch.testing.assert_close(part.values, whole.values[1:3], rtol=1e-9, atol=1e-9)
    taken = whole.take(torch.tensor([1, 2]))
    assert isinstance(taken, Effects)
    torch.testing.assert_close(taken.values, part.values, rtol=1e-9, atol=1e-9)
