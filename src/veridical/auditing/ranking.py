"""The methods of an audit in order, printed as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veridical.auditing.verdict import Place

HEAD = ("explainer", "beats controls", "samples", "verdict")


class Ranking(tuple["Place", ...]):
    """Places, best first: a tuple that prints each method with its win rate, its group and the verdict."""

    __slots__ = ()

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The cells of the table."""
        return [
            (
                place.explainer,
                ""
                if place.score != place.score
                else f"{place.score:.0%} [{place.low:.0%}, {place.high:.0%}]",
                f"{place.samples}",
                place.status + (f", group {place.group}" if place.group else ""),
            )
            for place in self
        ]

    def __repr__(self) -> str:
        table = [HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        return "\n".join(lines)
