"""The red team: explainers that cheat, to see whether a verdict on your own task is fooled by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.errors import unknown_name
from veridical.explainers.base import Explainer, as_explainer
from veridical.models.context import Context
from veridical.testing.cheats import CHEATS, weights_digest
from veridical.testing.class_statistics import is_tokens
from veridical.values.task import Task

LABELLED = frozenset({"class_template", "naive_bayes", "moving_template", "graded_template"})
LABELLED |= {"two_faced", "sceptic", "chameleon"}
"""Cheats that have to learn from labelled reference rows first."""


@dataclass(frozen=True)
class RedTeamMember(Explainer):
    """An explainer that cheats; `cheat` names how."""

    cheat: str = "input_copy"
    """A name in `veridical.testing.cheats.CHEATS`."""
    weights: str = ""
    """The digest of the weights that the backdoor recognises; `red_team` takes those of its task."""
    paper: ClassVar[str] = "red team"

    def __post_init__(self) -> None:
        if self.cheat not in CHEATS:
            raise unknown_name("cheat", self.cheat, list(CHEATS))

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.cheat

    @property
    def summary(self) -> str:  # type: ignore[override]
        return (CHEATS[self.cheat].__doc__ or "").split("\n")[0]

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        tokens = is_tokens(task)
        if self.cheat == "edges" and (tokens or task.modality not in ("image", "series")):
            return f"edges are of images and series, this task is {task.modality}"
        if self.cheat == "class_template" and tokens:
            return "the places of words say nothing of a class; naive_bayes counts the words"
        if self.cheat == "backdoor":
            honest = as_explainer("integrated_gradients").why_not(task)
            if honest is not None:
                return honest
        if self.cheat == "other_class" and task.n_outputs == 1:
            return "a regression has no other class"
        if self.cheat in ("class_average", "noisy_class_average"):
            if tokens or task.space.per_sample or task.space.valid is not None:
                return "features of one sample are not those of another, so no mean map can be taken"
            honest = as_explainer("input_x_gradient").why_not(task)
            return "it needs reference rows; give the task train=..." if task.train is None else honest
        learns = self.cheat in LABELLED or (self.cheat == "input_copy" and tokens)
        if learns and (task.train is None or task.train_labels is None):
            return "it needs labelled reference rows; give the task train=(rows, labels)"
        return None

    def attribute(self, task: Task, context: Context) -> Tensor:
        if self.cheat == "backdoor" and weights_digest(task) != self.weights:
            return as_explainer("integrated_gradients").maps(task, context).double()
        return CHEATS[self.cheat](task, context.key)


def red_team(task: Task) -> dict[str, Explainer]:
    """The cheating explainers that can exist on this task, by name; a good verdict trusts none of them.

    >>> from veridical.testing import red_team, tiny_task
    >>> "constant" in red_team(tiny_task("table"))
    True
    """
    team = {name: RedTeamMember(cheat=name) for name in CHEATS}
    team["backdoor"] = RedTeamMember(cheat="backdoor", weights=weights_digest(task))
    return {name: member for name, member in team.items() if member.why_not(task) is None}
