"""Noise in units of ranges, strengths, kept samples, and the plan of perturbations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.meta.conftest import small_table
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, UnknownNameError
from veridical.meta.perturbations import (
    MOST,
    PUBLISHED,
    Amount,
    amounts,
    calibrate,
    changes_that_matter,
    check_head,
    check_tests,
    held,
    noisy_inputs,
    perturbed,
    plan,
    published_amount,
    share_changed_by,
    unit_range,
    unperturbed,
)
from veridical.testing.tasks import tiny_task

KEY = Key(5) / "test"


def test_noise_is_uniform_in_units_of_each_columns_range_and_clipped_to_it(table):
    low, high = unit_range(table)
    assert torch.equal(low[0], table.inputs.amin(0))
    assert torch.equal(high[0], table.inputs.amax(0))
    moved = noisy_inputs(table, 0.01, KEY)
    relative = (moved - table.inputs).abs() / (high - low)
    assert float(relative.max()) <= 0.01
    assert float(relative.max()) > 0.009
    assert float((relative.amax(0) / 0.01).min()) > 0.8
    far = noisy_inputs(table, 5.0, KEY)
    assert bool((far >= low).all())
    assert bool((far <= high).all())
    assert float(((far == low) | (far == high)).double().mean()) > 0.6


def test_reference_rows_set_the_range_and_what_lies_outside_is_not_pulled_in():
    task = small_table(train=torch.zeros(5, 6, dtype=torch.float64))
    assert torch.equal(noisy_inputs(task, 1.0, KEY), task.inputs)


def test_channels_share_a_range_in_images_and_series_and_padding_stays():
    images = tiny_task("image", 8)
    assert tuple(unit_range(images)[0].shape) == (1, 2, 1, 1)
    series = tiny_task("series", 8, padding=4)
    assert tuple(unit_range(series)[0].shape) == (1, 2, 1)
    padded = ~series.space.expand(series.space.valid).expand(series.inputs.shape)
    moved = noisy_inputs(series, 1.0, KEY)
    assert torch.equal(moved[padded], series.inputs[padded])
    more = tiny_task("series", 8, padding=6)
    assert torch.equal(noisy_inputs(more, 0.1, KEY)[..., :10], noisy_inputs(series, 0.1, KEY)[..., :10])


def test_published_noise_is_absolute_and_clipped_from_below_only(table):
    moved = noisy_inputs(table, 5.0, KEY, published=True)
    assert float(moved.amin()) >= float(table.inputs.amin())
    assert float(moved.amax()) > float(table.inputs.amax())
    change = moved - table.inputs
    assert float(change.abs().amax()) <= 5.0
    small = noisy_inputs(table, 0.001, KEY, published=True) - table.inputs
    assert float(small[:, 2].abs().max()) == pytest.approx(float(small[:, 1].abs().max()), rel=0.2)


def test_weights_are_multiplied_and_targets_stay(table):
    changed = perturbed(table, Amount(weights=0.5), KEY)
    name, value = next((n, p.detach().clone()) for n, p in changed.model.named_parameters())
    original = dict(table.model.named_parameters())[name]
    ratio = (value / original)[original != 0]
    assert 0.3 < float((ratio - 1).detach().std()) < 0.7
    assert torch.equal(changed.targets, table.predictions)
    both = perturbed(table, Amount(inputs=0.5, weights=0.5), KEY)
    assert torch.equal(dict(both.model.named_parameters())[name], value)
    assert not torch.equal(both.inputs, table.inputs)
    assert torch.equal(both.targets, table.predictions)


def test_text_moves_at_its_embeddings_and_is_compared_there(text):
    assert unperturbed(text, "mpt") is text
    base = unperturbed(text, "ipt")
    assert base.inputs.is_floating_point()
    changed = perturbed(text, Amount(inputs=0.5), KEY)
    assert changed.inputs.shape == base.inputs.shape
    assert not torch.equal(changed.inputs, base.inputs)
    both = perturbed(text, Amount(inputs=1e-9, weights=0.5), KEY)
    assert not torch.allclose(both.inputs, base.inputs, atol=1e-3), "embeddings of the perturbed weights"


def test_kept_samples_by_head():
    table = small_table()
    outputs = table.outputs.clone()
    outputs[0] = outputs[0].flip(0) * 10 - outputs[0]
    outputs[1] = torch.nan
    same = held(table, outputs)
    assert not same[1]
    assert bool(same[2:].all())
    labels = small_table(head="multilabel")
    flipped = labels.outputs.clone()
    flipped[3, 1] *= -1  # one label of three changes, the strongest may stay
    assert held(labels, flipped).tolist().count(False) == 1
    numbers = small_table(head="regression", targets=1)
    moved = numbers.outputs.clone()
    moved[4, 1] += 0.5
    moved[5, 0] += 9.0  # another output than the one explained
    assert held(numbers, moved, epsilon=0.4).tolist() == [i != 4 for i in range(40)]
    with pytest.raises(InputError, match="epsilon"):
        check_head(numbers, None)
    with pytest.raises(InputError, match="positive"):
        check_head(numbers, -1.0)


def test_disruption_target_by_classes():
    assert changes_that_matter(small_table(classes=3)) == 0.5
    assert changes_that_matter(small_table(classes=2)) == pytest.approx(0.4)
    assert changes_that_matter(small_table(head="regression", targets=0)) == 0.5


@pytest.mark.parametrize("test", ["ipt", "mpt"])
def test_calibrated_noise_is_the_smallest_that_disrupts(table, test):
    found = calibrate(table, test, "ar")
    assert found.reached
    key = Key(0) / "meta strength" / test
    assert share_changed_by(table, test, found.amount, None, key) >= 0.5
    assert share_changed_by(table, test, found.amount / 1.1, None, key) < 0.5
    assert calibrate(table, test, "ar") is found, "found once a task"
    slight = calibrate(table, test, "nr")
    assert slight.reached
    assert slight.changed <= 0.05
    assert slight.amount < found.amount


def test_out_of_reach_takes_the_most_and_says_so(monkeypatch):
    monkeypatch.setattr("veridical.meta.perturbations.DRAWS", 2)
    stubborn = vd.Task(
        nn.Sequential(Always()), torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    )
    with pytest.warns(vd.errors.VeridicalWarning):
        noise, remarks = amounts(stubborn, ("ipt", "mpt"), {"nr": "published", "ar": "calibrated"}, None, 0)
    assert noise["mpt", "ar"].weights == MOST["mpt"]
    assert noise["ipt", "ar"].inputs == MOST["ipt"]
    assert len(remarks) == 2
    assert "changes 0.00" in remarks[0]


class Always(nn.Module):
    """The first class, whatever the weights and inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.stack([x[:, 0] * 0 + 1, x[:, 0] * 0 * self.weight[0]], 1)


