"""Prompts from files: what is read, and which line is at fault."""

import json

import pytest
import torch
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app
from veridical.data import load_task
from veridical.data.prompt_files import is_language_model, read_prompts
from veridical.errors import FormatError, InputError

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
    "the foil of line 3 of p.jsonl is 3": [GOOD, "", {**GOOD, "foil": 3}],
    "the prompt of line 1 of p.jsonl is 7": [{**GOOD, "prompt": 7}],
    "unit 'Cem' of line 1 of p.jsonl is not in its prompt": [{**GOOD, "units": ["Cem"]}],
    "or not behind the unit before it": [{**GOOD, "units": ["Bob has a dog.", "Ann has a cat."]}],
    "unit 4 of line 1 of p.jsonl is neither": [{**GOOD, "units": [4]}],
    "the units of line 1 of p.jsonl are a list": [{**GOOD, "units": "Ann"}],
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
    with pytest.raises(InputError, match="a list; got Tensor"):
        read_prompts(torch.zeros(2, 3))
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
    lines = [{**GOOD, "prompt": f"{a} has a cat. {b} has a dog. {c} has a fish."} for a, b, c in
             [("Ann", "Bob", "Cem"), ("Bob", "Cem", "Ann"), ("Cem", "Ann", "Bob")] * 4]  # fmt: skip
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


def test_the_command_says_what_prompts_cost_before_it_runs(capsys):
    from veridical.cli.audit import foretell

    task = vd.tasks.known("prompt", samples=4).task
    foretell(task, ["occlusion", "gradient"], "glance", 2)
    said = capsys.readouterr().out
    assert "minutes here: at most 130 rows forward, 2 backward" in said  # 2 x 64 subsets and 2 gradients
    assert "come on top" in said
