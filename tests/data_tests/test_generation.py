"""Prompts and answers of a causal language model as a task."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical.errors import InputError, NotApplicableError
from veridical.gef.noise_path import agreement
from veridical.meta.perturbations import held

PROMPTS = [
    "Ann has a cat. Bob has a dog. It rains today.",
    "Tom likes tea. Sue likes cake. Ann has a dog. Bob sings.",
]
QUESTIONS = [" Bob has a", " Sue likes"]
ANSWERS, FOILS = [" dog", " cake"], [" cat", " tea"]
BEGINNINGS = [word + " " for word in ("Ann", "Bob", "It", "Tom", "Sue")]
TOKENS = Words(*PROMPTS, *QUESTIONS, *ANSWERS, *FOILS, *BEGINNINGS)
MODEL = small_lm(TOKENS)


def made(**changes):
    settings = {"answers": ANSWERS, "foils": FOILS, "questions": QUESTIONS, **changes}
    prompts = settings.pop("prompts", PROMPTS)
    return vd.models.Generation(settings.pop("model", MODEL), TOKENS, prompts, **settings)


@torch.no_grad()
def log_probability(ids, answer):
    """Of an answer's tokens behind those of a prompt, written out."""
    total = 0.0
    for token in answer:
        total += float(MODEL(torch.tensor([ids]))[0, -1].log_softmax(-1)[token])
        ids = [*ids, token]
    return total


def test_the_response_is_the_answer_less_the_foil():
    task = made()
    for place in range(2):
        ids = TOKENS.encode(PROMPTS[place] + QUESTIONS[place])
        want = log_probability(ids, TOKENS.encode(ANSWERS[place])) - log_probability(
            ids, TOKENS.encode(FOILS[place])
        )
        assert float(task.outputs[place, 0]) == pytest.approx(want, abs=1e-9)
    assert task.outputs[:, 1].tolist() == [1, 1]
    assert task.head == "generation"
    assert task.modality == "units"
    assert task.space.feature_name(1, 0) == "Bob has a dog."


def test_several_tokens_of_an_answer_are_summed_and_some_may_be_chosen():
    answers = [" dog. It rains", " cake"]
    task = made(answers=answers, foils=None)
    ids = TOKENS.encode(PROMPTS[0] + QUESTIONS[0])
    assert float(task.outputs[0, 0]) == pytest.approx(
        log_probability(ids, TOKENS.encode(answers[0])), abs=1e-9
    )
    last = made(answers=answers, foils=None, answer_parts=["rains", [0]])
    ids = TOKENS.encode(PROMPTS[0] + QUESTIONS[0] + " dog. It")
    assert float(last.outputs[0, 0]) == pytest.approx(log_probability(ids, TOKENS.encode(" rains")), abs=1e-9)


def test_a_part_of_an_answer_is_compared_with_the_same_part_of_the_foil():
    answers, foils = [" dog. It rains", " cake"], [" cat. Bob has", " tea"]
    task = made(answers=answers, foils=foils, answer_parts=["It", None])
    ids = TOKENS.encode(PROMPTS[0] + QUESTIONS[0])
    own, other = (TOKENS.encode(text[0]) for text in (answers, foils))
    want = log_probability([*ids, *own[:2]], own[2:3]) - log_probability([*ids, *other[:2]], other[2:3])
    assert float(task.outputs[0, 0]) == pytest.approx(want, abs=1e-9)
    with pytest.raises(InputError, match="its foil of 1 tokens for 4 has no such part"):
        made(answers=answers, foils=FOILS, answer_parts=["It", None])


@pytest.mark.parametrize("foils", [[" cat", " tea"], [" cat. It rains", " tea"]])
def test_dropping_a_unit_is_asking_the_shorter_text(foils):
    task = made(off="drop", foils=foils)
    for unit, left in ((1, "Ann has a cat. It rains today."), (2, "Ann has a cat. Bob has a dog. ")):
        gates = task.inputs.clone()
        gates[0, unit] = 0
        ids = TOKENS.encode(left.rstrip() + QUESTIONS[0])
        want = log_probability(ids, TOKENS.encode(" dog")) - log_probability(ids, TOKENS.encode(foils[0]))
        assert float(task.with_inputs(gates).outputs[0, 0]) == pytest.approx(want, abs=1e-9)


def test_filling_a_unit_is_asking_the_text_with_the_neutral_word():
    task = made(units="word")
    gates = task.inputs.clone()
    gates[0, 3] = 0
    neutral, ids = TOKENS.encode("...")[0], TOKENS.encode(PROMPTS[0] + QUESTIONS[0])
    assert task.space.feature_name(3, 0) == "cat."
    ids[3:5] = [neutral] * 2
    want = log_probability(ids, TOKENS.encode(" dog")) - log_probability(ids, TOKENS.encode(" cat"))
    assert float(task.with_inputs(gates).outputs[0, 0]) == pytest.approx(want, abs=1e-9)


def test_answers_are_generated_where_none_are_given():
    task = made(answers=None, foils=None, new_tokens=3)
    ids = TOKENS.encode(PROMPTS[0] + QUESTIONS[0])
    said = []
    for _ in range(3):
        said.append(int(MODEL(torch.tensor([ids + said]))[0, -1].argmax()))
    assert task.answers[0].tokens == tuple(said)
    assert task.side["predicted"][0].tolist() == said
    # as far as the model reads: one with a table of positions breaks where it is given more
    most = max(len(prompt.ids) for prompt in task.prompts) + 2
    short = made(answers=None, foils=None, new_tokens=9, length=most)
    assert max(len(p.ids) + len(a.tokens) for p, a in zip(short.prompts, short.answers, strict=True)) <= most


