"""The atlas: what every metric can see on every kind of input, measured where the right answer is known.

It is read here; `python -m benchmarks.atlas` measures it, and docs/atlas holds the published one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veridical.core.files import read_file
from veridical.errors import FormatError, InputError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
DATA, RUN = "atlas.json", "run.json"
TABLES = ("metrics", "explainers", "verdicts")
VERDICTS = ("use", "use with care", "do not use", "not measured")


class Verdict(NamedTuple):
    """One of `VERDICTS` for a metric on a kind of input, and why it is not better, the weightiest first."""

    metric: str
    modality: str
    verdict: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Atlas:
    """What was measured: one row per metric and task, one per explainer and known answer, and the run."""

    rows: Sequence[Mapping[str, Any]]
    explainers: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    """One per metric and kind of input, best metrics first."""
    run: Mapping[str, Any]
    """When, where and how it was measured; whatever another run would not repeat to the bit."""

    def to_frame(self) -> pd.DataFrame:
        """One row per metric and task; schema.json beside the data says what the columns mean."""
        return _frame(self.rows)

    def explainer_frame(self) -> pd.DataFrame:
        """How near each explainer comes to each known answer."""
        return _frame(self.explainers)

    @property
    def modalities(self) -> list[str]:
        """The kinds of input."""
        return list(dict.fromkeys(row["modality"] for row in self.rows))

    def verdict(self, metric: str, modality: str) -> str:
        """Whether a metric tells right maps from wrong ones on a kind of input.

        Returns
        -------
        str
            "use", "use with care", "do not use" or "not measured".
        """
        for one in self.verdicts:
            if (one.metric, one.modality) == (metric, modality):
                return one.verdict
        raise InputError(f"the atlas has no '{metric}' on '{modality}'; it has {self.modalities}")

    def __repr__(self) -> str:
        lines = [f"Atlas: {len({r['metric'] for r in self.rows})} metrics, {', '.join(self.modalities)}"]
        for modality in self.modalities:
            for verdict in VERDICTS:
                found = [v.metric for v in self.verdicts if (v.modality, v.verdict) == (modality, verdict)]
                lines += [f"{modality}, {verdict}: {', '.join(found)}"] * bool(found)
        return "\n".join(lines)


def load(folder: str | Path) -> Atlas:
    """Read the atlas that was saved in a folder.

    Parameters
    ----------
    folder
        Such as docs/atlas of a checkout.

    Returns
    -------
    Atlas
        Its tables and verdicts.

    Raises
    ------
    FormatError
        Where the folder holds no atlas, or one of another version.
    """
    home = Path(folder)
    try:
        data, run = json.loads(read_file(home / DATA)), json.loads(read_file(home / RUN))
        if data["format"] != FORMAT:
            raise FormatError(f"{home} has format {data['format']}, this version reads {FORMAT}")
        metrics, explainers, verdicts = (
            [dict(zip(data[name]["columns"], row, strict=True)) for row in data[name]["data"]]
            for name in TABLES
        )
        found = [Verdict(**{**one, "reasons": tuple(one["reasons"])}) for one in verdicts]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{home} holds no atlas: {error}") from error
    return Atlas(metrics, explainers, found, run)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows)
    # a column without a single figure is a column of figures all the same
    empty = [name for name in frame if frame[name].isna().all()]
    return frame.astype(dict.fromkeys(empty, "float64"))
