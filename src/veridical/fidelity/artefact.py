"""The artefact of a fine-tuning: one file that holds the weights and says what they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core.settings import Settings, revivable
from veridical.errors import InputError, NotApplicableError
from veridical.fidelity.certificate import Certificate
from veridical.fidelity.correctness import own_answers
from veridical.fidelity.digests import row_digests, state_digest, tensor_bytes
from veridical.models.cost import Cost
from veridical.values import files
from veridical.values.space import Space
from veridical.values.task import Task

KIND = "fine-tuned model"
ROW_DIGESTS = "veridical: digests of the training rows"


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
        return {name: value for name, value in self._content[0].items() if name != ROW_DIGESTS}

    @property
    def _content(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return _read(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).is_file() else 0)

    @property
    def certificate(self) -> Certificate:
        """How the fine-tuned model compares with the original on whole held-out rows."""
        if "certificate" not in self.header:
            raise NotApplicableError(
                f"{Path(self.path).name} has no certificate (an older version wrote it); fine-tune again"
            )
        return Certificate(**self.header["certificate"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that the file holds: the weights, and the digests of the rows it was fine-tuned on."""
        return self._content[0]

    def rows_met(self, inputs: Tensor) -> int:
        """How many of these rows it was fine-tuned on, bit for bit."""
        known = set(map(bytes, self.tensors[ROW_DIGESTS].numpy()))
        return sum(bytes(row) in known for row in row_digests(inputs).numpy())

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

    def on(self, task: Task, beta: float | None = None) -> Task:
        """The same task judged by the fine-tuned model; targets stay those of the original model."""
        self.check(task)
        if beta is not None and beta > self.beta + 1e-12:
            raise InputError(
                f"the model was fine-tuned to miss up to {self.beta:g} of its features, and beta {beta:g} is "
                "more"
            )
        made: Task = task.cached(f"finetuned {self.path}", lambda: self._task(task))
        return made

    def check(self, task: Task) -> None:
        """Refuse a task whose model, fill or space is another than that of the fine-tuning."""
        if task.known(f"finetuned {self.path}") is not None:
            # looked at when its copy was made, or given one that goes along with it (meta-evaluation does)
            return
        header = self.header
        if header["fill"] != task.fill.to_json():
            raise InputError(
                f"the model was fine-tuned with fill {header['fill']}, the task has {task.fill.to_json()}; "
                "use task.with_fill(...) or fine-tune again"
            )
        if header["space"] != space_facts(task.space):
            raise InputError(
                f"the model was fine-tuned on {_space_line(header['space'])}, the task has "
                f"{_space_line(space_facts(task.space))}; use task.with_space(...) or fine-tune again"
            )
        if header["weights"] != task.cached("weights digest", lambda: state_digest(task.predictor.model)):
            raise InputError(
                "the artefact was fine-tuned from other weights than this task's model has; fine-tune again"
            )

    def _task(self, task: Task) -> Task:
        model = task.predictor.source.copied()
        model.load_state_dict({name: value.to(task.device) for name, value in self.weights.items()})
        return task.with_module(model.eval())

    def judge(self, task: Task) -> Task:
        """The task on the fine-tuned model, if its certificate lets it judge."""
        reason = self.certificate.why_not
        if reason is not None:
            raise NotApplicableError(f"{reason} ({Path(self.path).name})")
        return self.on(task)

    def answers_otherwise(self, task: Task) -> Tensor:
        """Samples (N,) whose whole input the judge answers otherwise; none for a regression."""
        if task.head == "regression":
            return torch.zeros(len(task), dtype=torch.bool, device=task.device)
        ours, its = own_answers(task.outputs, task), own_answers(self.on(task).outputs, task)
        return (ours != its).reshape(len(task), -1).any(-1)

    def summary(self, task: Task) -> dict[str, Any]:
        """The facts that belong into the provenance of a score."""
        header, certificate = self.header, self.certificate
        return {
            "file": Path(self.path).name,
            "beta": self.beta,
            "targets": "labels" if self.labels == "given" else "the original model's own predictions",
            "epochs": len(self.history),
            "best epoch": header["best_epoch"],
            "cost": header["cost"],
            "mode": header["mode"],
            "held-out rows": certificate.rows,
            "agreement with the model": certificate.agreement,
            "rank agreement of maps": certificate.maps,
            "agreement on the evaluated rows": 1 - float(self.answers_otherwise(task).double().mean()),
            "evaluated rows that were trained on": task.cached(
                f"rows met by {self.path}", lambda: self.rows_met(task.inputs)
            ),
        }

    def __repr__(self) -> str:
        try:
            header = self.header
        except Exception:
            return f"Finetuned({self.path!r}): the file cannot be read"
        best = header["best_epoch"]
        loss = header["history"][best - 1]["validation"] if best else header["start"]
        kept = f"best {best}" if best else "the original weights were best"
        found = self.certificate
        return (
            f"Finetuned: beta {self.beta:g}, {len(self.history)} epochs ({kept}, validation loss "
            f"{loss:.4f}), targets {self.labels}, agrees with the model on {found.agreement:.1%} of "
            f"{found.rows} held-out rows, cost {self.cost}"
        )


@lru_cache(maxsize=4)
def _read(path: str, written_ns: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return files.read(path, KIND)


def space_facts(space: Space) -> dict[str, Any]:
    """What of a space must agree between fine-tuning and evaluation."""
    labels = "per sample"
    if not space.per_sample:
        labels = hashlib.blake2b(tensor_bytes(space.labels), digest_size=8).hexdigest()
    return {
        "kind": space.kind,
        "features": space.n_features,
        "input": list(space.input_shape),
        "labels": labels,
    }


def _space_line(facts: Mapping[str, Any]) -> str:
    return f"{facts['features']} {facts['kind']} features over {tuple(facts['input'])}"
