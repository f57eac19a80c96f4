"""ONNX models: batches, outputs, shapes, and no file outside their folder."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import veridical as vd
from veridical.data import load_model, load_task
from veridical.data.onnx_models import OnnxFunction, check_external_data
from veridical.errors import FormatError, InputError, MissingExtraError, ShapeError, VeridicalWarning

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.extras

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def model(batch="N", weight=WEIGHT, probabilities=False):
    """y = x W with this batch dimension (a number, or a name), or a label and probabilities of it."""
    helper, kind = onnx.helper, onnx.TensorProto
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", kind.FLOAT, [batch, weight.shape[1]])]
    if probabilities:
        nodes.append(helper.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0))
        nodes.append(helper.make_node("Softmax", ["y"], ["chances"], axis=1))
        label = helper.make_tensor_value_info("label", kind.INT64, [batch])
        outputs = [label, helper.make_tensor_value_info("chances", kind.FLOAT, [batch, weight.shape[1]])]
    inputs = [helper.make_tensor_value_info("x", kind.FLOAT, [batch, weight.shape[0]])]
    graph = helper.make_graph(nodes, "linear", inputs, outputs, [onnx.numpy_helper.from_array(weight, "W")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def rows():
    return np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)


@pytest.mark.parametrize("batch", ["N", 1, 3, 16])
def test_any_batch_dimension_gives_the_same_answers(tmp_path, rows, batch):
    onnx.save(model(batch), tmp_path / "linear.onnx")
    task = load_task(tmp_path / "linear.onnx", rows)
    assert task.name == "linear on arrays"
    assert not task.differentiable
    assert np.allclose(task.outputs.numpy(), rows @ WEIGHT, atol=1e-5)
    values = vd.explain("occlusion", task, **{}).values
    target = WEIGHT[:, task.targets.numpy()].T
    assert np.allclose(values.numpy(), rows * target, atol=1e-4)


def test_an_output_is_chosen_by_name(tmp_path, rows):
    onnx.save(model(probabilities=True), tmp_path / "two.onnx")
    first, named = OnnxFunction(tmp_path / "two.onnx"), OnnxFunction(tmp_path / "two.onnx", "chances")
    assert np.array_equal(first(rows), named(rows))
    with pytest.raises(InputError, match="label"):
        OnnxFunction(tmp_path / "two.onnx", "label")(rows)
    with pytest.raises(InputError, match="not 'z'"):
        OnnxFunction(tmp_path / "two.onnx", "z")


def external(model, path, location):
    """Save with the weights moved to a file beside (or, for an attack, somewhere else)."""
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location=location)
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
    (path.parent / location).write_bytes(WEIGHT.tobytes())
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())


def test_weights_beside_the_model_are_read(tmp_path, rows):
    external(model(), tmp_path / "beside.onnx", "weights.bin")
    task = load_task(tmp_path / "beside.onnx", rows)
    assert np.allclose(task.outputs.numpy(), rows @ WEIGHT, atol=1e-5)


@pytest.mark.parametrize("location", ["../outside.bin", "inner/../../outside.bin"])
def test_weights_outside_the_folder_are_refused(tmp_path, rows, location):
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    external(model(), folder / "evil.onnx", location)
    with pytest.raises(FormatError, match="outside its folder"):
        load_task(folder / "evil.onnx", rows)


def test_a_link_out_of_the_folder_is_refused(tmp_path, rows):
    folder = tmp_path / "model"
    folder.mkdir()
    external(model(), folder / "link.onnx", "weights.bin")
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(FormatError, match="outside its folder"):
        load_task(folder / "link.onnx", rows)


def test_a_constant_in_a_nested_graph_is_checked_too(tmp_path):
    helper = onnx.helper
    tensor = onnx.numpy_helper.from_array(WEIGHT, "hidden")
    onnx.external_data_helper.set_external_data(tensor, location="../outside.bin")
    tensor.ClearField("raw_data")
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=tensor)],
        "inner",
        [],
        [helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [4, 3])],
    )
    made = model()
    made.graph.node.append(helper.make_node("If", ["x"], ["never"], then_branch=inner, else_branch=inner))
    (tmp_path / "nested.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(FormatError, match="outside its folder"):
        check_external_data(tmp_path / "nested.onnx")


# --- by load_task ---------------------------------------------------------------------------------------


def export(module, rows, path):
    pytest.importorskip("onnxscript")
    batch = torch.export.Dim("batch")
    torch.onnx.export(module.eval(), (rows,), path, dynamo=True, verbose=False, dynamic_shapes=({0: batch},))
    return path


def test_probabilities_are_found_beside_the_label(tmp_path, shop):
    weight = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    onnx.save(model(weight=weight, probabilities=True), tmp_path / "shop.onnx")
    shop.to_csv(tmp_path / "shop.csv", index=False)
    with pytest.warns(VeridicalWarning, match="answers probabilities"):
        task = load_task(tmp_path / "shop.onnx", tmp_path / "shop.csv", labels="bought", samples=9)
    assert task.space.n_features == 3
    scores = torch.tensor(task.inputs.numpy() @ weight)
    assert torch.allclose(task.probabilities(task.outputs).float(), scores.softmax(-1), atol=1e-5)


def test_images_take_the_size_the_model_declares(photos, tmp_path):
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    export(module, torch.randn(2, 3, 18, 20), tmp_path / "pool.onnx")
    with pytest.raises(ShapeError, match=r"takes rows of shape \(3, 18, 20\), the data has .* \(5,\)"):
        load_task(tmp_path / "pool.onnx", np.ones((3, 5), np.float32))
    with pytest.warns(VeridicalWarning, match="values from 0 to 1"):
        task = load_task(tmp_path / "pool.onnx", photos)
    assert task.inputs.shape == (12, 3, 18, 20)
    assert task.labels.tolist() == [0] * 6 + [1] * 6


def test_two_models_are_told_apart_by_their_content(tmp_path, arrays):
    first, second = (np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32) for seed in (0, 1))
    hashes = []
    for name, weight in (("a", first), ("b", second), ("c", first)):
        onnx.save(model(weight=weight, probabilities=True), tmp_path / f"{name}.onnx")
        task = load_task(tmp_path / f"{name}.onnx", arrays["x"])
        hashes.append(task.with_targets(0).content_hash())
    assert hashes[0] == hashes[2] != hashes[1]
    function = load_model(tmp_path / "a.onnx").model
    again = pickle.loads(pickle.dumps(function))
    assert np.array_equal(again(arrays["x"]), function(arrays["x"]))


def test_files_that_are_no_models_are_refused(tmp_path, monkeypatch):
    made = model()
    tensor = made.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location="gone.bin")
    tensor.ClearField("raw_data")
    held = {"empty.onnx": b"", "text.onnx": b"no model at all", "lost.onnx": made.SerializeToString()}
    for name, content in held.items():
        (tmp_path / name).write_bytes(content)
    for name, message in (
        ("empty.onnx", r"empty\.onnx is empty"),
        ("text.onnx", "not an ONNX model"),
        ("lost.onnx", r"lie in 'gone\.bin', which is not there"),
    ):
        with pytest.raises(FormatError, match=message):
            load_model(tmp_path / name)
    monkeypatch.setattr("veridical.data.files.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'veridical\[onnx\]'"):
        load_task(tmp_path / "lost.onnx", pd.DataFrame({"a": [1.0]}))
