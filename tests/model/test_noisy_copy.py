"""A model under other weights equals a changed deep copy, and the user's own module is never touched."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Convolution, Recurrent, Text, Tied, mlp
from veridical.errors import InputError, NotApplicableError, UnknownNameError, VeridicalWarning
from veridical.model.noisy_copy import WeightView, cascade, layers, noisy, parameters, randomised, swapped
from veridical.random.keyed import Key, parameter_noise

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


def detached(model: nn.Module) -> nn.Module:
    """A deep copy, also of modules whose hook left a computed weight behind."""
    for module in model.modules():
        for name, value in list(module.__dict__.items()):
            if isinstance(value, Tensor):
                module.__dict__[name] = value.detach()
    return copy.deepcopy(model)


def changed_copy(model: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    twin = detached(model)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in tensors:
                value.copy_(tensors[name])
    return twin


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
def test_the_view_equals_a_noisy_deep_copy(name: str) -> None:
    model, x = made(name)
    tensors = noisy(model, 0.5, KEY)
    twin = changed_copy(model, tensors)
    view = WeightView(model, tensors).eval()
    before = everything(model)
    with torch.no_grad():
        assert torch.equal(view(x), twin(x))
        assert not torch.equal(view(x), model(x))
    assert everything(model) == before or name.endswith("by hook")
    slopes = []
    for runs in (view, twin):
        row = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(runs(row)[:, 0].sum(), row)
        slopes.append(slope)
    torch.testing.assert_close(*slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_users_module_stays_bit_identical(name: str) -> None:
    model, x = made(name)
    view = WeightView(model, noisy(model, 0.5, KEY)).eval()
    before = everything(model)
    view(x)
    assert everything(model) == before
    row = x.clone().requires_grad_(True)
    view(row).sum().backward()
    assert everything(model) == before
    with torch.no_grad():
        first, second = model(x), model(x)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["plain", "weight norm by hook", "lstm"])
def test_the_users_module_stays_bit_identical_after_an_exception(name: str) -> None:
    model, x = made(name)
    with torch.no_grad():
        expected = model(x)
    before = everything(model)
    view = WeightView(model, noisy(model, 0.5, KEY)).eval()
    with pytest.raises(RuntimeError):
        view(x[..., :-1])
    hook = list(model.children())[-1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        view(x)
    hook.remove()
    assert everything(model) == before
    with torch.no_grad():
        assert torch.equal(model(x), expected)


def test_swapped_restores_a_recurrent_layers_flat_list() -> None:
    model, _ = made("lstm")
    flat, refs = model.lstm._flat_weights, model.lstm._flat_weight_refs
    with swapped(model, noisy(model, 0.5, KEY)):
        assert model.lstm._flat_weights is not flat
        model(torch.randn(2, 3, 4))
    assert model.lstm._flat_weights is flat
    assert model.lstm._flat_weight_refs is refs
    assert all(a is b for a, b in zip(flat, model.lstm.parameters(), strict=True))


def test_torchscript_runs_through_a_copy() -> None:
    model, x = made("plain")
    scripted = torch.jit.script(model)
    tensors = noisy(scripted, 0.5, KEY)
    before = {n: p.detach().clone() for n, p in scripted.named_parameters()}
    with torch.no_grad():
        assert torch.equal(WeightView(scripted, tensors)(x), changed_copy(model, tensors)(x))
        assert torch.equal(scripted(x), model(x))
    assert all(torch.equal(p, before[n]) for n, p in scripted.named_parameters())
    task = vd.Task(scripted, x)
    assert not torch.equal(task.with_noise(0.5, KEY).outputs, task.outputs)


def test_requires_grad_is_kept() -> None:
    model, x = made("plain")
    model[0].weight.requires_grad_(False)
    view = WeightView(model, noisy(model, 0.5, KEY))
    assert [view.tensors[n].requires_grad for n, _ in model.named_parameters()] == [False, True, True, True]
    view(x).sum().backward()
    assert model[2].weight.grad is None


# --- every captum class we use ------------------------------------------------------------------------------


def captum_maps(kind: str, runs: nn.Module, convolution: nn.Module, x: Tensor) -> Tensor:
    import captum.attr as attr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "LayerGradCam":
            return attr.LayerGradCam(runs, convolution).attribute(x, target=1)
        return getattr(attr, kind)(runs).attribute(x, target=1)


@pytest.mark.parametrize(
    "kind",
    ["Saliency", "InputXGradient", "IntegratedGradients", "DeepLift", "GuidedBackprop", "Deconvolution",
     "LRP", "LayerGradCam"],
)  # fmt: skip
def test_captum_explains_the_view_as_it_explains_a_noisy_copy(kind: str) -> None:
    torch.manual_seed(0)
    # captum's LRP has rules for neither batch norm nor flattening
    model, x = (mlp(), torch.randn(3, 4)) if kind == "LRP" else (batch_norm(), torch.randn(3, 1, 8, 8))
    model.eval()
    inside = "0" if kind == "LRP" else "conv"
    convolution = model.get_submodule(inside)
    tensors = noisy(model, 0.3, KEY)
    twin = changed_copy(model, tensors)
    before = everything(model)
    view = WeightView(model, tensors).eval()
    got = captum_maps(kind, view, convolution, x.clone())
    expected = captum_maps(kind, twin, twin.get_submodule(inside), x.clone())
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    clean = detached(model)
    assert not torch.allclose(
        got, captum_maps(kind, clean, clean.get_submodule(inside), x.clone()), atol=1e-4
    )
    assert everything(model) == before


# --- noise --------------------------------------------------------------------------------------------------


def test_noise_is_multiplicative_and_keyed_by_name() -> None:
    model, _ = made("plain")
    tensors = noisy(model, 0.25, KEY)
    for name, value in model.named_parameters():
        eta = 1 + 0.25 * parameter_noise(KEY, name, value.shape)
        torch.testing.assert_close(tensors[name], value.detach() * eta)


def test_noise_on_one_layer_leaves_the_others() -> None:
    model, _ = made("plain")
    assert set(noisy(model, 0.5, KEY, layer="2")) == {"2.weight", "2.bias"}
    assert set(noisy(model, 0.5, KEY, layer="2.bias")) == {"2.bias"}
    whole = noisy(model, 0.5, KEY)
    assert torch.equal(noisy(model, 0.5, KEY, layer="2")["2.weight"], whole["2.weight"])
    with pytest.raises(UnknownNameError, match="no layer with parameters is called '1'"):
        noisy(model, 0.5, KEY, layer="1")


@pytest.mark.parametrize("step", [0.25, 1.0])
def test_steps_walk_the_straight_path(step: float) -> None:
    model, _ = made("plain")
    far, part = noisy(model, 0.5, KEY), noisy(model, 0.5, KEY, step=step)
    for name, value in model.named_parameters():
        torch.testing.assert_close(part[name], value.detach() + step * (far[name] - value.detach()))


def test_buffers_get_no_noise() -> None:
    model, _ = made("batch norm")
    assert set(noisy(model, 0.5, KEY)) == {n for n, _ in model.named_parameters()}


def test_noise_upon_noise_uses_the_users_names_and_the_noisy_values() -> None:
    model, x = made("plain")
    task = vd.Task(model, x)
    once = task.with_noise(0.5, KEY)
    twice = once.with_noise(0.1, KEY / 1)
    first = noisy(model, 0.5, KEY)
    expected = {n: v * (1 + 0.1 * parameter_noise(KEY / 1, n, v.shape)) for n, v in first.items()}
    torch.testing.assert_close(twice.outputs, changed_copy(model, expected)(x).detach())
    assert layers(once.model) == layers(model)
    assert set(parameters(once.model)) == set(parameters(model))
    assert once.reference is task
    assert twice.reference is task


def test_a_view_that_is_copied_to_another_precision_takes_its_tensors_along() -> None:
    model, x = made("plain")
    view = WeightView(model, noisy(model, 0.5, KEY))
    wide = copy.deepcopy(view).double()
    assert all(v.dtype == torch.float64 for v in wide.tensors.values())
    torch.testing.assert_close(wide(x.double()).float(), view(x))
    assert model[0].weight.dtype == torch.float32


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
    assert task.predictor.meter.forward == 0


def test_models_without_weights_say_that_noise_cannot_be() -> None:
    task = vd.Task(lambda x: x * 2, torch.randn(3, 4))
    with pytest.raises(NotApplicableError, match="no floating-point parameters"):
        task.with_noise(0.5, KEY)


def test_names_and_shapes_are_checked() -> None:
    model, _ = made("plain")
    with pytest.raises(UnknownNameError, match=r"did you mean '0\.weight'"):
        WeightView(model, {"0.weigh": torch.ones(8, 4)})
    with pytest.raises(InputError, match=r"'0.weight' has shape \(8, 4\), got \(4, 8\)"):
        WeightView(model, {"0.weight": torch.ones(4, 8)})


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
    with torch.no_grad():
        assert not torch.allclose(WeightView(model, fresh).eval()(x), model(x))


@pytest.mark.parametrize(
    "name", ["weight norm by hook", "spectral norm by hook", "weight norm by parametrization"]
)
def test_normed_layers_are_really_randomised(name: str) -> None:
    model, _ = made(name)
    fresh = randomised(model, layers(model), KEY)
    for place, value in model.named_parameters():
        if value.dim() > 1:
            assert not torch.allclose(fresh[place], value)


def test_layers_use_their_own_initialisation() -> None:
    model = nn.Sequential(nn.Linear(400, 300), nn.BatchNorm1d(300))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(9.0)
    fresh = randomised(model, ["0", "1"], KEY)
    assert float(fresh["0.weight"].abs().max()) <= 1 / 20
    assert bool((fresh["1.weight"] == 1).all())


def test_an_unknown_layer_is_named_with_the_nearest() -> None:
    model, _ = made("batch norm")
    with pytest.raises(UnknownNameError, match="did you mean 'conv'"):
        randomised(model, ["convv"], KEY)


def test_embeddings_under_noise_are_made_by_the_noisy_weights() -> None:
    torch.manual_seed(0)
    model = Text()
    tokens = torch.randint(0, 20, (3, 5))
    tensors = noisy(model, 0.4, KEY)
    task = vd.Task(model, tokens).with_weights(tensors)
    twin = changed_copy(model, tensors)
    at = task.at_embeddings()
    torch.testing.assert_close(at.inputs, twin.words(tokens).detach())
    torch.testing.assert_close(at.outputs, twin(tokens).detach())
