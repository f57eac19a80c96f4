"""Arrays, tables, images and labels from files, and tasks from them."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import veridical as vd
from tests.data_tests.conftest import Brightness
from veridical.data import label_column, load_task, read_examples, text_column
from veridical.data.files import read_table
from veridical.data.images import image_rule, open_image, read_image
from veridical.data.tables import Labels
from veridical.errors import FormatError, InputError, ShapeError

# --- arrays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("inputs", "labels", "train", "train_labels"), None),
        (("x", "y", "x_train", "y_train"), None),
        (("X", "Y", "train", "train_labels"), None),
        (("x_test", "y_test", "x_train", "y_train"), None),
        (("x", "truth", "train", "train_labels"), "truth"),
    ],
)
def test_arrays_go_by_their_usual_names(tmp_path, names, labels):
    values = [np.ones((3, 2)), np.arange(3), np.zeros((4, 2)), np.arange(4)]
    np.savez(tmp_path / "set.npz", **dict(zip(names, values, strict=True)))
    found = read_examples(tmp_path / "set.npz", labels)
    assert (found.kind, found.count, found.name) == ("arrays", 3, "set")
    assert np.array_equal(found.rows, values[0])
    for name, value in zip(("labels", "train", "train_labels"), values[1:], strict=True):
        assert np.array_equal(found.arrays[name], value)


def test_reference_rows_may_be_called_train(tmp_path):
    np.savez(tmp_path / "both.npz", x=np.ones((3, 2)), x_train=np.zeros((4, 2)), y_train=np.arange(4))
    found = read_examples(tmp_path / "both.npz", reference=True)
    assert np.array_equal(found.rows, np.zeros((4, 2)))
    assert np.array_equal(found.arrays["labels"], np.arange(4))
    np.save(tmp_path / "one.npy", np.ones((5, 2)))
    assert read_examples(tmp_path / "one.npy", "truth", reference=True).count == 5


PICKLED = np.array([{"a": 1}, None], dtype=object)


@pytest.mark.parametrize(
    ("content", "labels", "message"),
    [
        ({"x": np.ones((2, 2)), "odd": np.ones(2)}, None, "odd cannot be placed.*labels: labels or y"),
        ({"x": np.ones((2, 2))}, "truth", "no array 'truth'; set.npz has x"),
        ({"x": np.ones((0, 2))}, None, r"no rows: inputs have shape \(0, 2\)"),
        ({"x": PICKLED}, None, "without unpickling.*Python objects"),
        (b"", None, r"set\.npz is empty"),
        (b"hello there, no zip", None, "no numpy file or"),
        (None, None, r"there is no file .*set\.npz"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(tmp_path, content, labels, message):
    if isinstance(content, bytes):
        (tmp_path / "set.npz").write_bytes(content)
    elif content is not None:
        np.savez(tmp_path / "set.npz", **content)
    with pytest.raises((FormatError, InputError), match=message):
        read_examples(tmp_path / "set.npz", labels)


# --- tables ---------------------------------------------------------------------------------------------


def write(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")) + "\n\n")
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_all_tables_read_alike(tmp_path, shop, suffix):
    write(shop, tmp_path / f"shop.{suffix}")
    found = read_examples(tmp_path / f"shop.{suffix}")
    assert (found.kind, found.count, found.name) == ("table", 120, "shop")
    pd.testing.assert_frame_equal(found.rows, shop, check_dtype=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{text: c}\n', r"line 3 of a\.jsonl is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1, 2]\n', r"line 2 of a\.jsonl is no object"),
        ("a.jsonl", b'{"text": ["a", "b"]}\n', r"line 1 of a\.jsonl has lists or objects in \['text'\]"),
        ("a.jsonl", b"\n  \n", "no rows"),
        ("a.jsonl", b'{"text": "\xfc"}\n', "not written in UTF-8"),
        ("a.csv", b"x,y\n1,2\n1,2,3,4\n", r"not a \.csv table.*line 3"),
        ("a.csv", b"x,y\n", r"columns \['x', 'y'\] and no rows"),
        ("a.csv", b"x\n\xfc\n", "not written in UTF-8"),
        ("a.parquet", b"PAR1 hello", r"not a \.parquet table"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_table(tmp_path / name)


# --- which column is which ------------------------------------------------------------------------------


def columns(**values):
    return pd.DataFrame(values)


def test_a_label_is_guessed_only_where_one_column_can_be_it():
    frame = columns(a=[1], Label=[0], b=[2])
    assert label_column(frame, None) == "Label"
    assert label_column(frame, "b") == "b"
    assert label_column(columns(a=[1], b=[2]), None) is None
    # one column more than the model takes is the label, whatever its name; one it takes is none
    assert label_column(columns(a=[1], y=[2], truth=[0]), None, ["a", "y"]) == "truth"
    assert label_column(columns(a=[1], b=[2], c=[0]), None, ["a"]) is None
    with pytest.raises(InputError, match=r"'label', 'target' may each hold the true classes.*--labels"):
        label_column(columns(a=[1], label=[0], target=[1]), None)
    with pytest.raises(InputError, match="no column 'sold'; the table has 'a', 'Label', 'b'"):
        label_column(frame, "sold")


def test_texts_are_guessed_only_where_one_column_can_be_them():
    assert text_column(columns(words=["a"], label=["b"], n=[1]), "label") == "words"
    assert text_column(columns(title=["a"], text=["b"]), None) == "text"
    assert text_column(columns(title=["a"], text=["b"]), None, "title") == "title"
    with pytest.raises(InputError, match="'title', 'body' may each hold the texts"):
        text_column(columns(title=["a"], body=["b"], n=[1]), None)
    with pytest.raises(InputError, match="no column holds texts; the table has 'n'"):
        text_column(columns(n=[1]), None)
    with pytest.raises(InputError, match="no column 'body' of texts"):
        text_column(columns(n=[1]), None, "body")


# --- labels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        ([2, 0], ["a", "b", "c"], [2, 0]),
        ([1.0, 0.0], ["a", "b"], [1, 0]),
        (["b", "a"], ["a", "b"], [1, 0]),
        (["POS", "neg"], ["Neg", "Pos"], [1, 0]),
        (["10", "2"], None, [10, 2]),
        (["10", "2"], ["2", "10"], [1, 0]),
        (["dog", "cat", "dog"], None, [1, 0, 1]),
        ([True, False], None, [1, 0]),
    ],
)
def test_labels_become_numbers_of_outputs(values, names, numbers):
    assert Labels.of(values, values[::-1], names=names).values.tolist() == numbers
    assert Labels.of(values, values[::-1], names=names).train.tolist() == numbers[::-1]


def test_labels_that_fit_no_output_are_refused():
    with pytest.raises(InputError, match=r"labels \['c'\] are not among the model's classes \['a', 'b'\]"):
        Labels.of(["a", "c"], None, names=["a", "b"])
    # two classes that differ in case alone are told apart, so case is not forgiven
    with pytest.raises(InputError, match="not among"):
        Labels.of(["Ab"], None, names=["aB", "AB"])
    task = vd.Task(torch.nn.Linear(2, 3), torch.ones(2, 2))
    for labels, message in (
        ([0, 3], "labels run from 0 to 3, and the model has the numbers 0 to 2"),
        (["a", "b"], "name 2 classes and the model has 3 outputs"),
        ([0.5, 1], "have fractions"),
    ):
        with pytest.raises(InputError, match=message):
            Labels.of(labels, None).checked(task)
    regression = vd.Task(torch.nn.Linear(2, 1), torch.ones(2, 2), head="regression")
    for labels in ([0.5, 1], None):
        assert Labels.of(labels, None).checked(regression) is regression


# --- images ---------------------------------------------------------------------------------------------


def claim(path, width, height):
    """A PNG of a few bytes whose header claims an enormous size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize("side", [8_000, 10_000, 60_000])
