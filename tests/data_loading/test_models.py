"""Models from files: what is read, what is refused, and that refused code never ran."""

import pickle
import sys

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.data_loading.conftest import network
from veridical.data import import_attribute, load_model, load_weights, read_weights
from veridical.errors import FormatError, InputError


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


def test_a_builder_in_memory_needs_no_permission(net):
    model, folder, witness = net
    again = load_weights(folder / "net.safetensors", network)
    assert torch.equal(again[0].weight, model[0].weight)
    assert load_model(model).model is model
    assert not witness.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_net:wide", r"do not fit the network.*Linear"),
        ("own_net:needs", "without arguments"),
        ("own_net:wrong", "gives a str"),
        ("own_net:number", "gives a int"),
        ("own_net:absent", "has no 'absent'; it has Path, build"),
        ("own_net", "module:function"),
        ("not_there:build", "cannot be imported"),
        ("nowhere/net.py:build", "there is no file"),
    ],
)
def test_architectures_that_do_not_fit_are_told(net, monkeypatch, name, message):
    _, folder, _ = net
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=message):
        load_model(folder / "net.safetensors", arch=name, allow_code=True)


def test_shapes_that_do_not_fit_are_named(net):
    _, folder, _ = net
    smaller = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    with pytest.raises(InputError, match="size mismatch for 0"):
        load_weights(folder / "net.safetensors", smaller)


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


def test_weights_need_their_architecture(net):
    _, folder, _ = net
    with pytest.raises(InputError, match="--arch module:function"):
        load_model(folder / "net.safetensors", allow_code=True)


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


# --- which kind a path is -------------------------------------------------------------------------------


def test_paths_that_lead_to_no_model_are_told(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(InputError, match="on the hub is written hf:owner/name"):
        load_model("owner/name")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "model.h5").write_text("x")
    with pytest.raises(InputError, match=r"ends in '\.h5'; a model is a Hugging Face folder or a file that"):
        load_model(tmp_path / "model.h5")
    with pytest.raises(InputError, match="kind is one of"):
        load_model(tmp_path / "model.h5", kind="keras")
    with pytest.raises(InputError, match="there is no folder"):
        load_model(tmp_path / "gone", kind="huggingface")


def test_an_architecture_goes_with_weights_alone(tmp_path):
    (tmp_path / "model.onnx").write_text("x")
    with pytest.raises(InputError, match="goes with a file of weights"):
        load_model(tmp_path / "model.onnx", arch="a:b", allow_code=True)


def test_attributes_of_attributes_are_found():
    assert import_attribute("torch:nn.Linear", allow_code=True) is torch.nn.Linear
