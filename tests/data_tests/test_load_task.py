"""A user's own model and data become a task."""

from __future__ import annotations

import pickle
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import veridical as vd
from tests.data_tests.conftest import Brightness, network
from veridical.data import load_model, load_task, load_weights, read_weights
from veridical.errors import FormatError, InputError, ShapeError, VeridicalWarning

# --- models ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def forget_own_net():
    yield
    sys.modules.pop("own_net", None)


# --- weights and the code that builds their network -----------------------------------------------------


@pytest.mark.parametrize("file", ["net.safetensors", "net.pt"])
@pytest.mark.parametrize("way", ["module", "file"])
def test_weights_fill_the_network_that_code_builds(net, monkeypatch, file, way):
    model, folder, _ = net
    monkeypatch.chdir(folder)
    arch = "own_net:build" if way == "module" else f"{folder / 'own_net.py'}:build"
    loaded = load_model(folder / file, arch=arch, allow_code=True)
    rows = torch.randn(5, 4)
    assert loaded.kind == "weights"
    assert loaded.name == "net"
    assert not loaded.model.training
    assert torch.equal(loaded.model(rows), model(rows))
    assert str(folder) not in sys.path


def test_code_runs_only_when_allowed(net, monkeypatch):
    _, folder, witness = net
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"importing it runs the Python code.*--allow-code"):
        load_model(folder / "net.pt", arch="own_net:build")
    assert not witness.exists()
    load_model(folder / "net.pt", arch="own_net:build", allow_code=True)
    assert witness.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_net:wide", r"do not fit the network.*Linear"),
        ("own_net:absent", "has no 'absent'; it has Path, build"),
        ("own_net", "module:function"),
        ("not_there:build", "cannot be imported"),
    ],
)
def test_architectures_that_do_not_fit_are_told(net, monkeypatch, name, message):
    _, folder, _ = net
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=message):
        load_model(folder / "net.safetensors", arch=name, allow_code=True)


@pytest.mark.parametrize("shape", ["checkpoint", "prefix"])
def test_checkpoints_and_wrapped_models_are_unpacked(tmp_path, shape):
    model = network()
    state = model.state_dict()
    if shape == "prefix":
        state = {f"module.{name}": value for name, value in state.items()}
    else:
        state = {"epoch": 3, "state_dict": state}
    torch.save(state, tmp_path / "kept.pt")
    again = load_weights(tmp_path / "kept.pt", network)
    assert torch.equal(again[2].bias, model[2].bias)


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_pickled_models_are_never_read(tmp_path, capsys):
    torch.save(Evil(), tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text.pt").write_text("hello there")
    for name in ("evil.pt", "plain.pt", "text.pt"):
        with pytest.raises(FormatError, match="more than weights, or is damaged"):
            read_weights(tmp_path / name)
        with pytest.raises(InputError, match=r"--arch module:function.*whole pickled network is not read"):
            load_weights(tmp_path / name, None)
    assert "ran" not in capsys.readouterr().out
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="no state dict"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "bad.safetensors").write_bytes(b"1234567890")
    with pytest.raises(FormatError, match="not a safetensors file"):
        read_weights(tmp_path / "bad.safetensors")
    (tmp_path / "none.pt").touch()
    with pytest.raises(FormatError, match=r"none\.pt is empty"):
        read_weights(tmp_path / "none.pt")


# --- estimators -----------------------------------------------------------------------------------------


def test_a_joblib_file_is_read_only_when_allowed(tmp_path, capsys):
    joblib.dump(Evil(), tmp_path / "evil.joblib")
    with pytest.raises(InputError, match=r"evil\.joblib is refused: a joblib file is a pickle.*--allow-code"):
        load_model(tmp_path / "evil.joblib")
    assert "ran" not in capsys.readouterr().out
    joblib.dump({"a": 1}, tmp_path / "dict.joblib")
    with pytest.raises(FormatError, match="holds a dict, which cannot predict"):
        load_model(tmp_path / "dict.joblib", allow_code=True)
    (tmp_path / "text.joblib").write_text("hello there")
    with pytest.raises(FormatError, match="cannot be read by joblib"):
        load_model(tmp_path / "text.joblib", allow_code=True)
    fitted = LogisticRegression().fit(np.eye(4), [0, 1, 0, 1])
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    found = load_model(tmp_path / "fitted.joblib", allow_code=True)
    assert found.kind == "sklearn"
    assert np.array_equal(found.model.coef_, fitted.coef_)


