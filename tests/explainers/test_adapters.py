"""Other packages' methods through our door: equal to calling them directly, counted, under noise too."""

import copy
import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from captum import attr
from torch import nn

from veridical.errors import InputError
from veridical.explainers import LrpEpsilon, from_captum, from_shap, from_zennit
from veridical.fill import Constant
from veridical.predictor import Plan
from veridical.rng import Key
from veridical.space import Space
from veridical.task import Task


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def image_task() -> Task:
    torch.manual_seed(1)
    return Task(network(), torch.rand(5, 1, 8, 8).double(), space=Space.elements((1, 8, 8)))


@pytest.mark.parametrize(
    ("method", "kwargs"),
    [
        (attr.IntegratedGradients, {"n_steps": 8}),
        (attr.Saliency, {"abs": False}),
        (attr.DeepLift, {}),
        (attr.GuidedBackprop, {}),
        (attr.FeatureAblation, {}),
        (attr.Occlusion, {"sliding_window_shapes": (1, 3, 3)}),
    ],
)
def test_captum_classes_and_objects_equal_the_direct_call(method, kwargs):
    task = image_task()
    direct = (
        method(task.predictor.model).attribute(task.inputs, target=task.targets, **kwargs).detach().flatten(1)
    )
    elsewhere = method(copy.deepcopy(network()))
    for given in (method, elsewhere):
        found = from_captum(given, **kwargs)(task.with_plan(Plan(rows=16)), Key(0))
        assert torch.allclose(found.values, direct, atol=1e-9)
        assert found.cost.forward > 0
    assert json.dumps(dict(found.provenance))


def test_captum_objects_see_noisy_weights():
    task = image_task()
    noisy = task.with_noise(0.3, Key(1))
    twin = copy.deepcopy(task.predictor.model)
    twin.load_state_dict({**twin.state_dict(), **noisy.predictor.model.tensors})
    bound = attr.IntegratedGradients(task.predictor.model)
    truth = attr.IntegratedGradients(twin).attribute(task.inputs, target=task.targets, n_steps=8).flatten(1)
    assert torch.allclose(from_captum(bound, n_steps=8)(noisy).values, truth, atol=1e-9)
    assert bound.forward_func is task.predictor.model


def test_captum_layer_methods_and_noise_tunnels():
    task = image_task()
    layer = task.predictor.model[2]
    cam = from_captum(lambda model: attr.LayerGradCam(model, layer))(task)
    assert cam.values.shape == (5, 64)
    tunnel = attr.NoiseTunnel(attr.Saliency(task.predictor.model))
    smooth = from_captum(tunnel, nt_samples=4, stdevs=0.1)
    assert smooth.stochastic
    assert torch.equal(smooth(task, Key(0)).values, smooth(task, Key(0)).values)
    assert not torch.equal(smooth(task, Key(0)).values, smooth(task, Key(1)).values)


def test_captum_with_named_side_inputs_on_text():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids, mask):
            return self.head((self.embed(ids) * mask[..., None]).sum(1))

    torch.manual_seed(2)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    task = Task(Bag().double(), torch.randint(0, 9, (2, 5)), side={"mask": mask}, space=Space.tokens(5, mask))
    found = from_captum(attr.InputXGradient)(task).values
    weight = task.predictor.model.head.weight[task.targets]
    truth = (task.predictor.model.embed(task.inputs) * weight[:, None]).sum(-1) * mask
    assert torch.allclose(found, truth, atol=1e-9)


class EpsilonComposite:
    """A stand-in for zennit: hooks that turn gradients of linear layers into shares of relevance."""

    def __init__(self, epsilon: float = 1e-9) -> None:
        self.epsilon = epsilon

    @contextmanager
    def context(self, module: nn.Module):
        handles, kept = [], {}

        def before(layer, inputs):
            kept[layer] = inputs[0].detach()

        def backward(layer, _grad_inputs, grad_outputs):
            # like zennit, this reads the layer's weights in the backward pass
            a = kept[layer].requires_grad_(True)
            with torch.enable_grad():
                z = layer.forward(a)
                push = torch.where(z >= 0, self.epsilon, -self.epsilon)
                (g,) = torch.autograd.grad(z, a, grad_outputs[0] / (z + push))
            return (a.detach() * g,)

        def keep(_layer, _grad_inputs, grad_outputs):
            return (grad_outputs[0],)

        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                handles += [
                    layer.register_forward_pre_hook(before),
                    layer.register_full_backward_hook(backward),
                ]
            elif isinstance(layer, nn.ReLU):
                handles.append(layer.register_full_backward_hook(keep))
        try:
            yield module
        finally:
            for handle in handles:
                handle.remove()


def test_zennit_composites_by_their_interface():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    task = Task(model, torch.randn(4, 6).double())
    ours, theirs = LrpEpsilon(1e-9), from_zennit(EpsilonComposite())
    for given in (task, task.with_noise(0.3, Key(1))):
        y = given.outputs.gather(1, given.targets[:, None])
        assert torch.allclose(
            theirs(given).values * y, ours(given).values, atol=1e-7
        )  # relevance starts at 1
    assert theirs.name == "zennit EpsilonComposite"
    with pytest.raises(InputError, match="context"):
        from_zennit(object())


class LinearShap:
    """A stand-in for a shap explainer with the older interface: exact for linear models."""

    def __init__(self, predict, background) -> None:
        self.predict, self.background = predict, background

    def shap_values(self, rows):
        base = self.background.mean(0)
        each = [self.predict(np.where(np.arange(len(base)) == i, rows, base)) for i in range(len(base))]
        return list(np.moveaxis(np.stack(each, 1) - self.predict(base[None])[:, None], -1, 0))


def test_shap_explainers_by_their_interface():
    torch.manual_seed(4)
    model, x, train = nn.Linear(5, 3).double(), torch.randn(4, 5).double(), torch.randn(20, 5).double()
    task = Task(model, x, train=train)
    found = from_shap(LinearShap)(task)
    assert torch.allclose(found.values, (x - train.mean(0)) * model.weight[task.targets].detach(), atol=1e-9)
    assert found.explainer == "shap LinearShap"
    assert found.cost.forward == 4 * 5 + 1


@pytest.mark.extras
def test_shap_itself():
    shap = pytest.importorskip("shap")
    torch.manual_seed(5)
    model, x, train = nn.Linear(5, 3), torch.randn(3, 5), torch.randn(12, 5)
    task = Task(model, x, train=train, fill=Constant(0.0))
    truth = (x - train.mean(0)) * model.weight[task.targets].detach()

    def kernel(predict, background):
        return shap.KernelExplainer(predict, background)

    def expected_gradients(model, background):
        return shap.GradientExplainer(model, background)

    assert torch.allclose(from_shap(kernel, silent=True)(task).values.float(), truth, atol=1e-4)
    drawn = from_shap(expected_gradients, nsamples=2000)(task, Key(0)).values
    assert torch.allclose(drawn, truth, atol=0.2)
    assert torch.equal(drawn, from_shap(expected_gradients, nsamples=2000)(task, Key(0)).values)
