"""What the methods that ask about coalitions of features have in common."""

from __future__ import annotations

import torch

from veridical.explainers.coalitions import solved


def test_a_system_without_an_answer_is_nan_and_its_neighbours_are_solved() -> None:
    fine = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    right = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    found = solved(torch.stack([fine, indefinite, fine]), right.expand(3, 2, 1))
    assert bool(found[1].isnan().all())
    for each in (found[0], found[2]):
        torch.testing.assert_close(fine @ each, right)
