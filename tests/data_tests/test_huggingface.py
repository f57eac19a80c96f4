"""Classifiers in Hugging Face's layout, from folders of random weights that the tests make."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import veridical as vd
from veridical.data import load_task
from veridical.errors import FormatError, InputError, NotApplicableError, VeridicalWarning

pytestmark = pytest.mark.extras

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DECISIVE = [["bad", "poor"], ["good", "fine"]]
NEUTRAL = ["film", "the", "a", "plot"]
WORDS = [*SPECIAL, *DECISIVE[0], *DECISIVE[1], *NEUTRAL]
NAMES = {0: "negative", 1: "positive"}


TEXTS = ["the good film", "a bad plot", "good", "the plot the film bad"]
LABELS = [1, 0, 1, 0]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def random_bert(tmp_path_factory, transformers):
    """A folder with a tiny classifier of random weights and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
        id2label=NAMES,
        label2id={name: number for number, name in NAMES.items()},
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def reviews(tmp_path):
    rows = [{"text": text, "label": NAMES[label]} for text, label in zip(TEXTS, LABELS, strict=True)]
    path = tmp_path / "reviews.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


# --- texts ----------------------------------------------------------------------------------------------


def test_texts_are_classified_as_transformers_does(random_bert, reviews, transformers):
    task = load_task(random_bert, reviews, train=reviews)
    assert task.name == f"{random_bert.name} on reviews"
    assert task.labels.tolist() == task.train_labels.tolist() == LABELS
    assert torch.equal(task.train, task.inputs)
    # special tokens and padding are no features
    assert task.space.valid.sum(1).tolist() == [len(text.split()) for text in TEXTS]
    assert task.space.feature_name(2, 0) == "good"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(random_bert).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(random_bert)
    with torch.no_grad():
        for row, text in enumerate(TEXTS):
            alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
            assert torch.allclose(task.outputs[row], alone, atol=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_texts_and_labels_come_in_any_format(random_bert, reviews, tmp_path, suffix):
    other = tmp_path / f"reviews.{suffix}"
    frame = pd.DataFrame({"words": TEXTS, "truth": LABELS, "stars": 4.0})
    if suffix == "npz":
        np.savez(other, x=np.array(TEXTS), truth=LABELS)
    else:
        frame.to_csv(other, index=False) if suffix == "csv" else frame.to_parquet(other)
    task, expected = load_task(random_bert, other, labels="truth"), load_task(random_bert, reviews)
    assert torch.equal(task.inputs, expected.inputs)
    assert torch.equal(task.labels, expected.labels)


def test_long_texts_are_cut_to_what_the_model_reads(random_bert):
    frame = pd.DataFrame({"text": ["the film " * 40]})
    assert load_task(random_bert, frame).inputs.shape == (1, 24)
    assert load_task(random_bert, frame, length=10).inputs.shape == (1, 10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"text": ["a plot"], "label": "odd"},
            r"\['odd'\] are not among the model's classes",
        ),
        ({"text": ["a plot"] * 3, "label": [0, 1, 2]}, "labels run from 0 to 2"),
        ({"text": ["", "a plot"]}, r"1 texts have no word at all \(first: \[0\]\)"),
        ({"text": ["a plot", None]}, r"column 'text' is empty in 1 rows \(first: \[1\]\)"),
    ],
)
def test_texts_that_do_not_fit_are_refused(random_bert, data, message):
    with pytest.raises(InputError, match=message):
        load_task(random_bert, pd.DataFrame(data), text="text")


# --- broken folders -------------------------------------------------------------------------------------


