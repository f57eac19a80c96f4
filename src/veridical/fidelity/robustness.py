"""How a model stands masked inputs, before and after fine-tuning, and which metric to use for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.fidelity.artefact import REFUSED, Finetuned
from veridical.fidelity.correctness import Reference, predicted_labels, reference_labels
from veridical.fidelity.finetuning import data_digest, finetune
from veridical.fidelity.removal import budget
from veridical.fidelity.training_rows import training_rows
from veridical.perturb.probe import probe
from veridical.perturb.rules import RandomSubsets
from veridical.perturb.subset_table import FEW
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

LITTLE_LOSS = 0.05
"""A fall in accuracy, in shares, up to which a model counts as undisturbed by masks."""
ORIGINAL, TUNED, CONTROL = "original", "fine-tuned", "fine-tuned without masks"


@dataclass(frozen=True, eq=False)
class RobustnessTable:
    """Accuracy at each masked share, and agreement with the original's answer to the whole input.

    One row per model: the original, the fine-tuned one, and one fine-tuned without masks, so that mere
    adaptation is not mistaken for robustness (Table 8, figure 1).
    """

    shares: tuple[float, ...]
    accuracy: Mapping[str, tuple[float, ...]]
    agreement: Mapping[str, tuple[float, ...]]
    rows: int
    features: int | None = None
    """How many features every sample has, where they are few and shares are counted in whole ones."""

    @property
    def advice(self) -> str:
        """Which metric to use here, and why (section 5.4)."""
        (whole, *_, masked), (full, *_, tuned) = self.accuracy[ORIGINAL], self.accuracy[TUNED]
        fall, gain, same = whole - masked, tuned - masked, self.agreement[TUNED][0]
        lost = f"The original loses {100 * fall:.1f} points of accuracy with {self._masked(-1)} masked"
        better = f"{lost} and the fine-tuned model is {100 * gain:.1f} points better there"
        if same < REFUSED:
            return (
                f"{lost}. The fine-tuned model answers {same:.1%} of the whole inputs as the original does: "
                "it is another model and may not stand in for it. Fine-tune more gently or on more rows."
            )
        if fall <= LITTLE_LOSS:
            return (
                f"{lost}, which is little: masked inputs are no trouble to it, plain Fid is enough, and FFid "
                "is expected to rank explainers less sharply."
            )
        if gain < fall / 2:
            little = f"{better} only" if gain > 0 else f"{lost} and the fine-tuned model is no better there"
            return (
                f"{little}: fine-tuning has not made it robust yet. Train longer or faster before using FFid "
                "(a few epochs at 1e-4 are often not enough); Fid and RFid are not to be trusted."
            )
        control = self.accuracy.get(CONTROL)
        if control is not None and tuned - control[-1] < fall / 4:
            return (
                f"{better}, but so is the one fine-tuned without masks: the gain is adaptation to the "
                "training rows rather than robustness. FFid is safer than Fid here, and says little more."
            )
        return (
            f"{better} (it loses {100 * (full - tuned):.1f} points itself): use FFid, since Fid and RFid "
            "would measure how the original mistakes masked inputs rather than how good an explanation is."
        )

    def _masked(self, at: int, behind: str = " of the features") -> str:
        """A masked share in words: "1 of 9" where features are few."""
        if self.features is None:
            return f"{self.shares[at]:.0%}{behind}"
        return f"{round(self.shares[at] * self.features)} of {self.features}{behind and ' features'}"

    def to_frame(self) -> pd.DataFrame:
        """One row per model and masked share."""
        return accuracy_frame(self.shares, self.accuracy, self.agreement)

    def __repr__(self) -> str:
        masked = [self._masked(at, "") for at in range(len(self.shares))]
        note = f"   (accuracy, agreement in %; {self.rows} samples)"
        return "\n".join([*accuracy_lines(masked, self.accuracy, self.agreement, note), self.advice])


def accuracy_lines(
    masked: Sequence[str],
    accuracy: Mapping[str, Sequence[float]],
    agreement: Mapping[str, Sequence[float]],
    note: str = "",
) -> list[str]:
    """A line per model: right answers, and answers equal to the original's, in percent."""
    width = max(map(len, accuracy))
    lines = [f"{'masked':<{width}}  " + "  ".join(f"{share:>11}" for share in masked) + note]
    for name, right in accuracy.items():
        pairs = zip(right, agreement[name], strict=True)
        lines.append(f"{name:<{width}}  " + "  ".join(f"{100 * a:5.1f} {100 * b:5.1f}" for a, b in pairs))
    return lines


