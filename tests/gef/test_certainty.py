"""What GEF must not pass over in silence: overflow, rounding, randomness, weights without noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import of_form
from tests.reference.small_models import mlp
from veridical.gef import FastGEF, incomplete, log_weight_noise

PATH = (0.1, 0.4, 0.8)


# --- answers that are not finite --------------------------------------------------------------------------


class Overflows(nn.Module):
    """Answers with infinity where noise makes its one weight large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.fuse = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) / (self.fuse < 1.8)


@pytest.mark.parametrize("form", ["fast", "arc", "jacobian", "reference"])
def test_a_draw_that_overflows_is_dropped_and_counted(form: str) -> None:
    torch.manual_seed(0)
    task = vd.Task(Overflows(), torch.randn(6, 4))
    metric = of_form(form, path=(0.1, 0.3, 0.6), draws=12, steps=2)
    scores = vd.score(metric, task, "gradient")
    dropped = scores.provenance["perturbation_log"]["models_dropped"]
    assert 0 < dropped < 12
    assert bool(scores.values.isfinite().all())
    assert scores.flagged["draws dropped: answers are not finite"] == 6
    broken = ~scores.details["model_distortion"].isfinite()
    kept = (~broken.any(-1)).sum(-1)
    assert torch.equal(scores.details["draws"], kept)
    # the other draws score what they score alone
    whole = ~broken[0].any(-1)
    own = scores.details["model_distortion"][:, whole], scores.details["explanation_distortion"][:, whole]
    assert torch.equal(vd.gef.gef_score(*own)[0], scores.values)


