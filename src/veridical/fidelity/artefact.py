"""The artefact of a fine-tuning: one file that holds the weights and says what they were made from."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.model.cost import Cost
from veridical.settings import Settings, revivable
from veridical.values import files
from veridical.values.space import Space
from veridical.values.task import Task

KIND = "fine-tuned model"


@revivable
@dataclass(frozen=True)
class Finetuned(Settings):
    """A model fine-tuned under random masks, addressed by its file; made by `fidelity.finetune`.

    `artefact.on(task)` is the task on the fine-tuned model. The original model, fill, space and beta must be
    those it was made with.
    """

    path: str
    name: ClassVar[str] = "finetuned"

    @property
    def header(self) -> Mapping[str, Any]:
        """What the file says of itself: settings, data, history, cost."""
        return _read(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).is_file() else 0)[1]

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The fine-tuned state of the model, parameters and buffers."""
        return _read(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).is_file() else 0)[0]

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
        """Training and validation loss of every epoch."""
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
        model = copy.deepcopy(task.predictor.model)
        model.load_state_dict({name: value.to(task.device) for name, value in self.weights.items()})
        return on_model(task, model.eval())

    def summary(self, task: Task | None = None) -> dict[str, Any]:
        """The facts that belong into the provenance of a score."""
        header = self.header
        out = {
            "file": Path(self.path).name,
            "beta": self.beta,
            "targets": "labels" if self.labels == "given" else "the original model's own predictions",
            "epochs": len(self.history),
            "best epoch": header["best_epoch"],
            "cost": header["cost"],
            "mode": header["mode"],
        }
        if task is not None and task.train is not None:
            out["evaluated rows that were trained on"] = shared_rows(task)
        return out

    def __repr__(self) -> str:
        try:
            header = self.header
        except Exception:
            return f"Finetuned({self.path!r}): the file cannot be read"
        best = header["history"][header["best_epoch"]] if header["history"] else {}
        return (
            f"Finetuned: beta {self.beta:g}, {len(self.history)} epochs (best {header['best_epoch'] + 1}, "
            f"validation loss {best.get('validation', float('nan')):.4f}), targets {self.labels}, "
            f"cost {self.cost}"
        )


def on_model(task: Task, model: nn.Module) -> Task:
    """The same task, ids and targets on another model of the same kind."""
    return task.with_module(model)


@lru_cache(maxsize=4)
def _read(path: str, written_ns: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return files.read(path, KIND)


def shared_rows(task: Task) -> int:
    """How many evaluated rows are among the training rows, bit for bit."""
    known: set[bytes] = task.from_train("row digests", lambda: row_digests(task.train))
    return len(row_digests(task.inputs) & known)


def row_digests(rows: Tensor | None) -> set[bytes]:
    """A digest of every row."""
    if rows is None:
        return set()
    table = rows.detach().cpu().contiguous().reshape(len(rows), -1).numpy()
    return {hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in table}


def state_digest(model: nn.Module) -> str:
    """A digest of a model's class, layout and every number in its state."""
    digest = hashlib.blake2b(repr((type(model).__qualname__, repr(model))).encode(), digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def tensor_bytes(value: Tensor) -> bytes:
    """Shape, dtype and content of a tensor as bytes."""
    array = value.detach().cpu().contiguous()
    return (
        f"{tuple(array.shape)}{array.dtype}".encode() + array.reshape(-1).view(torch.uint8).numpy().tobytes()
    )


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
