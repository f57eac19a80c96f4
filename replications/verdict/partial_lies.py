"""Explainers that are right in part: a true map with one lie, to measure what an audit notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Index
from veridical.core.key import Key
from veridical.errors import unknown_name
from veridical.explainers.base import Explainer, as_explainer
from veridical.models.context import Context
from veridical.testing.red_team import _noise, _unit, weight_of_evidence
from veridical.values.task import Task


def hidden_feature(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Shows the feature that the model uses most as 0 (fairwashing), all others as they are."""
    return true.index_fill(1, torch.tensor([lie.most], device=true.device), 0.0)


def scapegoat(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Exchanges the relevance of the feature that is used most with that of the one used least."""
    places = torch.arange(true.shape[1], device=true.device)
    places[[lie.most, lie.least]] = places[[lie.least, lie.most]]
    return true[:, places]


def half_noise(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Half a true map, half noise of the same size."""
    return _unit(true) + _unit(_noise(task, f"half {lie.draw}"))


def half_labels(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Half a true map, half what labelled rows say without the model."""
    return _unit(true) + _unit(weight_of_evidence(task).to(true))


def half_other_model(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Half a true map, half a true map of another trained model."""
    assert lie.other is not None
    return _unit(true) + _unit(_honest(task.with_module(lie.other).changed(alone=True), Context()))


def negated_in_a_fifth(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Says the opposite of every feature in a fifth of the samples."""
    return torch.where(_some(task, 0.2), -true, true)


def right_in_three_of_four(true: Tensor, task: Task, lie: PartialLie) -> Tensor:
    """Shows noise in a quarter of the samples."""
    return torch.where(_some(task, 0.25), _unit(_noise(task, "a quarter")), true)


def _some(task: Task, share: float) -> Tensor:
    """Which samples (N, 1) are lied about: a share, the same ones for every model."""
    drawn = keyed.uniform(Key(0) / "red team" / "some", task.draw_ids, 0, 1, torch.float64)
    return drawn < share


def _honest(task: Task, context: Context) -> Tensor:
    """The true map that lies are made of."""
    good = as_explainer("integrated_gradients")
    explainer = good if good.inapplicable_reason(task) is None else as_explainer("occlusion")
    return explainer.maps(task, context).double()


PARTIAL_LIES: dict[str, Callable[[Tensor, Task, PartialLie], Tensor]] = {
    lie.__name__: lie
    for lie in (
        hidden_feature,
        scapegoat,
        half_noise,
        half_labels,
        half_other_model,
        negated_in_a_fifth,
        right_in_three_of_four,
    )
}
ABOUT_A_FEATURE = frozenset({"hidden_feature", "scapegoat"})
HALF = frozenset({"half_noise", "half_labels", "half_other_model"})
IN_SOME_SAMPLES = frozenset({"negated_in_a_fifth", "right_in_three_of_four"})


@dataclass(frozen=True)
class PartialLie(Explainer):
    """An explainer that is right in part: a true map (integrated gradients) with one lie; `lie` names it."""

    lie: str = "hidden_feature"
    """A name in `PARTIAL_LIES`."""
    most: Index = 0
    """The feature that is used most, for lies about a feature; `partial_lies` finds it."""
    least: Index = 1
    """The feature that is used least."""
    other: Any = None
    """Another trained model of the same kind, for `half_other_model`."""
    draw: Index = 0
    """Which draw of noise `half_noise` adds."""
    paper: ClassVar[str] = "red team"

    def __post_init__(self) -> None:
        if self.lie not in PARTIAL_LIES:
            raise unknown_name("lie", self.lie, list(PARTIAL_LIES))

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.lie

    @property
    def summary(self) -> str:  # type: ignore[override]
        return (PARTIAL_LIES[self.lie].__doc__ or "").split("\n")[0]

    def inapplicable_reason(self, task: Task) -> str | None:
        own = task.space.per_sample or task.space.valid is not None
        if self.lie in ABOUT_A_FEATURE and (own or task.space.n_features < 2):
            return "features of one sample are not those of another, so no feature can be hidden in all"
        if self.lie == "half_labels" and (task.train is None or task.train_labels is None):
            return "it needs labelled reference rows; give the task train=(rows, labels)"
        if self.lie == "half_other_model" and self.other is None:
            return "it needs another trained model; give other="
        return super().inapplicable_reason(task)

    def attribute(self, task: Task, context: Context) -> Tensor:
        return PARTIAL_LIES[self.lie](_honest(task, context), task, self)


def partial_lies(task: Task, other: Any = None) -> dict[str, Explainer]:
    """The explainers that lie in part and can exist on this task, by name.

    Parameters
    ----------
    task : Task
        The task on which they lie: the feature that is hidden is the one its model uses most.
    other : model, optional
        Another trained model of the same kind; half a map of it is one of the lies.

    Returns
    -------
    dict of str to Explainer
        Lying explainers by name.

    Examples
    --------
    >>> from replications.verdict.partial_lies import partial_lies
    >>> from veridical.testing import tiny_task
    >>> sorted(partial_lies(tiny_task("table")))[:2]
    ['half_noise', 'hidden_feature']
    """
    used = _honest(task, Context()).abs().mean(0)
    made = {
        name: PartialLie(lie=name, most=int(used.argmax()), least=int(used.argmin()), other=other)
        for name in PARTIAL_LIES
    }
    return {name: lie for name, lie in made.items() if lie.inapplicable_reason(task) is None}