def accuracy_frame(
    shares: Sequence[float], accuracy: Mapping[str, Sequence[float]], agreement: Mapping[str, Sequence[float]]
) -> pd.DataFrame:
    """One row per model and masked share: right answers, and answers equal to the original's."""
    import pandas as pd

    rows = [
        {"model": name, "masked": share, "accuracy": right, "agreement": same}
        for name in accuracy
        for share, right, same in zip(shares, accuracy[name], agreement[name], strict=True)
    ]
    return pd.DataFrame(rows)


@checked
def robustness_table(
    task: Task,
    finetuned: Finetuned | None = None,
    *,
    shares: Sequence[float] = (0.0, 0.05, 0.1),
    draws: Count = 5,
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> RobustnessTable:
    """Measure accuracy on masked inputs: the original, the fine-tuned, and one fine-tuned without masks.

    The last is made on the same rows with the settings of `finetuned`, default loss and optimiser.

    Parameters
    ----------
    task : Task
        The original model and the evaluated samples; not a regression.
    finetuned : Finetuned, optional
        The fine-tuned model; None makes one with `settings`, or finds it in the cache.
    shares : sequence of float
        Masked shares of the features, each in [0, 1).
    draws : int
        Random masks per sample and share.
    reference : {"label", "prediction"}, optional
        What a right answer is; None is the label where there is one.
    seed : int
        Seed of the masks.
    cache : str or Path, optional
        Folder of the artefacts.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.
    **settings
        Settings of `finetune`.

    Returns
    -------
    RobustnessTable
        Accuracy and agreement of each model at each share, and which metric to use (`advice`).
    """
    if task.head in ("regression", "generation"):
        raise InputError(f"a robustness table counts right answers, and a {task.head} has none")
    if not shares or any(not 0 <= share < 1 for share in shares):
        raise InputError(f"masked shares lie in [0, 1), got {tuple(shares)}")
    settings = {"cache": cache, "progress": progress, **settings}
    if finetuned is None:
        finetuned = finetune(task, **settings)
    made = {**finetuned.header["settings"], **settings, "masks": False}
    about = {n: made.get(n) for n in ("train", "train_side", "train_space", "columns")}
    if finetuned.header["data"] != data_digest(training_rows(task, **about)):
        raise InputError(
            "the control would be fine-tuned on other rows than the fine-tuned model was; give the rows of "
            "its fine-tuning as train=... (and train_side=, train_space=, columns= as there)"
        )
    control = finetune(task, **made)
    models = {ORIGINAL: task, TUNED: finetuned.on(task), CONTROL: control.on(task)}
    shares, few = real_shares(task, shares)
    right, same = accuracy_under_masks(task, models, shares, draws, reference, Key(seed) / "robustness")
    return RobustnessTable(shares, right, same, len(task), few)


def real_shares(task: Task, shares: Sequence[float]) -> tuple[tuple[float, ...], int | None]:
    """Shares as they are masked, and the number of features where whole ones of few are counted."""
    n = task.space.n_features
    if task.space.valid is not None or n > FEW:
        return tuple(shares), None
    counts = dict.fromkeys(int(budget(torch.tensor(n), share)) for share in shares)
    return tuple(count / n for count in counts), n


def accuracy_under_masks(
    task: Task,
    models: Mapping[str, Task],
    shares: Sequence[float],
    draws: int,
    reference: Reference | None,
    key: Key,
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
    """For each model and masked share: right answers, and answers equal to the task's own unmasked ones."""
    truth, first = reference_labels(task, reference), predicted_labels(task.outputs, task)
    right, same = {}, {}
    for name, model in models.items():
        answers = masked_predictions(model, shares, draws, key)
        right[name] = tuple(_share(answers, truth))
        same[name] = tuple(_share(answers, first))
    return right, same


def masked_predictions(task: Task, shares: Sequence[float], draws: int, key: Key) -> Tensor:
    """The task's model's answers (N, draws, shares, ...) with a random share of the features removed."""
    n = task.space.counts(len(task)).to(task.device)
    sizes = torch.stack([budget(n, share) for share in shares], -1)
    rule = RandomSubsets(key, task.draw_ids, task.space.n_features, draws, sizes, task.space.valid)
    outputs = probe(task, rule, response="logit", key=key, all_outputs=True)
    return predicted_labels(outputs.reshape(len(task), draws, len(shares), -1), task)


def _share(answers: Tensor, truth: Tensor) -> list[float]:
    """The share of answers equal to the truth, at each masked share."""
    wanted = truth[:, None, None]
    same = (answers == wanted).double()
    return same.reshape(*same.shape[:3], -1).mean((0, 1, 3)).tolist()
