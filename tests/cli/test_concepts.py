"""Concepts in a shell: names and files of dictionaries."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
from veridical.cli.audit import concepts_of
from veridical.concepts import NMF, PCA, Dictionary
from veridical.errors import VeridicalError


def test_names_and_none():
    assert concepts_of(None) is None
    assert concepts_of(["none"]) == []
    assert concepts_of(["pca", "NMF"]) == {"pca": PCA(), "NMF": NMF()}


def test_a_dictionary_from_its_file(tmp_path):
    atoms = torch.randn(6, 4)
    held = Dictionary(atoms, torch.zeros(6), atoms.clone(), torch.zeros(4))
    vd.dictionaries.save(held, tmp_path / "mine.safetensors")
    found = concepts_of(["pca", str(tmp_path / "mine.safetensors")])
    assert list(found) == ["pca", "mine"]
    assert found["pca"] == PCA()
    assert torch.equal(found["mine"].decoder, atoms)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pcaa", "pca"),
        ("there/is/none.safetensors", "neither a file nor a folder"),
    ],
)
def test_what_is_wrong_is_said(word, said):
    with pytest.raises(VeridicalError, match=said):
        concepts_of([word])
