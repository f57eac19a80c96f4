"""The code that a page shows, and what it prints when it is run."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import veridical as vd
from veridical.explainers import Explainer
from veridical.metrics import AnyMetric

DIGITS = 'task = vd.tasks.load("digits")[:24]  # a small network on 8 x 8 digits'
PATCH = 'task = vd.tasks.load("known/planted_patch")[:24]  # the object is the patch that decides'
TABLE = 'task = vd.tasks.load("known/linear")[:24]  # a linear model that uses 5 of 12 columns'
SERIES = 'task = vd.tasks.load("known/planted_window")[:24]  # one window of a series decides'
REVIEWS = 'task = vd.tasks.load("reviews")[:24]  # a convolution over the words of product reviews'
MOSAIC = """\
import torch
from torch import nn

digits = vd.tasks.load("digits")


class Mosaic(nn.Module):
    \"\"\"Looks at the four quarters of a picture and adds up what it sees.\"\"\"

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        rows = torch.cat([self.model(half) for part in x.split(8, 2) for half in part.split(8, 3)])
        return rows.reshape(4, len(x), -1).sum(0)


left, right = digits.inputs[:24], digits.inputs[24:48]  # the explained digits stand on the left
x = torch.cat([torch.cat([left, left], 2), torch.cat([right, right], 2)], 3)
masks = torch.zeros(24, 16, 16, dtype=torch.bool)
masks[:, :, :8] = True
task = vd.Task(Mosaic(digits.model), x, targets=digits.targets[:24], masks=masks)"""
TRANSFORMER = """\
import torch
from veridical.data.networks import TextTransformer

reviews = vd.tasks.load("reviews")[:24]
torch.manual_seed(0)
model = TextTransformer(int(reviews.inputs.max()) + 1, reviews.inputs.shape[1])  # not trained: see the how-to
task = vd.Task(model, reviews.inputs, space=reviews.space, fill=reviews.fill)"""
FOREST = """\
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier

x, y = load_wine(return_X_y=True, as_frame=True)
forest = RandomForestClassifier(50, random_state=0).fit(x, y)
task = vd.Task(forest, x[:24], train=x, fill="marginal")"""
SETUPS = (DIGITS, PATCH, REVIEWS, SERIES, TABLE, TRANSFORMER, FOREST)
SPECIAL = {"focus": MOSAIC}
OBJECTS = {"region_perturbation": "RegionPerturbation(patch=2)", "selectivity": "Selectivity(patch=2)"}
"""Where the defaults are made for larger pictures than digits."""
METHODS = ("integrated_gradients", "saliency", "random")


def run(code: str) -> tuple[dict[str, Any], str]:
    """The names that the code leaves behind, and what it printed."""
    names: dict[str, Any] = {"vd": vd}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "an example of the documentation", "exec"), names)
    return names, printed.getvalue()


def setup_for(entry: AnyMetric | Explainer) -> str | None:
    """The first task that the entry works on; None if it works on none of them."""
    if entry.name in SPECIAL:
        return SPECIAL[entry.name]
    return next((setup for setup in SETUPS if entry.inapplicable_reason(run(setup)[0]["task"]) is None), None)


def metric_code(setup: str, name: str) -> str:
    methods = ", ".join(f'"{method}"' for method in METHODS)
    made = OBJECTS.get(name)
    extra = f"from veridical.metrics import {made.partition('(')[0]}\n" if made else ""
    chosen = made or f'"{name}"'
    return (
        f"import veridical as vd\n{extra}\n{setup}\n"
        f"methods = [{methods}]\n"
        f"table = vd.evaluate(task, methods, [{chosen}], seed=0)\nprint(table)"
    )


def explainer_code(setup: str, name: str) -> str:
    return (
        f'import veridical as vd\n\n{setup}\nexplanation = vd.explain("{name}", task)\n'
        "print(explanation)\nprint(explanation.top(0, 3))  # the strongest features of the first sample"
    )
