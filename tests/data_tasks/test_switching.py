"""Switches inside a model: each kind of unit and each kind of off against the same thing done by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, ShapeError, VeridicalError

TEXTS = ["Ann has a cat. Bob has a dog. Bob has a", "Ann has a dog. Bob has a cat. Bob has a"]
TOKENS = Words(*TEXTS)
MODEL = small_lm(TOKENS)


def prompt(order=(0, 1)):
    texts = [TEXTS[place] for place in order]
    return vd.models.Generation(MODEL, TOKENS, texts, [" dog", " cat"], foils=[" cat", " dog"])


def network():
    drawn = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=drawn) * 0.4)
    return (
        net,
        torch.randn(5, 1, 6, 6, generator=drawn).double(),
        torch.randn(5, 1, 6, 6, generator=drawn).double(),
    )


@torch.no_grad()
def by_hand(net, x, channel, instead):
    """The answer with one channel of the first layer replaced."""
    state = net[0](x)
    state[:, channel] = instead[:, channel]
    return net[1:](state)


@pytest.mark.parametrize("off", ["zero", "mean", "paired"])
def test_channels_against_the_network_taken_apart(off):
    net, x, other = network()
    task = vd.Task(net, x)
    state = net[0](other).detach()
    how = {
        "zero": (vd.models.Zeroed(), torch.zeros_like(state)),
        "mean": (vd.models.MeanOver(other), state.mean((0, 2, 3), keepdim=True).expand_as(state)),
        "paired": (vd.models.Counterfactual(other), state),
    }
    intervention, instead = how[off]
    switched = vd.data.switch(task, vd.models.Channels("0"), intervention)
    assert torch.equal(switched.predictor.outputs(switched.inputs, switched.side), task.outputs)
    assert torch.equal(switched.targets, task.targets)
    falls = vd.explain("occlusion", switched).values
    for channel in range(4):
        fell = task.outputs - by_hand(net, x, channel, instead)
        torch.testing.assert_close(falls[:, channel], fell.gather(1, task.targets[:, None])[:, 0])


def test_states_move_with_the_weights():
    net, x, other = network()
    for off in (vd.models.MeanOver(other), vd.models.Counterfactual(other)):
        noisy = vd.data.switch(vd.Task(net, x), vd.models.Channels("0"), off).with_noise(0.3, Key(3))
        weights = {n: p.clone() for n, p in noisy.predictor.unwrapped.module.named_parameters()}
        there, _, _ = network()
        there.load_state_dict(weights)
        again = vd.data.switch(vd.Task(there, x), vd.models.Channels("0"), off)
        gates = noisy.inputs.clone()
        gates[:, 1:3] = 0
        torch.testing.assert_close(noisy.with_inputs(gates).outputs, again.with_inputs(gates).outputs)


@torch.no_grad()
def test_heads_of_a_language_model_against_its_weights():
    task = prompt()
    switched = vd.data.switch(task, vd.models.Heads())
    assert switched.space.names[5] == "layer 1 head 1"
    assert len(switched.space.names) == 8
    falls = vd.explain("occlusion", switched).values
    for unit in (0, 5):
        other = small_lm(TOKENS)
        # a head that is off reaches the projection as zeros
        other.blocks[unit // 4].attn.out_proj.weight[:, 4 * (unit % 4) : 4 * (unit % 4) + 4] = 0
        there = vd.models.Generation(other, TOKENS, TEXTS, [" dog", " cat"], foils=[" cat", " dog"])
        torch.testing.assert_close(falls[:, unit], task.outputs[:, 0] - there.outputs[:, 0])


def test_the_gradient_of_gates_is_attribution_patching():
    """d/dg of g a + (1 - g) a' is the gradient at the state times (a - a')."""
    net, x, other = network()
    task = vd.Task(net, x)
    found = vd.explain(
        "gradient", vd.data.switch(task, vd.models.Channels("0"), vd.models.Counterfactual(other))
    ).values
    state = net[0](x).detach().requires_grad_()
    (slope,) = torch.autograd.grad(net[1:](state).gather(1, task.targets[:, None]).sum(), state)
    want = (slope * (state - net[0](other))).sum((2, 3)).detach()
    torch.testing.assert_close(found, want)


def test_paired_prompts_patch_heads():
    switched = vd.data.switch(prompt(), vd.models.Heads(), vd.models.Counterfactual(prompt((1, 0))))
    everything = switched.with_inputs(torch.zeros_like(switched.inputs)).outputs
    assert not torch.allclose(everything, switched.outputs)
    same = vd.data.switch(prompt(), vd.models.Heads(), vd.models.Counterfactual(prompt()))
    torch.testing.assert_close(same.with_inputs(torch.zeros_like(same.inputs)).outputs, same.outputs)


def test_blocks_and_feed_forward_layers():
    blocks = vd.data.switch(prompt(), vd.models.Blocks())
    off = blocks.with_inputs(torch.zeros_like(blocks.inputs)).outputs
    empty = vd.models.Generation(
        small_lm(TOKENS, depth=2), TOKENS, TEXTS, [" dog", " cat"], foils=[" cat", " dog"]
    ).predictor.source.module.model
    empty.blocks = nn.ModuleList()
    there = vd.models.Generation(empty, TOKENS, TEXTS, [" dog", " cat"], foils=[" cat", " dog"])
    torch.testing.assert_close(off[:, 0], there.outputs[:, 0])
    assert vd.data.switch(prompt(), [vd.models.Mlps(), vd.models.Heads()]).space.n_features == 2 + 8


class AddsItself(nn.Module):
    """A feed-forward layer that is given what it adds to, as those of BLOOM and MPT are."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, hidden, residual):
        return self.inner(hidden) + residual


