"""What relevance propagation asks of a model beyond a gradient, as rows of the whole model.

A rule that changes a layer's weights goes through the layer again. Each such pass weighs what the layer
weighs in the model: its multiplications over those of all layers with weights. Summed over the layers that is
a number of further passes through the whole model per row, which the meter counts like any other row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from veridical.explainers.graph.relevance_flow import Relevant
from veridical.explainers.graph.relevance_rules import Layer, Rules
from veridical.explainers.graph.routes import Routed
from veridical.models.cost import Meter

FURTHER: dict[str, tuple[int, int]] = {
    "epsilon": (0, 0),
    "flat": (0, 0),
    "w_square": (1, 0),
    "z_plus": (1, 0),
    "gamma": (1, 1),
    "alpha_beta": (2, 1),
    "z_box": (3, 2),
}
"""Passes forward and back that a rule adds to a gradient's, where the inputs are at least 0."""
FURTHER_SIGNED: dict[str, tuple[int, int]] = {"z_plus": (2, 1), "gamma": (2, 2), "alpha_beta": (4, 3)}
"""The same where inputs have any sign: two products stand in the place of one."""

_OF_ANY_SIGN = FURTHER | FURTHER_SIGNED
_ONCE = frozenset(name for name, passes in FURTHER.items() if passes == (0, 0))


@dataclass
class Work:
    """Multiplications of one run: those of the model itself, and what the rules add forward and back."""

    plain: int = 0
    forward: int = 0
    backward: int = 0

    def through(self, layer: Layer, rule: str, rules: Rules, a: Tensor) -> Routed:
        """The answer of a layer, whose relevance goes back to `a` by a rule; what that takes is noted."""

        def back(R: Relevant) -> tuple[Relevant]:
            if rule not in _ONCE:
                # here, since no relevance may come: not through queries and keys
                name = "z_plus" if rule == "alpha_beta" and rules.alpha == 1 else rule
                forward, backward = (FURTHER if layer.positive else _OF_ANY_SIGN)[name]
                self.forward += forward * layer.multiplications
                self.backward += backward * layer.multiplications
            return (rules.back(rule, layer, R),)

        return Routed(layer.z, back, a)


@dataclass
class Further:
    """Counts the further rows of many runs: their sum, rounded once, however the rows are cut into runs."""

    rows: int = 0
    forward: float = 0.0
    backward: float = 0.0

    def count(self, rows: int, work: Work, meter: Meter) -> None:
        """Note that so many rows took this work."""
        if not work.plain:
            return
        before = round(self.forward), round(self.backward)
        self.forward += rows * work.forward / work.plain
        self.backward += rows * work.backward / work.plain
        meter.here.forward += round(self.forward) - before[0]
        meter.here.backward += round(self.backward) - before[1]
