"""Prompts as texts, tokens and units, and from files."""

from __future__ import annotations

import json
import re
from itertools import permutations, product

import pytest
import torch
from typer.testing import CliRunner

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical.cli.app import app
from veridical.data import load_task
from veridical.data.prompt_files import is_language_model, read_prompts
from veridical.data.prompt_texts import _chat, check_spans, parts, unit_of_tokens
from veridical.errors import FormatError, InputError, NotApplicableError, VeridicalWarning


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
    # a blank of its own goes with the word behind it, a line's end with the line
    lines = "ab. cd\nef"
    found = unit_of_tokens(
        lines, [(0, 3), (3, 4), (4, 6), (6, 7), (7, 9)], parts(lines, "sentence"), False, 0
    )
    assert found == [0, 1, 1, 1, 2]
    with pytest.raises(InputError, match="inside the token"):
        unit_of_tokens(text, [(0, 3), (3, 6)], [(0, 2)], True, 0)
    with pytest.warns(VeridicalWarning, match="inside the token 'b. c'"):
        assert unit_of_tokens(text, [(0, 1), (1, 5), (5, 6)], parts(text, "sentence"), False, 0) == [0, 0, 1]
    with pytest.raises(InputError, match="no token of its own"):
        unit_of_tokens(text, [(0, 6)], parts(text, "sentence"), False, 0)


class Merges(Words):
    """A full stop and the blank lines behind it are one token, as with Qwen and Llama 3."""

    @staticmethod
    def _split(text):
        return re.findall(r"\s?[^\s.?!]+|[.?!]+\n*|\s", text)


@pytest.mark.parametrize("units", ["sentence", "word"])
def test_a_token_that_reaches_into_the_question_is_never_off(units):
    text, question = "Ann sings. Bob sings.", "\n\nAnn has"
    tokens = Merges(text + question, " a")
    with pytest.warns(VeridicalWarning, match=r"'\.\\n\\n'.* stays on"):
        task = vd.models.Generation(
            small_lm(tokens), tokens, [text], [" a"], questions=[question], units=units
        )
    (prompt,) = task.prompts
    across = prompt.ids.index(tokens.encode(".\n\n")[0])
    assert prompt.unit[across] == -1
    assert prompt.unit[across - 1] == max(prompt.unit)
    single = vd.models.Generation(
        small_lm(tokens), tokens, [text], [" a"], questions=[question], units="token"
    ).prompts[0]
    assert single.units == ("Ann", "sings", ".", "Bob", "sings")
    with pytest.raises(InputError, match=r"inside the token '\.\\n\\n'; move its edge"):
        vd.models.Generation(
            small_lm(tokens), tokens, [text], [" a"], questions=[question], units=[[(0, 21)]]
        )


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
    text, spans, _ = _chat(Chat(trims), messages, "?", 0)
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


# --- from files -----------------------------------------------------------------------------------------

GOOD = {"prompt": "Ann has a cat. Bob has a dog.", "question": " Ann has a", "answer": " cat", "foil": " dog"}


