"""The larger verbs with one odd argument each: what they declare is refused before anything is computed."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import torch

import veridical as vd
from veridical import fidelity, gef, qge

QUIET = {"progress": False}
REMOVAL = {"draws": 2, "sizes": (0.5,), **QUIET}
VERBS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "evaluate": (vd.evaluate, {"explainers": ["gradient"], "metrics": ["sparseness"], **QUIET}),
    "audit": (
        vd.audit,
        {"explainers": ["gradient", "random"], "effort": "glance", "samples": 4, "concepts": (), **QUIET},
    ),
    "meta_evaluate": (
        vd.meta.meta_evaluate,
        {"metrics": ["sparseness"], "explainers": ["gradient"], "draws": 1, "iterations": 1, **QUIET},
    ),
    "finetune": (fidelity.finetune, {"epochs": 1, **QUIET}),
    "ranking_study": (
        fidelity.ranking_study,
        {"explainer": "gradient", "ratios": (0.0, 0.5, 1.0), **REMOVAL},
    ),
    "explanation_size": (fidelity.explanation_size, {"explanation": "gradient", "resamples": 3, **QUIET}),
    "standing": (qge.standing, {"metric": "sparseness", "explanation": "gradient", "draws": 4}),
    "find_path": (gef.find_path, {"levels": 3, "draws": 2}),
}

FOLDERS = ("cache", "folder")


def one(chance: random.Random, odd: tuple[Any, ...]) -> Any:
    """A verb on a small task, with one of its arguments replaced."""
    verb, given = VERBS[chance.choice(list(VERBS))]
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).eval()
    rows = torch.randn(12, 4)
    task = vd.Task(model, rows[:6], train=(rows, torch.arange(12) % 3))
    # a cache and a store make a folder of any name; others take any settings
    known = inspect.signature(verb).parameters.values()
    named = [p.name for p in known if p.kind is not p.VAR_KEYWORD and p.name not in FOLDERS]
    return verb(**{"task": task, **given, chance.choice(named): chance.choice(odd)})