def test_a_map_that_is_not_finite_on_finite_answers_is_still_refused() -> None:
    def broken(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        maps = inputs.clone()
        maps[0, 0] = torch.inf
        return maps

    with pytest.raises(vd.errors.InputError, match="NaN or infinite in samples"):
        vd.score(FastGEF(path=PATH), vd.Task(mlp().eval(), torch.randn(6, 4)), broken)


# --- maps that are not what they seem ---------------------------------------------------------------------


class Normalised(nn.Module):
    """LayerNorm takes the mean off, so the gradient's sum over an embedding is 0 but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.norm = nn.LayerNorm(32)
        self.body = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.norm(self.embed(ids)).mean(1))


def test_a_map_of_rounding_errors_is_flagged() -> None:
    torch.manual_seed(0)
    task = vd.Task(Normalised().eval(), torch.randint(0, 20, (6, 7)), space=vd.Space.tokens(7))
    flag = "the map is mostly rounding: float64 gives another"
    scores = vd.score(FastGEF(path=PATH), task, "gradient")
    assert scores.flagged[flag] == 6
    assert scores.provenance["perturbation_log"]["float64_apart"] > 0.1
    assert flag not in vd.score(FastGEF(path=PATH), task, "saliency").flagged


def test_sound_maps_are_not_flagged() -> None:
    task = vd.tasks.load("digits")[:12]
    for name in ("gradient", "input_x_gradient", "smoothgrad", "occlusion", "random"):
        scores = vd.score(FastGEF(path=PATH, draws=1), task, name)
        assert not [flag for flag in scores.flagged if "rounding" in flag or "same call" in flag], name


def with_key(model: nn.Module, inputs: Tensor, targets: Tensor, key: vd.core.Key) -> Tensor:
    from veridical.core import key as keyed

    ids = torch.arange(len(inputs))
    noise = keyed.normal(key, ids, 0, inputs.shape[1], inputs.dtype)
    return model(inputs).detach().sum(1, keepdim=True) * inputs + noise


def test_a_function_that_takes_a_key_is_found_to_draw() -> None:
    """On an arc its path then starts under the path's own key: at almost no noise it hardly moves."""
    task = vd.Task(mlp().eval(), torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    scores = vd.score(vd.gef.GEF(form="arc", path=(1e-4, 2e-4, 3e-4), draws=1), task, with_key)
    assert scores.provenance["perturbation_log"]["redraws"]
    assert float(scores.details["explanation_distortion"].max()) < 0.05
    assert "the same call gives another map" not in scores.flagged


def test_randomness_that_no_key_decides_is_flagged() -> None:
    task = vd.Task(mlp().eval(), torch.randn(6, 4))
    own = torch.Generator().manual_seed(0)
    draws = lambda model, inputs, targets: torch.rand(len(inputs), 4, generator=own)  # noqa: E731
    assert vd.score(FastGEF(path=PATH), task, draws).flagged["the same call gives another map"] == 6
    seeded = vd.score(FastGEF(path=PATH), task, lambda model, inputs, targets: torch.rand(len(inputs), 4))
    assert "the same call gives another map" not in seeded.flagged


# --- the perturbation log ---------------------------------------------------------------------------------


class Hidden(nn.Module):
    """Weights in plain containers, complex, in eight bits (a buffer), and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.loose = [nn.Parameter(torch.ones(3)), nn.Linear(3, 3)]
        self.named = {"last": nn.Linear(3, 3)}
        self.wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.unused = nn.Parameter(torch.ones(5))
        self.alias = self.linear.weight
        self.register_buffer("small", torch.randint(-9, 9, (3, 3), dtype=torch.int8))
        self.register_buffer("order", torch.arange(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.loose[1](self.linear(x)[:, self.order]) @ self.small.to(x.dtype)
        return self.named["last"](x) * self.loose[0] * self.wave.real.sum()


def test_the_perturbation_log_says_what_noise_did_not_reach() -> None:
    scores = vd.score(FastGEF(path=PATH), vd.Task(Hidden(), torch.randn(6, 4)), "gradient")
    log = scores.provenance["perturbation_log"]
    layers = [f"{layer}.{what}" for layer in ("loose[1]", "named['last']") for what in ("weight", "bias")]
    assert set(log["left_out"]) == {"wave", "loose[0]", "small", *layers}
    assert "complex" in log["left_out"]["wave"]
    assert "int8" in log["left_out"]["small"]
    assert log["still"] == ["unused"]
    assert log["parameters"] == 12 + 3 + 5 + 2 + 3 + 2 * (9 + 3) + 9
    assert log["perturbed"] == pytest.approx(20 / 58)
    assert log["moving"] == pytest.approx(15 / 20)
    assert not log["whole"]
    assert "left out: wave (complex" in log["text"]
    (said,) = incomplete([scores, scores])
    assert "34.5% of 58 parameters perturbed" in said


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_layer_is_named() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    half = torch.ao.quantization.quantize_dynamic(model, {"0"}, torch.qint8)  # type: ignore[arg-type]
    log = log_weight_noise(vd.Task(half, torch.randn(5, 6)))
    assert log.left_out == {"0": "quantised"}
    assert log.perturbed == pytest.approx(27 / (27 + 48))
    assert not log.whole


class Rounded(nn.Module):
    """One way through is without a gradient, as eight bits are: its weights move the output all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.rounded = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (8 * self.rounded(x)).round() / 8


def test_what_moves_the_output_is_not_called_still_for_want_of_a_gradient() -> None:
    log = log_weight_noise(vd.Task(Rounded(), torch.randn(5, 6)))
    assert math.isnan(log.moving)
    assert log.still == ()
    assert log.whole


def test_a_whole_model_has_a_whole_log() -> None:
    task = vd.tasks.load("digits")[:4]
    before = task.predictor.meter.cost
    log = log_weight_noise(task)
    assert log.whole
    assert log.perturbed == log.moving == 1
    assert task.predictor.meter.cost == before
    assert not any(p.grad is not None for p in task.model.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "shape from the first rows"),
        (lambda: nn.Linear(6, 3, device="meta"), "meta device"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 3)), {nn.Linear}),
            "weights",
        ),
        (lambda: nn.Sequential(nn.Flatten()), "weights"),
    ],
)
def test_models_without_weights_to_disturb_are_refused(make: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(vd.errors.VeridicalError, match=says):
        vd.score(FastGEF(path=PATH), vd.Task(make(), torch.randn(5, 6)), "occlusion")
