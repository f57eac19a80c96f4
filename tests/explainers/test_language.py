"""Value zeroing and ReAGent against the formulas, written out for a network taken apart."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
from tests.data_tests.test_generation import ANSWERS, FOILS, MODEL, PROMPTS, QUESTIONS, TOKENS, made
from veridical.errors import NotApplicableError
from veridical.explainers.base import applicable
from veridical.explainers.layout import places


@torch.no_grad()
def turned(ids):
    """How far each token's state turns behind each block where another's value is zero (layers, L, L)."""
    length, x = len(ids), MODEL.embed(torch.tensor([ids])) + MODEL.positions(torch.arange(len(ids)))
    allowed = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    out = []
    for block in MODEL.blocks:
        heads = block.attn.num_heads
        q, k, v = (
            part.reshape(1, length, heads, -1).transpose(1, 2)
            for part in block.attn.qkv(block.norm1(x)).chunk(3, -1)
        )
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~allowed, -1e9).softmax(-1)
        states = []
        for token in (None, *range(length)):
            value = v.clone()
            if token is not None:
                value[:, :, token] = 0
            y = x + block.attn.out_proj((weights @ value).transpose(1, 2).reshape(1, length, -1))
            states.append(y + block.mlp(block.norm2(y)))
        x = states[0]
        cosines = [torch.cosine_similarity(x, moved, -1)[0] for moved in states[1:]]
        out.append(1 - torch.stack(cosines, -1))
    return out


@pytest.mark.parametrize("foils", [None, FOILS, [" cat. It rains", " tea"]])
def test_value_zeroing_is_what_blocks_taken_apart_say(foils):
    task = made(foils=foils)
    found = vd.explain("value_zeroing", task)
    for place, prompt in enumerate(task.prompts):
        mixing = torch.eye(len(prompt.ids)).double()
        for layer in turned(list(prompt.ids)):
            mixing = layer / layer.sum(-1, keepdim=True) @ mixing
        want = torch.zeros(len(prompt.units) + 1).double()
        # the last takes what belongs to no unit
        want.index_add_(0, torch.tensor(prompt.unit) % len(want), mixing[-1])
        torch.testing.assert_close(found.values[place, : len(prompt.units)], want[:-1], atol=1e-9, rtol=0)
    assert found.cost.forward == len(task) * (1 + places(task))


@pytest.mark.parametrize("foils", [None, FOILS])
def test_reagent_of_sets_of_one_unit(foils):
    """A third of the sets holds each of three units: it gains its own log-odds, and loses those of others."""
    given = {"answers": ANSWERS[:1], "questions": QUESTIONS[:1], "prompts": PROMPTS[:1]}
    task = made(foils=foils and foils[:1], **given)
    clean, falls = task.outputs[0, 0], vd.explain("occlusion", task).values[0]
    chance = torch.sigmoid if foils else torch.exp
    lost = torch.logit((1 + chance(clean) - chance(clean - falls)) / 2)
    found = vd.explain("reagent", task, share=0.1, draws=20_000).values[0]
    want = (2 * lost - lost.sum()) / 3
    torch.testing.assert_close(found, want, atol=0.03 * float(lost.abs().max()), rtol=0)


def test_what_they_do_not_read_is_refused():
    sure = vd.models.Generation(MODEL, TOKENS, PROMPTS, ANSWERS, questions=QUESTIONS, wanted="entropy")
    with pytest.raises(NotApplicableError, match="something else"):
        vd.explain("reagent", sure)
    with pytest.raises(NotApplicableError, match="no logits"):
        vd.explain("value_zeroing", sure)
    assert "occlusion" in applicable(sure)
    assert not {"reagent", "attention_rollout", "lrp_epsilon"} & set(applicable(sure))
    heads = vd.data.switch(made(), vd.models.Heads())
    with pytest.raises(NotApplicableError, match="units of this task are inside"):
        vd.explain("value_zeroing", heads)
    assert vd.explain("reagent", heads).values.shape == heads.inputs.shape
