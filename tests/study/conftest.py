"""A small study that every test starts from."""

from typing import Any

import pytest


@pytest.fixture
def small() -> dict[str, Any]:
    """Two tasks, a deterministic and a random explainer, three metrics, two seeds: 24 cells."""
    return {
        "name": "small",
        "tasks": [{"name": "known/linear", "samples": 10}, {"name": "known/tiers", "samples": 9}],
        "explainers": ["input_x_gradient", "random"],
        "metrics": ["sparseness", "pixel_flipping", {"name": "sensitivity_n", "settings": {"draws": 6}}],
        "seeds": [0, 1],
        "plan": {"rows": 64},
    }


@pytest.fixture
def code() -> dict[str, Any]:
    """A study of nothing but the user's own code."""
    return {
        "tasks": [{"code": "tests.study.user_code:whole"}],
        "explainers": [{"code": "tests.study.user_code:flipped"}, "gradient"],
        "metrics": [{"code": "tests.study.user_code:Total"}],
        "plan": {"rows": 8},
    }