def test_images_that_would_fill_the_memory_are_refused_by_their_header(tmp_path, side, recwarn):
    claim(tmp_path / "bomb.png", side, side)
    with pytest.raises(InputError, match=r"the image bomb\.png .* pixels"):
        open_image(tmp_path / "bomb.png")
    assert not recwarn.list


def test_files_that_are_no_images_are_told(tmp_path):
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(FormatError, match=r"text\.png is not an image"):
        open_image(tmp_path / "text.png")
    claim(tmp_path / "cut.png", 30, 30)
    with pytest.raises(FormatError, match=r"the image cut\.png is damaged"):
        open_image(tmp_path / "cut.png")
    with pytest.raises(InputError, match="there is no file"):
        open_image(tmp_path / "gone.png")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"size": {"height": 8, "width": 6}}, {"size": (8, 6), "squash": True, "shorter": None}),
        ({"size": 8}, {"size": 8, "squash": True}),
        ({"size": {"shortest_edge": 9}}, {"size": 9, "shorter": 9, "squash": False}),
        (
            {"size": {"shortest_edge": 9}, "crop_size": {"height": 8, "width": 8}},
            {"size": (8, 8), "shorter": 9},
        ),
        ({"size": 9, "crop_size": 8, "do_center_crop": True}, {"size": 8, "shorter": 9}),
        ({"size": {"shortest_edge": 8}, "crop_pct": 0.8}, {"size": 8, "shorter": 10}),
        ({"do_rescale": False, "image_mean": [51.0], "image_std": [255.0]}, {"channels": 1, "mean": [0.2]}),
        ({"do_normalize": False}, {"mean": 0.0, "deviation": 1.0}),
    ],
)
def test_rules_for_images_are_read_as_they_are_meant(tmp_path, facts, expected):
    (tmp_path / "rule.json").write_text(json.dumps(facts))
    rule = image_rule(tmp_path / "rule.json")
    assert {name: rule[name] for name in expected} == expected


