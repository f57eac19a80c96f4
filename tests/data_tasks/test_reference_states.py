"""What stands in for units that are off: its rows are counted, padding has no part in it, pairs lie over
each other token by token."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import veridical as vd
from tests.data_tasks.test_switching import TEXTS, TOKENS, network, prompt
from tests.reference.small_lm import Words, small_lm
from veridical.core.key import Key
from veridical.data.switching import reference_cost
from veridical.errors import ShapeError
from veridical.explainers.base import registry as explainers
from veridical.gef.worlds import Worlds

METHODS = ["occlusion", "exact_shapley", "gradient", "integrated_gradients", "kernel_shap"]


def switched(off):
    if off == "zero":
        return vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn",)))
    how = vd.models.MeanOver(prompt((1, 1))) if off == "mean" else vd.models.Counterfactual(prompt((1, 0)))
    return vd.data.switch(prompt(), vd.models.Heads(("blocks.1.attn",)), how)


@pytest.mark.parametrize("off", ["zero", "mean", "paired"])
@pytest.mark.parametrize("name", METHODS)
def test_rows_of_reference_states_are_declared_and_counted(off, name):
    """Whoever asks first pays for them, as for a table of subsets."""
    task, method = switched(off), explainers.make(name)
    further = reference_cost(task)
    assert further.forward == {"zero": 0, "mean": 2, "paired": 2}[off]
    own = method.declared(task)
    assert vd.explain(name, task).cost == own + further
    task.mask_answers.clear()
    assert vd.explain(name, task).cost == own


@pytest.mark.parametrize("off", ["mean", "paired"])
def test_every_weight_world_asks_anew(off):
    task = switched(off)
    own, worlds = explainers.make("gradient").declared(task), Worlds(task)
    for level in (0.1, 0.2):
        assert vd.explain("gradient", worlds.at(level, Key(1))).cost == own + reference_cost(task)
    assert vd.explain("gradient", task).cost == own + reference_cost(task)


def test_counts_reach_copies_and_other_processes():
    task = pickle.loads(pickle.dumps(switched("paired")))
    own = explainers.make("gradient").declared(task)
    assert vd.explain("gradient", task).cost == own + reference_cost(task)
    module = task.predictor.source.module
    assert copy.deepcopy(module).meter is module.meter is task.predictor.meter


def test_an_estimate_has_them_too():
    with_mean, without = (vd.data.estimate(switched(off), ["gradient"]).cost for off in ("mean", "zero"))
    assert with_mean.forward - without.forward == 2


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


def test_answers_of_other_lengths_are_no_pair():
    model = small_lm(TOKENS)
    one, two = (
        vd.models.Generation(model, TOKENS, TEXTS, answers)
        for answers in ([" dog", " cat. Bob"], [" dog. Bob", " cat"])
    )
    with pytest.raises(ShapeError, match=r"the answer to prompt 0 has 1 tokens and its pair 3"):
        vd.data.switch(one, vd.models.Heads(), vd.models.Counterfactual(two))


def test_channels_of_pictures_count_their_pairs():
    net, x, other = network()
    task = vd.data.switch(vd.Task(net, x), vd.models.Channels("0"), vd.models.Counterfactual(other))
    assert vd.explain("gradient", task).cost == vd.models.Cost(2 * len(x), len(x))