def test_strengths_are_settable(table):
    rules = {"nr": "published", "ar": {"ipt": 0.3, "mpt": 0.7}}
    noise, remarks = amounts(table, ("ipt", "mpt", "combined"), rules, None, 0)
    assert noise["combined", "ar"] == Amount(0.3, 0.7)
    assert noise["ipt", "nr"] == Amount(PUBLISHED["nr"]["ipt"], 0.0)
    assert noise["mpt", "ar"] == Amount(0.0, 0.7)
    assert remarks == []
    assert str(noise["combined", "ar"]) == "a = 0.3, s = 0.7"
    for bad in (-1.0, {"ipt": 0.1}, True and float("nan")):
        with pytest.raises(InputError):
            amounts(table, ("mpt",), {"nr": bad, "ar": 1.0}, None, 0)
    with pytest.raises(UnknownNameError, match="calibrated"):
        amounts(table, ("mpt",), {"nr": "calibrate", "ar": 1.0}, None, 0)


def test_tests_are_checked(table):
    with pytest.raises(UnknownNameError, match="'ipt'"):
        check_tests(("itp",), table)
    with pytest.raises(InputError, match="once"):
        check_tests(("ipt", "ipt"), table)
    with pytest.raises(InputError, match="at least one"):
        check_tests((), table)
    plain = vd.Task(lambda x: torch.stack([x.sum(1), -x.sum(1)], 1), torch.randn(8, 3))
    with pytest.raises(NotApplicableError, match="no weights"):
        check_tests(("ipt", "mpt"), plain)
    assert check_tests("ipt", plain) == ("ipt",)
    whole = vd.Task(Counts(), torch.arange(24).reshape(8, 3), space=vd.Space.columns(3))
    with pytest.raises(NotApplicableError, match=r"pass inputs\.float"):
        check_tests(("ipt",), whole)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x.float())


def test_an_iteration_is_whole_before_the_next_begins():
    noise = {(test, mode): Amount(inputs=0.1) for test in ("ipt", "mpt") for mode in ("nr", "ar")}
    perturbations = plan(("ipt", "mpt"), noise, iterations=range(3), draws=2)
    order = [each.iteration for each in perturbations]
    assert order == sorted(order)
    keys = {each.key(KEY) for each in perturbations}
    assert len(keys) == len(perturbations) == 3 * 2 * 2 * 2


def test_uniform_noise_may_have_any_two_ends(table):
    low, high = unit_range(table)
    assert torch.equal(noisy_inputs(table, (-0.01, 0.01), KEY), noisy_inputs(table, 0.01, KEY))
    moved = noisy_inputs(table, (0.0, 0.01), KEY) - table.inputs
    relative = moved / (high - low)
    assert float(relative.min()) >= 0
    assert 0.009 < float(relative.max()) <= 0.01
    raw = noisy_inputs(table, (0.2, 0.3), KEY, published=True) - table.inputs
    assert 0.2 <= float(raw.min()) < 0.21
    assert 0.29 < float(raw.max()) <= 0.3


def test_two_ends_are_a_strength_of_inputs_alone(table):
    noise, _ = amounts(table, ("ipt", "mpt"), {"nr": 0.001, "ar": {"ipt": (0, 1), "mpt": 2.0}}, None, 0)
    assert noise["ipt", "ar"] == Amount(inputs=(0.0, 1.0))
    assert str(noise["ipt", "ar"]) == "U(0, 1)"
    assert Amount.read({"inputs": [0.0, 1.0], "weights": 0.0}) == noise["ipt", "ar"]
    with pytest.raises(InputError, match="two ends of uniform noise"):
        amounts(table, ("mpt",), {"nr": 0.001, "ar": (0.0, 1.0)}, None, 0)
    with pytest.raises(InputError, match="a larger b"):
        amounts(table, ("ipt",), {"nr": 0.001, "ar": (1.0, 0.0)}, None, 0)


def test_networks_for_large_images_are_disrupted_by_less_published_noise(table):
    def net(side: int) -> vd.Task:
        model = nn.Sequential(nn.AvgPool2d(side), nn.Flatten(), nn.Linear(1, 2))
        return vd.Task(model, torch.rand(2, 1, side, side))

    assert published_amount(net(224), "mpt", "ar") == 0.5
    assert published_amount(net(28), "mpt", "ar") == 2.0
    assert published_amount(net(224), "ipt", "ar") == 5.0
    assert published_amount(table, "mpt", "ar") == 2.0
