"""The sanity check of measures (table 3): random explanations must score worse than perfect ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts, Linear
from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.measures import LABELS, Judgement, ice_eval, judge, shown
from veridical.concepts.splitting import Split, split
from veridical.core.allowed import Count
from veridical.core.key import Key, as_key, normal, uniform
from veridical.core.settings import checked
from veridical.errors import InputError, NotApplicableError
from veridical.values.tables import text_table
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = ("Perfect", "Rand-Imp", "Full-Rand")
Measure = Callable[[Concepts, Embeddings, Head, Key], Judgement]
"""A measure of concept explanations; the key is for those that draw or learn."""
MEASURES: dict[str, Measure] = {
    "ICE-Eval": lambda concepts, embeddings, head, key: ice_eval(concepts, embeddings, head),
    "SURF": lambda concepts, embeddings, head, key: judge(concepts, embeddings, head),
}
"""Measures that the sanity check knows by name."""
COLUMNS = ("top1", "rank", "norm_l1", "mae", "emd", "parameters", "flops")


def perfect(head: Head) -> Concepts:
    """The head as its own explanation: `v = f_c / ||f_c||` with importance `||f_c||` (eq. 9)."""
    norms = head.norms
    if bool((norms == 0).any()):
        raise InputError(f"output {int((norms == 0).nonzero()[0])} has zero weights: it has no direction")
    return Concepts.of((head.weight / norms[:, None])[:, None], norms[:, None], method="Perfect")


@checked
def random_importances(head: Head, seed: int | Key = 0, draw: int = 0) -> Concepts:
    """Perfect concepts with importances from U[0, 1)."""
    exact = perfect(head)
    return Concepts.of(exact.vectors, _importances(head, as_key(seed), draw), method="Rand-Imp")


@checked
def random_concepts(head: Head, seed: int | Key = 0, draw: int = 0) -> Concepts:
    """Directions from N(0, I), of length 1, with the same random importances."""
    ids = torch.arange(head.n_outputs, device=head.weight.device)
    vectors = normal(as_key(seed) / "vectors", ids, draw, head.dimension, torch.float64)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    return Concepts.of(vectors[:, None], _importances(head, as_key(seed), draw), method="Full-Rand")


def constant(embeddings: Embeddings, head: Head) -> Concepts:
    """What any explanation must beat: the mean output of these embeddings, whatever the input."""
    offset = head.outputs(embeddings.pooled.double().mean(0, keepdim=True))[0] - head.bias
    blank = Concepts.of(torch.ones(1, head.dimension), torch.zeros(head.n_outputs, 1), method="Constant")
    return blank.with_importances(blank.importances.to(head.weight), offset)


def _importances(head: Head, key: Key, draw: int) -> Tensor:
    ids = torch.arange(head.n_outputs, device=head.weight.device)
    return uniform(key / "importances", ids, draw, 1, torch.float64)


@checked
def rank_optimum(embeddings: Embeddings, head: Head, n_concepts: Count) -> Concepts:
    """The K shared directions with the least RMSE that a linear surrogate can have on these embeddings.

    With `mu = E[h]`, `S = Cov(h)` and `F S^(1/2) = U s W^T` the surrogate is
    `U_K U_K^T F (h - mu) + F mu + b`, and its squared error `sum_{j > K} s_j^2 / C` (Eckart and Young): no
    method of K shared directions, with an offset or without, does better on them. At K = rank(F) it is the
    head itself.

    Parameters
    ----------
    embeddings, head
        What is to be rebuilt.
    n_concepts
        K, at most the smaller side of F.

    Returns
    -------
    Concepts
        The optimum as an explanation.
    """
    if not 1 <= n_concepts <= min(head.weight.shape):
        raise InputError(f"n_concepts is between 1 and {min(head.weight.shape)} here, got {n_concepts}")
    h = embeddings.pooled.double()
    centre = h.mean(0)
    reach = (h - centre) @ head.weight.T
    # F S F^T has the left singular vectors of F S^(1/2): no root of S is needed
    _, left = torch.linalg.eigh(reach.T @ reach / len(h))
    left = left[:, -n_concepts:].flip(1)
    rows = left.T @ head.weight
    length = rows.norm(dim=-1).clamp(min=1e-300)
    vectors = (rows / length[:, None])[None]
    offset = head.weight @ centre
    return Concepts("optimum", vectors, left * length, Linear(vectors, centre[None]), offset, centre[None])


@dataclass(frozen=True, eq=False, repr=False)
class SanityTable:
    """Table 3 for one head: every measure in every setting, each value the mean over draws.

    `draws[setting, measure]` holds one summary per draw; `norms` are the lengths of the head's weight
    vectors, on which the order depends.
    """

    draws: dict[tuple[str, str], list[dict[str, float]]]
    norms: Tensor
    samples: int

    def value(self, setting: str, measure: str, column: str) -> float:
        """The mean over draws of one cell."""
        found = [summary.get(column, float("nan")) for summary in self.draws[setting, measure]]
        return sum(found) / len(found)

    def ordered(self, measure: str, column: str) -> float:
        """The share of draws in which the measure gets strictly worse from setting to setting."""
        per_setting = [[s[column] for s in self.draws[setting, measure]] for setting in SETTINGS]
        sign = -1 if column in ("top1", "rank") else 1
        kept = [sign * a < sign * b < sign * c for a, b, c in zip(*per_setting, strict=True)]
        return sum(kept) / len(kept)

    def to_frame(self) -> pd.DataFrame:
        """One row per setting and measure, as in the paper."""
        import pandas as pd

        rows = [[*pair, *(self.value(*pair, column) for column in COLUMNS)] for pair in self.draws]
        return pd.DataFrame(rows, columns=["setting", "measure", *COLUMNS])

    def __repr__(self) -> str:
        lines = [[*pair, *(shown(c, self.value(*pair, c)) for c in COLUMNS)] for pair in self.draws]
        low, high = self.norms.aminmax()
        title = (
            f"Sanity check over {self.samples} samples, {len(next(iter(self.draws.values())))} draws; "
            f"||f_c|| from {float(low):.2f} to {float(high):.2f}"
        )
        orders = [
            f"{m}: MAE {self.ordered(m, 'mae'):.0%}, EMD {self.ordered(m, 'emd'):.0%}"
            for m in dict.fromkeys(measure for _, measure in self.draws)
        ]
        table = text_table(["Setting", "Measure", *(LABELS[c] for c in COLUMNS)], lines)
        return f"{title}\n{table}\nstrictly worse with more randomness, share of draws: {'; '.join(orders)}"


@checked
def sanity(
    task: Task | Split | Embeddings,
    head: Head | None = None,
    seed: int | Key = 0,
    draws: Count = 10,
    measures: Sequence[str] | Mapping[str, Measure] = tuple(MEASURES),
) -> SanityTable:
    """Table 3 for one head: do measures notice that an explanation is random?

    Parameters
    ----------
    task
        A task, or its `split`, or embeddings that are at hand.
    head
        The head of the embeddings; a task brings its own.
    seed
        Keys the random importances and directions.
    draws
        How often they are drawn.
    measures
        "ICE-Eval" and "SURF" by name, or a mapping from names to functions of
        (concepts, embeddings, head, key) that give a `Judgement`: measures of your own.

    Returns
    -------
    SanityTable
        Every measure in every setting (Perfect, Rand-Imp, Full-Rand), draw by draw.

    Raises
    ------
    InputError
        A measure is unknown, or there are fewer than one draw.
    NotApplicableError
        The head is no classifier.
    """
    if not isinstance(task, Embeddings):
        parts = task if isinstance(task, Split) else split(task)
        task, head = parts.test(), parts.head
    if head is None:
        raise InputError("embeddings do not say what their head is: give it, or a task")
    if not isinstance(measures, Mapping):
        unknown = [m for m in measures if m not in MEASURES]
        if unknown:
            raise InputError(f"measures are among {', '.join(MEASURES)}, or functions; got {unknown}")
        measures = {name: MEASURES[name] for name in measures}
    if not head.classifies:
        raise NotApplicableError(f"the sanity check compares measures for classifiers; this is a {head.kind}")
    key = as_key(seed) / "sanity"
    found: dict[tuple[str, str], list[dict[str, float]]] = {(s, m): [] for s in SETTINGS for m in measures}
    for draw in range(draws):
        drawn = random_importances(head, key, draw), random_concepts(head, key, draw)
        for concepts in (perfect(head), *drawn):
            for name, measure in measures.items():
                found[concepts.method, name].append(measure(concepts, task, head, key / draw).summary)
    return SanityTable(found, head.norms, len(task))
