"""What a set of explainers and metrics would cost on a task, told before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from veridical.core.settings import checked
from veridical.data.diagnosis import BACKWARD, FEW_FEATURES, _seconds_per_row
from veridical.data.switching import reference_cost
from veridical.explainers.base import registry as explainers_by_name
from veridical.models.cost import Cost
from veridical.values.task import Task


@dataclass(frozen=True)
class Estimate:
    """Rows and minutes, and what should be known about them."""

    cost: Cost
    """Rows forward and backward, at most."""
    seconds_per_row: float
    """How long this machine takes for one row forward."""
    notes: tuple[str, ...]
    """What is not in the count, or makes it large."""

    @property
    def minutes(self) -> float:
        """About how long it takes here."""
        return (self.cost.forward + BACKWARD * self.cost.backward) * self.seconds_per_row / 60

    def __str__(self) -> str:
        said = f"about {self.minutes:.2g} minutes here: at most {self.cost}"
        return "\n".join([f"{said}, {self.seconds_per_row:.3g} s per row", *self.notes])


@checked
def estimate(task: Task, explainers: Iterable[str], *, gef_worlds: int = 0) -> Estimate:
    """Rows and minutes of explaining a task, and of removal metrics on it; a few rows are timed for it.

    Of up to 12 units all explainers and metrics that ask by masks share one table of all subsets. With
    `gef_worlds` (levels x draws) gradient explainers are asked in as many noisy worlds, too.
    """
    names = [explainers_by_name.make(name).name for name in explainers]
    counts = task.space.counts(len(task))
    few = counts <= FEW_FEATURES
    forward = int((2 ** counts[few].clamp(max=FEW_FEATURES)).sum())
    backward, notes = 0, []
    many = task[(~few).nonzero()[:, 0]] if bool((~few).any()) else None
    if many is not None:
        notes.append(
            f"{int((~few).sum())} of {len(task)} samples have more than {FEW_FEATURES} {task.space.kind}s "
            f"(up to {int(counts.max())}), too many for a table of all subsets: masks are drawn, and each "
            "metric asks its own, which is not counted here"
        )
    for name in names:
        made = explainers_by_name.make(name)
        if made.why_not(task) is not None:
            notes.append(f"{name} does not apply: {made.why_not(task)}")
        elif "gradient" in made.needs:
            cost = made.declared(task)
            forward += cost.forward * (1 + gef_worlds)
            backward += cost.backward * (1 + gef_worlds)
        elif many is not None:
            forward += made.declared(many).forward
    forward += reference_cost(task).forward * (1 + gef_worlds)
    return Estimate(Cost(forward, backward), _seconds_per_row(task), tuple(notes))
