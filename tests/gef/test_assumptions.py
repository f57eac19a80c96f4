"""Assumption checks on models whose answers are known in closed form."""

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.testing import tiny_task


class FirstColumn(nn.Module):
    """Class 1 if the first column is positive; nothing else matters."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.weight[1, 0] = 1.0
            self.head.weight[0, 0] = -1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x)
        return out


def task(samples: int = 40) -> vd.Task:
    x = torch.zeros(samples, 4, dtype=torch.float64)
    x[:, 0] = torch.linspace(-3, 3, samples)
    return vd.Task(FirstColumn(), x, fill=0.0)


def test_masking_moves_once_and_never_back() -> None:
    """Only the first column counts: D_f jumps from 0 to a constant, which is monotone."""
    found = vd.gef.assumptions(task(), levels=3, draws=2)
    assert all(not bool(w.not_monotone.any()) for w in found.masking)
    mean = next(w for w in found.masking if w.label.endswith("mean"))
    # the mean fill is 0 here, so that D_f ends at |x_0|
    assert torch.allclose(mean.distortion[:, 0, -1], task().inputs[:, 0].abs())


def test_black_white_and_mean_are_those_of_each_channel() -> None:
    """Channels on two scales: a fill of one number for both would be far outside of one of them."""
    torch.manual_seed(0)
    x = torch.rand(12, 2, 4, 4, dtype=torch.float64) * torch.tensor([1.0, 100.0]).reshape(1, 2, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 2, dtype=torch.float64))
    found = vd.gef.assumptions(vd.Task(model, x), levels=2, draws=1, patches=(1,), mask_steps=4)
    for label, own in (
        ("black", x.amin((0, 2, 3))),
        ("white", x.amax((0, 2, 3))),
        ("mean", x.mean((0, 2, 3))),
    ):
        watched = next(w for w in found.masking if w.label.endswith(label))
        with torch.no_grad():
            clean, filled = model(x), model(own.reshape(1, 2, 1, 1).expand_as(x))
        place = clean.argmax(-1, keepdim=True)
        expected = (clean - filled).gather(1, place)[:, 0].abs()
        torch.testing.assert_close(watched.distortion[:, 0, -1], expected, rtol=1e-6, atol=1e-6)


def test_sensitivity_fails_where_the_class_survives_randomisation() -> None:
    found = vd.gef.assumptions(task(), levels=2, draws=8)
    # a random head keeps or flips the sign of x_0 for all samples alike
    share = found.sensitivity_fails.double().mean(0)
    assert bool(((share == 0) | (share == 1)).all())
    assert 0 < float(share.mean()) < 1
    top, bottom = found.layers
    assert torch.equal(top.changed[..., -1], bottom.changed[..., -1])
    assert torch.equal(top.distortion[..., -1], bottom.distortion[..., -1])


def test_every_question_is_counted_and_the_seed_decides() -> None:
    tiny = tiny_task("table")
    found = vd.gef.assumptions(tiny, levels=3, draws=2, mask_steps=3)
    layers = 2 * 2 * 2  # orders, layers, draws
    masks = 3 * 2 * 3  # fills, draws, steps
    asked, most = found.cost.forward - found.path.rows - len(tiny) * (3 * 2 + layers), len(tiny) * masks
    assert most / 2 < asked <= most  # masks that come to the same set are asked once
    again = vd.gef.assumptions(tiny, levels=3, draws=2, mask_steps=3)
    other = vd.gef.assumptions(tiny, levels=3, draws=2, mask_steps=3, seed=1)
    assert torch.equal(found.noise.distortion, again.noise.distortion)
    assert not torch.equal(found.noise.distortion, other.noise.distortion)


@pytest.mark.parametrize("modality", ["image", "series", "text"])
def test_every_kind_of_input_is_watched(modality: str) -> None:
    found = vd.gef.assumptions(tiny_task(modality), levels=3, draws=1, mask_steps=3)
    frame = found.to_frame()
    assert set(frame["assumption"]) == {"robustness", "sensitivity", "monotonicity"}
    assert bool(((frame["share"] >= 0) & (frame["share"] <= 1)).all())
    assert "all layers randomised" in repr(found)


def test_a_regression_is_refused() -> None:
    with pytest.raises(vd.errors.NotApplicableError, match="no class"):
        vd.gef.assumptions(vd.Task(nn.Linear(3, 1), torch.rand(4, 3), head="regression"))


def test_layers_in_groups_end_at_the_same_model() -> None:
    """Fewer steps of the cascade: the last is still the model with all layers randomised."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
    small = vd.Task(nn.Sequential(*layers), torch.randn(12, 6))
    whole = vd.gef.assumptions(small, levels=3, draws=2, mask_steps=2, search_draws=2)
    grouped = vd.gef.assumptions(small, levels=3, draws=2, mask_steps=2, search_draws=2, layer_steps=2)
    assert [w.levels for w in whole.layers] == [(0.25, 0.5, 0.75, 1.0)] * 2
    assert [w.levels for w in grouped.layers] == [(0.5, 1.0)] * 2
    for all_steps, some in zip(whole.layers, grouped.layers, strict=True):
        assert torch.equal(all_steps.distortion[..., [1, 3]], some.distortion)
    assert torch.equal(whole.sensitivity_fails, grouped.sensitivity_fails)


def test_thresholds_of_the_definitions_may_be_given() -> None:
    torch.manual_seed(0)
    small = vd.Task(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(12, 6))
    settings = {"levels": 4, "draws": 2, "mask_steps": 2, "search_draws": 20}
    plain = vd.gef.assumptions(small, **settings)
    given = vd.gef.assumptions(small, **settings, alpha=plain.noise.levels[1], epsilon=0.05)
    weak = 1 - plain.noise.changed.double().mean(0) >= 0.95
    assert torch.equal(plain.robustness_fails, plain.noise.changed & weak)
    moved = given.noise.distortion > 0.05
    assert torch.equal(given.robustness_fails[..., :2], moved[..., :2])
    assert not bool(given.robustness_fails[..., 2:].any())
    assert torch.equal(given.sensitivity_fails, given.layers[0].distortion[..., -1] <= 0.05)
    assert "D_f is beyond 0.05" in repr(given)
    assert "at least 95% keep theirs" in repr(plain)
    with pytest.raises(vd.errors.InputError, match="alpha is a finite number above 0"):
        vd.gef.assumptions(small, alpha=-1.0)
