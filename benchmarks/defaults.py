"""Rows of the model that one map takes by default, counted; beside those of captum and shap.

python -m benchmarks.defaults [--write docs/understand/explainers.md]

A default is judged by the rows it evaluates, which are the same for every model: small ones are enough.
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.explainers import registry

BEGIN, END = "<!-- defaults: written by benchmarks.defaults -->", "<!-- end of defaults -->"
PHOTO, TEXT, TABLE, DIGITS = "photo, 196 patches", "text, 512 tokens", "table, 30 columns", "digit, 64 pixels"
FEATURES = {PHOTO: 196, TEXT: 512, TABLE: 30, DIGITS: 64}
BACKGROUND = {TABLE: 100}
"""Reference rows that stand in for a removed feature where there is more than one."""
CAPTUM = {
    "saliency": "Saliency",
    "integrated_gradients": "IntegratedGradients",
    "smoothgrad": "NoiseTunnel",
    "gradient_shap": "GradientShap",
    "deeplift": "DeepLift",
    "deeplift_shap": "DeepLiftShap",
    "feature_ablation": "FeatureAblation",
    "permutation_importance": "FeaturePermutation",
    "shapley_sampling": "ShapleyValueSampling",
    "kernel_shap": "KernelShap",
    "lime": "Lime",
}
SHAP = {
    "kernel_shap": "KernelExplainer",
    "shapley_sampling": "PermutationExplainer",
    "partition_shap": "PartitionExplainer",
    "expected_gradients": "GradientExplainer",
}


class Tokens(nn.Module):
    """Embeddings, one attention, a linear layer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.last(self.attend(x, x, x, need_weights=False)[0].mean(1))


def task_of(kind: str) -> vd.Task:
    """One sample of a kind for a small model, with reference rows."""
    torch.manual_seed(0)
    if kind == DIGITS:
        return vd.tasks.load("digits")[:1]
    if kind == TEXT:
        ids = torch.randint(1, 50, (101, FEATURES[TEXT]))
        return vd.Task(Tokens(FEATURES[TEXT]).eval(), ids[:1], train=ids[1:], name=kind)
    if kind == TABLE:
        net, rows = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(101, 30)
        return vd.Task(net, rows[:1], train=rows[1:], name=kind)
    net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    rows = torch.rand(17, 3, 224, 224)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vd.errors.VeridicalWarning)  # that its features are patches
        return vd.Task(net.append(nn.Linear(64, 3)), rows[:1], train=rows[1:], name=kind)


def ours(name: str, task: vd.Task) -> int | None:
    """Rows of one map by an explainer's defaults; None where it does not apply."""
    explainer = registry.make(name)
    if explainer.control or explainer.inapplicable_reason(task) is not None:
        return None
    return vd.explain(explainer, task).cost.rows_alone


class Counted(nn.Module):
    """A small network over a row of features that counts its rows."""

    def __init__(self, features: int, outputs: int = 3) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, outputs))
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        found: Tensor = self.net(x.float())
        return found

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The first output of an array of rows, as shap wants it."""
        with torch.no_grad():
            return self(torch.from_numpy(np.asarray(x)))[:, 0].numpy()


def by_captum(name: str, kind: str) -> int | None:
    """Rows of the same method by captum's defaults, each feature a number, with the baseline it takes."""
    from captum import attr

    samples, features = 2 if name == "permutation_importance" else 1, FEATURES[kind]
    model, x = Counted(features), torch.rand(samples, features)
    given: dict[str, Any] = {"target": 0}
    if name in ("deeplift_shap", "gradient_shap"):
        given["baselines"] = torch.rand(16, features)
    method = getattr(attr, CAPTUM[name])
    made = method(attr.Saliency(model)) if name == "smoothgrad" else method(model)
    made.attribute(x, **given)
    return model.rows // samples


def by_shap(name: str, kind: str) -> int | None:
    """Rows of the same method by shap's defaults: on tables with 100 reference rows, else with one."""
    import shap

    count = BACKGROUND.get(kind, 1)
    if name == "partition_shap" and count == 1:
        return None  # it groups features by how they vary together over reference rows
    model, rows = Counted(FEATURES[kind], 1), np.random.default_rng(0).random((count + 1, FEATURES[kind]))
    x, background = rows[:1].astype("float32"), rows[1:].astype("float32")
    if name == "expected_gradients":
        shap.GradientExplainer(model, torch.from_numpy(background)).shap_values(torch.from_numpy(x))
    elif name == "kernel_shap":
        shap.KernelExplainer(model.predict, background).shap_values(x, silent=True)
    else:
        masker = shap.maskers.Partition if name == "partition_shap" else shap.maskers.Independent
        getattr(shap, SHAP[name])(model.predict, masker(background))(x, silent=True)
    return model.rows


def _counted(count: Callable[[], int | None]) -> str:
    """A number for the table; a method that raises at its defaults has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = count()
    except ValueError:
        return "raises"
    return "-" if found is None else f"{found:,}"


def lines(kinds: dict[str, vd.Task]) -> Iterator[str]:
    """The rows of the table; methods that evaluate one or two rows are left out."""
    yield f"| | settings | {' | '.join(kinds)} |"
    yield f"|---|---|{'---|' * len(kinds)}"
    for name in registry:
        mine = [_counted(partial(ours, name, task)) for task in kinds.values()]
        if set(mine) <= {"-", "1", "2"}:
            continue
        yield f"| `{name}` | {settings(registry.make(name))} | {' | '.join(mine)} |"
        for peer, names, count in (("captum", CAPTUM, by_captum), ("shap", SHAP, by_shap)):
            if name in names:
                theirs = [_counted(partial(count, name, kind)) for kind in kinds]
                yield f"| {peer} `{names[name]}` | | {' | '.join(theirs)} |"


def settings(explainer: Any) -> str:
    """The settings that count something; of one that is None the docstring says what decides."""
    counts = {name: getattr(explainer, name) for name in inspect.signature(type(explainer)).parameters}
    return ", ".join(
        f"{name} {'by features' if value is None else value}"
        for name, value in counts.items()
        if name != "layer" and isinstance(value, int | None) and not isinstance(value, bool)
    )


def main() -> None:
    """Print the table, or write it between its marks in a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    table = []
    for line in lines({kind: task_of(kind) for kind in FEATURES}):
        print(line, flush=True)
        table.append(line)
    if given.write is not None:
        before, _, rest = given.write.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        given.write.write_text("\n".join([f"{before}{BEGIN}", "", *table, "", f"{END}{after}"]))


if __name__ == "__main__":
    main()
