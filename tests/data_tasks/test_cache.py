"""Models trained on first use: trained once, found again by content, deterministic, and safe to lose."""

import logging
from dataclasses import replace

import pytest
import torch

from veridical.core.key import Key
from veridical.data import files, training
from veridical.data.networks import SeriesLSTM, mlp
from veridical.data.training import Data, Recipe, cache_folder, fit, initialise, split, trained
from veridical.errors import MissingExtraError

RECIPE = Recipe(epochs=2, rate=1e-2, batch=16)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 4, generator=generator)
    return Data(rows, (rows[:, 0] > 0).long(), *split(60, 0.2, Key(0)))


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """How often a model was really trained."""
    monkeypatch.setenv("VERIDICAL_CACHE", str(tmp_path / "cache"))
    calls = []

    def counting(*args, **kwargs):
        calls.append(1)
        return fit(*args, **kwargs)

    monkeypatch.setattr(training, "fit", counting)
    return calls


def test_the_second_use_reads_what_the_first_made(data, counted, tmp_path):
    first = trained("toy", mlp(4, 2), data, RECIPE)
    second = trained("toy", mlp(4, 2), data, RECIPE)
    assert len(counted) == 1
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not second.training
    assert len(list((tmp_path / "cache" / "tasks").iterdir())) == 1


def test_another_recipe_network_or_row_trains_anew(data, counted):
    trained("toy", mlp(4, 2), data, RECIPE)
    trained("toy", mlp(4, 2), data, replace(RECIPE, seed=1))
    trained("toy", mlp(4, 2, 8), data, RECIPE)
    changed = data.rows.clone()
    changed[data.train[0], 0] += 1
    trained("toy", mlp(4, 2), replace(data, rows=changed), RECIPE)
    assert len(counted) == 4


def test_a_damaged_file_is_made_again(data, counted, tmp_path, caplog):
    trained("toy", mlp(4, 2), data, RECIPE)
    (path,) = (tmp_path / "cache" / "tasks").iterdir()
    path.write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING, "veridical"):
        trained("toy", mlp(4, 2), data, RECIPE)
    assert "trained again" in caplog.text
    trained("toy", mlp(4, 2), data, RECIPE)
    assert len(counted) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(data, counted, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VERIDICAL_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "veridical"):
        model = trained("toy", mlp(4, 2), data, RECIPE)
    assert not model.training
    assert "could not be kept" in caplog.text


def test_the_folder_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("VERIDICAL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("VERIDICAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "veridical"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parts[-2:] == (".cache", "veridical")


def test_training_leaves_the_global_generator_and_threads_alone(data):
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit(mlp(4, 2), *data.training, RECIPE, "toy")
    # building a network draws from it, training does not: build first, then compare
    model = mlp(4, 2)
    torch.manual_seed(3)
    fit(model, *data.training, RECIPE, "toy")
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads


def test_initial_weights_depend_on_the_key_alone():
    torch.manual_seed(1)
    a, b, c = SeriesLSTM(2, 3), SeriesLSTM(2, 3), SeriesLSTM(2, 3)
    initialise(a, Key(0))
    initialise(b, Key(0))
    initialise(c, Key(1))
    pairs = list(zip(a.parameters(), b.parameters(), c.parameters(), strict=True))
    assert all(torch.equal(x, y) for x, y, _ in pairs)
    assert not all(torch.equal(x, z) for x, _, z in pairs)


@pytest.mark.parametrize("package", sorted(files.INSTALL))
def test_a_missing_package_is_one_sentence_with_its_command(monkeypatch, package):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install") as caught:
        files.package_file(package, "x")
    assert str(caught.value).count("\n") == 0
    assert package in str(caught.value)
