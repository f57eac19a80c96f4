"""Estimators of whole texts: their words are the features."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import veridical as vd
from veridical.data import load_task
from veridical.data.texts import WordFunction
from veridical.errors import InputError


@pytest.fixture
def reviews():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    texts = [
        " ".join(rng.permutation([*rng.choice(["the", "film", "plot", "was"], 4), ["bad", "good"][label]]))
        for label in labels
    ]
    return pd.DataFrame({"text": texts, "label": np.array(["neg", "pos"])[labels]})


@pytest.fixture
def model(reviews):
    return make_pipeline(CountVectorizer(), LogisticRegression()).fit(reviews["text"], reviews["label"])


def test_a_trained_pipeline_of_texts_is_explained_in_words(model, reviews, tmp_path):
    joblib.dump(model, tmp_path / "model.joblib")
    reviews.to_csv(tmp_path / "reviews.csv", index=False)
    task = load_task(
        tmp_path / "model.joblib", tmp_path / "reviews.csv", train=reviews, allow_code=True, samples=30
    )
    assert task.modality == "text"
    assert float((task.predictions == task.labels).double().mean()) > 0.9
    assert task.train_labels.shape == (80,)
    drawn = reviews.iloc[task.ids.tolist()]
    assert np.allclose(task.outputs[:, 1].numpy(), model.decision_function(drawn["text"]))
    # a linear model of counts: leaving a word out takes away exactly its weight
    values = vd.explain("occlusion", task).values
    weights = model[1].coef_[0][[model[0].vocabulary_[w] for w in drawn["text"].iloc[0].split()]]
    sign = 1 if task.targets[0] == 1 else -1
    assert np.allclose(values[0].numpy(), sign * weights, atol=1e-6)


def test_texts_of_unequal_length_are_no_features_beyond_their_end(model):
    task = load_task(model, np.array(["good film", "the plot was bad"]))
    assert task.space.valid.sum(1).tolist() == [2, 4]
    assert task.space.feature_name(3, 1) == "bad"
    assert torch.equal(task.inputs[0, 2:], torch.zeros(2, dtype=torch.int64))


def test_two_pipelines_are_told_apart_and_travel(model, reviews):
    other = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(reviews["text"], reviews["label"])
    first, again, second = (load_task(m, reviews).content_hash() for m in (model, model, other))
    assert first == again != second
    function = WordFunction(model, ["bad", "good"])
    rows = np.array([[1, 0], [2, 1]])
    assert np.array_equal(pickle.loads(pickle.dumps(function))(rows), function(rows))
    assert np.allclose(function(rows), model.decision_function(["bad", "good bad"]))


def test_mistakes_are_told(model, reviews):
    with pytest.raises(InputError, match=r"1 texts have no word at all \(first: \[80\]\)"):
        load_task(model, pd.concat([reviews, pd.DataFrame({"text": [" "], "label": ["neg"]})]))
    with pytest.raises(InputError, match="the model classifies texts"):
        load_task(model, np.ones((3, 2)))
    with pytest.raises(InputError, match=r"\['odd'\] are not among the model's classes"):
        load_task(model, reviews.assign(label="odd"))
