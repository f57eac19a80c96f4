"""PartitionSHAP: Owen values over a tree of neighbouring features, computed by the shap package."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.allowed import MANY, Within
from veridical.errors import missing_extra
from veridical.explainers.base import register
from veridical.explainers.coalitions import MaskingExplainer
from veridical.masking.probe import probe
from veridical.masking.rules import Given
from veridical.random.keyed import Key
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class PartitionShap(MaskingExplainer):
    """Shapley values handed down a binary tree of features (Owen values; Lundberg's PartitionExplainer).

    The tree halves the features along the longer side of the region they fill: rows and columns of an
    image, places in a text, a series or a table. A branch that `budget` does not reach shares its value
    equally. Needs the extra `shap`, which explains one sample at a time.
    """

    budget: Annotated[int, Within(4, MANY)] = 512
    """Rows asked per sample, at most."""
    name: ClassVar[str] = "partition_shap"
    summary: ClassVar[str] = "Owen values over a tree of neighbours, by the shap package"
    paper: ClassVar[str] = "Owen 1977; Lundberg and Lee 2017"

    def why_not(self, task: Task) -> str | None:
        if importlib.util.find_spec("shap") is None:
            return str(missing_extra("shap", "shap"))
        return super().why_not(task)

    def check(self, task: Task) -> None:
        if importlib.util.find_spec("shap") is None:
            raise missing_extra("shap", "shap")
        super().check(task)

    def attribute(self, task: Task, key: Key) -> Tensor:
        out = torch.zeros(len(task), task.space.n_features, dtype=task.outputs.dtype, device=task.device)
        places = _places(task)
        trees: dict[bytes, np.ndarray[Any, Any]] = {}
        for i in range(len(task)):
            piece = task[i : i + 1]
            valid = (
                torch.ones_like(out[i], dtype=torch.bool) if task.space.valid is None else task.space.valid[i]
            )
            where = places[i, valid.cpu().numpy()]
            name = where.tobytes()
            if name not in trees:
                trees[name] = halving_tree(where)
            with seeded_numpy(self.fill_key(key) / int(task.ids[i])):
                values = self._explain(piece, valid, trees[name], key)
            out[i, valid] = torch.as_tensor(values).to(out)
        return out

    def _explain(self, piece: Task, valid: Tensor, tree: np.ndarray[Any, Any], key: Key) -> Any:
        import shap

        def ask(kept: Any) -> Any:
            removed = torch.zeros(len(kept), len(valid), dtype=torch.bool, device=piece.device)
            removed[:, valid] = torch.as_tensor(np.asarray(kept) < 0.5).to(piece.device)
            return probe(piece, Given(removed), response="logit", key=self.fill_key(key))[0].cpu().numpy()

        size = int(valid.sum())
        if size == 1:
            ends = ask(np.array([[0.0], [1.0]]))
            return ends[1:] - ends[:1]
        owen = shap.PartitionExplainer(ask, _Presence(tree, size))
        return owen(np.ones((1, size)), max_evals=self.budget, silent=True).values[0]


class _Presence:
    """What shap calls a masker: a row of ones and zeros that says which features are there."""

    def __init__(self, tree: np.ndarray[Any, Any], size: int) -> None:
        self.clustering = tree
        self.shape = (None, size)

    def __call__(self, mask: np.ndarray[Any, Any], row: np.ndarray[Any, Any]) -> Any:
        return mask.astype(np.float64)[None]


def halving_tree(places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A tree in the format of scipy's linkage over features at these places (D, axes)."""
    merges: list[tuple[float, float, float, float]] = []
    count = len(places)

    def merge(members: np.ndarray[Any, Any]) -> tuple[int, float]:
        if len(members) == 1:
            return int(members[0]), 0.0
        spans = np.ptp(places[members], axis=0)
        ordered = members[np.argsort(places[members, spans.argmax()], kind="stable")]
        half = len(ordered) // 2
        (left, low), (right, high) = merge(ordered[:half]), merge(ordered[half:])
        height = max(low, high) + 1.0
        merges.append((left, right, height, len(members)))
        return count + len(merges) - 1, height

    merge(np.arange(count))
    return np.array(merges, dtype=np.float64).reshape(-1, 4)


def _places(task: Task) -> np.ndarray[Any, Any]:
    """(N, V, axes): where each feature lies; the middle of its pixels in an image, else its number."""
    space = task.space
    if task.modality == "image" and len(space.input_shape) == 3:
        rows, columns = (
            torch.arange(n, dtype=torch.float64, device=task.device) for n in space.input_shape[1:]
        )
        maps = [m.expand(len(task), *space.input_shape) for m in (rows[:, None], columns)]
        return torch.stack([space.pool(m, "mean") for m in maps], -1).cpu().numpy()
    numbers = np.arange(space.n_features, dtype=np.float64)[None, :, None]
    return np.broadcast_to(numbers, (len(task), space.n_features, 1))


@contextmanager
def seeded_numpy(key: Key) -> Iterator[None]:
    """For code that draws from numpy's global generator (shap, to break ties): seed it, then put it back."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(key.state & 0xFFFFFFFF)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
