"""ONNX models: the same answers at any batch size, and no file read from outside the model's folder."""

import numpy as np
import pytest
import torch

import veridical as vd
from veridical.data.onnx_models import OnnxFunction, check_external_data
from veridical.errors import FormatError, InputError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.extras

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def linear_model(batch, extra_outputs=False):
    """y = x W as an ONNX model with this batch dimension (a number, or a name)."""
    helper = onnx.helper
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [batch, 3])]
    if extra_outputs:
        nodes.append(helper.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0))
        outputs.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [batch]))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 4])],
        outputs,
        [onnx.numpy_helper.from_array(WEIGHT, "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def rows():
    return np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)


@pytest.mark.parametrize("batch", ["N", 1, 3, 16])
def test_any_batch_dimension_gives_the_same_answers(tmp_path, rows, batch):
    onnx.save(linear_model(batch), tmp_path / "linear.onnx")
    task = vd.tasks.from_onnx(tmp_path / "linear.onnx", rows)
    assert task.name == "linear"
    assert not task.differentiable
    assert np.allclose(task.outputs.numpy(), rows @ WEIGHT, atol=1e-5)
    values = vd.explain("occlusion", task, **{}).values
    target = WEIGHT[:, task.targets.numpy()].T
    assert np.allclose(values.numpy(), rows * target, atol=1e-4)


def test_a_fixed_batch_is_never_exceeded(tmp_path, rows, monkeypatch):
    onnx.save(linear_model(3), tmp_path / "linear.onnx")
    function = OnnxFunction(tmp_path / "linear.onnx")
    seen = []
    run = function.session.run

    class Spy:
        def run(self, names, feeds):
            seen.append(len(feeds["x"]))
            return run(names, feeds)

        def get_outputs(self):
            return []

    function.session = Spy()
    assert function(rows).shape == (7, 3)
    assert seen == [3, 3, 3]


def test_an_output_is_chosen_by_name(tmp_path, rows):
    onnx.save(linear_model("N", extra_outputs=True), tmp_path / "two.onnx")
    task = vd.tasks.from_onnx(tmp_path / "two.onnx", rows, output_name="y")
    assert np.allclose(task.outputs.numpy(), rows @ WEIGHT, atol=1e-5)
    with pytest.raises(InputError, match="label"):
        OnnxFunction(tmp_path / "two.onnx")(rows)
    with pytest.raises(InputError, match="not 'z'"):
        vd.tasks.from_onnx(tmp_path / "two.onnx", rows, output_name="z")


def external(model, path, location):
    """Save with the weights moved to a file beside (or, for an attack, somewhere else)."""
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location=location)
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
    (path.parent / location).write_bytes(WEIGHT.tobytes())
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())


def test_weights_beside_the_model_are_read(tmp_path, rows):
    external(linear_model("N"), tmp_path / "beside.onnx", "weights.bin")
    task = vd.tasks.from_onnx(tmp_path / "beside.onnx", rows)
    assert np.allclose(task.outputs.numpy(), rows @ WEIGHT, atol=1e-5)


@pytest.mark.parametrize("location", ["../outside.bin", "inner/../../outside.bin"])
def test_weights_outside_the_folder_are_refused(tmp_path, rows, location):
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    external(linear_model("N"), folder / "evil.onnx", location)
    with pytest.raises(FormatError, match="outside its folder"):
        vd.tasks.from_onnx(folder / "evil.onnx", rows)


def test_a_link_out_of_the_folder_is_refused(tmp_path, rows):
    folder = tmp_path / "model"
    folder.mkdir()
    external(linear_model("N"), folder / "link.onnx", "weights.bin")
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(FormatError, match="outside its folder"):
        vd.tasks.from_onnx(folder / "link.onnx", rows)


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
    model = linear_model("N")
    model.graph.node.append(helper.make_node("If", ["x"], ["never"], then_branch=inner, else_branch=inner))
    (tmp_path / "nested.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="outside its folder"):
        check_external_data(tmp_path / "nested.onnx")


def test_an_exported_network_answers_like_the_original(tmp_path):
    pytest.importorskip("onnxscript")
    task = vd.tasks.load("digits", samples=10)
    path = tmp_path / "digits.onnx"
    torch.onnx.export(task.model, (task.inputs[:1],), path, dynamo=True, verbose=False)
    again = vd.tasks.from_onnx(path, task.inputs)
    assert torch.allclose(again.outputs.float(), task.outputs, atol=1e-4)


def test_mistakes_are_told(tmp_path, rows):
    with pytest.raises(InputError, match="there is no file"):
        vd.tasks.from_onnx(tmp_path / "none.onnx", rows)
    (tmp_path / "text.onnx").write_text("not a model at all")
    with pytest.raises(FormatError, match="not an ONNX model"):
        vd.tasks.from_onnx(tmp_path / "text.onnx", rows)
    onnx.save(linear_model("N"), tmp_path / "one.onnx")
    with pytest.raises(InputError, match="takes"):
        OnnxFunction(tmp_path / "one.onnx")(rows, rows)