# --- tasks ----------------------------------------------------------------------------------------------


def accuracy(task):
    return float((task.predictions == task.labels).double().mean())


# --- a network and arrays -------------------------------------------------------------------------------


def test_a_network_from_two_files(net, arrays):
    model, folder, _ = net
    np.savez(folder / "rows.npz", **arrays)
    arch = f"{folder / 'own_net.py'}:build"
    task = load_task(folder / "net.safetensors", folder / "rows.npz", arch=arch, allow_code=True)
    assert task.name == "net on rows"
    assert torch.allclose(task.outputs, model(torch.tensor(arrays["x"])), atol=1e-6)
    assert task.labels.tolist() == arrays["y"].tolist()
    assert task.train.shape == (30, 4)
    assert task.train_labels.tolist() == arrays["train_labels"].tolist()


def test_a_part_of_the_data_keeps_its_row_numbers(net, arrays):
    _, folder, _ = net
    np.savez(folder / "rows.npz", **arrays)
    part = load_task(network(), folder / "rows.npz", samples=7)
    again = load_task(network(), folder / "rows.npz", samples=7)
    other = load_task(network(), folder / "rows.npz", samples=7, seed=1)
    assert torch.equal(part.ids, again.ids)
    assert not torch.equal(part.ids, other.ids)
    assert np.array_equal(part.inputs.numpy(), arrays["x"][part.ids.numpy()])
    assert part.labels.tolist() == arrays["y"][part.ids.numpy()].tolist()
    with pytest.raises(InputError, match="at least one sample, got samples=0"):
        load_task(network(), folder / "rows.npz", samples=0)


def test_masks_and_targets_come_along(tmp_path, arrays):
    masks = np.random.default_rng(0).random((40, 4)) > 0.5
    np.savez(tmp_path / "rows.npz", x=arrays["x"], masks=masks, targets=np.full(40, 2))
    np.save(tmp_path / "masks.npy", ~masks)
    task = load_task(network(), tmp_path / "rows.npz", samples=9)
    assert np.array_equal(task.masks.numpy(), masks[task.ids.numpy()])
    assert (task.targets == 2).all()
    for given in (tmp_path / "masks.npy", ~masks):
        task = load_task(network(), tmp_path / "rows.npz", masks=given, samples=9)
        assert np.array_equal(task.masks.numpy(), ~masks[task.ids.numpy()])


def test_other_reference_rows_take_the_place_of_those_in_the_file(tmp_path, arrays):
    np.savez(tmp_path / "rows.npz", **arrays)
    np.savez(tmp_path / "more.npz", x=np.zeros((5, 4)), y=np.ones(5, int))
    task = load_task(network(), tmp_path / "rows.npz", train=tmp_path / "more.npz")
    assert task.train.tolist() == torch.zeros(5, 4).tolist()
    assert task.train_labels.tolist() == [1] * 5
    pd.DataFrame({"a": [1.0]}).to_csv(tmp_path / "table.csv")
    with pytest.raises(InputError, match="the data is arrays and the reference rows are a table"):
        load_task(network(), tmp_path / "rows.npz", train=tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": np.ones((5, 9))}, ShapeError, r"does not run on one row of shape \(1, 9\)"),
        ({"x": np.ones((40, 4)), "y": np.zeros(7, int)}, ShapeError, "7 labels for 40 samples"),
        ({"x": np.ones((2, 4)), "y": np.array([4, 6])}, InputError, "labels run from 4 to 6"),
        ({"x": np.array(["one text", "another"])}, InputError, "the model brings no tokenizer"),
    ],
)
def test_what_does_not_fit_the_model_is_told(tmp_path, changes, error, message):
    np.savez(tmp_path / "rows.npz", **changes)
    with pytest.raises(error, match=message):
        load_task(network(), tmp_path / "rows.npz")


def test_names_are_numbered_only_where_that_is_clear(tmp_path, arrays):
    names = np.array(["ant", "bee", "cat"])[arrays["y"]]
    np.savez(tmp_path / "rows.npz", x=arrays["x"], y=names)
    with pytest.warns(VeridicalWarning, match="output 0 is 'ant', 1 is 'bee', 2 is 'cat'; classes="):
        task = load_task(network(), tmp_path / "rows.npz")
    assert task.labels.tolist() == arrays["y"].tolist()
    swapped = load_task(network(), tmp_path / "rows.npz", classes=["cat", "bee", "ant"])
    assert swapped.labels.tolist() == (2 - arrays["y"]).tolist()
    np.savez(tmp_path / "two.npz", x=arrays["x"], y=np.where(names == "cat", "bee", names))
    with pytest.raises(InputError, match="name 2 classes and the model has 3 outputs"):
        load_task(network(), tmp_path / "two.npz")


