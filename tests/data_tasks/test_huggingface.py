"""Classifiers in Hugging Face's layout, from folders the tests make, random and really trained."""

import numpy as np
import pytest
import torch

import veridical as vd
from veridical.errors import FormatError, InputError, NotApplicableError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.extras

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "the", "a", "plot"]


def save_tokenizer(folder):
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def bert(**extra):
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        **extra,
    )
    return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture
def text_folder(tmp_path):
    """A tiny classifier that was really trained to tell good from bad."""
    folder = tmp_path / "text"
    folder.mkdir()
    save_tokenizer(folder)
    torch.manual_seed(0)
    model = bert(id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [f"{a} {b} {c}" for a in ("the", "a") for b in ("good", "bad") for c in ("film", "plot")]
    labels = torch.tensor([int("good" in text) for text in texts])
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(**batch).logits, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    return folder


TEXTS = ["the good film", "a bad plot", "good", "the plot the film bad"]


def test_a_text_classifier_from_a_folder(text_folder):
    task = vd.tasks.from_huggingface(
        text_folder, TEXTS, labels=["positive", "negative", "positive", "negative"]
    )
    assert task.name == "text"
    assert task.labels.tolist() == [1, 0, 1, 0]
    assert torch.equal(task.predictions, task.labels)
    # special tokens and padding are no features
    assert task.space.valid.sum(1).tolist() == [3, 3, 1, 5]
    assert task.space.feature_name(1, 0) == "the"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(text_folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_folder)
    with torch.no_grad():
        for row, text in enumerate(TEXTS):
            alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
            assert torch.allclose(task.outputs[row], alone, atol=1e-5)


def test_gradients_reach_the_embeddings_and_find_the_word(text_folder):
    task = vd.tasks.from_huggingface(text_folder, TEXTS)
    values = vd.explain("integrated_gradients", task).values.masked_fill(~task.space.valid, -torch.inf)
    strongest = [task.space.feature_name(int(v), row) for row, v in enumerate(values.argmax(1))]
    assert strongest == ["good", "bad", "good", "bad"]


def test_a_removed_token_is_not_attended_to(text_folder):
    task = vd.tasks.from_huggingface(text_folder, ["the good film"])
    tokens = task.inputs.clone()
    tokens[0, 2] = 0
    with torch.no_grad():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(text_folder)
        expected = model(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
        assert torch.allclose(task.model(tokens), expected, atol=1e-6)
        assert not torch.allclose(task.model(tokens), model(input_ids=tokens).logits, atol=1e-4)


def test_several_labels_at_once(tmp_path):
    save_tokenizer(tmp_path)
    bert(num_labels=3, problem_type="multi_label_classification").save_pretrained(tmp_path)
    assert vd.tasks.from_huggingface(tmp_path, TEXTS).head == "multilabel"


def test_an_image_classifier_from_a_folder(tmp_path):
    from PIL import Image

    folder, photos = tmp_path / "vit", tmp_path / "photos"
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        id2label={0: "dark", 1: "light"},
        label2id={"dark": 0, "light": 1},
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.5, 0.5], '
        '"image_std": [0.25, 0.25, 0.25]}'
    )
    for name, level in (("dark", 0), ("light", 255)):
        (photos / name).mkdir(parents=True)
        Image.new("RGB", (20, 20), (level,) * 3).save(photos / name / "one.png")
    task = vd.tasks.from_huggingface(folder, photos)
    assert task.inputs.shape == (2, 3, 16, 16)
    assert task.labels.tolist() == [0, 1]
    assert np.allclose(task.inputs[:, 0, 0, 0].tolist(), [-2, 2])
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    with torch.no_grad():
        assert torch.allclose(model(pixel_values=task.inputs).logits, task.outputs, atol=1e-5)
    ready = vd.tasks.from_huggingface(folder, torch.zeros(3, 3, 16, 16))
    assert len(ready) == 3


def test_weights_that_could_run_code_are_refused(text_folder, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(text_folder)
    (text_folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), text_folder / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"no model\.safetensors"):
        vd.tasks.from_huggingface(text_folder, TEXTS)


def test_code_in_a_folder_never_runs(text_folder):
    import json

    witness = text_folder / "ran"
    config = json.loads((text_folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    config["model_type"] = "evil"
    (text_folder / "config.json").write_text(json.dumps(config))
    (text_folder / "evil.py").write_text(f"open({str(witness)!r}, 'w').write('ran')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        vd.tasks.from_huggingface(text_folder, TEXTS)
    assert not witness.exists()


def test_mistakes_are_told(text_folder, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        vd.tasks.from_huggingface(tmp_path / "none", TEXTS)
    with pytest.raises(InputError, match="takes inputs="):
        vd.tasks.from_huggingface(text_folder, "one text")
    with pytest.raises(InputError, match="'odd'"):
        vd.tasks.from_huggingface(text_folder, TEXTS, labels=["odd"] * 4)
    bert_config = transformers.BertConfig(vocab_size=11, hidden_size=16, num_attention_heads=2)
    bert_config.architectures = ["BertForMaskedLM"]
    bert_config.save_pretrained(tmp_path / "masked")
    with pytest.raises(NotApplicableError, match="BertForMaskedLM"):
        vd.tasks.from_huggingface(tmp_path / "masked", TEXTS)