def written(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_fields_become_columns_and_units_are_found_in_the_text(tmp_path):
    units = ["Ann has a cat.", "Bob has a dog."]
    first, second = ({**GOOD, "units": u, "id": i} for u, i in ((units, "one"), ([[0, 14]], 2)))
    path = written(tmp_path / "p.jsonl", first, "", second)
    found = read_prompts(path)
    assert found["prompt"] == [GOOD["prompt"]] * 2
    assert found["units"] == [[(0, 14), (15, 29)], [(0, 14)]]
    assert found["answer"] == [" cat"] * 2
    assert found["id"] == ["one", 2]
    assert read_prompts(["a text", "another"])["answer"] is None


CASES = {
    "line 2 of p.jsonl is not JSON": [GOOD, "{"],
    "line 1 of p.jsonl is no object": ["[1]"],
    "line 2 of p.jsonl has the field 'awnser'; fields are": [GOOD, {**GOOD, "awnser": "x"}],
    "line 2 of p.jsonl has the fields .*, line 1 of p.jsonl has": [GOOD, {"prompt": "x"}],
    "line 1 of p.jsonl has no 'prompt'": [{"answer": "x"}],
    "the answer of line 1 of p.jsonl is ''": [{**GOOD, "answer": ""}],
    "unit 'Cem' of line 1 of p.jsonl is not in its prompt": [{**GOOD, "units": ["Cem"]}],
    "or not behind the unit before it": [{**GOOD, "units": ["Bob has a dog.", "Ann has a cat."]}],
    "two prompts have the same id": [{**GOOD, "id": 1}, {**GOOD, "id": "1"}],
    "p.jsonl is empty": [""],
    "holds no prompt": ["\n", "\n"],
}


@pytest.mark.parametrize("said", CASES)
def test_bad_lines_are_told_by_their_number(tmp_path, said):
    with pytest.raises(FormatError, match=said):
        read_prompts(written(tmp_path / "p.jsonl", *CASES[said]))


def test_other_files_and_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"read from a .jsonl file"):
        read_prompts(tmp_path / "p.csv")
    with pytest.raises(InputError, match="no file"):
        read_prompts(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(FormatError, match="UTF-8"):
        read_prompts(tmp_path / "p.jsonl")


def test_what_is_a_language_model(tmp_path):
    assert is_language_model("some.gguf")
    assert not is_language_model(torch.nn.Linear(2, 2))
    assert not is_language_model(tmp_path)
    for kind, expected in (("LlamaForCausalLM", True), ("GPT2LMHeadModel", True), ("BertForMaskedLM", False)):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
        assert is_language_model(str(tmp_path)) == expected
    for broken in ("{", "[]", '{"architectures": null}'):
        (tmp_path / "config.json").write_text(broken)
        assert not is_language_model(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model of random weights in a folder, with a tokenizer of words."""
    hf = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["[UNK]", ".", *(f"Ġ{word}" for word in "Ann Bob Cem has a cat dog fish ...".split())]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = tokenizers.decoders.ByteLevel()
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    place = tmp_path_factory.mktemp("model")
    hf.LlamaForCausalLM(config).save_pretrained(place)
    hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(place)
    return place


@pytest.mark.extras
def test_a_folder_and_a_file_become_a_task(folder, tmp_path):
    lines = [{**GOOD, "id": f"n{i}"} for i in range(5)]
    path = written(tmp_path / "p.jsonl", *lines)
    task = load_task(folder, path)
    assert isinstance(task, vd.models.Generation)
    assert task.name == f"{folder.name} on p"
    assert task.prompts[0].units == ("Ann has a cat.", "Bob has a dog.")
    few = load_task(str(folder), path, samples=2, units="word", off="drop")
    assert len(few) == 2
    assert few.space.n_features == 8
    with pytest.raises(InputError, match="labels goes with other models"):
        load_task(folder, path, labels="answer")
    with pytest.raises(InputError, match="units of their own"):
        load_task(folder, [{**GOOD, "units": ["Ann"]}], units="word")


@pytest.mark.extras
@pytest.mark.slow
def test_the_command_audits_prompts(folder, tmp_path):
    orders = product(permutations(("Ann", "Bob", "Cem")), permutations(("cat", "dog", "fish")))
    lines = [
        {**GOOD, "prompt": " ".join(f"{who} has a {what}." for who, what in zip(*order, strict=True))}
        for order in orders
    ]
    path = written(tmp_path / "p.jsonl", *lines)
    words = ["audit", "--model", str(folder), "--data", str(path), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "-e", "occlusion", "-e", "gradient", "--concepts", "none"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "index.html").read_text()
    assert "rather than" in page
    assert "Bob has a dog." in page
    bad = written(tmp_path / "bad.jsonl", GOOD, "{")
    done = CliRunner().invoke(app, [*words[:4], str(bad)])
    assert done.exit_code != 0
    assert "line 2 of bad.jsonl is not JSON" in str(done.exception or done.output)
