"""Training: a slow rewrite, resuming, streams, dead atoms, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import veridical as vd
from tests.reference.dictionaries import train_topk
from veridical.concepts import dictionary_training
from veridical.core.key import integers, normal
from veridical.dictionaries import BatchTopK, ReLU, Superposition, TopK, train
from veridical.errors import FormatError

WORLD = Superposition(features=24, dimensions=12, active=2.0, groups=3)
SHORT = TopK(24, steps=40, batch=16, rate=5e-3, active=2)


def rows(count: int = 300) -> Tensor:
    return WORLD.rows(count)


def same(one: vd.dictionaries.Dictionary, other: vd.dictionaries.Dictionary) -> bool:
    return all(
        torch.equal(getattr(one, n), getattr(other, n))
        for n in ("encoder", "encoder_bias", "decoder", "decoder_bias")
    )


@pytest.mark.parametrize("active", [2, 18])  # of so many some are not positive, and count for nothing
def test_topk_matches_gradients_by_hand(active: int) -> None:
    recipe, given, key = replace(SHORT, steps=12, revive=False, active=active), rows(60), vd.core.Key(3)
    found = train(given, recipe, key)
    atoms = torch.nn.functional.normalize(normal(key / "atoms", torch.arange(24), 0, 12), dim=-1)
    one = torch.zeros(1, dtype=torch.int64)
    batches = [integers(key / "batches", one, step, 16, 60)[0].numpy() for step in range(12)]
    slow = train_topk(given.double().numpy(), atoms.double().numpy(), batches, active, 5e-3, 12)
    held = found.dictionary
    for ours, theirs in zip(
        (held.encoder, held.encoder_bias, held.decoder, held.decoder_bias), slow[:4], strict=True
    ):
        assert torch.allclose(ours.double(), torch.from_numpy(theirs), atol=2e-4)
    assert torch.allclose(found.losses.double(), torch.tensor(slow[4], dtype=torch.float64), rtol=1e-4)


def test_gathered_atoms_give_what_whole_products_give(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(rows(), SHORT)
    monkeypatch.setattr(dictionary_training, "WIDE", 1)
    gathered = train(rows(), SHORT)
    assert torch.allclose(whole.dictionary.decoder, gathered.dictionary.decoder, atol=1e-4)
    assert torch.equal(whole.dead, gathered.dead)


@pytest.mark.parametrize("recipe", [SHORT, ReLU(24, 40, 16), BatchTopK(24, 40, 16, active=2)])
def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path, recipe: vd.dictionaries.Recipe) -> None:
    whole = train(rows(), recipe, 5)
    path = tmp_path / "run.pt"

    class Stopping(type(recipe)):  # type: ignore[misc]
        steps_left = 27

        def codes(self, before: Tensor) -> Tensor:
            Stopping.steps_left -= 1
            if Stopping.steps_left < 0:
                raise KeyboardInterrupt
            return super().codes(before)

    with pytest.raises(KeyboardInterrupt):
        train(rows(), Stopping(**vars(recipe)), 5, checkpoint=path, every=10)
    again = train(rows(), recipe, 5, checkpoint=path, every=10)
    assert same(whole.dictionary, again.dictionary)
    assert torch.equal(whole.losses, again.losses)
    assert torch.equal(whole.dead, again.dead)
    if whole.dictionary.threshold is not None:
        assert torch.equal(whole.dictionary.threshold, again.dictionary.threshold)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="another run"):
        train(rows(), recipe, 6, checkpoint=path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FormatError, match=r"run\.pt is no file of weights"):
        train(rows(), recipe, 5, checkpoint=path)
    torch.save({"run": 3}, path)
    with pytest.raises(FormatError, match="another run"):
        train(rows(), recipe, 5, checkpoint=path)


def test_rows_are_read_from_a_file_batch_by_batch(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, rows().numpy())
    mapped = np.load(path, mmap_mode="c")
    assert same(train(mapped, SHORT).dictionary, train(rows(), SHORT).dictionary)
    task = vd.tasks.load("digits")[:12]
    layer = next(name for name, m in task.model.named_modules() if isinstance(m, torch.nn.Conv2d))
    whole = vd.dictionaries.activations(task, layer)
    parts = [vd.dictionaries.activations(task[[i]], layer) for i in range(12)]
    assert torch.allclose(whole, torch.cat(parts), rtol=1e-4)


def test_loss_falls_and_atoms_have_length_one() -> None:
    long = (200, 32, 5e-3)
    for recipe in (TopK(24, *long, active=2), ReLU(24, *long), BatchTopK(24, *long, active=2)):
        found = train(rows(), recipe)
        assert found.losses[-20:].mean() < 0.6 * found.losses[:5].mean()
        assert torch.allclose(found.dictionary.decoder.norm(dim=1), torch.ones(24), atol=1e-5)


def test_batch_topk_is_read_row_by_row_with_about_as_many_active() -> None:
    found = train(rows(), BatchTopK(24, 300, 64, 5e-3, active=2)).dictionary
    codes = found.encode(rows())
    assert float((codes != 0).sum(1).double().mean()) == pytest.approx(2, abs=0.5)
    assert torch.allclose(found.encode(rows()[:3]), codes[:3], atol=1e-5)
    counts = (codes != 0).sum(1)
    assert int(counts.max()) > int(counts.min())


def test_frozen_halves_stay_as_drawn() -> None:
    start = torch.nn.functional.normalize(normal(vd.core.Key(0) / "atoms", torch.arange(24), 0, 12), dim=-1)
    for half, other in (("encoder", "decoder"), ("decoder", "encoder")):
        held = train(rows(), replace(SHORT, frozen=half)).dictionary
        assert torch.equal(getattr(held, half), start)
        assert not torch.allclose(getattr(held, other), start, atol=1e-3)


def test_dead_atoms_are_counted_and_revived() -> None:
    given = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)).abs() + 4
    recipe = TopK(64, steps=160, batch=32, rate=1e-2, active=1)
    with_, without = train(given, recipe), train(given, replace(recipe, revive=False))
    assert int(with_.dead.sum()) < int(without.dead.sum())