def test_fractions_as_labels_make_a_regression(tmp_path, arrays):
    np.savez(tmp_path / "rows.npz", x=arrays["x"], y=arrays["x"][:, 0])
    assert load_task(torch.nn.Linear(4, 1), tmp_path / "rows.npz").head == "regression"


def test_probabilities_are_not_squeezed_twice(tmp_path, arrays):
    np.savez(tmp_path / "rows.npz", x=arrays["x"])
    plain = network()
    ending = torch.nn.Sequential(plain, torch.nn.Softmax(-1))
    with pytest.warns(VeridicalWarning, match="the model answers probabilities"):
        task = load_task(ending, tmp_path / "rows.npz")
    expected = plain(torch.tensor(arrays["x"])).softmax(-1)
    assert torch.allclose(task.probabilities(task.outputs), expected, atol=1e-5)
    assert task.reference is task
    single = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Sigmoid())
    with pytest.warns(VeridicalWarning, match="the model answers probabilities"):
        task = load_task(single, tmp_path / "rows.npz", head="binary")
    assert torch.allclose(task.outputs[:, 1:], single[0](torch.tensor(arrays["x"])), atol=1e-4)


def test_whole_numbers_are_tokens_only_for_a_model_that_embeds_them(tmp_path):
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(20, 3)

        def forward(self, tokens):
            return self.embed(tokens).mean(1)

    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).integers(0, 20, (8, 4)))
    assert load_task(Words(), tmp_path / "rows.npz").modality == "text"
    assert load_task(network(), tmp_path / "rows.npz").modality == "table"
    np.savez(tmp_path / "bytes.npz", x=np.full((3, 1, 6, 6), 200, np.uint8))
    with pytest.warns(VeridicalWarning, match=r"up to 200 .* inputs / 255"):
        load_task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2)), tmp_path / "bytes.npz")


# --- estimators and networks on tables ------------------------------------------------------------------


@pytest.fixture
def pipeline(shop, tmp_path):
    encode = ColumnTransformer([("one", OneHotEncoder(), ["colour"])], remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression(max_iter=2000))
    model.fit(shop.drop(columns="bought"), shop["bought"])
    joblib.dump(model, tmp_path / "shop.joblib")
    return model


def test_a_trained_pipeline_in_its_raw_columns(pipeline, shop, tmp_path):
    shop[:60].to_csv(tmp_path / "new.csv", index=False)
    shop[60:].to_parquet(tmp_path / "old.parquet")
    task = load_task(
        tmp_path / "shop.joblib", tmp_path / "new.csv", train=tmp_path / "old.parquet", allow_code=True
    )
    # the one column the pipeline was not fitted on is the label
    assert task.labels.tolist() == [int(b == "yes") for b in shop["bought"][:60]]
    assert accuracy(task) > 0.9
    assert [task.space.feature_name(i) for i in range(3)] == ["size", "colour", "age"]
    assert task.train_labels.tolist() == [int(b == "yes") for b in shop["bought"][60:]]
    values = vd.explain("occlusion", task).values.abs().mean(0)
    assert float(values[2]) < float(values[0])


def test_columns_are_put_in_the_order_of_the_pipeline(pipeline, shop, tmp_path):
    shuffled = shop[["bought", "age", "colour", "size"]].assign(shop="north")
    with pytest.warns(VeridicalWarning, match=r"columns \['shop'\] are left out"):
        task = load_task(pipeline, shuffled, labels="bought", samples=20)
    direct = load_task(pipeline, shop, labels="bought", samples=20)
    assert torch.equal(task.outputs, direct.outputs)
    assert torch.equal(task.labels, direct.labels)


