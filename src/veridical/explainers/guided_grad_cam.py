"""Guided Grad-CAM: fine detail from guided backpropagation where Grad-CAM says the class is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.backprop import GuidedBackprop
from veridical.explainers.base import Explainer, register
from veridical.explainers.cam import GradCam
from veridical.explainers.graph.followed import Followed
from veridical.explainers.grid import over_input, resized, spatial_size
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class GuidedGradCam(Explainer):
    """Guided backpropagation times Grad-CAM's map, laid over the input (Selvaraju et al. 2017, section 3.2).

    Rows: each x forward and backward twice.
    """

    layer: str | None = None
    """The layer that Grad-CAM looks at; by default the last maps of the model."""
    name: ClassVar[str] = "guided_gradcam"
    summary: ClassVar[str] = "guided backpropagation weighted by Grad-CAM"
    paper: ClassVar[str] = "Selvaraju et al. 2017, section 3.2"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "convolution"})

    def why_not(self, task: Task) -> str | None:
        return GradCam(self.layer).why_not(task) or GuidedBackprop().why_not(task)

    def stated(self, task: Task) -> dict[str, Any]:
        return GradCam(self.layer).stated(task)

    def pieces(self, task: Task) -> Iterator[Task]:
        # one gradient at a time, so that a piece may fill a chunk
        return task.chunks(1)

    def rows_per_sample(self, task: Task) -> int:
        return 2

    def tells_outputs(self, task: Task) -> bool:
        return True

    def prepared(self, task: Task) -> Task:
        guided = GuidedBackprop().prepared(task)
        model = guided.predictor.model
        assert isinstance(model, Followed)
        # both are made of the whole task, which keeps what is written down of their runs
        model.kept["gradcam"] = GradCam(self.layer).prepared(task).predictor
        return guided

    def attribute(self, task: Task, key: Key) -> Tensor:
        fine = GuidedBackprop().attribute(task, key)
        model = task.predictor.model
        assert isinstance(model, Followed)
        coarse = GradCam(self.layer).coarse(task.changed(predictor=model.kept["gradcam"]), key)
        return fine * over_input(task, resized(coarse[:, None], spatial_size(task))[:, 0])