def test_rules_that_say_nothing_are_told(tmp_path):
    for text in ("{", "[]", '{"size": {"width": 3}}', '{"size": 8, "image_mean": "x"}'):
        (tmp_path / "rule.json").write_text(text)
        with pytest.raises(FormatError, match="does not say how images are prepared"):
            image_rule(tmp_path / "rule.json")


def test_a_squashed_image_loses_no_edge(tmp_path):
    pixels = np.zeros((10, 40), np.uint8)
    pixels[:, :4] = 255
    Image.fromarray(pixels).save(tmp_path / "edge.png")
    squashed = read_image(tmp_path / "edge.png", 10, channels=1, squash=True, resample=4)
    cut = read_image(tmp_path / "edge.png", 10, channels=1, shorter=10)
    assert squashed[0, :, 0].tolist() == [1.0] * 10
    assert float(cut.max()) == 0


# --- tasks ----------------------------------------------------------------------------------------------


def test_arrays_in_memory_and_in_files_give_the_same_task(tmp_path):
    from safetensors.numpy import save_file

    linear = torch.nn.Linear(4, 3)
    arrays = {
        "inputs": np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32),
        "labels": np.arange(6) % 3,
        "train": np.ones((5, 4), np.float32),
        "train_labels": np.zeros(5, np.int64),
    }
    np.savez(tmp_path / "set.npz", **arrays)
    np.save(tmp_path / "rows.npy", arrays["inputs"])
    save_file(arrays, tmp_path / "set.safetensors")
    direct = vd.Task(linear, arrays["inputs"], labels=arrays["labels"])
    for data in (tmp_path / "set.npz", tmp_path / "set.safetensors", arrays):
        task = load_task(linear, data)
        assert torch.equal(task.inputs, direct.inputs)
        assert torch.equal(task.labels, direct.labels)
        assert task.train.shape == (5, 4)
        assert task.train_labels.shape == (5,)
    bare = load_task(linear, str(tmp_path / "rows.npy"), targets=1)
    assert bare.labels is None
    assert (bare.targets == 1).all()


def test_categories_become_column_groups_for_a_module(shop):
    task = load_task(torch.nn.Linear(5, 2), shop, labels="bought", train=shop)
    assert task.space.kind == "column_group"
    assert task.space.labels.tolist() == [0, 1, 1, 1, 2]
    levels = ["blue", "green", "red"]
    assert task.inputs[:, 1:4].argmax(1).tolist() == [levels.index(c) for c in shop["colour"]]
    assert (task.inputs[:, 1:4].sum(1) == 1).all()
    assert torch.allclose(task.inputs[:, 4], torch.tensor(shop["age"].to_numpy(), dtype=torch.float32))
    # removing the colour takes a whole colour from a reference row, never parts of two
    assert vd.explain("occlusion", task).values.shape == (120, 3)
    # a part of the rows has the columns of all levels
    part = load_task(torch.nn.Linear(5, 2), shop, labels="bought", samples=2, seed=3)
    assert torch.equal(task.inputs[part.ids], part.inputs)
    with pytest.raises(ShapeError, match="The columns are 'size', 'colour', 'age', 'bought'; if one of them"):
        load_task(torch.nn.Linear(5, 2), shop)
    with pytest.raises(InputError, match=r"\['size'\] have missing values"):
        load_task(torch.nn.Linear(5, 2), shop.assign(size=np.nan))


def test_subfolders_name_the_classes(photos):
    rule = {"size": 16, "mean": 0.5, "deviation": 0.5}
    task = load_task(Brightness(), photos, image=rule)
    assert task.inputs.shape == (12, 3, 16, 16)
    assert task.labels.tolist() == [0] * 6 + [1] * 6
    assert torch.equal(task.predictions, task.labels)
    swapped = load_task(Brightness(), photos, image=rule, classes=["light", "dark"])
    assert swapped.labels.tolist() == [1] * 6 + [0] * 6
    with pytest.raises(InputError, match="'dark', 'light'"):
        load_task(Brightness(), photos, image=rule, classes=["a", "b"])
    # subfolders of digits are numbers of outputs, however many of them there are
    for old, new in (("dark", "0"), ("light", "10")):
        (photos / old).rename(photos / new)
    wide = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 11))
    assert load_task(wide, photos, image=rule).labels.tolist() == [0] * 6 + [10] * 6
