"""What a setting or an argument may be: the words in which its type and its bounds are declared.

    draws: Count = 50
    keep: Annotated[float, Within(0, 1, without=(0, 1))] = 0.5

`settings.py` checks them, and refuses in one form: "Rise: draws is a whole number from 2 to 10000000, got 1".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

MANY = 10**7
"""More draws, steps or rows than anybody can wait for."""
LARGE = 1e38
"""What float32 holds, rounded down: settings meet tensors of that type."""
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Within:
    """Bounds of a number, both allowed but for those in `without`."""

    least: float
    most: float
    without: tuple[float, ...] = ()

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and value not in self.without

    def __str__(self) -> str:
        least, most = f"{self.least:.10g}", f"{self.most:.10g}"
        inside = [f"{gap:.10g}" for gap in self.without if self.least < gap < self.most]
        if len(inside) == len(self.without):
            said = f"from {least} to {most}"
        else:
            low = f"above {least}" if self.least in self.without else f"at least {least}"
            said = f"{low} and " + (f"below {most}" if self.most in self.without else f"at most {most}")
        return said + (f", but not {', '.join(inside)}" if inside else "")


Count = Annotated[int, Within(1, MANY)]
"""How many there are: one at least."""
Index = Annotated[int, Within(0, LARGEST)]
"""Which one, counted from 0; also how many where there may be none."""
Share = Annotated[float, Within(0, 1)]
"""A part of a whole."""
PartOf = Annotated[float, Within(0, 1, without=(0,))]
"""A part of a whole that is not empty."""
Between = Annotated[float, Within(0, 1, without=(0, 1))]
"""A part of a whole that is neither empty nor all of it."""
Positive = Annotated[float, Within(0, LARGE, without=(0,))]
"""A size, rate or width."""
NotNegative = Annotated[float, Within(0, LARGE)]
"""A size that may be nothing."""
Value = Annotated[float, Within(-LARGE, LARGE)]
"""Any number that a tensor can hold."""
