"""Two studies side by side: which settings differ, and by how much each cell does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from veridical.study.plan import PlannedTask, PlannedThing
from veridical.study.result import CellName, Study

if TYPE_CHECKING:
    import pandas as pd

CELL = list(CellName._fields)


@dataclass(frozen=True)
class Difference:
    """Settings that differ, as sentences, and every cell of both studies.

    `cells` has one row per cell: its name, the mean in `a` and in `b`, how many samples both have, of those
    how many are unequal (NaN equals NaN) and by how much at most, whether flags and cost differ, and `only`
    where just one of the studies has the cell ("a", "b") or some of its samples.
    """

    settings: list[str]
    cells: pd.DataFrame = field(repr=False)

    @property
    def same(self) -> bool:
        """Whether values, flags and costs agree in every cell; settings may still differ."""
        return not len(self.frame())

    def frame(self) -> pd.DataFrame:
        """One row per cell that differs."""
        return self.cells[~self.cells["same"]].drop(columns="same")


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
    frames = [study.frame() for study in (a, b)]
    for frame in frames:
        frame["flags"] = frame["flags"].map("; ".join)
    rows = frames[0].merge(frames[1], "outer", [*CELL, "id"], suffixes=("_a", "_b"), indicator="side")
    both = rows["side"] == "both"
    neither = rows["value_a"].isna() & rows["value_b"].isna()
    rows["samples"] = both
    rows["unequal"] = both & (rows["value_a"] != rows["value_b"]) & ~neither
    rows["gap"] = (rows["value_a"] - rows["value_b"]).abs()
    rows["flags"] = both & (rows["flags_a"] != rows["flags_b"])
    rows["in_a"], rows["in_b"] = rows["side"] != "right_only", rows["side"] != "left_only"
    cells = rows.groupby(CELL, sort=False).agg(
        mean_a=("value_a", "mean"),
        mean_b=("value_b", "mean"),
        samples=("samples", "sum"),
        unequal=("unequal", "sum"),
        largest=("gap", "max"),
        flags=("flags", "any"),
        all=("samples", "all"),
        in_a=("in_a", "any"),
        in_b=("in_b", "any"),
    )
    costs = [study.summary().set_index(CELL)[["forward", "backward"]] for study in (a, b)]
    common = costs[0].index.intersection(costs[1].index)
    unlike = (costs[0].loc[common] != costs[1].loc[common]).any(axis=1)
    cells["cost"] = unlike.reindex(cells.index, fill_value=False)
    cells["only"] = cells.pop("all").map({True: "", False: "some samples"})
    cells.loc[~cells.pop("in_b"), "only"] = "a"
    cells.loc[~cells.pop("in_a"), "only"] = "b"
    cells["same"] = ~(cells["unequal"].astype(bool) | cells["flags"] | cells["cost"] | (cells["only"] != ""))
    return Difference(list(_settings(a, b)), cells.reset_index())


def _settings(a: Study, b: Study) -> Iterator[str]:
    for kind in ("tasks", "explainers", "metrics"):
        left, right = ({one.label: _facts(one) for one in getattr(study.plan, kind)} for study in (a, b))
        for label in dict.fromkeys([*left, *right]):
            if label in left and label in right:
                yield from _unequal(f"{kind}: {label}", left[label], right[label])
            else:
                yield f"{kind}: only {'a' if label in left else 'b'} has '{label}'"
    for name in ("seeds", "threads", "shard_size", "device"):
        yield from _unequal(name, getattr(a.plan, name), getattr(b.plan, name))


def _facts(thing: PlannedTask | PlannedThing) -> Mapping[str, Any]:
    if isinstance(thing, PlannedTask):
        return {"content": thing.digest, "samples": thing.samples, "rows per chunk": thing.rows}
    return thing.content


def _unequal(where: str, x: Any, y: Any) -> Iterator[str]:
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        for key in dict.fromkeys([*x, *y]):
            yield from _unequal(f"{where}.{key}", x.get(key), y.get(key))
    elif x != y:
        left, right = (list(value) if isinstance(value, tuple) else value for value in (x, y))
        yield f"{where}: {left} in a, {right} in b"
