"""After a retraining: does an explanation that was trusted still hold, and does it now say something else?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from torch import Tensor

from veridical.auditing.effort import in_drawn_order
from veridical.auditing.evidence import MIN_SAMPLES, SHOWN, Grid
from veridical.auditing.forecast import cost_of_map
from veridical.auditing.grade import Grade, grade, reference_scores
from veridical.auditing.hidden import hidden_feature
from veridical.auditing.measured_effects import measured_effects
from veridical.auditing.model_randomisation import adapted
from veridical.auditing.result import Audit, without_nan
from veridical.core.allowed import Within
from veridical.core.files import pack_tensors, unpack_tensors, write_file
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, VeridicalError
from veridical.explainers.base import Explainer
from veridical.explainers.controls import Random
from veridical.explainers.layout import few_cells
from veridical.explainers.occlusion import most_cells
from veridical.explainers.transforms import explainer_from_json
from veridical.functional import settle, units_to_settle, win_units
from veridical.metrics import registry as metric_registry
from veridical.metrics.base import Metric
from veridical.models.context import Context, Memo
from veridical.perturb.fills import Marginal, Summary
from veridical.perturb.mask_bank import MASKS
from veridical.perturb.subset_table import FEW
from veridical.values.explanation import Explanation
from veridical.values.task import Task
from veridical.values.ties import MOST_ORDERS

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
METHODS = 3
"""That are checked unless more are named."""
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
        places = {place.explainer: place for place in old.ranking if place.trusted}
        made_by = {name: made for name in places if (made := _made_by(held[name])) is not None}
        count = min((len(held[name].values) for name in made_by), default=0)
        none = torch.zeros(0, dtype=torch.int64)
        targets, draw_ids = next(
            ((held[name].targets, held[name].draw_ids) for name in made_by), (none, none)
        )
        return cls(
            {name: held[name].values[:count].cpu() for name in made_by},
            made_by,
            {name: places[name].grade for name in made_by},
            targets[:count].cpu(),
            draw_ids[:count].cpu(),
            old.seed,
            sum(cost.rows for cost in old.costs.values()),
        )

    def save(self, folder: str | Path) -> Path:
        """Write it into the folder of an audit."""
        methods = [
            [name, self.made_by[name].to_json(), grade and list(grade)] for name, grade in self.grades.items()
        ]
        about = {"methods": methods, "seed": self.seed, "audit_rows": self.rows}
        tensors = {f"map/{i}": values for i, values in enumerate(self.maps.values())}
        tensors |= {"targets": self.targets, "draw_ids": self.draw_ids}
        return write_file(Path(folder) / FILE, pack_tensors("baseline", tensors, {"data": about}))

    @classmethod
    def load(cls, path: str | Path) -> Baseline:
        """Read what `save` wrote; `path` is the folder, or the `audit.json` in it."""
        file = (Path(path) if Path(path).is_dir() else Path(path).parent) / FILE
        if not file.is_file():
            raise InputError(f"there is no {file}; an audit with --out writes it beside audit.json")
        tensors, header = unpack_tensors(file.read_bytes(), "baseline", str(file))
        about = header["data"]
        return cls(
            {name: tensors[f"map/{i}"] for i, (name, _, _) in enumerate(about["methods"])},
            {name: explainer_from_json(made) for name, made, _ in about["methods"]},
            {name: grade and Grade(*grade) for name, _, grade in about["methods"]},
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


def _made_by(made: Explanation) -> Explainer | None:
    """The method by its name: one of ours; a function or finished maps cannot be made again."""
    try:
        return explainer_from_json(made.provenance["explainer"])
    except (KeyError, VeridicalError):
        return None


@dataclass(frozen=True)
class Change:
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
        everywhere = {(c.explainer, c.feature) for c in self.moved if not c.group}
        drift = [
            f"{c.explainer}: '{c.feature}' {'gained' if c.after > c.before else 'lost'} relevance"
            f"{f' in {c.group}' if c.group else ''}: {c.before:.0%} of all before, {c.after:.0%} now "
            f"(change between {c.low:+.0%} and {c.high:+.0%}{where})."
            for c in self.moved
            if not c.group or (c.explainer, c.feature) not in everywhere
        ]
        share = f", {self.rows / self.audit_rows:.0%} of what the audit took" if self.audit_rows else ""
        cost = f"{self.rows:,} rows of the model were evaluated{share}."
        return (head, *(method.sentence for method in self.methods), *drift, cost)

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def to_frame(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd

        return pd.DataFrame(self.methods)

    def drift(self) -> pd.DataFrame:
        """One row per method, group and feature: its share of relevance before and after."""
        import pandas as pd

        return pd.DataFrame(self.changes, columns=[field.name for field in fields(Change)])

    def to_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        found: dict[str, Any] = without_nan(
            {"status": self.status, "sentences": list(self.sentences), **asdict(self)}
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
        The group of each sample of `task`; drift is measured for each, as it is for each class.
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
    names = list(base.maps if explainers is None else explainers)
    unknown = [name for name in names if name not in base.maps]
    if unknown:
        raise InputError(f"the audit does not trust {', '.join(unknown)}; it trusts {', '.join(base.maps)}")
    if not names:
        return Recheck(repr(task), (), (), MOVED, 0, 0, base.rows)
    members = [] if groups is None else [str(group) for group in groups]
    if groups is not None and len(members) != len(task):
        raise InputError(f"groups has {len(members)} entries, expected {len(task)}: one per sample")
    if isinstance(task.fill, Marginal) and task.fill.repeats_on(task) > FILL_ROWS:
        task = task.with_fill(Summary(FILL_ROWS))
    rows, same = base.samples_of(task)
    place = {int(digest): i for i, digest in enumerate(task.draw_ids.tolist())}
    labels = [members[place[digest]] for digest in same.draw_ids.tolist()] if members else []
    begun = task.predictor.meter.cost.rows
    run = _Run(base, same, rows, base.seed if seed is None else seed)
    most = METHODS if explainers is None else len(names)
    asked, needed = run.plan(names, most, base.rows // 10 if budget is None else budget)
    run.measure(asked)
    methods = [run.method(name) for name in asked]
    if explainers or not asked:
        words = f"not decided: the budget does not reach for it; a check takes about {needed:,} rows"
        methods += [
            Rechecked(n, "not decided", math.nan, 0, str(base.grades[n] or "-"), "-", f"{n}: {words}.")
            for n in names
            if n not in asked
        ]
    spent = task.predictor.meter.cost.rows - begun  # the null is a matter of the old model
    nulls = [run.shares_of(other) for other in others or ()]
    changes, bound = run.drift(nulls, labels)
    return Recheck(repr(task), tuple(methods), changes, bound, len(nulls), spent, base.rows)


class _Run:
    """The samples that both models explain, and what was made of them so far."""

    def __init__(self, base: Baseline, task: Task, rows: Tensor | None, seed: int) -> None:
        self.base, self.task, self.rows, self.seed = base, task, rows, seed
        self.metric = cast(Metric, metric_registry.make("qge:pixel_flipping", steps=STEPS))
        self.memo, self.made = Memo(), dict[str, Explanation]()
        self.cells = few_cells(task.space, CELLS)

    def plan(self, names: Sequence[str], most: int, budget: int) -> tuple[list[str], int]:
        """Choose methods, samples and masks that fit the budget, and tell what the least choice takes.

        All samples and many masks are best; rather fewer samples than no masks, which tell what is hidden.
        """
        space, repeats = self.task.space, self.task.fill.repeats_on(self.task)
        one, score = self.task[:1], 2 * min(STEPS, space.n_features - 1) * repeats
        costs = {name: cost_of_map(self.base.made_by[name], one, self.seed).forward for name in names}
        orders = {name: MOST_ORDERS if _tied(self.base.maps[name]) else 1 for name in names}
        counts = (len(self.task), min(MIN_SAMPLES, len(self.task)))
        ways = [(masks, count) for count in counts for masks in (MASKS, MASKS // 2, MASKS // 4)]
        for masks, count in (*ways, *((0, count) for count in counts)):
            joined = few_cells(space, most_cells(masks)) if 8 * space.n_features > masks > 0 else None
            seen, asked = space.n_features if joined is None else joined.count, list[str]()
            table = masks > 0 and seen <= FEW  # all subsets: scores read them, too
            free = table and joined is None
            shared = 1 + repeats * (2**seen if table else masks)
            if not free:
                shared += score * (DRAWS + (masks > 0) * (1 if joined is None else MOST_ORDERS))
            each = {name: cost + (0 if free else score * orders[name]) for name, cost in costs.items()}
            left, needed = budget - count * shared, count * (shared + min(each.values()))
            for name in names:
                if count * each[name] <= left and len(asked) < most:
                    asked.append(name)
                    left -= count * each[name]
            if asked:
                break
        # maps alone are cheap: where all fit, what is said of drift rests on every sample
        if left < (len(self.task) - count) * (1 + sum(costs[name] for name in asked)):
            self.task, self.rows = self.task[:count], None if self.rows is None else self.rows[:count]
        self.some, self.masks = self.task[:count], masks
        return asked, needed

    def score(self, made: Explanation) -> Tensor:
        """Utility (N,) of maps: how much better than their own inverse they order removals."""
        key = Key(self.seed) / self.metric.name
        return self.metric(self.some, made, key, self.memo).utility.cpu()

    def explained(self, name: str, task: Task) -> Explanation:
        """Its maps of the samples of a task."""
        made: Explanation = self.base.made_by[name](task, Key(self.seed) / name)
        return made

    def measure(self, asked: Sequence[str]) -> None:
        """Measure effects, where masks fit, and score noise and what stands for grade 1."""
        self.effects = None
        if not asked:
            return
        if self.masks:
            context = Context.begun(self.some.predictor, Key(self.seed) / "check" / "effects", self.memo)
            self.effects = measured_effects(self.some, context, self.masks)
            self.best = reference_scores(self.some, self.effects, self.metric, self.seed, self.memo)
        key = Key(self.seed) / "check"
        self.noise = torch.stack([self.score(Random()(self.some, key / draw)) for draw in range(DRAWS)])

    def method(self, name: str) -> Rechecked:
        """Ask all questions about one method."""
        made = self.made[name] = self.explained(name, self.task)
        made = made.take(slice(len(self.some)))
        own, grid = self.score(made), Grid.of(self.some)
        units = torch.stack([win_units(own, one, grid.share, scale=grid.scale) for one in self.noise]).mean(0)
        side = int(settle(units, SHOWN, SHOWN).side)
        won, before, after = float(units.mean()), self.base.grades[name], None
        status, words = "not decided", f"not decided: its maps beat noise in {won:.0%} of {len(own)} samples"
        if side > 0:
            status, words = "holds", f"holds: its maps beat noise in {won:.0%} of {len(own)} samples"
        if self.effects is not None:
            best, called = self.best
            after = grade(own, self.noise.mean(0), best.cpu(), self.seed, called)
            veto = hidden_feature(made.values, self.effects, self.some.space)
            if before is not None and after.high < before.low - FELL:
                status, words = "shows less", f"it shows {after} of the measured effects, {before} before"
            if veto.fell:
                status, words = "hides a feature", veto.sentence
        elif side > 0:
            words += "; hidden features were not looked for within the budget"
        if side < 0:
            status, words = "refuted", f"refuted: its maps lose to noise in {1 - won:.0%} of samples"
        if status == "not decided":
            needed = units_to_settle(units[None])
            words += f"; {f'about {needed:,}' if needed else 'more than 1,000'} samples would decide it"
        return Rechecked(
            name, status, won, len(own), str(before or "-"), str(after or "-"), f"{name}: {words}."
        )

    def shares_of(self, model: Any) -> dict[str, Tensor]:
        """The shares of relevance of a retrained model, by method."""
        other = model.predictor.source.module if isinstance(model, Task) else model
        task = self.task.with_module(adapted(self.task, other))
        return {name: self.shares(self.explained(name, task).values) for name in self.made}

    def shares(self, values: Tensor) -> Tensor:
        """The share (N, F) of each feature, or block of neighbours, in all relevance of its sample."""
        sizes = values.detach().cpu().double().abs()
        if self.cells is not None:
            joined = sizes.new_zeros(len(sizes), self.cells.count)
            sizes = joined.index_add_(1, self.cells.of.cpu(), sizes)
        return sizes / sizes.sum(1, keepdim=True).clamp(min=1e-300)

    def groups(self, labels: Sequence[str]) -> dict[str, Tensor]:
        """Where drift is measured: all samples and, where they are paired, each class and group of eight."""
        found = {"": torch.ones(len(self.task), dtype=torch.bool)}
        if self.rows is None:
            return found
        if self.task.head not in ("regression", "generation"):
            classes = self.task.targets.cpu()
            found |= {f"class {one}": classes == one for one in classes.unique().tolist()}
        known = labels[: len(self.task)]
        found |= {f"group {one}": torch.tensor([own == one for own in known]) for one in dict.fromkeys(known)}
        return {name: own for name, own in found.items() if not name or int(own.sum()) >= MIN_OF_CLASS}

    def drift(
        self, nulls: Sequence[Mapping[str, Tensor]], labels: Sequence[str]
    ) -> tuple[tuple[Change, ...], float]:
        """Which features gained or lost relevance, and the bound from which a change counts."""
        space, paired = self.task.space, self.rows is not None
        if space.valid is not None or space.per_sample:
            return (), MOVED  # features of one sample are not those of another
        groups = self.groups(labels)
        parts = list(product(self.made, groups))
        after = {name: self.shares(made.values) for name, made in self.made.items()}
        before = {name: self.shares(maps) for name, maps in self.base.maps.items() if name in after}
        if self.rows is not None:
            before = {name: shares[self.rows] for name, shares in before.items()}
        then = {(n, g): before[n][groups[g]] if paired else before[n] for n, g in parts}
        was = {part: shares.mean(0) for part, shares in then.items()}
        bounds = dict.fromkeys(parts, MOVED)
        if nulls:
            moves = [
                [(null[n][groups[g]].mean(0) - was[n, g]).abs().max() for n, g in parts] for null in nulls
            ]
            bounds = dict(zip(parts, _bounds(torch.tensor(moves)), strict=True))
        if self.cells is not None:
            space = self.cells.space
        found = list[Change]()
        for name, group in parts:
            new = after[name][groups[group]]
            ends = _interval(then[name, group], new, paired, self.seed).tolist()
            for i, (now, low, high) in enumerate(zip(new.mean(0).tolist(), *ends, strict=True)):
                old = float(was[name, group][i])
                moved = (low > 0 or high < 0) and abs(now - old) > bounds[name, group]
                found.append(Change(name, group, space.feature_name(i), old, now, low, high, moved))
        return tuple(found), next(iter(bounds.values()), MOVED)


def _tied(maps: Tensor) -> bool:
    """Whether features have the same relevance, not 0, so that scores are means over their orders."""
    return any(len(own.unique()) < len(own) for own in (one[one != 0] for one in maps[:MIN_OF_CLASS]))


def _interval(old: Tensor, new: Tensor, paired: bool, seed: int) -> Tensor:
    """The bootstrap interval (2, F) of the change of mean shares; the same samples are drawn together."""
    dice = torch.Generator().manual_seed(seed)

    def means(shares: Tensor) -> Tensor:
        picks = torch.randint(len(shares), (RESAMPLES, len(shares)), generator=dice)
        weights = torch.zeros(RESAMPLES, len(shares), dtype=torch.float64)
        weights.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
        return weights @ shares / len(shares)

    change = means(new - old) if paired else means(new) - means(old)
    return change.quantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64), dim=0)


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
