"""The shipped tasks load offline, keep what the listing says, and can be trained again."""

import subprocess
import sys

import pytest
import torch

import veridical as vd
from veridical.core import files
from veridical.data import embedded, reviews, tasks
from veridical.data.training import quality
from veridical.errors import InputError, UnknownNameError

NAMES = sorted(embedded.SHIPPED)


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
    _, header = files.load_tensors(embedded.WEIGHTS / f"{name}.safetensors", embedded.WEIGHTS_KIND)
    assert measured(task) == pytest.approx(header["quality"], abs=1e-6)


def test_digits_are_good_enough():
    assert measured(vd.tasks.load("digits")) >= 0.97


@pytest.mark.parametrize("name", NAMES)
def test_a_task_never_evaluates_what_it_was_trained_on(name):
    data = embedded.SHIPPED[name].data()
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


def test_weights_are_small():
    assert sum(path.stat().st_size for path in embedded.WEIGHTS.glob("*.safetensors")) < 1_000_000
    assert {path.stem for path in embedded.WEIGHTS.glob("*.safetensors")} == set(NAMES)


def test_the_names_print_as_a_table():
    names = vd.tasks.names()
    assert "digits" in names
    assert len(repr(names).splitlines()) == len(names)
    assert all(line.count("data: ") == 1 for line in names.values())


def test_mistakes_are_told():
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        vd.tasks.load("digit")
    with pytest.raises(InputError, match="at least one sample"):
        vd.tasks.load("digits", samples=0)


def test_importing_is_light():
    code = (
        "import sys, veridical.data; "
        "heavy = {'sklearn', 'pandas', 'scipy', 'PIL', 'transformers', 'onnx', 'onnxruntime', 'skimage'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment())
    assert done.stdout.strip() == "[]", done.stderr


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# --- reviews --------------------------------------------------------------------------------------------


def opinion_by_rule(words):
    """A slow reading of the language: each judging word counts, turned around by a negation in its clause."""
    total, negated = 0, False
    for word in words:
        if word in ("the", "this"):
            negated = False
        if word in reviews.NEGATION:
            negated = True
        if word in reviews.GOOD or word in reviews.BAD:
            total += (1 if word in reviews.GOOD else -1) * (-1 if negated else 1)
    return int(total > 0)


def test_reviews_follow_their_own_grammar():
    written = reviews.write_reviews(300, vd.core.Key(3))
    words = reviews.words_of(written.tokens)
    assert [opinion_by_rule(row) for row in words] == written.labels.tolist()
    carriers = {*reviews.GOOD, *reviews.BAD, *reviews.NEGATION}
    assert [[w in carriers for w in row] for row in words] == written.opinion.tolist()
    assert 0.4 < written.labels.double().mean() < 0.6


def test_single_words_do_not_settle_a_review():
    """A reading without negation must fail often, or the task would be a bag of words."""
    written = reviews.write_reviews(300, vd.core.Key(3))
    words = reviews.words_of(written.tokens)
    naive = [int(sum((w in reviews.GOOD) - (w in reviews.BAD) for w in row) > 0) for row in words]
    agree = sum(a == b for a, b in zip(naive, written.labels.tolist(), strict=True)) / 300
    assert agree < 0.85


def test_a_review_does_not_depend_on_how_many_are_written():
    few, many = reviews.write_reviews(5, vd.core.Key(0)), reviews.write_reviews(50, vd.core.Key(0))
    assert torch.equal(few.tokens, many.tokens[:5])


def test_padding_is_no_feature_and_has_no_effect():
    task = vd.tasks.load("reviews", samples=20)
    assert torch.equal(task.space.valid, task.inputs != 0)
    assert not (task.masks & ~task.space.valid).any()
    shorter = task.inputs[:, : int(task.space.valid.sum(1).max())]
    with torch.no_grad():
        assert torch.allclose(task.model(shorter), task.model(task.inputs), atol=1e-5)
    assert task.space.feature_name(0, 0) in reviews.VOCABULARY


def test_embeddings_of_reviews_answer_alike():
    task = vd.tasks.load("reviews", samples=6)
    assert torch.allclose(task.at_embeddings().outputs, task.outputs, atol=1e-6)


# --- training again -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training_again_gives_the_same_quality(name, tmp_path):
    from scripts.make_tasks import make

    again = make(name, tmp_path)
    assert again == pytest.approx(listed(name), abs=0.02)
    assert (tmp_path / f"{name}.safetensors").is_file()
