"""Weights are written into a private copy; it equals a changed deep copy, and the caller's module stays."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import changed_copy, noisy, weight_noise
from tests.reference.small_models import Convolution, Recurrent, Tied, mlp
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, UnknownNameError, VeridicalWarning
from veridical.models.randomised_layers import cascade, randomised
from veridical.models.weights import NoiseSource, layers

KEY = Key(3) / "noise"


def old_weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))


def new_weight_norm() -> nn.Module:
    from torch.nn.utils.parametrizations import weight_norm

    return nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))


def old_spectral_norm() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))


def new_spectral_norm() -> nn.Module:
    from torch.nn.utils.parametrizations import spectral_norm

    return nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))


def batch_norm() -> nn.Module:
    model = Convolution()
    model(torch.randn(16, 1, 8, 8))  # running statistics that are not the initial ones
    return model


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 3))


MODELS = {
    "plain": (mlp, (5, 4)),
    "tied": (Tied, (5, 4)),
    "batch norm": (batch_norm, (5, 1, 8, 8)),
    "weight norm by hook": (old_weight_norm, (5, 4)),
    "weight norm by parametrization": (new_weight_norm, (5, 4)),
    "spectral norm by hook": (old_spectral_norm, (5, 4)),
    "spectral norm by parametrization": (new_spectral_norm, (5, 4)),
    "lstm": (Recurrent, (5, 6, 4)),
    "attention": (attention, (5, 5, 4)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().eval()
    return model, torch.randn(shape)


def everything(model: nn.Module) -> dict[str, object]:
    """All a module holds: parameters and buffers by identity and value, flags, plain tensors."""
    out: dict[str, object] = {}
    for place, module in model.named_modules():
        for leaf, value in module._parameters.items():
            out[f"{place}.{leaf}"] = (id(value), None if value is None else value.detach().clone().tolist())
        for leaf, value in module._buffers.items():
            out[f"{place}.{leaf}"] = (id(value), None if value is None else value.clone().tolist())
        for leaf, value in module.__dict__.items():
            if isinstance(value, Tensor):
                out[f"{place}.{leaf}"] = (id(value), value.detach().clone().tolist())
        out[f"{place} flags"] = (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
    out["wants gradients"] = [p.requires_grad for p in model.parameters()]
    out["gradients"] = [p.grad for p in model.parameters()]
    return out


@pytest.mark.parametrize("name", MODELS)
def test_a_noisy_world_equals_a_noisy_deep_copy(name: str) -> None:
    model, x = made(name)
    task = vd.Task(model, x, head="multiclass")
    before = everything(model)
    world, twin = task.with_noise(0.5, KEY), changed_copy(model, noisy(model, 0.5, KEY))
    with world.session() as runs:
        assert torch.equal(runs(x), twin(x))
    assert not torch.equal(world.outputs, task.outputs)
    slopes = []
    row = x.clone().requires_grad_(True)
    with world.session(grad=True) as runs:
        slopes.append(torch.autograd.grad(runs(row)[:, 0].sum(), row)[0])
    slopes.append(torch.autograd.grad(twin(row)[:, 0].sum(), row)[0])
    torch.testing.assert_close(*slopes, atol=1e-7, rtol=1e-6)
    assert everything(model) == before


def test_torchscript_is_copied_like_any_other() -> None:
    model, x = made("plain")
    scripted = torch.jit.script(model)
    before = {n: p.detach().clone() for n, p in scripted.named_parameters()}
    task = vd.Task(scripted, x)
    world = task.with_noise(0.5, KEY)
    with torch.no_grad():
        assert torch.equal(world.outputs, changed_copy(model, noisy(model, 0.5, KEY))(x))
    assert all(torch.equal(p, before[n]) for n, p in scripted.named_parameters())


# --- every captum class we use ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "Saliency",
        "InputXGradient",
        "IntegratedGradients",
        "DeepLift",
        "GuidedBackprop",
        "Deconvolution",
        "LRP",
    ],
)
def test_captum_explains_a_world_as_it_explains_a_noisy_copy(kind: str) -> None:
    import captum.attr as attr

    torch.manual_seed(0)
    # captum's LRP has rules for neither batch norm nor flattening
    model, x = (mlp(), torch.randn(3, 4)) if kind == "LRP" else (batch_norm(), torch.randn(3, 1, 8, 8))
    task = vd.Task(model.eval(), x, targets=[1, 1, 1])
    before = everything(model)
    method = _captum(getattr(attr, kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = vd.explain(method, task.with_noise(0.3, KEY)).values
        twin = changed_copy(model, noisy(model, 0.3, KEY))
        expected = getattr(attr, kind)(twin).attribute(x.clone().requires_grad_(True), target=1).detach()
        clean = vd.explain(method, task).values
    torch.testing.assert_close(got.flatten(), expected.flatten(), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(got, clean, atol=1e-4)
    assert everything(model) == before


def _captum(kind: type) -> vd.Explainer:
    from veridical.explainers import from_captum

    return from_captum(kind)


# --- noise --------------------------------------------------------------------------------------------------


def test_noise_is_keyed_by_name_and_drawn_for_one_layer_alike() -> None:
    model, _ = made("plain")
    whole = NoiseSource(model)(KEY)
    for name, value in model.named_parameters():
        assert torch.equal(whole[name], weight_noise(KEY, name, value.shape))
    assert set(NoiseSource(model, "2")(KEY)) == {"2.weight", "2.bias"}
    assert set(NoiseSource(model, "2.bias")(KEY)) == {"2.bias"}
    assert torch.equal(NoiseSource(model, "2")(KEY)["2.weight"], whole["2.weight"])
    with pytest.raises(UnknownNameError, match="no layer with parameters is called '1'"):
        NoiseSource(model, "1")


def test_wrappers_do_not_change_the_draw() -> None:
    model, x = made("plain")
    wrapped = nn.DataParallel(model)
    plain, parallel = (vd.Task(each, x).with_noise(0.5, KEY) for each in (model, wrapped))
    assert torch.equal(plain.outputs, parallel.outputs)


@pytest.mark.parametrize("step", [0.25, 1.0])
def test_steps_walk_the_straight_path(step: float) -> None:
    model, x = made("plain")
    world = vd.Task(model, x).with_noise(0.5, KEY, step=step)
    far = noisy(model, 0.5, KEY)
    clean = dict(model.named_parameters())
    part = {name: clean[name].detach() + step * (value - clean[name].detach()) for name, value in far.items()}
    torch.testing.assert_close(world.outputs, changed_copy(model, part)(x).detach())


def test_noise_upon_noise_uses_the_users_names_and_the_noisy_values() -> None:
    model, x = made("plain")
    task = vd.Task(model, x)
    once = task.with_noise(0.5, KEY)
    twice = once.with_noise(0.1, KEY / 1)
    first = noisy(model, 0.5, KEY)
    expected = {n: v * (1 + 0.1 * weight_noise(KEY / 1, n, v.shape)) for n, v in first.items()}
    torch.testing.assert_close(twice.outputs, changed_copy(model, expected)(x).detach())
    assert layers(once.model) == layers(model)
    assert once.reference is task
    assert twice.reference is task


def test_noise_that_reaches_nothing_says_so_each_time() -> None:
    class Deaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 3)
            self.used = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    task = vd.Task(Deaf(), torch.randn(3, 4))
    for _ in range(2):
        with pytest.warns(VeridicalWarning, match="weight noise changes no output"):
            task.with_noise(0.5, KEY, layer="unused")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.with_noise(0.5, KEY, layer="used")
        task.with_noise(0.0, KEY)
        task.with_noise(0.5, KEY)
    assert task.predictor.meter.cost.forward == 0


def test_models_without_weights_say_that_noise_cannot_be() -> None:
    task = vd.Task(lambda x: x * 2, torch.randn(3, 4))
    with pytest.raises(NotApplicableError, match="no floating-point parameters"):
        task.with_noise(0.5, KEY)


def test_names_and_shapes_are_checked() -> None:
    model, x = made("plain")
    task = vd.Task(model, x)
    with pytest.raises(UnknownNameError, match=r"did you mean '0\.weight'"):
        task.with_weights({"0.weigh": torch.ones(8, 4)})
    with pytest.raises(InputError, match=r"'0.weight' has shape \(8, 4\), got \(4, 8\)"):
        task.with_weights({"0.weight": torch.ones(4, 8)})


# --- randomised layers ------------------------------------------------------------------------------------


def test_layers_and_cascades() -> None:
    model, _ = made("batch norm")
    assert layers(model) == ["conv", "norm", "head"]
    assert cascade(model, "top_down") == [["head"], ["head", "norm"], ["head", "norm", "conv"]]
    assert cascade(model, "bottom_up") == [["conv"], ["conv", "norm"], ["conv", "norm", "head"]]
    assert cascade(model, "independent") == [["conv"], ["norm"], ["head"]]
    with pytest.raises(InputError, match="top_down"):
        cascade(model, "upwards")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_randomised_layers_are_keyed_and_leave_the_global_generator_alone(name: str) -> None:
    model, x = made(name)
    names = layers(model)
    before = everything(model)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    fresh = randomised(model, names, KEY)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(6)
    again = randomised(model, names, KEY)
    assert everything(model) == before
    assert set(fresh) == {n for n, _ in model.named_parameters()}
    assert all(torch.equal(fresh[n], again[n]) for n in fresh)
    other = randomised(model, names, KEY / 1)
    assert any(not torch.equal(fresh[n], other[n]) for n in fresh)
    for layer in names:
        own = randomised(model, [layer], KEY)
        if name != "tied":
            assert all(torch.equal(own[n], fresh[n]) for n in own)
    task = vd.Task(model, x)
    assert not torch.allclose(task.with_weights(fresh).outputs, task.outputs)


@pytest.mark.parametrize(
    "name", ["weight norm by hook", "spectral norm by hook", "weight norm by parametrization"]
)
def test_normed_layers_are_really_randomised(name: str) -> None:
    model, _ = made(name)
    fresh = randomised(model, layers(model), KEY)
    for place, value in model.named_parameters():
        if value.dim() > 1:
            assert not torch.allclose(fresh[place], value)


def test_an_unknown_layer_is_named_with_the_nearest() -> None:
    model, _ = made("batch norm")
    with pytest.raises(UnknownNameError, match="did you mean 'conv'"):
        randomised(model, ["convv"], KEY)
