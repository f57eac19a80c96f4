"""Texts of a classifier explained word by word, where its tokenizer cuts words into pieces."""

import numpy as np
import pytest
import torch

import veridical as vd
from tests.data_tests.test_huggingface import transformers  # noqa: F401 (fixture)
from veridical.data import load_task

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "un",
    "##happy",
    "##ness",
    "the",
    "film",
    "was",
    "good",
]
TEXTS = ["the unhappyness was good", "film unhappy", "the film was the film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, transformers):  # noqa: F811
    made = tmp_path_factory.mktemp("pieces")
    (made / "vocab.txt").write_text("\n".join(PIECES))
    transformers.BertTokenizerFast(str(made / "vocab.txt")).save_pretrained(made)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(PIECES), **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(made)
    return made


def test_a_word_is_removed_with_all_its_pieces(folder):
    words, tokens = (load_task(str(folder), TEXTS, units=units) for units in ("word", "token"))
    assert torch.equal(words.outputs, tokens.outputs)
    assert [words.space.feature_name(i, 0) for i in range(4)] == ["the", "unhappyness", "was", "good"]
    assert words.space.counts(3).tolist() == [4, 2, 5]
    maps = vd.explain("feature_ablation", words)
    without = tokens.inputs[:1].clone()
    without[0, 2:5] = 0  # [CLS] the un ##happy ##ness
    fall = words.outputs[0] - tokens.predictor.outputs(without)[0]
    assert float(maps.values[0, 1]) == pytest.approx(float(fall[words.targets[0]]), abs=1e-6)


def test_every_explainer_and_metric_that_applies_takes_words(folder):
    task = load_task(str(folder), TEXTS, units="word")
    for name in vd.explainers.applicable(task):
        values = vd.explain(name, task).values
        assert values.shape == (3, 5), name
        assert np.isfinite(values[task.space.valid].numpy()).all(), name
    table = vd.evaluate(task, ["occlusion", "random"], ["pixel_flipping", "comprehensiveness", "fast_gef"])
    assert not table.failures


def test_other_units_are_refused(folder):
    with pytest.raises(vd.errors.InputError, match="'token' or 'word'"):
        load_task(str(folder), TEXTS, units="sentence")
