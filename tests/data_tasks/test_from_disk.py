"""Tasks from arrays, tables and folders of images that the tests make."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import veridical as vd
from veridical.errors import FormatError, InputError


@pytest.fixture
def linear():
    return torch.nn.Linear(4, 3)


# --- arrays ---------------------------------------------------------------------------------------------


def test_arrays_in_memory_and_in_files_give_the_same_task(linear, tmp_path):
    from safetensors.numpy import save_file

    arrays = {
        "inputs": np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32),
        "labels": np.arange(6) % 3,
        "train": np.ones((5, 4), np.float32),
        "train_labels": np.zeros(5, np.int64),
    }
    np.savez(tmp_path / "set.npz", **arrays)
    np.save(tmp_path / "rows.npy", arrays["inputs"])
    save_file(arrays, tmp_path / "set.safetensors")
    direct = vd.tasks.from_arrays(linear, arrays["inputs"], labels=arrays["labels"])
    for file in ("set.npz", "set.safetensors"):
        task = vd.tasks.from_arrays(linear, tmp_path / file)
        assert torch.equal(task.inputs, direct.inputs)
        assert torch.equal(task.labels, direct.labels)
        assert task.train.shape == (5, 4)
        assert task.train_labels.shape == (5,)
        assert task.name == "set"
    bare = vd.tasks.from_arrays(linear, str(tmp_path / "rows.npy"), targets=1)
    assert bare.labels is None
    assert (bare.targets == 1).all()


def test_arrays_never_unpickle(linear, tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="unpickling"):
        vd.tasks.from_arrays(linear, tmp_path / "objects.npy")
    np.savez(tmp_path / "odd.npz", rows=np.ones((2, 4)), x=np.ones((2, 4)))
    with pytest.raises(FormatError, match="rows cannot be placed"):
        vd.tasks.from_arrays(linear, tmp_path / "odd.npz")
    with pytest.raises(InputError, match="there is no file"):
        vd.tasks.from_arrays(linear, tmp_path / "none.npz")
    (tmp_path / "text.txt").write_text("1")
    with pytest.raises(InputError, match="safetensors"):
        vd.tasks.from_arrays(linear, tmp_path / "text.txt")


# --- tables ---------------------------------------------------------------------------------------------


@pytest.fixture
def frame():
    rng = np.random.default_rng(1)
    colour = rng.choice(["red", "green", "blue"], 60)
    size = rng.normal(size=60)
    bought = np.where(size + (colour == "red") > 0.3, "yes", "no")
    return pd.DataFrame({"size": size, "colour": colour, "age": rng.integers(18, 80, 60), "bought": bought})


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_pipeline_is_explained_in_its_raw_columns(frame, tmp_path, suffix):
    path = tmp_path / f"shop.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    encode = ColumnTransformer([("one", OneHotEncoder(), ["colour"])], remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression(max_iter=1000))
    model.fit(frame.drop(columns="bought"), frame["bought"])
    task = vd.tasks.from_table(model, path, label="bought", train=0.5, head="binary")
    assert task.name == "shop"
    assert task.space.n_features == 3
    assert [task.space.feature_name(i) for i in range(3)] == ["size", "colour", "age"]
    assert len(task) + len(task.train) == 60
    rows = frame.iloc[task.ids.tolist()]
    assert torch.equal(task.labels, torch.tensor((rows["bought"] == "yes").to_numpy()).long())
    expected = model.predict(rows.drop(columns="bought")) == "yes"
    assert torch.equal(task.predictions, torch.tensor(expected).long())


def test_categories_become_column_groups_for_a_module(frame):
    net = torch.nn.Linear(5, 2)
    task = vd.tasks.from_table(net, frame, label="bought", train=frame)
    assert task.space.kind == "column_group"
    assert task.space.labels.tolist() == [0, 1, 1, 1, 2]
    levels = ["blue", "green", "red"]
    assert task.inputs[:, 1:4].argmax(1).tolist() == [levels.index(c) for c in frame["colour"]]
    assert (task.inputs[:, 1:4].sum(1) == 1).all()
    assert torch.allclose(task.inputs[:, 4], torch.tensor(frame["age"].to_numpy(), dtype=torch.float32))
    assert task.labels.tolist() == [int(b == "yes") for b in frame["bought"]]
    # removing the colour takes a whole colour from a reference row, never parts of two
    values = vd.explain("occlusion", task).values
    assert values.shape == (60, 3)


def test_numbers_alone_stay_columns(frame):
    task = vd.tasks.from_table(torch.nn.Linear(2, 2), frame[["size", "age"]])
    assert task.space.kind == "column"
    assert task.labels is None


def test_labels_follow_the_order_of_the_models_classes(frame):
    class Backwards:
        classes_ = ("yes", "no")

        def predict(self, rows):
            return np.zeros(len(rows))

        def predict_proba(self, rows):
            return np.tile([0.7, 0.3], (len(rows), 1))

    task = vd.tasks.from_table(Backwards(), frame, label="bought")
    assert task.labels.tolist() == [int(b == "no") for b in frame["bought"]]
    wrong = frame.assign(bought="perhaps")
    with pytest.raises(InputError, match="perhaps"):
        vd.tasks.from_table(Backwards(), wrong, label="bought")


def test_mistakes_with_tables_are_told(frame, tmp_path):
    net = torch.nn.Linear(5, 2)
    with pytest.raises(InputError, match="no column 'sold'"):
        vd.tasks.from_table(net, frame, label="sold")
    with pytest.raises(InputError, match=r"\['size'\] have missing values"):
        vd.tasks.from_table(net, frame.assign(size=np.nan))
    with pytest.raises(InputError, match="there is no file"):
        vd.tasks.from_table(net, tmp_path / "none.csv")
    with pytest.raises(InputError, match="between 0 and 1"):
        vd.tasks.from_table(net, frame, train=1.5)
    (tmp_path / "a.xls").write_text("")
    with pytest.raises(InputError, match=r"\.csv, \.tsv, \.parquet"):
        vd.tasks.from_table(net, tmp_path / "a.xls")


# --- images ---------------------------------------------------------------------------------------------


class Brightness(torch.nn.Module):
    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return torch.stack([-mean, mean], 1)


@pytest.fixture
def folder(tmp_path):
    for name, level in (("dark", 30), ("light", 220)):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (20 + number, 30), (level, level, level)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def test_subfolders_name_the_classes(folder):
    task = vd.tasks.from_image_folder(Brightness(), folder, size=16, mean=0.5, deviation=0.5)
    assert task.inputs.shape == (6, 3, 16, 16)
    assert task.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(task.predictions, task.labels)
    assert torch.allclose(task.inputs[0], torch.tensor((30 / 255 - 0.5) / 0.5), atol=1e-6)
    swapped = vd.tasks.from_image_folder(Brightness(), folder, size=16, classes=["light", "dark"])
    assert swapped.labels.tolist() == [1, 1, 1, 0, 0, 0]


def test_a_part_of_a_folder_keeps_ids_and_labels(folder):
    whole = vd.tasks.from_image_folder(Brightness(), folder, size=(8, 12), channels=1)
    part = vd.tasks.from_image_folder(Brightness(), folder, size=(8, 12), channels=1, samples=3, seed=5)
    assert whole.inputs.shape == (6, 1, 8, 12)
    place = {number: row for row, number in enumerate(whole.ids.tolist())}
    rows = [place[number] for number in part.ids.tolist()]
    assert torch.equal(whole.labels[rows], part.labels)
    assert torch.equal(whole.inputs[rows], part.inputs)


def test_the_centre_is_cut_out(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "stripe.png")
    task = vd.tasks.from_image_folder(Brightness(), tmp_path, size=10, shorter=10)
    assert task.labels is None
    assert (task.inputs == 1).all()


def test_mistakes_with_folders_are_told(folder, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        vd.tasks.from_image_folder(Brightness(), tmp_path / "none", size=8)
    with pytest.raises(InputError, match="'dark', 'light'"):
        vd.tasks.from_image_folder(Brightness(), folder, size=8, classes=["a"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no image"):
        vd.tasks.from_image_folder(Brightness(), tmp_path / "empty", size=8)