def test_drop_has_no_gradient():
    with pytest.raises(NotApplicableError, match="have no gradient"):
        vd.explain("gradient", made(off="drop"))


def test_a_subset_keeps_its_prompts():
    task = made()[[1]]
    assert task.prompts[0].text.startswith("Tom")
    assert task.answers[0].text == " cake"
    assert task.space.feature_name(0) == "Tom likes tea."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answers": ["", " cake"]}, "answer to prompt 0 is empty"),
        ({"answers": [" dog"]}, "1 answers for 2 prompts"),
        ({"foils": [" dog", " tea"]}, "are the same"),
        ({"length": 12}, "the model reads 12 at most"),
        ({"units": [[(0, 9), (5, 20)], [(0, 3)]]}, "overlap"),
        ({"units": [[(0, 5)], [(0, 3)]]}, "inside the token"),
        ({"units": "turn"}, "messages of a chat"),
        ({"units": "letter"}, "letter"),
        ({"off": "mask"}, "no mask token"),
        ({"neutral": "never seen"}, "single token"),
        ({"prompts": []}, "no prompt"),
        ({"prompts": ["Zebra.", "Ann."]}, "does not know a word of prompt 0"),
        ({"answer_parts": ["cow", None]}, "is not in it"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        made(**changes)


def test_predictions_are_the_tokens_of_the_answer():
    task = made()
    outputs = torch.tensor([[-3.0, 0.5], [2.0, 1.0]])
    assert float(agreement(task, outputs)) == 0.75
    assert held(task, outputs).tolist() == [False, True]
    noisy = task.with_noise(3.0, vd.core.Key(1)).outputs
    assert bool(((noisy[:, 1] == 0) | (noisy[:, 1] == 1)).all())  # answers of one token


class ReadsAhead(torch.nn.Module):
    """A masked language model, say: every token sees all others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(len(TOKENS.pieces), 8)
        self.head = torch.nn.Linear(8, len(TOKENS.pieces))

    def forward(self, tokens, attention_mask=None, position_ids=None):
        states = self.embed(tokens)
        if attention_mask is None:
            return self.head(states + states.mean(1, keepdim=True))
        there = attention_mask[..., None].to(states)
        return self.head(states + (states * there).sum(1, keepdim=True) / there.sum(1, keepdim=True))


@pytest.mark.parametrize("off", ["fill", "drop"])
def test_a_model_that_reads_ahead_is_refused(off):
    with pytest.raises(InputError, match="no causal language model"):
        made(model=ReadsAhead().double().eval(), off=off)


def test_an_answer_follows_the_last_token_that_is_left():
    """Without a question the unit before the answer may be dropped: it is read behind what is left."""
    text = "Ann has a cat. Bob has a dog It rains"
    ids = TOKENS.encode(text)
    units = [[(5, 9), (9, 11)]]
    task = vd.models.Generation(MODEL, TOKENS, [text], [" dog. Bob"], units=units, spans="token", off="drop")
    answer = list(task.answers[0].tokens)
    for gates in ([1, 0], [0, 1], [0, 0], [1, 1]):
        kept = [*ids[:5], *(ids[5:9] if gates[0] else []), *(ids[9:] if gates[1] else [])]
        found = task.with_inputs(torch.tensor([gates]).double()).outputs[0, 0]
        assert float(found) == pytest.approx(log_probability(kept, answer), abs=1e-6), gates


def test_nothing_is_left_for_an_answer_to_follow():
    with pytest.raises(InputError, match="nothing is left of prompt 0"):
        made(questions=None, off="drop")
    # single units may be dropped, unless there is but one
    assert vd.data.prompt_checks(made(questions=None)).compared == "off='fill' and off='drop'"
    alone = made(prompts=["Ann has a cat."] * 2, questions=None)
    assert vd.data.prompt_checks(alone).compared.startswith("only off='fill' works here")


# --- checks beside a score ------------------------------------------------------------------------------

CHECK_TEXTS = [
    "key b. foo bar. key b. foo foo.",
    "key a. foo bar. bar bar. foo foo.",
    "bar foo. foo bar. bar bar. foo foo.",
]
CHECK_TOKENS = Words(*CHECK_TEXTS, " a", " b", "foo bar", "bar bar")


class Counts(nn.Module):
    """Answers a word by whether it was there among the attended tokens, however often."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(torch.eye(len(CHECK_TOKENS.pieces), dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        there = (self.embed(input_ids) * attention_mask[..., None]).cumsum(1).clamp(max=1)
        return self.scale * there


def task(**changes):
    return vd.models.Generation(
        Counts(), CHECK_TOKENS, CHECK_TEXTS, [" b", " a", " a"], foils=[" a", " b", " b"], **changes
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
    ids = CHECK_TOKENS.encode(CHECK_TEXTS[1])
    want = Counts()(torch.tensor([ids]), torch.ones(1, len(ids)))[0, -1].log_softmax(-1)[
        CHECK_TOKENS.encode(" a")[0]
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
