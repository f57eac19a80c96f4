"""Two studies side by side: which settings differ, and by how much each cell does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from veridical.study.plan import PlannedTask
from veridical.study.result import CellName, Study
from veridical.values.scores import Scores

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CellDifference:
    """How the scores of a cell differ: samples compared, of those unequal ones, and by how much at most.

    NaN equals NaN. `only` says that just one of the studies has the cell or sample.
    """

    name: CellName
    mean_a: float
    mean_b: float
    samples: int
    unequal: int
    largest: float
    flags: bool
    cost: bool
    only: str = ""

    @property
    def same(self) -> bool:
        return not (self.unequal or self.flags or self.cost or self.only)


@dataclass(frozen=True)
class Difference:
    """Settings that differ, as sentences, and every cell of both studies."""

    settings: list[str]
    cells: list[CellDifference] = field(repr=False)

    @property
    def same(self) -> bool:
        """Whether values, flags and costs agree in every cell; settings may still differ."""
        return all(cell.same for cell in self.cells)

    def frame(self) -> pd.DataFrame:
        """One row per cell that differs."""
        import pandas as pd

        rows = [
            {**cell.name._asdict(), **{k: v for k, v in vars(cell).items() if k != "name"}}
            for cell in self.cells
            if not cell.same
        ]
        return pd.DataFrame(rows)


def diff(a: Study, b: Study) -> Difference:
    """Compare two studies, cell by cell under the same labels.

    Parameters
    ----------
    a, b
        Studies, finished or not.

    Returns
    -------
    Difference
        Settings that differ, as sentences, and every cell of both.
    """
    names = list(dict.fromkeys([*a, *b]))
    in_a, in_b = set(a), set(b)
    cells = [
        _compared(name, a[name] if name in in_a else None, b[name] if name in in_b else None)
        for name in names
    ]
    return Difference(list(_settings(a, b)), cells)


def _compared(name: CellName, a: Scores | None, b: Scores | None) -> CellDifference:
    nan = float("nan")
    if a is None or b is None:
        one = b if a is None else a
        assert one is not None
        mean = one.mean(skip_nan=True)
        means = (nan, mean) if a is None else (mean, nan)
        return CellDifference(name, *means, 0, 0, nan, False, False, "b" if a is None else "a")
    place = {sample: i for i, sample in enumerate(b.ids.tolist())}
    common = [(i, place[s]) for i, s in enumerate(a.ids.tolist()) if s in place]
    left, right = (torch.tensor([pair[side] for pair in common], dtype=torch.int64) for side in (0, 1))
    x, y = a.values[left], b.values[right]
    unequal = (x != y) & ~(x.isnan() & y.isnan())
    gaps = (x - y).abs()[unequal & ~x.isnan() & ~y.isnan()]
    flagged = [
        {reason: mask[index].tolist() for reason, mask in scores.flags.items() if bool(mask[index].any())}
        for scores, index in ((a, left), (b, right))
    ]
    only = ""
    if len(common) < len(a) or len(common) < len(b):
        only = "some samples"
    return CellDifference(
        name,
        a.mean(skip_nan=True),
        b.mean(skip_nan=True),
        len(common),
        int(unequal.sum()),
        float(gaps.max()) if len(gaps) else 0.0,
        flagged[0] != flagged[1],
        a.cost != b.cost,
        only,
    )


def _settings(a: Study, b: Study) -> Iterator[str]:
    for kind in ("tasks", "explainers", "metrics"):
        left = {thing.label: thing for thing in getattr(a.plan, kind)}
        right = {thing.label: thing for thing in getattr(b.plan, kind)}
        for label in dict.fromkeys([*left, *right]):
            if label not in left or label not in right:
                yield f"{kind}: only {'a' if label in left else 'b'} has '{label}'"
                continue
            yield from _unequal(f"{kind}: {label}", _facts(left[label]), _facts(right[label]))
    for name in ("seeds", "threads", "shards", "shard_size", "device"):
        x, y = getattr(a.plan, name), getattr(b.plan, name)
        if x != y:
            yield f"{name}: {_plain(x)} in a, {_plain(y)} in b"


def _facts(thing: Any) -> dict[str, Any]:
    if isinstance(thing, PlannedTask):
        return {"content": thing.digest, "samples": thing.samples, "rows per chunk": thing.rows}
    return dict(thing.content)


def _unequal(where: str, x: Any, y: Any) -> Iterator[str]:
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        for key in dict.fromkeys([*x, *y]):
            yield from _unequal(f"{where}.{key}", x.get(key), y.get(key))
    elif _plain(x) != _plain(y):
        yield f"{where}: {_plain(x)} in a, {_plain(y)} in b"


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
