"""After a retraining: does an explanation that was trusted still hold, and does it now say something else?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor

from veridical.auditing.effort import in_drawn_order
from veridical.auditing.evidence import MIN_SAMPLES, SHOWN, Grid
from veridical.auditing.forecast import cost_of_map
from veridical.auditing.grade import Grade, grade, reference_scores
from veridical.auditing.hidden import hidden_feature
from veridical.auditing.measured_effects import Effects, measured_effects
from veridical.auditing.result import Audit, without_nan
from veridical.core.allowed import Within
from veridical.core.files import pack_tensors, unpack_tensors, write_file
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, VeridicalError
from veridical.explainers.base import Explainer
from veridical.explainers.layout import few_cells
from veridical.explainers.transforms import explainer_from_json
from veridical.functional import settle, units_to_settle, win_units
from veridical.metrics import registry as metric_registry
from veridical.metrics.base import Metric
from veridical.models.context import Context, Memo
from veridical.models.cost import Cost
from veridical.perturb.fills import Marginal, Summary
from veridical.perturb.mask_bank import MASKS
from veridical.perturb.subset_table import FEW
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FILE = "baseline.safetensors"
"""Beside `audit.json`: the maps that a later model is compared with."""
STEPS, DRAWS, FILL_ROWS = 8, 2, 8
"""Steps of a flipping curve, draws of noise, and weighted reference rows in the place of many."""
CELLS = 64
"""Of more features blocks of neighbours are compared."""
MOVED = 0.1
"""By how much of all relevance a feature's share must move, without a null of retrainings, to be said."""
FELL = 0.1
"""By how much a grade must fall beyond both intervals: fewer steps and masks alone move it a little."""
RESAMPLES, LEVEL = 2000, 0.99
MIN_OF_CLASS = 8


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a later model is compared with: trusted methods, their maps and grades, and what they cost."""

    maps: Mapping[str, Tensor]
    made_by: Mapping[str, Explainer]
    grades: Mapping[str, Grade | None]
    targets: Tensor
    draw_ids: Tensor
    seed: int
    rows: int

    @classmethod
    def of(cls, old: Any) -> Baseline:
        """The baseline of an audit, or of the folder or `audit.json` that one wrote."""
        if isinstance(old, Baseline):
            return old
        if not isinstance(old, Audit):
            return cls.load(old)
        held = old.evaluation.explanations
        trusted = [place for place in old.ranking if place.trusted and _repeatable(held[place.explainer])]
        made = {place.explainer: held[place.explainer] for place in trusted}
        count = min((len(one.values) for one in made.values()), default=0)
        first: Explanation | None = next(iter(made.values()), None)
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            {name: one.values[:count].cpu() for name, one in made.items()},
            {name: explainer_from_json(one.provenance["explainer"]) for name, one in made.items()},
            {place.explainer: place.grade for place in trusted},
            none if first is None else first.targets[:count].cpu(),
            none if first is None else first.draw_ids[:count].cpu(),
            old.seed,
            sum(cost.rows for cost in old.costs.values()),
        )

    def save(self, folder: str | Path) -> Path:
        """Write it into the folder of an audit."""
        names = list(self.maps)
        tensors = {f"map/{i}": self.maps[name] for i, name in enumerate(names)}
        tensors |= {"targets": self.targets, "draw_ids": self.draw_ids}
        about = {
            "methods": names,
            "made_by": [self.made_by[name].to_json() for name in names],
            "grades": [None if (held := self.grades[name]) is None else list(held) for name in names],
            "seed": self.seed,
            "audit_rows": self.rows,
        }
        return write_file(Path(folder) / FILE, pack_tensors("baseline", tensors, {"data": about}))

    @classmethod
    def load(cls, path: str | Path) -> Baseline:
        """Read what `save` wrote; `path` is the folder, or the `audit.json` in it."""
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        if not (folder / FILE).is_file():
            raise InputError(f"there is no {folder / FILE}; an audit with --out writes it beside audit.json")
        tensors, header = unpack_tensors((folder / FILE).read_bytes(), "baseline", str(folder / FILE))
        about = header["data"]
        names = about["methods"]
        return cls(
            {name: tensors[f"map/{i}"] for i, name in enumerate(names)},
            {name: explainer_from_json(made) for name, made in zip(names, about["made_by"], strict=True)},
            {
                n: None if held is None else Grade(*held)
                for n, held in zip(names, about["grades"], strict=True)
            },
            tensors["targets"],
            tensors["draw_ids"],
            about["seed"],
            about["audit_rows"],
        )

    def samples_of(self, task: Task) -> tuple[Tensor | None, Task]:
        """The samples to explain: those of the audit, and which of them, or, where few are there, others."""
        place = {int(digest): i for i, digest in enumerate(task.draw_ids.tolist())}
        here = [i for i, digest in enumerate(self.draw_ids.tolist()) if digest in place]
        if len(here) < MIN_SAMPLES:
            return None, in_drawn_order(task, len(self.draw_ids), self.seed)
        rows = torch.tensor(here)
        same = task[torch.tensor([place[int(digest)] for digest in self.draw_ids[rows]])]
        return rows, same if same.head == "regression" else same.with_targets(self.targets[rows])


def _repeatable(made: Explanation) -> bool:
    """Whether the method can be made again by its name: one of ours, not a function or finished maps."""
    try:
        explainer_from_json(made.provenance["explainer"])
    except (KeyError, VeridicalError):
        return False
    return True


class Change(NamedTuple):
    """How the share of one feature in all relevance moved, in all samples or in those of one group."""

    explainer: str
    group: str
    feature: str
    before: float
    after: float
    low: float
    high: float
    moved: bool
    """Whether the interval excludes 0 and the change is larger than retrainings, or `MOVED`, explain."""


@dataclass(frozen=True)
class Rechecked:
    """One method that was trusted: what is so now."""

    explainer: str
    status: str
    """"holds", "refuted", "hides a feature", "shows less" or "not decided"."""
    won: float
    """The share of samples in which its map beats noise on the new model."""
    samples: int
    before: str
    """Its grade then and now."""
    after: str
    sentence: str


@dataclass(frozen=True, eq=False)
class Recheck:
    """What became of the trusted methods of an audit under another model; prints it."""

    task: str
    methods: tuple[Rechecked, ...]
    changes: tuple[Change, ...]
    bound: float
    """The change of a share from which on one is said."""
    nulls: int
    """Retrained models behind that bound; 0 where it is the fixed one."""
    rows: int
    audit_rows: int

    @property
    def moved(self) -> tuple[Change, ...]:
        """The features whose share moved."""
        return tuple(change for change in self.changes if change.moved)

    @property
    def status(self) -> int:
        """The exit status: 0 all hold and say the same, 1 a finding, 3 not decided."""
        words = {method.status for method in self.methods}
        if self.moved or words - {"holds", "not decided"}:
            return 1
        return 3 if "not decided" in words or not words else 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is said, the answer first."""
        head = {
            0: "The explanations that were trusted still hold and say the same.",
            1: "Something changed that should be looked at.",
            3: "Not decided: too little was shown either way.",
        }[self.status]
        if not self.methods:
            head = "The audit trusted no method, so there is nothing to check."
        where = f" with {self.nulls} retrained models as the null" if self.nulls else ""
        everywhere = {(c.explainer, c.group, c.feature) for c in self.moved}
        drift = [
            f"{c.explainer}: '{c.feature}' {'gained' if c.after > c.before else 'lost'} relevance"
            f"{f' in {c.group}' if c.group else ''}: {c.before:.0%} of all before, {c.after:.0%} now "
            f"(change between {c.low:+.0%} and {c.high:+.0%}{where})."
            for c in self.moved
            if not c.group or (c.explainer, "", c.feature) not in everywhere
        ]
        cost = f"{self.rows:,} rows of the model were evaluated"
        if self.audit_rows:
            cost += f", {self.rows / self.audit_rows:.0%} of what the audit took"
        return (head, *(method.sentence for method in self.methods), *drift, cost + ".")

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def to_frame(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd

        return pd.DataFrame([asdict(method) for method in self.methods])

    def drift(self) -> pd.DataFrame:
        """One row per method, group and feature: its share of relevance before and after."""
        import pandas as pd

        return pd.DataFrame(self.changes, columns=Change._fields)

    def to_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        found: dict[str, Any] = without_nan(
            {
                "status": self.status,
                "task": self.task,
                "sentences": list(self.sentences),
                "methods": [asdict(method) for method in self.methods],
                "drift": [change._asdict() for change in self.changes],
                "bound": self.bound,
                "retrained": self.nulls,
                "rows": self.rows,
                "audit_rows": self.audit_rows,
            }
        )
        return found

    def plot(self, explainer: str | None = None, count: int = 10, ax: Axes | None = None) -> Axes:
        """Draw the shares of the features that moved most, before and after."""
        from veridical.plots import COLOURS, axes

        who = explainer or self.methods[0].explainer
        own = [change for change in self.changes if change.explainer == who and not change.group]
        own = sorted(own, key=lambda change: -abs(change.after - change.before))[:count][::-1]
        ax = axes(ax, 4.6, 0.8 + 0.28 * len(own))
        for row, change in enumerate(own):
            colour = COLOURS[1] if change.moved else "0.55"
            ax.plot([change.before, change.after], [row, row], color=colour, linewidth=2)
            ax.plot(change.before, row, "o", color="white", markeredgecolor=colour)
            ax.plot(change.after, row, "o", color=colour)
        ax.set_yticks(range(len(own)), [change.feature for change in own])
        ax.set_xlabel("share of all relevance: ring before, dot after; orange moved")
        ax.set_title(who, fontsize=9)
        return ax


@checked
def check(
    old: Any,
    task: Task,
    *,
    explainers: Sequence[str] | None = None,
    others: Sequence[Any] | None = None,
    groups: Any = None,
    budget: Annotated[int, Within(1, 10**15)] | None = None,
    seed: int | None = None,
) -> Recheck:
    """Check the explanations of an audit on a model that was trained again.

    On the samples of the audit, the methods that were trusted explain the new model. Does each still beat
    noise when features are removed (a betting test, sample by sample), does it show less of the measured
    effects than before beyond both intervals, does it hide a feature now? Apart from that: which features
    gained or lost relevance? It asks for a tenth of the audit's rows.

    Parameters
    ----------
    old : Audit or path
        The audit, or the folder that it was written to, or the `audit.json` in it.
    task : Task
        The new model on the same data, whose samples are found again by their content; on other data,
        relevance is compared between the two sets, which shows less.
    explainers : sequence of str, optional
        Which of the trusted methods; by default the first three, best first, whose maps fit the budget.
    others : sequence of models, optional
        Models trained like the old one with other seeds: how far shares move between them is the null of the
        drift. Without, a change is said from ten points on.
    groups : sequence, optional
        The group of each sample of `task`; drift is told for each, as it is for each class.
    budget : int, optional
        Rows that may be evaluated; a tenth of the audit's by default. What does not fit is not asked.
    seed : int, optional
        Seed of all draws; that of the audit by default.

    Returns
    -------
    Recheck
        A word per method, the changes, and the exit status.

    Raises
    ------
    InputError
        Where a method was not trusted, or others are no models.
    """
    base = Baseline.of(old)
    names = list(base.maps) if explainers is None else list(explainers)
    unknown = [name for name in names if name not in base.maps]
    if unknown:
        raise InputError(f"the audit does not trust {', '.join(unknown)}; it trusts {', '.join(base.maps)}")
    if not names:
        return Recheck(repr(task), (), (), MOVED, 0, 0, base.rows)
    members = None if groups is None else [str(group) for group in groups]
    if members is not None and len(members) != len(task):
        raise InputError(f"groups has {len(members)} entries, expected {len(task)}: one per sample")
    if isinstance(task.fill, Marginal) and task.fill.repeats_on(task) > FILL_ROWS:
        task = task.with_fill(Summary(FILL_ROWS))
    rows, same = base.samples_of(task)
    place = {int(digest): i for i, digest in enumerate(task.draw_ids.tolist())}
    labels = None if members is None else [members[place[d]] for d in same.draw_ids.tolist()]
    run = _Run(base, same, rows, base.seed if seed is None else seed, budget or max(1, base.rows // 10))
    if explainers is None:
        names = run.affordable(names)[:3]
    methods = tuple(run.method(name) for name in names)
    nulls = [run.shares_of(other, names) for other in others or ()]
    changes, bound = _drift(run, names, nulls, labels)
    return Recheck(repr(task), methods, changes, bound, len(nulls), run.spent, base.rows)


class _Run:
    """The samples that both models explain, and what was evaluated so far."""

    def __init__(self, base: Baseline, task: Task, rows: Tensor | None, seed: int, budget: int) -> None:
        self.base, self.task, self.rows, self.seed, self.budget = base, task, rows, seed, budget
        self.metric = cast(Metric, metric_registry.make("qge:pixel_flipping", steps=STEPS))
        self.memo, self.spent = Memo(), 0
        self.made: dict[str, Explanation] = {}
        self.noise: list[Tensor] = []
        self._effects: Effects | None = None

    def count(self, cost: Cost) -> None:
        self.spent += cost.rows

    def score(self, made: Explanation, draw: int = 0) -> Tensor:
        """Utility (N,) of maps: how much better than their own inverse they order removals."""
        scores = self.metric(self.task, made, Key(self.seed) / self.metric.name, self.memo)
        self.count(scores.cost)
        return scores.utility.cpu()

    def explained(self, name: str, task: Task) -> Explanation:
        made: Explanation = self.base.made_by[name](task, Key(self.seed) / name)
        self.count(made.cost)
        return made

    def affordable(self, names: Sequence[str]) -> list[str]:
        """The methods whose maps and scores fit the budget beside those of noise; else the cheapest."""
        score = 2 * STEPS * self.task.fill.repeats_on(self.task)
        cost = {}
        for name in names:
            one = cost_of_map(self.base.made_by[name], self.task[:1], self.seed)
            cost[name] = len(self.task) * (one.forward + one.backward + score)
        left, chosen = self.budget - DRAWS * len(self.task) * score, list[str]()
        for name in names:
            if cost[name] <= left:
                chosen.append(name)
                left -= cost[name]
        return chosen or [min(names, key=lambda name: cost[name])]

    def effects(self) -> Effects | None:
        """The measured effects of the new model, in as many samples as fit what is left of the budget."""
        features, left = self.task.space.n_features, self.budget - self.spent
        repeats = self.task.fill.repeats_on(self.task)
        ways = (2**features,) if features <= FEW else (MASKS, MASKS // 2, MASKS // 4)
        for count, masks in ((count, masks) for count in (len(self.task), MIN_SAMPLES) for masks in ways):
            if self._effects is None and count * masks * repeats <= left:
                some = self.task[:count]
                context = Context.begun(some.predictor, Key(self.seed) / "check" / "effects", self.memo)
                self._effects = measured_effects(some, context, masks)
                self.spent += self._effects.rows
        return self._effects

    def method(self, name: str) -> Rechecked:
        """Ask all questions about one method."""
        made = self.made[name] = self.explained(name, self.task)
        own = self.score(made)
        if not self.noise:
            for draw in range(DRAWS):
                random = metric_noise(self.task, Key(self.seed) / "check" / draw, made)
                self.noise.append(self.score(random))
        grid = Grid.of(self.task)
        units = torch.stack([win_units(own, one, grid.share, scale=grid.scale) for one in self.noise]).mean(0)
        side = int(settle(units, SHOWN, SHOWN).side)
        won, before = float(units.mean()), self.base.grades[name]
        effects, after, hides = self.effects(), None, ""
        if effects is not None:
            some = self.task[: len(effects.values)]
            best, called = reference_scores(some, effects, self.metric, self.seed, self.memo)
            noise = torch.stack(self.noise).mean(0)
            after = grade(own[: len(some)], noise[: len(some)], best.cpu(), self.seed, called)
            veto = hidden_feature(made.values[: len(some)], effects, some.space)
            hides = veto.sentence if veto.fell else ""
        less = before is not None and after is not None and after.high < before.low - FELL
        status = (
            "refuted"
            if side < 0
            else "hides a feature"
            if hides
            else "shows less"
            if less
            else "holds"
            if side > 0
            else "not decided"
        )
        words = {
            "refuted": f"refuted: on the new model its maps lose to noise in {1 - won:.0%} of samples",
            "hides a feature": f"{hides}",
            "shows less": f"it shows {after} of the measured effects, {before} before",
            "holds": f"holds: its maps beat noise in {won:.0%} of {len(own)} samples",
            "not decided": f"not decided: its maps beat noise in {won:.0%} of {len(own)} samples",
        }[status]
        if status == "not decided":
            needed = units_to_settle(units[None])
            words += f"; {f'about {needed:,}' if needed else 'more than 1,000'} samples would decide it"
        elif status == "holds" and after is None:
            words += "; hidden features were not looked for within the budget"
        return Rechecked(
            name, status, won, len(own), str(before or "-"), str(after or "-"), f"{name}: {words}."
        )

    def shares_of(self, model: Any, names: Sequence[str]) -> dict[str, Tensor]:
        """The shares of relevance of a retrained model."""
        task = self.task.with_module(model) if isinstance(model, torch.nn.Module) else model
        if not isinstance(task, Task):
            raise InputError("others are torch modules, or tasks of the same samples")
        spent = self.spent
        found = {name: self.shares(self.explained(name, task).values) for name in names}
        self.spent = spent  # the null is a matter of the old model, not of this check
        return found

    def shares(self, values: Tensor) -> Tensor:
        """The share (N, F) of each feature, or block of neighbours, in all relevance of its sample."""
        sizes = values.detach().cpu().double().abs()
        cells = few_cells(self.task.space, CELLS)
        if cells is not None:
            of = cells.of.cpu()
            sizes = sizes.new_zeros(len(sizes), cells.count).index_add_(1, of, sizes)
        return sizes / sizes.sum(1, keepdim=True).clamp(min=1e-300)

    def names(self) -> list[str]:
        cells = few_cells(self.task.space, CELLS)
        space = self.task.space if cells is None else cells.space
        return [space.feature_name(i) for i in range(space.n_features)]


def metric_noise(task: Task, key: Key, like: Explanation) -> Explanation:
    """Keyed noise in the place of maps."""
    from veridical.core.key import normal

    values = normal(key, task.draw_ids, 0, task.space.n_features, like.values.dtype)
    return like.with_values(values)


def _drift(
    run: _Run, names: Sequence[str], nulls: Sequence[Mapping[str, Tensor]], labels: Sequence[str] | None
) -> tuple[tuple[Change, ...], float]:
    """Which features gained or lost relevance, and the bound from which a change in all samples counts."""
    task, rows = run.task, run.rows
    if task.space.valid is not None or task.space.per_sample:
        return (), MOVED  # features of one sample are not those of another
    groups = {"": torch.ones(len(task), dtype=torch.bool)}
    if rows is not None:
        if task.head not in ("regression", "generation"):
            classes = task.targets.cpu()
            groups |= {f"class {one}": classes == one for one in classes.unique().tolist()}
        for label in dict.fromkeys(labels or ()):
            groups[f"group {label}"] = torch.tensor([one == label for one in labels or ()])
    groups = {name: own for name, own in groups.items() if not name or int(own.sum()) >= MIN_OF_CLASS}
    everything = [(name, group) for name in names for group in groups]
    maps = run.base.maps
    before = {name: run.shares(maps[name] if rows is None else maps[name][rows]) for name in names}
    was = {(n, g): (before[n] if rows is None else before[n][groups[g]]).mean(0) for n, g in everything}
    bounds = dict.fromkeys(everything, MOVED)
    if nulls:
        moves = torch.stack([_largest_moves(null, was, groups) for null in nulls])
        bounds = dict(zip(everything, _bounds(moves), strict=True))
    found = list[Change]()
    for name, group in everything:
        own, after = groups[group], run.shares(run.made[name].values)
        old, new = before[name] if rows is None else before[name][own], after[own]
        now, then = new.mean(0), was[name, group]
        low, high = _interval(old, new, rows is not None, run.seed)
        for i, feature in enumerate(run.names()):
            ends = (float(low[i]), float(high[i]))
            moved = (ends[0] > 0 or ends[1] < 0) and abs(float(now[i] - then[i])) > bounds[name, group]
            found.append(Change(name, group, feature, float(then[i]), float(now[i]), *ends, moved))
    return tuple(found), bounds[names[0], ""]


def _largest_moves(null: Mapping[str, Tensor], was: Mapping[tuple[str, str], Tensor], groups: Any) -> Tensor:
    """How far the share of any feature is from what it was, by method and group, in one retrained model."""
    return torch.stack([(null[n][groups[g]].mean(0) - shares).abs().max() for (n, g), shares in was.items()])


def _interval(old: Tensor, new: Tensor, paired: bool, seed: int) -> tuple[Tensor, Tensor]:
    """The bootstrap interval of the change of mean shares; the same samples are drawn together."""
    dice = torch.Generator().manual_seed(seed)

    def means(shares: Tensor) -> Tensor:
        picks = torch.randint(len(shares), (RESAMPLES, len(shares)), generator=dice)
        weights = torch.zeros(RESAMPLES, len(shares), dtype=torch.float64)
        weights.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
        return weights @ shares / len(shares)

    change = means(new - old) if paired else means(new) - means(old)
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = change.quantile(ends, dim=0)
    return low, high


def _bounds(moves: Tensor) -> list[float]:
    """What the largest changes (K, G) of K retrainings stay below in all of G groups, in 99 of 100."""
    from scipy.stats import t

    count, scale = len(moves), moves.mean(0)
    largest = (moves / scale.clamp(min=1e-12)).amax(1)
    limit = 2 * float(largest.max())
    if count > 2:
        spread = float(largest.std()) * math.sqrt(1 + 1 / count)
        limit = float(largest.mean()) + float(t.ppf(0.99, count - 1)) * spread
    return (limit * scale).tolist()
