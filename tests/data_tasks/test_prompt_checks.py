"""What is shown before a prompt is explained and beside its scores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.data_tasks.test_generation import made
from tests.reference.small_lm import Words
from veridical.errors import InputError

TEXTS = [
    "key b. foo bar. key b. foo foo.",
    "key a. foo bar. bar bar. foo foo.",
    "bar foo. foo bar. bar bar. foo foo.",
]
TOKENS = Words(*TEXTS, " a", " b")


class Counts(nn.Module):
    """Answers a word by whether it was there among the attended tokens, however often."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(torch.eye(len(TOKENS.pieces), dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        there = (self.embed(input_ids) * attention_mask[..., None]).cumsum(1).clamp(max=1)
        return self.scale * there


def task(**changes):
    return vd.models.Generation(
        Counts(), TOKENS, TEXTS, [" b", " a", " a"], foils=[" a", " b", " b"], **changes
    )


def test_redundant_units_are_flagged():
    found = vd.data.prompt_checks(task())
    assert found.redundant.tolist() == [True, False, False]
    assert found.sufficient[0].tolist() == [True, False, True, False]
    assert found.sufficient[1].tolist() == [True, False, False, False]
    assert any("each suffice" in flag for flag in found.flags(0))


def test_an_answer_that_needs_no_context_is_flagged():
    found = vd.data.prompt_checks(task())
    # the third prompt says nothing of the answer, which is as likely without it
    assert found.remembered.tolist() == [False, False, True]
    assert float(found.response[1]) == pytest.approx(4)
    assert float(found.response_without[1]) == pytest.approx(0)
    ids = TOKENS.encode(TEXTS[1])
    want = Counts()(torch.tensor([ids]), torch.ones(1, len(ids)))[0, -1].log_softmax(-1)[
        TOKENS.encode(" a")[0]
    ]
    assert float(found.log_probability[1]) == pytest.approx(float(want.detach()))


def test_fill_and_drop_are_compared():
    found = vd.data.prompt_checks(task())
    assert found.compared == "off='fill' and off='drop'"
    assert bool(found.same_first[1])
    assert float(found.off_agreement[1]) == pytest.approx(1)
    asked = task(off="drop", questions=[" foo"] * 3)
    assert vd.data.prompt_checks(asked).compared == "off='drop' and off='fill'"


def test_random_spans_as_long_as_the_first_unit():
    found = vd.data.prompt_checks(task(), spans=64)
    # of twelve tokens in threes only spans with the key word cost as much: one of nine
    assert float(found.random_spans[1]) == pytest.approx(1 / 9, abs=0.12)
    assert float(found.random_spans[2]) == 1  # nothing matters, so anything does as much
    same = vd.data.prompt_checks(task(), spans=64)
    assert torch.equal(found.random_spans, same.random_spans)
    assert "random spans" in str(found)
    assert found.to_json()["flags"][0]


def test_circular_pairs():
    found = vd.data.prompt_checks(
        task(), explainers=["occlusion"], metrics=["faithfulness_estimate", "insertion"]
    )
    assert found.circular == (("occlusion", "faithfulness_estimate"),)


def test_the_estimate_is_no_less_than_what_is_asked():
    names = ["occlusion", "exact_shapley", "kernel_shap", "lime", "gradient", "integrated_gradients"]
    prompts = made()
    told = vd.data.estimate(prompts, names)
    before = prompts.predictor.meter.cost
    for name in names:
        explanation = vd.explain(name, prompts)
        vd.score("pixel_flipping", prompts, explanation)
        vd.score("rfid_plus", prompts, explanation)
    spent = prompts.predictor.meter.cost - before
    assert spent.forward <= told.cost.forward
    assert spent.backward == told.cost.backward
    assert told.minutes > 0
    assert "too many" in str(vd.data.estimate(made(units="token"), names))


def test_token_scores_pool_upwards():
    fine, coarse = made(units="token"), made(units="sentence")
    explanation = vd.explain("gradient", fine)
    pooled = coarse.pooled(explanation, fine)
    # a gate of a sentence is the gate of all its tokens
    torch.testing.assert_close(pooled.values, vd.explain("gradient", coarse).values)
    words = made(units="word")
    torch.testing.assert_close(coarse.pooled(vd.explain("gradient", words), words).values, pooled.values)
    with pytest.raises(InputError, match="same prompts"):
        task().pooled(explanation, fine)
