"""How much each concept of a layer matters to the explained output, read anew in every perturbed world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError
from veridical.gef.codes import End, LayerCodes, read_layer
from veridical.values.task import Task

Relevance = Literal["contributions", "projections", "importances"]


@dataclass(frozen=True)
class ConceptRelevance(LayerCodes):
    """How much each concept of the explained output matters to a sample, with concepts of `vd.concepts`.

    `layer` is the model's linear head, at whose input concepts are read. `relevance` says what is judged:
    "contributions" alpha_ik P(h; V_i)_k, "projections" P(h; V_i)_k, or "importances" f_i . v_ik with the
    head's present weights. Concepts V stay those of the unperturbed model: fitted anew they would come in
    another order, and distances between them would mean nothing.
    """

    end: End = "input"
    """Which end of the layer is read; concepts live at the "input" of the head."""
    relevance: Relevance = "contributions"
    """What is judged: "contributions", "projections" or "importances", as above."""
    name: ClassVar[str] = "concept_relevance"
    summary: ClassVar[str] = "what each concept contributes to the explained output"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(
            isinstance(getattr(self.encoder, name, None), Tensor) for name in ("vectors", "importances")
        ):
            raise InputError("concepts have vectors and importances; fit them with a method of vd.concepts")

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "relevance": self.relevance}

    def attribute(self, task: Task, key: Key) -> Tensor:
        activations, weight = read_layer(task, self.layer, self.end, self.axis)
        if self.relevance == "importances":
            return self._importances(weight, task)
        codes = self.encode(activations, task.targets)
        if self.relevance == "contributions":
            codes = codes * self.encoder.importances.to(codes)[task.targets][:, None]
        return self.pooled(codes, task)

    def _importances(self, weight: Tensor | None, task: Task) -> Tensor:
        if weight is None or weight.dim() != 2:
            raise InputError(f"layer '{self.layer}' has no matrix of weights; importances need a linear head")
        if task.head == "binary":
            difference = weight if len(weight) == 1 else weight[1:] - weight[:1]
            weight = torch.cat([-difference, difference])
        if len(weight) != task.n_outputs:
            raise InputError(f"layer '{self.layer}' has {len(weight)} rows for {task.n_outputs} outputs")
        vectors = self.encoder.vectors.to(task.device)
        own = vectors[task.targets] if len(vectors) > 1 else vectors.expand(len(task), -1, -1)
        return torch.einsum("nd,nkd->nk", weight[task.targets].to(own), own)