def copy(folder, target):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_folder_that_lacks_something_says_what(random_bert, tmp_path, reviews, transformers):
    data = reviews
    bare = copy(random_bert, tmp_path / "bare")
    (bare / "config.json").write_text("{")
    with pytest.raises(FormatError, match="not a classifier that transformers can read"):
        load_task(bare, data)
    headless = tmp_path / "headless"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(random_bert)
    copy(random_bert, headless)
    state = {name: value for name, value in model.state_dict().items() if "classifier" not in name}
    model.save_pretrained(headless, state_dict=state)
    with pytest.raises(
        FormatError, match=r"no weights for classifier\.bias, classifier\.weight: it is not a"
    ):
        load_task(headless, data)
    narrow = copy(random_bert, tmp_path / "narrow")
    config = json.loads((narrow / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps({**config, "hidden_size": 8}))
    with pytest.raises(FormatError, match=r"do not fit its config\.json"):
        load_task(narrow, data)
    mute = copy(random_bert, tmp_path / "mute")
    for file in mute.iterdir():
        if "token" in file.name or "vocab" in file.name:
            file.unlink()
    with pytest.raises(FormatError, match="mute has no tokenizer"):
        load_task(mute, data)


def test_pickled_weights_and_code_in_a_folder_are_refused(random_bert, tmp_path, reviews, transformers):
    data = reviews
    folder = copy(random_bert, tmp_path / "pickled")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"no model\.safetensors; other formats can run code"):
        load_task(folder, data, allow_code=True)
    coded = copy(random_bert, tmp_path / "coded")
    witness = tmp_path / "ran"
    config = json.loads((coded / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}
    (coded / "config.json").write_text(json.dumps(config))
    (coded / "evil.py").write_text(f"open({str(witness)!r}, 'w').write('ran')")
    with pytest.raises(FormatError, match=r"brings Python code of its own.*never run"):
        load_task(coded, data, allow_code=True)
    assert not witness.exists()


# --- images ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vit(tmp_path_factory, transformers):
    """A small vision transformer with an image processor."""
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        id2label={0: "left", 1: "right"},
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def picture(seed):
    """A noisy picture of no round size with one bright half, and which half that is."""
    rng = np.random.default_rng(seed)
    pixels, label = rng.integers(0, 80, (30, 22 + seed % 9, 3)), int(rng.integers(0, 2))
    half = pixels.shape[1] // 2
    pixels[:, half * label : half * (label + 1)] += 120
    return Image.fromarray(pixels.astype(np.uint8)), label


@pytest.fixture
def halves(tmp_path):
    for seed in range(100, 124):
        image, label = picture(seed)
        for place, what in (("halves", image), ("masks", mask_of(image, label))):
            target = tmp_path / place / ("left", "right")[label]
            target.mkdir(parents=True, exist_ok=True)
            what.save(target / f"{seed}.png")
    return tmp_path / "halves"


def mask_of(image, label):
    pixels = np.zeros((image.height, image.width), np.uint8)
    half = image.width // 2
    pixels[:, half * label : half * (label + 1)] = 255
    return Image.fromarray(pixels)


def test_images_are_prepared_by_the_folders_own_processor(vit, halves, transformers):
    task = load_task(vit, halves, masks=halves.parent / "masks", train=halves, samples=20)
    assert task.inputs.shape == (20, 3, 16, 16)
    assert task.train.shape == (24, 3, 16, 16)
    # the mask went through the same preparation: it is the bright half
    bright = task.inputs.mean(1).reshape(20, -1) > 0
    assert float((task.masks == bright).double().mean()) > 0.9
    files = sorted(halves.rglob("*.png"))
    processor = transformers.AutoImageProcessor.from_pretrained(vit)
    rows = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    assert torch.allclose(load_task(vit, halves).inputs, rows, atol=1e-6)


def test_our_own_rule_prepares_images_like_the_folder_says(vit, halves, transformers):
    from veridical.data.images import image_rule, read_image

    file = next(halves.rglob("*.png"))
    kinds = [
        transformers.ViTImageProcessor(size={"height": 12, "width": 10}),
        transformers.CLIPImageProcessor(
            size={"shortest_edge": 14}, crop_size={"height": 12, "width": 12}, resample=3
        ),
        transformers.ViTImageProcessor(
            size={"height": 12, "width": 10}, do_rescale=False, do_normalize=False
        ),
    ]
    for processor in kinds:
        processor.save_pretrained(vit / "other")
        rule = image_rule(vit / "other" / "preprocessor_config.json")
        expected = processor(Image.open(file), return_tensors="pt")["pixel_values"][0].float()
        ours = read_image(file, **rule)
        assert ours.shape == expected.shape
        assert torch.allclose(ours, expected, atol=0.02 * float(expected.abs().max()))


def test_subfolders_that_are_no_classes_of_the_model_are_no_labels(vit, photos):
    with pytest.warns(VeridicalWarning, match=r"\['dark', 'light'\] are no classes of the model"):
        task = load_task(vit, photos)
    assert task.inputs.shape == (12, 3, 16, 16)
    assert task.labels is None


def test_mistakes_with_images_are_told(vit, halves):
    with pytest.raises(InputError, match="the model classifies images"):
        load_task(vit, pd.DataFrame({"text": ["a"]}))
    Image.new("RGB", (5, 5)).save(halves / "left" / "odd.png")
    (halves / "left" / "odd.png").write_text("no image")
    with pytest.raises(FormatError, match=r"odd\.png is not an image"):
        load_task(vit, halves)


# --- by from_huggingface ---------------------------------------------------------------------------------


def test_a_removed_token_is_not_attended_to(random_bert, transformers):
    task = vd.tasks.from_huggingface(random_bert, ["the good film"])
    tokens = task.inputs.clone()
    tokens[0, 2] = 0
    with torch.no_grad():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(random_bert)
        expected = model(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
        assert torch.allclose(task.model(tokens), expected, atol=1e-6)
        assert not torch.allclose(task.model(tokens), model(input_ids=tokens).logits, rtol=0, atol=1e-5)


def test_several_labels_at_once(random_bert, tmp_path):
    folder = shutil.copytree(random_bert, tmp_path / "several")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    assert vd.tasks.from_huggingface(folder, TEXTS).head == "multilabel"


def test_another_kind_of_model_is_refused(tmp_path, transformers):
    config = transformers.BertConfig(vocab_size=11, hidden_size=16, num_attention_heads=2)
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(tmp_path / "masked")
    with pytest.raises(NotApplicableError, match="BertForMaskedLM"):
        vd.tasks.from_huggingface(tmp_path / "masked", TEXTS)
