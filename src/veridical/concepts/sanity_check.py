"""The sanity check of measures (table 3): random explanations must score worse than perfect ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.cshap_training import Training, cshap_eval
from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.concepts.judgement import LABELS, Judgement, shown
from veridical.concepts.measures import ice_eval, judge
from veridical.concepts.splitting import split
from veridical.concepts.table import text_table
from veridical.core.key import Key, as_key, normal, permutation, uniform
from veridical.errors import InputError, NotApplicableError
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = ("Perfect", "Rand-Imp", "Full-Rand")
LEARNED = ("C-SHAP-Eval (CEL)", "C-SHAP-Eval (L1)")
MEASURES = (*LEARNED, "ICE-Eval", "SURF")
COLUMNS = ("top1", "rank", "norm_l1", "mae", "emd", "parameters", "flops")


def perfect(head: Head) -> Concepts:
    """The head as its own explanation: `v = f_c / ||f_c||` with importance `||f_c||` (eq. 9)."""
    norms = head.norms
    if bool((norms == 0).any()):
        raise InputError(f"output {int((norms == 0).nonzero()[0])} has zero weights: it has no direction")
    return Concepts.of((head.weight / norms[:, None])[:, None], norms[:, None], method="Perfect")


def random_importances(head: Head, seed: int | Key = 0, draw: int = 0) -> Concepts:
    """Perfect concepts with importances from U[0, 1)."""
    exact = perfect(head)
    return Concepts.of(exact.vectors, _importances(head, as_key(seed), draw), method="Rand-Imp")


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

        rows = [
            {"setting": setting, "measure": measure}
            | {column: self.value(setting, measure, column) for column in COLUMNS}
            for setting, measure in self.draws
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        lines = [
            [setting, measure, *(shown(c, self.value(setting, measure, c)) for c in COLUMNS)]
            for setting, measure in self.draws
        ]
        counts = {measure: len(found) for (_, measure), found in self.draws.items()}
        most = max(counts.values())
        fewer = "".join(f", of {name} {count}" for name, count in counts.items() if count < most)
        title = (
            f"Sanity check over {self.samples} samples, {most} draws{fewer}; ||f_c|| from "
            f"{float(self.norms.min()):.2f} to {float(self.norms.max()):.2f}"
        )
        orders = [
            f"{m}: MAE {self.ordered(m, 'mae'):.0%}, EMD {self.ordered(m, 'emd'):.0%}"
            for m in dict.fromkeys(measure for _, measure in self.draws)
        ]
        table = text_table(["Setting", "Measure", *(LABELS[c] for c in COLUMNS)], lines)
        return f"{title}\n{table}\nstrictly worse with more randomness, share of draws: {'; '.join(orders)}"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False)


def sanity(
    task: Task,
    seed: int | Key = 0,
    draws: int = 10,
    measures: Sequence[str] = MEASURES,
    training_rows: int = 256,
    learned_draws: int = 1,
) -> SanityTable:
    """Table 3 for a task's own model: do measures notice that an explanation is random?

    C-SHAP-Eval learns on up to `training_rows` train embeddings, drawn (the judged ones where the task has no
    train rows); it sees no importances, so its row is computed once for Perfect and Rand-Imp. It trains a
    network for every cell, so it is asked in the first `learned_draws` draws only; give 10 for the paper's.
    """
    parts = split(task)
    learn = None
    if task.train is not None and any(measure in LEARNED for measure in measures):
        one = torch.zeros(1, dtype=torch.int64, device=task.device)
        drawn = permutation(as_key(seed) / "training rows", one, 0, len(task.train))[0, :training_rows]
        learn = parts.train().take(drawn)
    return sanity_of_head(parts.head, parts.test(), learn, seed, draws, measures, learned_draws)


def sanity_of_head(
    head: Head,
    embeddings: Embeddings,
    fitted_on: Embeddings | None = None,
    seed: int | Key = 0,
    draws: int = 10,
    measures: Sequence[str] = MEASURES,
    learned_draws: int = 1,
) -> SanityTable:
    """The same for a head and embeddings that are at hand."""
    unknown = [m for m in measures if m not in MEASURES]
    if unknown or min(draws, learned_draws) < 1:
        raise InputError(
            f"measures are among {', '.join(MEASURES)} and draws at least 1; got {unknown}, {draws} draws, "
            f"{learned_draws} for those that learn"
        )
    if not head.classifies:
        raise NotApplicableError(f"the sanity check compares measures for classifiers; this is a {head.kind}")
    key = as_key(seed) / "sanity"
    found: dict[tuple[str, str], list[dict[str, float]]] = {(s, m): [] for s in SETTINGS for m in measures}
    for draw in range(draws):
        settings = (perfect(head), random_importances(head, key, draw), random_concepts(head, key, draw))
        for measure in measures:
            if measure in LEARNED and draw >= learned_draws:
                continue
            for concepts in settings:
                done = found[concepts.method, measure]
                if concepts.method == "Rand-Imp" and measure in LEARNED:
                    done.append(found["Perfect", measure][-1])
                    continue
                done.append(_ask(measure, concepts, embeddings, head, fitted_on, key / draw).summary)
    return SanityTable(found, head.norms, len(embeddings))


def _ask(
    measure: str,
    concepts: Concepts,
    embeddings: Embeddings,
    head: Head,
    fitted_on: Embeddings | None,
    key: Key,
) -> Judgement:
    if measure == "SURF":
        return judge(concepts, embeddings, head)
    if measure == "ICE-Eval":
        return ice_eval(concepts, embeddings, head)
    loss = Training(loss="cross_entropy" if measure.endswith("(CEL)") else "l1")
    return cshap_eval(concepts, embeddings, head, fitted_on, loss, key)
