"""The options by which a user's own model and data enter from a shell."""

import inspect

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app
from veridical.cli.sources import Source
from veridical.errors import InputError


def chosen(**options):
    return Source(**options).load()


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture
def files(tmp_path):
    """A network and an estimator of three columns, and a table for both."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 3)), columns=["a", "b", "c"])
    frame["label"] = (frame["a"] > 0).astype(int)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame[["a", "b", "c"]], frame["label"])
    joblib.dump(model, tmp_path / "model.joblib")
    save_file(torch.nn.Linear(3, 2).state_dict(), tmp_path / "net.safetensors")
    (tmp_path / "cli_net.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(3, 2)\n")
    return tmp_path


def test_every_command_that_takes_data_takes_the_column_of_texts():
    import veridical.cli  # noqa: F401 (adds all commands)

    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    takes = {
        command.callback.__name__: set(inspect.signature(command.callback).parameters)
        for group in groups
        for command in group.registered_commands
    }
    assert {"gef", "benchmark", "damage", "search", "evaluate", "explain", "audit", "doctor"} <= set(takes)
    own = {name: options for name, options in takes.items() if "model" in options}
    assert [name for name, options in own.items() if not {"text", "output"} <= options] == []


def test_without_a_model_an_embedded_task_is_meant():
    assert chosen(samples=3).content_hash() == vd.tasks.load("digits", samples=3).content_hash()
    assert len(chosen(task="wine", device="cpu")) == 44


def test_options_that_contradict_each_other_are_told(files):
    with pytest.raises(InputError, match=r"--data and --labels describe your own model's data.*--model"):
        chosen(data=files / "rows.csv", labels="label")
    with pytest.raises(InputError, match="give one of them"):
        chosen(task="digits", model=str(files / "model.joblib"), data=files / "rows.csv")
    with pytest.raises(InputError, match="--model needs --data"):
        chosen(model=str(files / "model.joblib"))
    with pytest.raises(InputError, match="--allow-code"):
        chosen(model=str(files / "model.joblib"), data=files / "rows.csv")
    with pytest.raises(InputError, match="device 'tpu9' cannot be used"):
        chosen(device="tpu9")


def test_an_estimator_is_explained_from_a_shell(files, tmp_path):
    own = ("--model", files / "model.joblib", "--data", files / "rows.csv", "--allow-code")
    text = run("explain", "occlusion", *own, "-n", 8, "--out", tmp_path / "maps.png")
    assert "Explanation by occlusion: 8 samples x 3 column features" in text
    assert " a +" in text
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


def test_a_network_is_evaluated_from_a_shell(files, monkeypatch):
    monkeypatch.chdir(files)
    own = ("--model", "net.safetensors", "--arch", "cli_net:build", "--data", "rows.csv", "--allow-code")
    text = run("evaluate", *own, "--train", "rows.csv", "-e", "saliency", "-m", "sparseness", "-n", 8)
    assert "saliency" in text
    assert "failed" not in text


def test_a_black_box_gets_explainers_that_need_no_gradient(files):
    own = ("--model", files / "model.joblib", "--data", files / "rows.csv", "--allow-code", "-n", 6)
    text = run("evaluate", *own, "-m", "sparseness")
    assert "occlusion" in text
    assert "failed" not in text


@pytest.fixture
def several(tmp_path):
    """Regressors and classifiers of two targets at once, and a table for them."""
    from sklearn.linear_model import LinearRegression
    from sklearn.tree import DecisionTreeClassifier

    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "c"])
    both = np.stack([3 * frame["a"], -2 * frame["b"]], 1)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    joblib.dump(LinearRegression().fit(frame, both), tmp_path / "two.joblib")
    joblib.dump(LinearRegression().fit(frame, both[:, 0]), tmp_path / "one.joblib")
    joblib.dump(DecisionTreeClassifier(random_state=0).fit(frame, both > 0), tmp_path / "classes.joblib")
    return tmp_path


def test_one_of_several_targets_is_chosen_by_its_number(several):
    words = ("--data", several / "rows.csv", "--allow-code", "--output", 1)
    told = run("doctor", several / "two.joblib", *words[1:], "--train", several / "rows.csv", "-o", several)
    assert "explainers that apply" in told
    maps = several / "maps.safetensors"
    run("explain", "occlusion", "--model", several / "two.joblib", *words, "--out", maps)
    assert set(vd.Explanation.load(maps).values.abs().argmax(1).tolist()) == {1}  # it follows b alone
    task = chosen(model=str(several / "classes.joblib"), data=several / "rows.csv", allow_code=True, output=1)
    assert task.n_outputs == 2


def test_a_target_needs_a_model_of_ones_own():
    with pytest.raises(InputError, match="--output describe your own model's data"):
        chosen(task="digits", output=0)


def test_studies_choose_a_target_too(several):
    files = {"model": str(several / "two.joblib"), "data": str(several / "rows.csv")}
    study = {"tasks": [{**files, "output": 1}], "explainers": ["occlusion"], "metrics": ["complexity"]}
    found = vd.study.run(study, several / "out", allow_code=True, progress=False)
    assert not found.failures
    with pytest.raises(InputError, match="predicts targets 0 to 1"):
        vd.study.run({**study, "tasks": [{**files, "output": 7}]}, several / "b", allow_code=True)
    with pytest.raises(InputError, match="name it with model"):
        vd.study.run({**study, "tasks": [{"name": "digits", "output": 1}]}, several / "c")


def test_finished_maps_come_from_files(files, tmp_path):
    own = ("--model", files / "model.joblib", "--data", files / "rows.csv", "--allow-code", "-n", 8)
    run("explain", "occlusion", *own, "--out", tmp_path / "saved.safetensors")
    rows = len(pd.read_csv(files / "rows.csv"))
    every = np.random.default_rng(0).normal(size=(rows, 3))
    np.savez(tmp_path / "maps.npz", mine=every, half=every / 2)
    pd.DataFrame(every, columns=list("abc")).to_csv(tmp_path / "table.csv", index=False)
    maps = [
        word
        for name in ("saved.safetensors", "maps.npz", "table.csv")
        for word in ("--maps", tmp_path / name)
    ]
    run("evaluate", *own, "-m", "sparseness", *maps, "--table", tmp_path / "scores.csv")
    found = pd.read_csv(tmp_path / "scores.csv").set_index("explainer")["mean"]
    assert set(found.index) == {"random", "occlusion", "mine", "half", "table"}
    assert found["mine"].tolist() == pytest.approx(found["half"].tolist())
    assert found["mine"].tolist() == pytest.approx(found["table"].tolist())
