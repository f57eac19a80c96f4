"""What is said of a map that is no number: it breaks its law, and the report says so."""

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.errors import VeridicalWarning
from veridical.explainers import DeepLift
from veridical.explainers.diagnostics import check_completeness, completeness_sentence, notes


def told(promised: list[float], values: list[list[float]], exact: bool = True) -> dict[str, object]:
    out: dict[str, object] = {}
    out |= check_completeness(
        "it", "values sum to y", exact, torch.tensor(promised).double(), torch.tensor(values)
    )
    return out


def test_a_map_without_numbers_breaks_its_law() -> None:
    nan = float("nan")
    with pytest.warns(VeridicalWarning, match=r"1 of 2 maps .* are no numbers"):
        some = told([3.0, 3.0], [[1.0, 2.0], [nan, nan]])
    assert some["completeness"]["broken"] == 1
    assert some["completeness"]["largest_residual"] == 0
    with pytest.warns(VeridicalWarning, match="no map of 1 is a number"):
        none = told([3.0], [[nan, nan]])
    assert none["completeness"]["broken"] == 1
    assert "do not read" in str(completeness_sentence(none))
    assert "do not read" in str(completeness_sentence(told([3.0], [[nan, nan]], exact=False)))
    assert (
        completeness_sentence(told([3.0], [[1.0, 2.0]])) == "values sum to y; they miss it by 0 of it at most"
    )


class Steep(nn.Module):
    """A root of a rectifier: its slope is infinite where input and baseline are both 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.last = nn.Linear(6, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.a(x)).sqrt())


def test_deeplift_says_where_a_slope_is_infinite() -> None:
    task = vd.Task(seeded(Steep()), draw(5, 6))
    with pytest.warns(VeridicalWarning, match=r"no numbers|is a number"):
        found = DeepLift()(task)
    law = found.provenance["completeness"]
    assert law["broken"] == int((~found.values.isfinite()).any(1).sum()) > 0
    assert any("do not read" in note for note in notes({"deeplift": found}))
