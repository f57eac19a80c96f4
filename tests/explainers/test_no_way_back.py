"""Models that torch cannot go back through as they are run: refused in words, never a bare traceback."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import veridical as vd
from tests.reference.small_nets import conv_net, draw, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import registry

WAYS_BACK = ["gradient", "smoothgrad", "gradcam", "layercam", "guided_backprop", "deeplift", "lrp"]


class Checkpointed(nn.Module):
    """Activations are computed again on the way back."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = conv_net(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.net, x, use_reentrant=self.reentrant)


class Mixed(nn.Module):
    """Computes in bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net().float()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x).float()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS_BACK)
@pytest.mark.parametrize("net", [Checkpointed(True), Checkpointed(False), Mixed()])
def test_a_map_or_a_reason(net: nn.Module, name: str) -> None:
    task = vd.Task(net.eval(), draw(3, 2, 8, 8))
    explainer = registry.make(name)
    try:
        found = explainer(task).values
    except NotApplicableError:
        assert not (name in ("gradient", "smoothgrad") and isinstance(net, Mixed))
    else:
        plain = explainer(vd.Task(net.net.eval(), draw(3, 2, 8, 8).to(task.inputs))).values
        alike = torch.corrcoef(torch.stack([found.double().flatten(), plain.double().flatten()]))[0, 1]
        assert float(alike) > (0.9 if isinstance(net, Mixed) else 1 - 1e-9)


class Pooled(nn.Module):
    """Subtracts what is read of the whole batch."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.a, self.last, self.by = nn.Linear(6, 7), nn.Linear(7, 3), by

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.last(h - getattr(h, self.by)())


@pytest.mark.filterwarnings("ignore:the model answers a row otherwise")
@pytest.mark.parametrize("name", ["lrp", "lrp_z_plus", "deeplift"])
@pytest.mark.parametrize("by", ["mean", "sum", "amax", "max"])
def test_what_mixes_the_samples_of_a_batch_is_refused(by: str, name: str) -> None:
    task = vd.Task(seeded(Pooled(by)).eval(), draw(4, 6))
    with pytest.raises(NotApplicableError, match="mixes samples"):
        registry.make(name)(task)
