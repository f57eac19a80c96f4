"""Real Hugging Face datasets as training rows: in memory, on disk, formatted, selected, and streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import veridical as vd
from tests.fidelity.test_artefact import QUICK, gaussian, task_of, trained
from veridical.errors import InputError
from veridical.fidelity import finetune

pytestmark = pytest.mark.extras
datasets = pytest.importorskip("datasets")
COLUMNS = ("features", "label")


@pytest.fixture(scope="module")
def task() -> vd.Task:
    return task_of(trained())


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory):
    x, y = gaussian(600, 1)
    made = datasets.Dataset.from_dict({"features": x.tolist(), "label": y.tolist(), "text": ["a"] * 600})
    place = tmp_path_factory.mktemp("arrow")
    made.save_to_disk(place)
    return datasets.load_from_disk(place)


def same(a, b) -> bool:
    equal = all(torch.equal(a.weights[name], value) for name, value in b.weights.items())
    return Path(a.path).name == Path(b.path).name and equal


@pytest.mark.parametrize("form", [None, "torch", "numpy", "loader"])
def test_rows_on_disk_train_as_tensors_do(task: vd.Task, on_disk, form: str | None, tmp_path: Path) -> None:
    plain = finetune(task, gaussian(600, 1), **QUICK, cache=tmp_path / "tensors")
    rows = on_disk if form is None else on_disk.with_format("torch" if form == "loader" else form)
    source = torch.utils.data.DataLoader(rows, batch_size=8) if form == "loader" else rows
    assert same(finetune(task, source, columns=COLUMNS, **QUICK, cache=tmp_path / "disk"), plain)


def test_streams_and_sets_of_sets_are_refused_with_a_way_out(task: vd.Task, on_disk, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Dataset\.from_generator"):
        finetune(task, on_disk.to_iterable_dataset(), columns=COLUMNS, cache=tmp_path)
    with pytest.raises(InputError, match=r"dataset\['train'\]"):
        finetune(task, datasets.DatasetDict({"train": on_disk}), columns=COLUMNS, cache=tmp_path)
