"""How a text is cut into units, and which tokens belong to each."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical.data.prompt_texts import _chat, check_spans, parts, unit_of_tokens
from veridical.errors import InputError, NotApplicableError


@pytest.mark.parametrize(
    ("text", "kind", "want"),
    [
        ("It rains. Take a coat!", "sentence", ["It rains. ", "Take a coat!"]),
        ('He said "go." Then he went.', "sentence", ['He said "go." ', "Then he went."]),
        ("One line\nand another", "sentence", ["One line\n", "and another"]),
        ("Really?! Yes.", "sentence", ["Really?! ", "Yes."]),
        ("no end", "sentence", ["no end"]),
        ("  two  words ", "word", ["two  ", "words "]),
        ("a b\n\nc d\n \n\ne", "passage", ["a b\n\n", "c d\n \n\n", "e"]),
        ("Q: a\nA: b\n\nQ: c\nA: d\n\nQ: e\nA:", "example", ["Q: a\nA: b\n\n", "Q: c\nA: d\n\n"]),
        ("3.5 is a number. So is 4.", "sentence", ["3.5 is a number. ", "So is 4."]),
        ("a b.\r\nc d.\r\n\r\ne f.", "passage", ["a b.\r\nc d.\r\n\r\n", "e f."]),
        ("東京は大きい。猫がいる。", "sentence", ["東京は大きい。", "猫がいる。"]),
        ("「行こう。」彼は行った。 Ja!", "sentence", ["「行こう。」", "彼は行った。 ", "Ja!"]),
    ],
)
def test_parts_of_a_text(text, kind, want):
    assert [text[a:b] for a, b in parts(text, kind)] == want


def test_parts_cover_the_text_without_overlap():
    text = "One. Two!  Three?\n\nFour 'five.' Six"
    for kind in ("word", "sentence", "passage"):
        found = parts(text, kind)
        assert "".join(text[a:b] for a, b in found) == text
        assert check_spans(found, len(text), "character", 0) == found


def test_a_token_belongs_to_its_first_letter():
    text = "ab. cd"
    # as byte-level tokens come: the blank is at the head of a word
    assert unit_of_tokens(text, [(0, 2), (2, 3), (3, 6)], parts(text, "sentence"), False, 0) == [0, 0, 1]
    # a token that was added stands for no character
    assert unit_of_tokens(text, [(0, 0), (0, 3), (3, 6)], parts(text, "sentence"), False, 0) == [-1, 0, 1]
    with pytest.raises(InputError, match="inside the token"):
        unit_of_tokens(text, [(0, 3), (3, 6)], [(0, 2)], True, 0)
    with pytest.raises(InputError, match="no token of its own"):
        unit_of_tokens(text, [(0, 6)], parts(text, "sentence"), False, 0)


TEXTS = ["Ann sings. Bob sings.\n\nAnn has a cat.", "Bob has a dog.\n\nBob sings. Bob"]
TOKENS = Words(*TEXTS, " a", " dog", " Ann has")
MODEL = small_lm(TOKENS)


def test_spans_of_tokens_and_examples():
    spans = [[(0, 2), (4, 6)], [(1, 3)]]
    task = vd.models.Generation(MODEL, TOKENS, TEXTS, [" a", " dog"], units=spans, spans="token")
    assert [p.units for p in task.prompts][1] == ("has a",)
    assert task.prompts[0].unit[:6] == (0, 0, -1, -1, 1, 1)
    assert task.units == "span"
    with pytest.raises(InputError, match="overlap"):
        vd.models.Generation(MODEL, TOKENS, TEXTS[:1], [" a"], units=[[(0, 2), (1, 3)]], spans="token")
    shots = vd.models.Generation(MODEL, TOKENS, TEXTS, [" a", " dog"], units="example")
    assert [len(p.units) for p in shots.prompts] == [1, 1]
    asked = vd.models.Generation(
        MODEL, TOKENS, TEXTS, [" a", " dog"], units="example", questions=[" Bob has", " Ann has"]
    )
    assert [len(p.units) for p in asked.prompts] == [2, 2]
    with pytest.raises(InputError, match="no example"):
        vd.models.Generation(MODEL, TOKENS, ["Ann sings."], [" a"], units="example")


@pytest.mark.parametrize("off", ["pad", "zero"])
def test_other_embeddings_stand_in(off):
    task = vd.models.Generation(MODEL, TOKENS, TEXTS, [" a", " dog"], off=off)
    gates = torch.zeros_like(task.inputs)
    made = task.with_inputs(gates).outputs[0, 0]
    ids = TOKENS.encode(TEXTS[0])
    with torch.no_grad():
        embedded = MODEL.embed(torch.tensor([ids]))
        instead = MODEL.embed(torch.tensor([[TOKENS.pad_token_id]])) if off == "pad" else 0 * embedded
        x = instead.expand_as(embedded) + MODEL.positions(torch.arange(len(ids)))
        allowed = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        want = MODEL.read(x, allowed)[0, -1].log_softmax(-1)[TOKENS.encode(" a")[0]]
    torch.testing.assert_close(made, want)


class Chat:
    """A tokenizer that has a chat template, which greets, and perhaps cuts blanks off."""

    chat_template = "as below"

    def __init__(self, trims=False, shouts=False):
        self.trims, self.shouts = trims, shouts

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        text = "<system>You are a helpful user of words.</system>"
        for message in messages:
            content = message["content"].strip() if self.trims else message["content"]
            text += f"<{message['role']}>{content.upper() if self.shouts else content}</{message['role']}>"
        return text + "<assistant>"


@pytest.mark.parametrize("trims", [True, False])
def test_a_message_is_found_where_it_is_though_the_template_says_the_same(trims):
    messages = [{"role": "user", "content": "user"}, {"role": "user", "content": "  words "}]
    text, spans = _chat(Chat(trims), messages, "?", 0)
    assert [text[a:b] for a, b in spans] == ["user", "words"]
    assert all(text[:a].rstrip().endswith("<user>") for a, _ in spans)


def test_messages_that_a_template_changes_or_that_are_no_texts_are_refused():
    with pytest.raises(InputError, match="changes a message"):
        _chat(Chat(shouts=True), [{"role": "user", "content": "hello"}], "", 0)
    for content in (None, 3, ["parts"]):
        with pytest.raises(InputError, match="of texts"):
            _chat(Chat(), [{"role": "user", "content": content}], "", 0)


def test_a_foil_that_needs_its_own_pass_is_refused_for_heads():
    task = vd.models.Generation(MODEL, TOKENS, TEXTS, [" Ann has", " a"], foils=[" dog", " dog a"])
    with pytest.raises(NotApplicableError, match="reads the prompt twice"):
        vd.data.switch(task, vd.models.Heads())
