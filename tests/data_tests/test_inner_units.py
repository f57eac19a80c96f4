"""Switches inside a model, against the same thing done by hand."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import veridical as vd
from tests.data_tests.test_generation import ANSWERS, FOILS, PROMPTS, QUESTIONS, made
from tests.reference.small_lm import Words, small_lm
from veridical.core.key import Key
from veridical.errors import NotApplicableError, ShapeError, VeridicalError
from veridical.explainers.base import registry as explainers
from veridical.gef.perturbed_model import PerturbedModels
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.base import registry as metrics
from veridical.models.cost import Cost

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


class HiddenHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, rows):
        return self.attention(rows, rows, rows)[0].mean(1)


def test_what_cannot_be_switched_is_refused():
    net, x, other = network()
    task, channels = vd.Task(net, x), vd.models.Channels("0")
    rows = torch.randn(2, 3, 4)
    for given, units, off, error, message in (
        (task, vd.models.Channels("nowhere"), None, VeridicalError, "no layer is called 'nowhere'"),
        (task, vd.models.Heads(), None, NotApplicableError, "no projection is found"),
        (task, channels, vd.models.Counterfactual(other[:2]), ShapeError, "one for each"),
        (task.with_noise(0.1, Key(0)), channels, None, NotApplicableError, "unperturbed"),
        (vd.data.switch(task, channels), channels, None, NotApplicableError, "switched already"),
        (vd.Task(HiddenHeads(), rows), vd.models.Heads(), None, NotApplicableError, "out of reach"),
    ):
        with pytest.raises(error, match=message):
            vd.data.switch(given, units, off or vd.models.Zeroed())


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


# --- what stands in for units that are off --------------------------------------------------------------

METHODS = ["occlusion", "exact_shapley", "gradient", "integrated_gradients", "kernel_shap"]


def switched(off):
    if off == "zero":
        return vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn",)))
    how = vd.models.MeanOver(prompt((1, 1))) if off == "mean" else vd.models.Counterfactual(prompt((1, 0)))
    return vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn",)), how)


@pytest.mark.parametrize("off", ["zero", "mean", "paired"])
@pytest.mark.parametrize("name", METHODS)
def test_rows_of_reference_states_are_declared_and_counted(off, name):
    """Whoever asks first pays for them."""
    task, method = switched(off), explainers.make(name)
    further = Cost({"zero": 0, "mean": 2, "paired": 2}[off])
    own = method._declared(task)
    assert vd.explain(name, task).cost == own + further
    assert vd.explain(name, task).cost == own


@pytest.mark.parametrize("off", ["mean", "paired"])
def test_reference_states_are_evaluated_anew_under_other_weights(off):
    task = switched(off)
    own, worlds = explainers.make("gradient")._declared(task), PerturbedModels(task)
    for level in (0.1, 0.2):
        assert vd.explain("gradient", worlds.at(level, Key(1))).cost == own + Cost(2)
    assert vd.explain("gradient", task).cost == own + Cost(2)


@pytest.mark.parametrize("answers", [[" dog", " cat"], [" dog", " cat. Bob"], [" dog. Bob", " cat"]])
def test_padding_has_no_part_in_a_mean(answers):
    """The mean over short and long prompts is that over their tokens, however they are padded.

    The last token of an answer is judged, not read, whether or not another answer is longer.
    """
    texts = ["Ann has a", TEXTS[0]]
    both = vd.models.Generation(small_lm(TOKENS), TOKENS, texts, answers)
    seen = []
    for text, answer in zip(texts, answers, strict=True):
        model = small_lm(TOKENS)
        model.blocks[0].attn.out_proj.register_forward_pre_hook(lambda _m, given: seen.append(given[0][0]))
        with torch.no_grad():
            model(torch.tensor([TOKENS.encode(text + answer)[:-1]]))
    want = torch.cat(seen).mean(0)
    task = vd.data.switch(both, vd.models.Heads(("blocks.0.attn",)), vd.models.MeanOver(both))
    with task.session() as model:
        model(task.inputs, **task.side)
    (found,) = task.predictor.unwrapped._known["mean"]
    torch.testing.assert_close(found.flatten(), want)


def test_pairs_of_other_lengths_are_refused_though_the_sets_are_as_long():
    """Two prompts each, padded to the same length, but the short one stands at another place."""
    words = Words(*TEXTS)
    one, two = (
        vd.models.Generation(small_lm(words), words, texts, [" dog", " cat"])
        for texts in (["Ann has a", TEXTS[1]], [TEXTS[1], "Ann has a"])
    )
    with pytest.raises(ShapeError, match=r"^prompt 0 .* equally many tokens"):
        vd.data.switch(one, vd.models.Heads(), vd.models.Counterfactual(two))


# --- every metric on gates ------------------------------------------------------------------------------

SIX = {
    "prompts": PROMPTS * 3,
    "questions": QUESTIONS * 3,
    "answers": ANSWERS * 3,
    "foils": FOILS * 3,
}


def gated_tasks():
    net, x, other = network()
    yield "prompts", made(**SIX)
    yield "shorter prompts", made(**SIX, off="drop")
    yield (
        "channels",
        vd.data.switch(vd.Task(net, x), vd.models.Channels("0"), vd.models.Counterfactual(other)),
    )
    yield "heads", vd.data.switch(made(**SIX), vd.models.Heads(), vd.models.Zeroed())


TASKS = dict(gated_tasks())


@pytest.mark.parametrize("name", sorted(metrics))
def test_metrics(name):
    for kind, task in TASKS.items():
        metric = metrics.make(name)
        if isinstance(metric, ExplainerMetric) and "gef" in name and kind != "channels":
            continue  # GEF on prompts has tests of its own
        judged = "occlusion" if isinstance(metric, ExplainerMetric) else vd.explain("occlusion", task)
        if metric.inapplicable_reason(task) is not None:
            with pytest.raises(VeridicalError):
                vd.score(metric, task, judged)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = vd.score(metric, task, judged)
        assert scores.values.shape == (len(task),)
        if metric.category == "faithfulness":
            assert scores.values.isfinite().any(), kind


def test_a_fill_that_leaves_units_partly_on_is_refused():
    task = TASKS["prompts"]
    explanation = vd.explain("occlusion", task)
    for fill in (vd.fills.UniformNoise(), vd.fills.Constant(0.5)):
        with pytest.raises(VeridicalError, match="a unit that is off is 0"):
            vd.score("pixel_flipping", task.with_fill(fill), explanation)


def test_fid_of_a_prompt_is_the_fall_of_its_log_probability():
    task = TASKS["prompts"][[1, 3, 5]]
    explanation = vd.explain("occlusion", task)
    first = explanation.values.argmax(-1)
    gates = task.inputs.scatter(1, first[:, None], 0.0)
    fell = task.outputs - task.with_inputs(gates).outputs
    details = vd.score("fid_plus", task, explanation).details
    at = details["probability"].isfinite().double().argmax(-1, keepdim=True)
    torch.testing.assert_close(details["probability"].gather(1, at)[:, 0], fell[:, 0], atol=1e-7, rtol=0)
    torch.testing.assert_close(details["indicator"].gather(1, at)[:, 0], fell[:, 0], atol=1e-7, rtol=0)


# --- heads of encoders, which are joined in different places ---------------------------------------------

WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FOUND = {
    "Bert": {},
    "DistilBert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "MPNet": {},
    "ModernBert": {},
    "DebertaV2": {},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Llama": {"num_key_value_heads": 2},
    "T5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
}
REFUSED = {"ConvBert": {}, "SqueezeBert": {"embedding_size": 32}, "Nystromformer": {}}


def classifier(kind):
    transformers = pytest.importorskip("transformers")
    own = {**FOUND, **REFUSED}[kind]
    ends = {f"{token}_token_id": 1 for token in ("bos", "eos", "cls", "sep")}
    shape = {"vocab_size": 50, "num_labels": 3, "pad_token_id": 0, **ends}
    config = getattr(transformers, f"{kind}Config")(**shape, **WIDTHS, **own)
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.25)
    ids = torch.randint(5, 50, (3, 6))
    ids[:, -1] = 1
    return made, vd.Task(made, ids, side={"attention_mask": torch.ones_like(ids)})


class HeadOff(TorchFunctionMode):
    """Attention of the second head of the first layer gives zeros, wherever the model goes on from there."""

    done = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        attends = name == "scaled_dot_product_attention" or (name == "softmax" and made.ndim == 4)
        if attends and not self.done:
            self.done, made = True, made.clone()
            made[:, 1] = 0
        return made


@pytest.mark.extras
@pytest.mark.parametrize("kind", FOUND)
def test_heads_against_their_attention_switched_off(kind):
    made, task = classifier(kind)
    switched = vd.data.switch(task, vd.models.Heads())
    assert len(switched.space.names) == (24 if kind == "T5" else 8)  # with those between its halves
    gates = switched.inputs.clone()
    gates[:, 1] = 0
    with torch.no_grad(), HeadOff():
        expected = made(task.inputs, **task.side).logits
    assert not torch.allclose(expected, task.outputs, atol=1e-3)
    torch.testing.assert_close(switched.with_inputs(gates).outputs, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.extras
@pytest.mark.parametrize("kind", REFUSED)
def test_heads_that_are_joined_with_something_else_are_refused(kind):
    _, task = classifier(kind)
    with pytest.raises(NotApplicableError, match="no projection is found here that attention heads enter"):
        vd.data.switch(task, vd.models.Heads())


def test_heads_of_a_layer_that_is_named_and_of_one_that_only_the_caller_knows():
    whole = vd.data.switch(prompt(), vd.models.Heads())
    second = vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn",)))
    known = vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn.out_proj",), count=4))
    for task in (second, known):
        torch.testing.assert_close(
            vd.explain("occlusion", task).values, vd.explain("occlusion", whole).values[:, 4:]
        )
    with pytest.raises(NotApplicableError, match="enter side by side"):
        vd.data.switch(prompt(), vd.models.Heads(("blocks.1.mlp",)))
