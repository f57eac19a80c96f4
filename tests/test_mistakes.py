"""A table of mistakes: each is answered by one sentence of ours, never by a traceback of another library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import NearestCentroid
from torch import nn

import veridical as vd
from veridical import study
from veridical.data import load_task, read_examples
from veridical.errors import VeridicalError

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
NET = nn.Linear(4, 3)
T = vd.Task(NET, X)
ROWS = X.numpy().astype(float)
FRAME = pd.DataFrame(ROWS, columns=list("abcd"))
Y = np.array([0, 1, 0, 1, 0, 1])
CLF = LogisticRegression().fit(FRAME, Y)


class Later(nn.Module):
    """A model that answers two rows and fails at several."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2:
            raise RuntimeError("too many rows")
        return self.layer(x)


class OnlyWhole(nn.Module):
    """A model that answers whole rows and fails where anything was removed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 0).any()):
            raise ValueError("a zero is no measurement")
        return x[:, :3]


def boom(x: Any) -> Any:
    raise KeyError("k")


def evaluation() -> vd.Evaluation:
    return vd.evaluate(T, ["gradient"], ["sparseness"])


def written(name: str, content: bytes) -> str:
    Path(name).write_bytes(content)
    return name


MISTAKES: dict[str, Callable[[], Any]] = {
    "fn arity 2": lambda: vd.Task(lambda a, b: a, X),
    "fn arity 0": lambda: vd.Task(lambda: 1, X),
    "explainer arity 1": lambda: vd.explain(lambda m: 1, T),
    "explainer arity 4": lambda: vd.explain(lambda m, a, b, c: 1, T),
    "model raises": lambda: vd.Task(boom, X),
    "model raises later": lambda: vd.explain("occlusion", vd.Task(Later(), X)),
    "model raises masked": lambda: vd.explain("occlusion", vd.Task(OnlyWhole(), X, fill=0.0)),
    "model raises masked metric": lambda: vd.score("deletion", vd.Task(OnlyWhole(), X, fill=0.0), X),
    "steps huge": lambda: vd.explain("integrated_gradients", T, steps=10**12),
    "draws huge": lambda: vd.explain("lime", T, draws=10**9),
    "repeats huge": lambda: vd.score("sparseness", T, X, repeats=10**12),
    "rankings huge": lambda: vd.qge.sampled_study(T, rankings=10**12, progress=False),
    "unfitted": lambda: vd.Task(LogisticRegression(), X.numpy()),
    "module class": lambda: vd.Task(nn.Linear, X),
    "idx out of range": lambda: T[99],
    "idx bool wrong": lambda: T[torch.tensor([True])],
    "expl top out": lambda: vd.explain("gradient", T).top(99),
    "report pdf": lambda: evaluation().report("x.pdf"),
    "save .": lambda: vd.explain("gradient", T).save("."),
    "load none": lambda: vd.Explanation.load("none.safetensors"),
    "bin study": lambda: study.run(written("bin.yaml", bytes(range(256))), "o"),
    "open .": lambda: study.open(".").status(),
    "resume .": lambda: study.resume("."),
    "explain none": lambda: vd.explain(None, T),
    "expl task swapped": lambda: vd.explain(T, "gradient"),
    "score swapped": lambda: vd.score(T, "sparseness", "gradient"),
    "seed str": lambda: vd.explain("random", T, seed="a"),
    "seed huge": lambda: vd.explain("random", T, seed=2**70),
    "device x": lambda: vd.explain("random", T, device="tpu9"),
    "expl returns wrong n": lambda: vd.explain(lambda m, x, t: torch.ones(2, 4), T),
    "expl returns None": lambda: vd.explain(lambda m, x, t: None, T),
    "score map wrong": lambda: vd.score("sparseness", T, np.ones((6, 5))),
    "score map obj": lambda: vd.score("sparseness", T, np.array([["a"] * 4] * 6)),
    "load task none": lambda: vd.tasks.load("digit"),
    "load 0": lambda: vd.tasks.load("digits", 0),
    "patches 0": lambda: vd.Space.patches((1, 8, 8), 0),
    "groups names": lambda: vd.Space.column_groups(torch.tensor([0, 1]), ["a"]),
    "fill unknown": lambda: vd.Task(NET, X, fill="zeros"),
    "fill nan": lambda: vd.explain("occlusion", vd.Task(NET, X, fill=float("nan"))),
    "fill fn arity": lambda: vd.explain("occlusion", vd.Task(NET, X, fill=lambda x: x)),
    "fill fn shape": lambda: vd.explain("occlusion", vd.Task(NET, X, fill=lambda x, m: x[:1])),
    "train tuple 3": lambda: vd.Task(NET, X, train=(X, X, X)),
    "steps 0": lambda: vd.explain("integrated_gradients", T, steps=0),
    "steps float": lambda: vd.explain("integrated_gradients", T, steps=2.5),
    "metric setting typ": lambda: vd.score("pixel_flipping", T, "gradient", steps="x"),
    "output fn None": lambda: vd.Task(NET, X, output=lambda o: None),
    "side wrong": lambda: vd.Task(NET, X, side=3),
    "inputs str": lambda: vd.Task(NET, "hello"),
    "inputs None": lambda: vd.Task(NET, None),
    "inputs gen": lambda: vd.Task(NET, (i for i in range(3))),
    "inputs sparse": lambda: vd.Task(NET, X.to_sparse()),
    "inputs nested": lambda: vd.Task(NET, torch.nested.nested_tensor([X[0], X[1]])),
    "inputs meta": lambda: vd.Task(NET, X.to("meta")),
    "inputs of eight bits": lambda: vd.Task(NET, X.to(torch.float8_e4m3fn)),
    "inputs masked": lambda: vd.Task(NET, np.ma.masked_array(X.numpy(), X.numpy() > 0)),
    "targets str": lambda: vd.Task(NET, X, targets="best"),
    "register fn": lambda: vd.register(lambda: 1),
    "from_captum str": lambda: vd.explainers.from_captum("x"),
    "labels missing": lambda: vd.Task(NET, X, labels=[float("nan")] * 6),
    "frame to torch": lambda: vd.Task(NET, FRAME),
    "frame without a column": lambda: vd.Task(CLF, FRAME[["a", "b"]]),
    "frame of texts": lambda: vd.Task(CLF, FRAME.assign(a="x")),
    "frame empty": lambda: vd.Task(CLF, FRAME[:0]),
    "frame missing to linear": lambda: vd.Task(CLF, FRAME.assign(a=np.nan)),
    "series": lambda: vd.Task(CLF, FRAME.iloc[0]),
    "train frame, rows array": lambda: vd.Task(CLF, ROWS, train=FRAME),
    "train other columns": lambda: vd.Task(CLF, FRAME, train=FRAME.rename(columns={"a": "z"})),
    "train new level": lambda: vd.Task(CLF, FRAME, train=FRAME.assign(a="x")),
    "label names unknown": lambda: vd.Task(CLF, FRAME, labels=["yes"] * 6),
    "label names, no classes": lambda: vd.Task(NET, X, labels=["yes"] * 6),
    "target names unknown": lambda: vd.Task(CLF, FRAME, targets=["yes"] * 6),
    "classifier without scores": lambda: vd.Task(NearestCentroid().fit(ROWS, Y), ["x"]),
    "several targets": lambda: vd.Task(MultiOutputClassifier(CLF).fit(ROWS, np.c_[Y, Y]), ROWS),
    "several quantities": lambda: vd.explain(
        "occlusion", vd.Task(RandomForestRegressor(2).fit(ROWS, np.c_[Y, Y]), ROWS)
    ),
    "quantity out of range": lambda: vd.Task(Ridge().fit(ROWS, np.c_[Y, Y]), ROWS, targets=2),
    "cam of a table": lambda: vd.explain("gradcam", T),
    "gef of an estimator": lambda: vd.score("fast_gef", vd.Task(CLF, FRAME), "occlusion"),
    "tree_shap of a network": lambda: vd.explain("tree_shap", vd.Task(NET, X, train=X)),
    "frame of attributions, other columns": lambda: vd.explain(FRAME.add_prefix("z"), vd.Task(CLF, FRAME)),
    "frame of attributions, rows": lambda: vd.explain(FRAME[:2], vd.Task(CLF, FRAME)),
    "map for a method's metric": lambda: vd.score("max_sensitivity", T, X),
    "settings with an object": lambda: vd.explain(lambda m, x, t: x, T, steps=3),
    "settings with a metric": lambda: vd.score(object(), T, "gradient"),
    "samples by fractions": lambda: T[[0.5]],
    "page in a file": lambda: evaluation().report(written("f", b"") + "/x.html"),
    "data: none there": lambda: read_examples("nope.csv"),
    "data: unknown suffix": lambda: read_examples("nope.xyz"),
    "data: empty csv": lambda: read_examples(written("e.csv", b"")),
    "data: binary csv": lambda: read_examples(written("b.csv", bytes(range(256)))),
    "data: binary npz": lambda: read_examples(written("b.npz", b"PK nothing")),
    "data: broken jsonl": lambda: read_examples(written("b.jsonl", b'{"a": 1\n')),
    "data: header only": lambda: load_task(CLF, written("h.csv", b"a,b,c,d\n")),
    "data: empty folder": lambda: read_examples("."),
    "data: labels column": lambda: load_task(CLF, FRAME, labels="nope"),
    "data: samples 0": lambda: load_task(NET, X, samples=0),
    "model: none there": lambda: load_task("nope.onnx", X),
    "model: unknown suffix": lambda: load_task(written("m.bin2", b""), X),
    "model: folder without config": lambda: load_task(".", X),
    "model: pickle": lambda: load_task(written("m.joblib", b""), X),
    "model: broken onnx": lambda: load_task(written("m.onnx", b"nothing"), X),
    "model: weights without arch": lambda: load_task(written("w.safetensors", b"nothing"), X),
    "model: arch without weights": lambda: load_task(written("n.onnx", b""), X, arch="a:b"),
    "model: arch malformed": lambda: load_task(written("w.pt", b""), X, arch="nocolon", allow_code=True),
    "model: hub name without hf:": lambda: load_task("owner/name", X),
    "model: device": lambda: load_task(NET, X, device="tpu"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VeridicalError) as error:
        MISTAKES[mistake]()
    assert len(str(error.value)) > 10


ODD_BUT_RIGHT: dict[str, Callable[[], Any]] = {
    "a list of lists as maps": lambda: vd.explain(lambda m, x, t: x.tolist(), T).values.equal(X),
    "truths as maps": lambda: vd.explain(lambda m, x, t: x > 0, T).values.equal((X > 0).float()),
    "one name instead of a list": lambda: len(vd.evaluate(T, "gradient", "sparseness").scores) == 1,
    "a negative seed": lambda: len(vd.explain("random", T, seed=-1)) == 6,
    "inputs that require a gradient": lambda: vd.Task(NET, X.clone().requires_grad_()).inputs.equal(X),
    "samples by truths": lambda: len(T[X[:, 0] > X[:, 0].median()]) == 3,
    "samples from the end": lambda: T[[-1]].inputs.equal(X[-1:]),
    "masked out is missing": lambda: bool(
        vd.Task(lambda x: np.nan_to_num(np.asarray(x)), np.ma.masked_array(ROWS, ROWS > 1))
        .inputs.isnan()
        .any()
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ODD_BUT_RIGHT)
def test_odd_but_right(case: str) -> None:
    assert ODD_BUT_RIGHT[case]()