class Carries(nn.Module):
    def __init__(self, by_name):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.mlp, self.head, self.by_name = nn.LayerNorm(4), AddsItself(), nn.Linear(4, 3), by_name

    def forward(self, x):
        normed = self.norm(x)
        return self.head(self.mlp(normed, residual=x) if self.by_name else self.mlp(normed, x))


@pytest.mark.parametrize("by_name", [True, False])
def test_a_feed_forward_layer_that_adds_itself_leaves_what_it_adds_to(by_name):
    net = Carries(by_name).double().eval()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    switched = vd.data.switch(vd.Task(net, x), vd.models.Mlps())
    off = switched.with_inputs(torch.zeros_like(switched.inputs)).outputs
    torch.testing.assert_close(off, net.head(x).detach())
    # a block of this kind hands its sum on apart from its answer: nothing here says what it adds
    with pytest.raises(NotApplicableError, match="residual"):
        vd.data.switch(vd.Task(net, x), vd.models.Blocks("mlp"))


class Dictionary:
    def __init__(self, width):
        self.atoms = torch.randn(width, width + 3, generator=torch.Generator().manual_seed(0)).double()

    def encode(self, states):
        return (states @ self.atoms).relu()

    def decode(self, codes):
        return codes @ self.atoms.T


def test_atoms_leave_what_the_dictionary_does_not_tell():
    x = network()[1]
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, 3)).double()
    task, made = vd.Task(body, x), Dictionary(5)
    switched = vd.data.switch(task, vd.models.Atoms("1", made, atoms=(6, 2)))
    assert torch.equal(switched.predictor.outputs(switched.inputs, switched.side), task.outputs)
    state = body[1](body[0](x))
    codes = made.encode(state)
    less = codes.clone()
    less[:, 6] = 0
    want = body[2](state + made.decode(less) - made.decode(codes)).detach()
    gates = switched.inputs.clone()
    gates[:, 0] = 0
    torch.testing.assert_close(switched.with_inputs(gates).outputs, want)


@pytest.mark.parametrize("kind", [vd.models.Heads, vd.models.Mlps, vd.models.Blocks, vd.models.Channels])
def test_no_layers_are_not_all_layers_and_units_are_given_once(kind):
    for nothing in ((), [], ""):
        with pytest.raises(InputError, match="names no layer"):
            kind(nothing)
    if kind is not vd.models.Channels:
        with pytest.raises(InputError, match="given twice"):
            vd.data.switch(prompt(), [kind(), kind()])


def test_what_cannot_be_switched_is_refused():
    net, x, other = network()
    task = vd.Task(net, x)
    with pytest.raises(VeridicalError, match="no layer is called 'nowhere'"):
        vd.data.switch(task, vd.models.Channels("nowhere"))
    with pytest.raises(InputError, match="name of a layer"):
        vd.data.switch(task, vd.models.Channels())
    with pytest.raises(NotApplicableError, match="no attention layer"):
        vd.data.switch(task, vd.models.Heads())
    with pytest.raises(ShapeError, match="one for each"):
        vd.data.switch(task, vd.models.Channels("0"), vd.models.Counterfactual(other[:2]))
    with pytest.raises(NotApplicableError, match="no torch module"):
        vd.data.switch(vd.Task(lambda rows: rows[:, 0, 0, :3], x), vd.models.Channels("0"))
    with pytest.raises(NotApplicableError, match="unperturbed"):
        vd.data.switch(task.with_noise(0.1, Key(0)), vd.models.Channels("0"))
    switched = vd.data.switch(task, vd.models.Channels("0"))
    with pytest.raises(NotApplicableError, match="switched already"):
        vd.data.switch(switched, vd.models.Channels("0"))
    with pytest.raises(InputError, match="side inputs"):
        vd.data.switch(prompt(), vd.models.Heads(), vd.models.MeanOver(torch.ones(3, 3)))
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, rows):
            return self.attention(rows, rows, rows)[0].mean(1)

    with pytest.raises(NotApplicableError, match="out of reach"):
        vd.data.switch(vd.Task(Own(), torch.randn(2, 3, 4)), vd.models.Heads())
    long = vd.models.Generation(
        MODEL, TOKENS, [t + " dog. Bob has a" for t in TEXTS], [" dog", " cat"], foils=[" cat", " dog"]
    )
    with pytest.raises(ShapeError, match="equally many tokens"):
        vd.data.switch(prompt(), vd.models.Heads(), vd.models.Counterfactual(long))


def test_a_subset_has_its_own_pairs_and_the_callers_model_no_hooks():
    net, x, other = network()
    switched = vd.data.switch(vd.Task(net, x), vd.models.Channels("0"), vd.models.Counterfactual(other))
    whole = vd.explain("occlusion", switched).values
    torch.testing.assert_close(vd.explain("occlusion", switched[[3, 1]]).values, whole[[3, 1]])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_binary_and_token_tasks_keep_their_outputs():
    drawn = torch.Generator().manual_seed(2)
    body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    task = vd.Task(body, torch.randn(3, 4, generator=drawn).double(), head="binary")
    switched = vd.data.switch(task, vd.models.Channels("1"))
    assert torch.equal(switched.predictor.outputs(switched.inputs, switched.side), task.outputs)
    text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    words = vd.Task(text, torch.randint(9, (3, 3), generator=drawn))
    assert vd.explain("gradient", vd.data.switch(words, vd.models.Channels("0"))).values.shape == (3, 4)
