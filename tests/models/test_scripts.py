"""Models that are scripted or traced: asked as the plain module is, buffers and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import conv_net, draw

ROWS = draw(4, 2, 8, 8)
MAKERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "scripted": torch.jit.script,
    "traced": lambda net: torch.jit.trace(net, ROWS),
    "frozen": lambda net: torch.jit.freeze(torch.jit.script(net)),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.parametrize("kind", MAKERS)
def test_a_batch_norm_in_a_script_is_asked_and_explained(kind: str) -> None:
    plain, script = vd.Task(conv_net(), ROWS), vd.Task(MAKERS[kind](conv_net()), ROWS)
    torch.testing.assert_close(script.outputs, plain.outputs)
    for name in ("gradient", "occlusion"):
        torch.testing.assert_close(vd.explain(name, script).values, vd.explain(name, plain).values)


class Counting(nn.Module):
    """A batch norm, and a buffer that every call adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) + self.calls


def test_what_a_script_writes_into_its_buffers_is_put_back() -> None:
    script = torch.jit.script(Counting().eval())
    task = vd.Task(script, ROWS, targets=torch.zeros(4, dtype=torch.int64))
    answers = [task.with_inputs(ROWS).outputs for _ in range(3)]
    for again in answers:
        torch.testing.assert_close(again, answers[0])
    assert float(script.calls) == 0
