"""Tables as plain text: columns aligned, nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines whose columns are as wide as their widest cell; the first column reads from the left.

    >>> print(text_table(["a", "b"], [["x", "1"]]))
    a  b
    x  1
    """
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        placed = [
            c.ljust(w) if i < 1 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(placed).rstrip()

    return "\n".join(line([str(c) for c in row]) for row in (head, *rows))