@pytest.mark.parametrize(
    ("changed", "labels", "message"),
    [
        (lambda t: t.drop(columns="age"), "bought", r"fitted on columns \['age'\] that are not there"),
        (lambda t: t, "sold", "no column 'sold'"),
        (lambda t: t.assign(bought="perhaps"), None, r"\['perhaps'\] are not among the model's classes"),
        (lambda t: t.assign(bought=None), "bought", "label column 'bought' has missing values"),
    ],
)
def test_tables_that_a_pipeline_cannot_read_are_refused(pipeline, shop, changed, labels, message):
    with pytest.raises(InputError, match=message):
        load_task(pipeline, changed(shop), labels=labels)


def test_an_estimator_of_plain_arrays(tmp_path, arrays, recwarn):
    model = LogisticRegression().fit(arrays["x"], np.array(["c", "a", "b"])[arrays["y"]])
    names = np.array(["c", "a", "b"])[arrays["y"]]
    np.savez(tmp_path / "rows.npz", x=arrays["x"], y=names)
    table = pd.DataFrame(arrays["x"], columns=list("pqrs")).assign(label=names)
    for data in (tmp_path / "rows.npz", table):
        task = load_task(model, data)
        assert task.labels.tolist() == [["a", "b", "c"].index(name) for name in names]
        assert accuracy(task) > 0.9
    assert not recwarn.list
    assert task.space.feature_name(1) == "q"
    with pytest.raises(ShapeError, match="takes 4 columns, the data has 3"):
        load_task(model, table.drop(columns="p"))
    line = LinearRegression().fit(arrays["x"], arrays["x"][:, 0])
    assert load_task(line, table.assign(label=arrays["x"][:, 0])).head == "regression"


# --- images ---------------------------------------------------------------------------------------------


RULE = {"size": (12, 16), "mean": 0.5, "deviation": 0.5}


def test_a_folder_of_images(photos, tmp_path):
    for name in ("dark", "light"):
        (tmp_path / "masks" / name).mkdir(parents=True)
        for number in range(6):
            half = np.zeros((20, 24), np.uint8)
            half[:, 12:] = 255
            Image.fromarray(half).save(tmp_path / "masks" / name / f"{number}.png")
    task = load_task(Brightness(), photos, image=RULE, masks=tmp_path / "masks", train=photos, samples=8)
    assert task.inputs.shape == (8, 3, 12, 16)
    assert accuracy(task) == 1
    assert task.train_labels.tolist() == [0] * 6 + [1] * 6
    assert task.masks.reshape(8, 12, 16)[:, :, 8:].all()
    assert not task.masks.reshape(8, 12, 16)[:, :, :8].any()
    large = load_task(Brightness(), photos, image={"size": 112})
    assert large.space.kind == "patch"
    assert large.space.n_features == 196


def test_a_rule_beside_the_weights_says_how_to_read_images(photos, tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save(torch.nn.Conv2d(3, 2, 1).state_dict(), weights)

    def build():
        return torch.nn.Conv2d(3, 2, 1)

    with pytest.raises(InputError, match=r"put a preprocessor_config\.json beside it"):
        load_task(weights, photos, arch=build)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 10, "width": 14}}')
    task = load_task(weights, photos, arch=build, output=lambda answer: answer.mean((2, 3)))
    assert task.inputs.shape == (12, 3, 10, 14)


def test_mistakes_with_images_are_told(photos, tmp_path):
    with pytest.raises(InputError, match="needs at least the size"):
        load_task(Brightness(), photos, image={"mean": 0.5})
    with pytest.raises(InputError, match="estimator takes rows of numbers"):
        load_task(LogisticRegression(), photos, image=RULE)
    (tmp_path / "masks").mkdir()
    with pytest.raises(InputError, match=r"no mask for dark/0\.png"):
        load_task(Brightness(), photos, image=RULE, masks=tmp_path / "masks")
    (photos / "grey").mkdir()
    Image.new("L", (9, 9)).save(photos / "grey" / "0.png")
    with pytest.raises(InputError, match="name 3 classes and the model has 2 outputs"):
        load_task(Brightness(), photos, image=RULE)


# --- estimators of texts --------------------------------------------------------------------------------


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


def test_mistakes_are_told(model, reviews):
    with pytest.raises(InputError, match=r"1 texts have no word at all \(first: \[80\]\)"):
        load_task(model, pd.concat([reviews, pd.DataFrame({"text": [" "], "label": ["neg"]})]))
    with pytest.raises(InputError, match="the model classifies texts"):
        load_task(model, np.ones((3, 2)))
    with pytest.raises(InputError, match=r"\['odd'\] are not among the model's classes"):
        load_task(model, reviews.assign(label="odd"))
