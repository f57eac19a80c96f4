"""Dictionaries on disk, and those of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from veridical.dictionaries import (
    BatchTopK,
    Dictionary,
    ReLU,
    Superposition,
    TopK,
    from_overcomplete,
    load,
    save,
    train,
)
from veridical.errors import FormatError, NotApplicableError

ROWS = Superposition(features=16, dimensions=8, active=2.0, groups=2).rows(100)


@pytest.mark.parametrize("recipe", [TopK(16, 5, 8, active=2), BatchTopK(16, 5, 8, active=2), ReLU(16, 5, 8)])
def test_what_is_saved_comes_back(tmp_path: Path, recipe: TopK) -> None:
    own = train(ROWS, recipe).dictionary
    again = load(save(own, tmp_path / "d.safetensors"))
    assert isinstance(again, Dictionary)
    assert torch.equal(own.encode(ROWS), again.encode(ROWS))
    assert torch.equal(own.decode(own.encode(ROWS)), again.decode(again.encode(ROWS)))
    assert (own.activation, own.active, own.centred) == (again.activation, again.active, again.centred)


def test_plain_arrays_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    parts = {"encoder": ROWS[:6], "encoder_bias": torch.zeros(6), "decoder": ROWS[6:12].contiguous()}
    path = tmp_path / "plain.safetensors"
    save_file({k: v.contiguous() for k, v in parts.items()}, path)
    with pytest.raises(FormatError, match="lacks decoder_bias"):
        load(path)
    save_file({**parts, "encoder": ROWS[:6].clone(), "decoder_bias": torch.zeros(8)}, path)
    plain = load(path)
    assert isinstance(plain, Dictionary)
    assert torch.equal(plain.encode(ROWS), (ROWS @ parts["encoder"].T).clamp(min=0))
    save_file({**parts, "encoder": ROWS[:6].clone(), "decoder_bias": torch.zeros(3)}, path)
    with pytest.raises(FormatError, match="decoder_bias has shape"):
        load(path)
    with pytest.raises(FormatError, match="neither a file nor a folder"):
        load(tmp_path / "nothing")


def test_several_axes_are_encoded_as_rows_are() -> None:
    own = train(ROWS, TopK(16, 5, 8, active=2)).dictionary
    cube = ROWS[:24].reshape(2, 3, 4, 8)
    assert torch.allclose(own.encode(cube).reshape(24, 16), own.encode(ROWS[:24]), atol=1e-6)
    assert own.decode(own.encode(cube)).shape == cube.shape


class Encoder(nn.Module):
    """One block behind a list of hidden ones, which is empty."""

    def __init__(self, final: nn.Module) -> None:
        super().__init__()
        self.blocks, self.final = nn.ModuleList(), final

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.final(x)
        return answer


class Module(nn.Module):
    """As overcomplete builds them: an encoder that answers (before, codes), a dictionary, an activation."""

    def __init__(self, hidden: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        final = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
        self.encoder = nn.Sequential(nn.Linear(8, 8), final) if hidden else Encoder(final)
        self.atoms = nn.Parameter(torch.randn(16, 8))
        self.train()
        for _ in range(5):
            self.encoder(torch.randn(64, 8) + 0.5)
        final[1].weight.data.uniform_(0.5, 2)
        final[1].bias.data.normal_()
        self.eval()

    def get_dictionary(self) -> Tensor:
        return nn.functional.normalize(self.atoms, dim=1)


def test_modules_of_overcomplete_are_read() -> None:
    own = Module()
    plain = torch.relu(own.encoder(ROWS))
    assert torch.allclose(from_overcomplete(own).encode(ROWS), plain, atol=1e-5)
    with pytest.raises(NotApplicableError, match="being trained"):
        from_overcomplete(own.train())
    own.eval()
    assert torch.equal(from_overcomplete(own).decoder, own.get_dictionary())
    own.top_k = 3  # type: ignore[assignment]
    kept = plain.topk(3, -1)
    topk = torch.zeros_like(plain).scatter(-1, kept.indices, kept.values)
    assert torch.allclose(from_overcomplete(own).encode(ROWS), topk, atol=1e-5)
    jump = Module()
    jump.thresholds = nn.Parameter(torch.full((16,), -1.0))
    expected = plain * (plain >= torch.tensor(-1.0).exp())
    assert torch.allclose(from_overcomplete(jump).encode(ROWS), expected, atol=1e-5)
    batch = Module()
    batch.top_k, batch.threshold_momentum, batch.running_threshold = 3, 0.9, None  # type: ignore[assignment]
    with pytest.raises(NotApplicableError, match="before it was trained"):
        from_overcomplete(batch)
    batch.running_threshold = torch.tensor(0.7)
    assert torch.allclose(from_overcomplete(batch).encode(ROWS), plain * (plain >= 0.7), atol=1e-5)
    with pytest.raises(NotApplicableError, match="2 linear layers"):
        from_overcomplete(Module(hidden=True))
