"""The artefact of a fine-tuning: one file that holds the weights and says what they were made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.api import as_explanation
from veridical.core import files
from veridical.core.facts import fact
from veridical.core.settings import Settings, revivable
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.explainers.base import registry
from veridical.fidelity.correctness import accuracy, predicted_labels
from veridical.fidelity.training_rows import READ_AT_ONCE, Rows
from veridical.functional import spearman
from veridical.models.cost import Cost
from veridical.models.predictor import take_side
from veridical.values.content_hash import content_digest, hash_tensors
from veridical.values.input_checks import sample_digests
from veridical.values.task import Task

KIND = "fine-tuned model"
ROW_DIGESTS = "veridical: digests of the training rows"
REFUSED = 0.7
"""Below this share of equal answers the fine-tuned model is another one, and FFid refuses it."""
FLAGGED = 0.9
"""Below this share every score is flagged."""
LOST = 0.1
"""Nor may it lose more accuracy than this on whole inputs, against the targets it was trained on; by chance
held-out rows may show more (one-sided, 5%)."""
LOST_FLAGGED = 0.05
"""Above this loss of accuracy every score is flagged."""
MAPS_REFUSED = 0.3
"""Below this rank agreement of saliency maps the fine-tuned model reads its inputs otherwise: refused."""
MAPS_FLAGGED = 0.8
"""Below this rank agreement every score is flagged: between good maps it prefers its own."""
FEW_ROWS = 30
"""With fewer held-out rows the agreement is hardly known: a flag."""
MAPS = 32
"""Held-out rows whose maps are compared."""
EXPLAINER = "saliency"


@dataclass(frozen=True)
class HeldOutCheck:
    """How the fine-tuned model compares with the original on `rows` whole held-out inputs.

    `agreement` is the share of equal answers (of equal labels; R^2 for a regression), and the accuracies are
    against the targets of the fine-tuning: labels, or the model's own answers. `maps` is the mean rank
    correlation of saliency maps, None where there are no gradients.
    """

    rows: int
    agreement: float
    maps: float | None
    original_accuracy: float
    accuracy: float

    @property
    def inapplicable_reason(self) -> str | None:
        """Why the fine-tuned model may not stand in for the original, or None if it may."""
        reason = None
        if not self.agreement >= REFUSED:
            reason = f"{self._share}, less than the {REFUSED:.0%} below which it is another model"
        elif self.maps is not None and not self.maps >= MAPS_REFUSED:
            reason = f"reads inputs elsewhere, {self._maps} and not {MAPS_REFUSED:g} at least"
        elif not self._lost <= LOST + 1.645 * math.sqrt(LOST * (1 - LOST) / self.rows):
            reason = f"{self._worse}, more than {100 * LOST:.0f}"
        if reason is None:
            return None
        advice = "fine-tune more gently (a lower rate) or on more rows, or use RFid"
        return f"the fine-tuned model {reason}: {advice}"

    @property
    def flags(self) -> tuple[str, ...]:
        """What every score by this model is flagged for."""
        found = []
        if self.agreement < FLAGGED:
            found.append(f"the fine-tuned model {self._share} only")
        if self._lost > LOST_FLAGGED:
            found.append(f"the fine-tuned model {self._worse}")
        if self.maps is not None and self.maps < MAPS_FLAGGED:
            found.append(
                f"the fine-tuned model reads inputs elsewhere: {self._maps}, so close scores may be its own"
            )
        if self.rows < FEW_ROWS:
            found.append(f"the fine-tuned model was checked on {self.rows} held-out rows, too few to know it")
        return tuple(found)

    @property
    def _lost(self) -> float:
        return self.original_accuracy - self.accuracy

    @property
    def _maps(self) -> str:
        return f"its saliency maps agree with the model's by rank at {self.maps:.2f}"

    @property
    def _worse(self) -> str:
        return f"loses {100 * self._lost:.0f} points of accuracy on {self.rows} whole held-out inputs"

    @property
    def _share(self) -> str:
        return f"answers {self.agreement:.0%} of {self.rows} whole held-out inputs as the model does"


@revivable
@dataclass(frozen=True)
class Finetuned(Settings):
    """A model fine-tuned under random masks, addressed by its file; made by `fidelity.finetune`.

    `artefact.on(task)` is the task on the fine-tuned model. The original model, fill, space and beta must be
    those it was made with.
    """

    path: str
    """The file that holds the fine-tuned weights."""
    name: ClassVar[str] = "finetuned"

    @property
    def header(self) -> Mapping[str, Any]:
        """What the file says of itself: settings, data, history, cost."""
        return self._content[1]

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The fine-tuned state of the model, parameters and buffers."""
        return {name: value for name, value in self.tensors.items() if name != ROW_DIGESTS}

    @property
    def _content(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return _read(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).is_file() else 0)

    @property
    def held_out(self) -> HeldOutCheck:
        """How the fine-tuned model compares with the original on whole held-out rows."""
        return HeldOutCheck(**self.header["held_out"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that the file holds: the weights, and the digests of the rows it was fine-tuned on."""
        return self._content[0]

    def rows_seen(self, inputs: Tensor) -> int:
        """How many of these rows it was fine-tuned on, bit for bit."""
        return int(torch.isin(sample_digests(inputs).cpu(), self.tensors[ROW_DIGESTS]).sum())

    @property
    def beta(self) -> float:
        """The largest share of features removed while fine-tuning."""
        return float(self.header["settings"]["beta"])

    @property
    def labels(self) -> str:
        """Where the training targets came from: "given", or "predicted" by the original model."""
        return str(self.header["labels"])

    @property
    def cost(self) -> Cost:
        """Rows forward and backward that the fine-tuning took, once for all explainers."""
        return Cost(*self.header["cost"])

    @property
    def history(self) -> list[dict[str, float]]:
        """Training and validation loss of every epoch; `header["start"]` is the loss before them."""
        return list(self.header["history"])

    def on(self, task: Task) -> Task:
        """The same task on the fine-tuned model; targets stay those of the original model."""
        self.check(task)
        return task.companions.get(self.path) or _finetuned(task, self)

    def check(self, task: Task) -> None:
        """Refuse a task whose model, fill or space is another than that of the fine-tuning."""
        if self.path in task.companions:  # as meta-evaluation gives a perturbed task
            return
        made, fill, space = self.header, task.fill.to_json(), space_facts(task.space)
        reason = None
        if made["fill"] != fill:
            reason = f"with fill {made['fill']}, the task has {fill}; use task.with_fill(...)"
        elif made["space"] != space:
            on, here = _space_line(made["space"]), _space_line(space)
            reason = f"on {on}, the task has {here}; use task.with_space(...)"
        elif made["weights"] != _weights_digest(task):
            reason = "from other weights than this task's model has"
        if reason is not None:
            raise InputError(f"the model was fine-tuned {reason}, or fine-tune again")

    def evaluator(self, task: Task) -> Task:
        """The task on the fine-tuned model, if its check on held-out rows allows it."""
        reason = self.held_out.inapplicable_reason
        if reason is not None:
            raise NotApplicableError(f"{reason} ({Path(self.path).name})")
        return self.on(task)

    def disagrees(self, task: Task) -> Tensor:
        """Samples (N,) whose whole input the fine-tuned model answers otherwise; none for a regression."""
        if task.head == "regression":
            return torch.zeros(len(task), dtype=torch.bool, device=task.device)
        ours, its = predicted_labels(task.outputs, task), predicted_labels(self.on(task).outputs, task)
        return (ours != its).reshape(len(task), -1).any(-1)

    def summary(self, task: Task) -> dict[str, Any]:
        """The facts that belong into the provenance of a score."""
        header, check = self.header, self.held_out
        return {
            "file": Path(self.path).name,
            "beta": self.beta,
            "targets": "labels" if self.labels == "given" else "the original model's own predictions",
            "epochs": len(self.history),
            "best epoch": header["best_epoch"],
            "cost": header["cost"],
            "mode": header["mode"],
            "held-out rows": check.rows,
            "agreement with the model": check.agreement,
            "rank agreement of maps": check.maps,
            "agreement on the evaluated rows": 1 - float(self.disagrees(task).double().mean()),
            "evaluated rows that were trained on": self.rows_seen(task.inputs),
        }

    def __repr__(self) -> str:
        try:
            header = self.header
        except Exception:
            return f"Finetuned({self.path!r}): the file cannot be read"
        best = header["best_epoch"]
        loss = header["history"][best - 1]["validation"] if best else header["start"]
        kept = f"best {best}" if best else "the original weights were best"
        found = self.held_out
        return (
            f"Finetuned: beta {self.beta:g}, {len(self.history)} epochs ({kept}, validation loss "
            f"{loss:.4f}), targets {self.labels}, agrees with the model on {found.agreement:.1%} of "
            f"{found.rows} held-out rows, cost {self.cost}"
        )


@fact
def _finetuned(task: Task, artefact: Finetuned) -> Task:
    """The task on the fine-tuned model."""
    model = task.predictor.source.copied()
    model.load_state_dict({name: value.to(task.device) for name, value in artefact.weights.items()})
    return task.with_module(model.eval())


@fact
def _weights_digest(task: Task) -> str:
    return state_digest(task.predictor.model)


@lru_cache(maxsize=4)
def _read(path: str, written_ns: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return files.load_tensors(path, KIND)


def space_facts(space: Space) -> dict[str, Any]:
    """What of a space must agree between fine-tuning and evaluation."""
    labels = "per sample"
    if not space.per_sample:
        labels = hash_tensors({"labels": space.labels}).hexdigest()
    return {
        "kind": space.kind,
        "features": space.n_features,
        "input": list(space.input_shape),
        "labels": labels,
    }


def _space_line(facts: Mapping[str, Any]) -> str:
    return f"{facts['features']} {facts['kind']} features over {tuple(facts['input'])}"


def state_digest(model: nn.Module) -> str:
    """A digest of a model's class, layout and every number in its parameters and buffers."""
    return content_digest(model, dict(model.named_buffers()), None)


def check_held_out(task: Task, tuned: Task, rows: Rows, held: Tensor) -> HeldOutCheck:
    """Compare a model (the same task on the fine-tuned one) with the task's own on held-out rows."""
    answers = torch.cat([_answers(tuned, rows, index) for index in held.split(READ_AT_ONCE)])
    own, truth = rows.answers[held], rows.targets[held]
    return HeldOutCheck(
        len(held),
        accuracy(answers, own, task),
        _map_agreement(task, tuned, rows, held[:MAPS]),
        accuracy(own, truth, task),
        accuracy(answers, truth, task),
    )


def _answers(tuned: Task, rows: Rows, index: Tensor) -> Tensor:
    return predicted_labels(tuned.predictor.outputs(rows.inputs[index], take_side(rows.side, index)), tuned)


def _map_agreement(task: Task, tuned: Task, rows: Rows, index: Tensor) -> float | None:
    """The mean rank correlation of both models' saliency maps for the same outputs."""
    few = rows.task(task, index)
    method = registry.make(EXPLAINER)
    if method.inapplicable_reason(few) is not None or few.space.n_features < 2:
        return None
    try:
        before = as_explanation(method, few)
        after = as_explanation(method, few.with_module(tuned.model))
    except NotApplicableError:
        return None
    there = before.spread
    if not bool(there.any()):
        return None
    # a map that has become constant agrees with none
    return float(spearman(before.values, after.values, where=before.valid)[there].nan_to_num(0.0).mean())
