"""Artefacts of these tests go to a folder of their own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "f_fidelity cache"
    monkeypatch.setenv("VERIDICAL_CACHE", str(folder))
    return folder
