"""The generated cards are those of the code as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.extras
def test_cards_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_cards.py", "--check"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run make record: {done.stdout}{done.stderr}"


def test_every_metric_states_its_facts() -> None:
    from veridical.metrics import registry

    for name in registry:
        metric = registry.make(name)
        for fact in ("category", "summary", "assumes", "misleads", "paper"):
            assert getattr(metric, fact), f"{name} does not state its {fact}, a line of its class"
