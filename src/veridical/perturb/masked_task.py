"""What fills, mask rules and the probe need to know of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from torch import Tensor

from veridical.core.space import Space
from veridical.models.output_heads import Head, Response
from veridical.models.predictor import Predictor, Side

if TYPE_CHECKING:
    from veridical.perturb.fills import Fill


class MaskedTask(Protocol):
    """A model, its inputs and the outputs that are evaluated under masks; every `Task` is one."""

    predictor: Predictor
    inputs: Tensor
    side: Side
    space: Space
    fill: Fill
    train: Tensor | None
    n_outputs: int
    head: Head
    ids: Tensor
    draw_ids: Tensor
    members: Any

    @property
    def targets(self) -> Tensor: ...
    @property
    def modality(self) -> str: ...
    @property
    def outputs(self) -> Tensor: ...
    def respond(self, outputs: Tensor, response: Response = ..., /) -> Tensor: ...
    def clean_response(self, response: Response, /) -> Tensor: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Self: ...
