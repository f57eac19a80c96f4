"""Training rows as features: a row is switched off by training again without it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from veridical.core.allowed import MANY, Between, Count, Within
from veridical.core.key import Key, permutation, subsets
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError
from veridical.explainers.adapters import seeded
from veridical.functional import spearman
from veridical.jobs import Store, content_hash, resume
from veridical.values.content_hash import hash_tensors
from veridical.values.input_checks import as_tensor
from veridical.values.task import Task

Scale = Literal["margin", "log_probability"]
NotAll = Annotated[float, Within(0, 1, without=(1,))]
CELLS = "retrainings"
FOLDER_VERSION = 1


class Training(NamedTuple):
    """One retraining: the rows that are kept, and the seed of whatever the training draws."""

    rows: np.ndarray
    seed: int


class Retraining:
    """A task whose features are training rows, or groups of them: off is left out, and trained again.

    Every subset of rows is trained on once, whatever asks for it, and serves all tests: subsets are drawn by
    key and not by test. With `folder` the outputs of each are kept, so that a killed run goes on.

    Parameters
    ----------
    fit : callable
        `fit(rows) -> model`: trains on the rows of these numbers (an array, ascending) and returns any model
        that a task takes. The random numbers of torch and numpy begin anew, by the subset, before each call.
    train : int, array, or pair
        How many training rows there are, or the rows themselves, alone or with their labels.
    tests : array or pair
        Inputs whose outputs are explained, alone or with the outputs (classes) to explain; by default what
        the model that was trained on all rows predicts.
    groups : sequence of int, optional
        The number of its group for each training row; groups are then left out whole.
    scale : {"margin", "log_probability"}
        How outputs of classes are read: log p / (1 - p) of the explained class, or log p. Regressions are
        read as they are.
    repeats : int
        Trainings of each subset with other seeds, whose outputs are averaged.
    seed : int
        Seed of subsets and trainings.
    folder : path, optional
        Where outputs are kept.
    executor : concurrent.futures.Executor, optional
        Spreads trainings; `fit` must then be importable. Also `veridical.jobs.RayPool`.
    progress : bool, optional
        Whether to show a bar; in a terminal by default.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> x = np.arange(6.0)[:, None]
    >>> fit = lambda rows: Ridge(1e-6).fit(x[rows], 2 * x[rows, 0])
    >>> rows = Retraining(fit, (x, 2 * x[:, 0]), x[:2] + 0.5)
    >>> rows.answers(torch.ones(1, 6, dtype=torch.bool)).round(decimals=2).tolist()
    [[1.0, 3.0]]
    """

    @checked
    def __init__(
        self,
        fit: Callable[[np.ndarray], Any],
        train: Any,
        tests: Any,
        *,
        groups: Any = None,
        scale: Scale = "margin",
        repeats: Annotated[int, Within(1, MANY)] = 1,
        seed: int = 0,
        folder: str | Path | None = None,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> None:
        rows, labels = train if isinstance(train, tuple) else (train, None)
        inputs, targets = tests if isinstance(tests, tuple) else (tests, None)
        self.fit, self.inputs, self.scale, self.repeats, self.seed = fit, inputs, scale, repeats, seed
        count = rows if isinstance(rows, int) else len(rows)
        if count < 2:
            raise InputError(f"leaving rows out needs at least two training rows, got {count}")
        self.group = torch.arange(count) if groups is None else as_tensor(groups, "groups").long()
        self.n_units = int(self.group.max()) + 1
        if self.group.shape != (count,) or len(self.group.unique()) != self.n_units or self.group.min() < 0:
            raise ShapeError(
                f"groups are one number for each of the {count} training rows, 0 to the number of groups "
                f"less one without gaps; got {len(self.group)} numbers from {int(self.group.min())} to "
                f"{self.n_units - 1}"
            )
        self._executor, self._progress = executor, progress
        self._store = None if folder is None else Store(folder)
        self._found: dict[str, Tensor] = {}
        given = {"train": None if isinstance(rows, int) else rows, "labels": labels}
        given |= {"tests": inputs, "targets": targets}
        about = {name: content(value, name) for name, value in given.items()}
        frames = hasattr(rows, "columns") or hasattr(inputs, "columns")
        self.train_inputs, self.train_labels = None if frames else about["train"], about["labels"]
        self.test_inputs = None if frames else about["tests"]
        self._about = (described(fit), count, hash_tensors(about).hexdigest(), seed)
        whole = Task(fit_alone(fit, Training(np.arange(count), seed)), inputs, targets=targets)
        self.head, self.targets, self._outputs_each = whole.head, whole.targets.cpu(), whole.n_outputs

    # --- training and its outputs -------------------------------------------------------------------

    def _outputs(self, kept: Sequence[Tensor]) -> Tensor:
        """Outputs (M, R, T, C) of the models trained on these rows (boolean masks); each is trained once."""
        jobs: dict[str, Training] = {}
        for rows in kept:
            numbers = rows.nonzero()[:, 0].numpy()
            if not len(numbers):
                raise InputError("a subset without any training row cannot be trained on")
            for repeat in range(self.repeats):
                name = content_hash([*self._about, repeat, np.packbits(rows.numpy()).tobytes().hex()])
                jobs[name] = Training(numbers, int(name[:8], 16))
        work = partial(outputs_of, self.fit, self.inputs)
        resume(
            jobs,
            work,
            load=lambda name, _: self._load(name),
            save=lambda name, _, outputs: self._save(name, outputs),
            executor=self._executor,
            what="training",
            progress=self._progress,
        )
        found = [self._found[name] for name in jobs]
        for outputs, training in zip(found, jobs.values(), strict=True):
            if outputs.shape[1] != self._outputs_each:
                raise ShapeError(
                    f"the model trained on {len(training.rows)} rows has {outputs.shape[1]} outputs, the one "
                    f"trained on all has {self._outputs_each}: a class had no row left. Keep a larger share, "
                    "make groups, or let fit know all classes"
                )
        return torch.stack(found).unflatten(0, (-1, self.repeats))

    def _load(self, name: str) -> Tensor | None:
        if name not in self._found and self._store is not None:
            cell = self._store.read_cell(CELLS, name)
            if cell is not None:
                self._found[name] = cell[1]["outputs"]
        return self._found.get(name)

    def _save(self, name: str, outputs: Tensor) -> None:
        self._found[name] = outputs
        if self._store is not None:
            self._store.write_cell(CELLS, name, {"version": FOLDER_VERSION}, {"outputs": outputs})

    @property
    def trainings(self) -> int:
        """How many models have been trained, or read from the folder."""
        return len(self._found)

    def answers(self, kept: Tensor) -> Tensor:
        """The explained output of every test (M, T) when only these units (M, U) are trained on."""
        kept = as_tensor(kept, "kept").bool().cpu()
        if kept.dim() != 2 or kept.shape[1] != self.n_units:
            raise ShapeError(f"kept has shape {tuple(kept.shape)}, expected (subsets, {self.n_units})")
        different, place = kept.unique(dim=0, return_inverse=True)
        outputs = self._outputs(list(different[:, self.group])).double()
        return read(outputs, self.targets, self.head, self.scale).mean(1)[place]

    @checked
    def subsets(self, count: Count, share: Between = 0.5, purpose: str = "judged") -> Tensor:
        """Uniform subsets of units that are kept, (count, U): the first of 100 are those of 50."""
        kept = max(1, min(self.n_units - 1, round(share * self.n_units)))
        key = Key(self.seed) / "training rows" / purpose
        return subsets(key, torch.zeros(1, dtype=torch.int64), torch.arange(count), self.n_units, kept)[0]

    def task(self) -> Task:
        """A task whose inputs are all ones, one per unit, and whose model is trained again on those left.

        Metrics that remove features apply; all tests have the same draws, so that they share trainings.
        """
        tests = len(self.targets)
        task = Task(
            self._evaluate,
            torch.ones(tests, self.n_units, dtype=torch.float64),
            side=torch.arange(tests),
            space=Space.columns(self.n_units, [f"row {i}" for i in range(self.n_units)]),
            fill=0.0,
            head="regression",
            name="training rows",
        )
        return task.changed(alone=True, draw_ids=torch.zeros_like(task.draw_ids))

    def _evaluate(self, kept: Tensor, test: Tensor) -> Tensor:
        found = torch.full((len(kept), 1), torch.nan, dtype=torch.float64)
        some = (kept > 0.5).any(1)  # without any row nothing can be trained
        if bool(some.any()):
            found[some] = self.answers(kept[some] > 0.5).gather(1, test[some, None])
        return found

    # --- what maps are compared with ----------------------------------------------------------------

    def maps(self, values: Any) -> Tensor:
        """One relevance per test and unit (T, U): rows of a group are added up."""
        values = as_tensor(values, "the map").double().cpu()
        tests, rows = len(self.targets), len(self.group)
        if values.shape == (tests, self.n_units):
            return values
        if values.shape == (tests, rows):
            return values.new_zeros(tests, self.n_units).index_add_(1, self.group, values)
        raise ShapeError(
            f"the map has shape {tuple(values.shape)}, expected (tests, training rows) = ({tests}, {rows})"
        )

    @checked
    def lds(self, maps: Any, retrainings: Count = 100, share: Between = 0.5) -> Tensor:
        """Linear datamodelling score of each test (T,): do summed relevances order the retrained outputs?

        Spearman's correlation, over random subsets of the units, of the sum of the relevance that is kept
        with the output of the model trained on them (Park et al. 2023). Removed relevance against the fall
        of the output gives the same number.

        Parameters
        ----------
        maps : array
            Relevance (T, U), higher for rows that raise the explained output.
        retrainings : int
            How many subsets are trained on.
        share : float
            Share of the units that is kept.

        Returns
        -------
        Tensor
            Scores (T,); NaN where a map or an output does not move.
        """
        kept = self.subsets(retrainings, share)
        return spearman((self.maps(maps) @ kept.T.double()), self.answers(kept).T)

    def leave_one_out(self) -> Tensor:
        """The fall of each test's output (T, U) when one unit is left out: as many trainings as units."""
        every = torch.ones(1, self.n_units, dtype=torch.bool)
        without = self.answers(~torch.eye(self.n_units, dtype=torch.bool))
        return (self.answers(every) - without).T

    def leave_one_out_correlation(self, maps: Any) -> Tensor:
        """Spearman's correlation (T,) of relevance with the falls of `leave_one_out`."""
        return spearman(self.maps(maps), self.leave_one_out())

    @checked
    def removal_curve(self, maps: Any, shares: Sequence[NotAll] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)) -> Tensor:
        """The mean output of all tests (S,) after the units of most relevance to them all are left out.

        Units are removed in the order of their mean relevance, ties at random by key.

        Parameters
        ----------
        maps : array
            Relevance (T, U).
        shares : sequence of float
            Shares of the units that are left out, below 1.

        Returns
        -------
        Tensor
            One mean output per share.
        """
        if not shares:
            raise InputError("shares is empty; give one at least, such as (0.0, 0.5)")
        mean = self.maps(maps).mean(0)
        order = permutation(Key(self.seed) / "removed rows", torch.zeros(1).long(), 0, len(mean))[0]
        rank = order[(-mean[order]).argsort(stable=True)].argsort()
        counts = torch.tensor([round(share * self.n_units) for share in shares])
        return self.answers(rank >= counts[:, None]).mean(1)

    def mislabelled_auc(self, maps: Any, wrong: Any) -> float:
        """How well low mean relevance finds mislabelled units (U,): area under the ROC curve."""
        from sklearn.metrics import roc_auc_score

        wrong = as_tensor(wrong, "wrong").bool().cpu()
        if wrong.shape != (self.n_units,) or not 0 < int(wrong.sum()) < self.n_units:
            raise InputError(f"wrong marks some, not all, of the {self.n_units} units as mislabelled")
        return float(roc_auc_score(wrong.numpy(), -self.maps(maps).mean(0).numpy()))


def described(fit: Callable[..., Any]) -> str:
    """What tells one training from another: where it is defined, its source and what it was given."""
    inner = fit.func if isinstance(fit, partial) else fit
    given = repr((fit.args, sorted(fit.keywords)))[:1000] if isinstance(fit, partial) else ""
    with suppress(OSError, TypeError):
        given += inspect.getsource(inner)
    return f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner))}{given}"


def content(values: Any, name: str) -> Tensor | None:
    """What was given as a tensor; of a data frame the digests of its rows."""
    if not hasattr(values, "columns"):
        return None if values is None else as_tensor(values, name)
    from pandas.util import hash_pandas_object

    return torch.from_numpy(hash_pandas_object(values).to_numpy().view(np.int64).copy())


def fit_alone(fit: Callable[[np.ndarray], Any], training: Training) -> Any:
    """Train with random numbers that follow the training alone; those of the caller stay as they were."""
    with seeded(Key(training.seed)):
        return fit(training.rows)


def outputs_of(fit: Callable[[np.ndarray], Any], inputs: Any, training: Training) -> Tensor:
    """Outputs (T, C) of a model trained on some rows."""
    return Task(fit_alone(fit, training), inputs, targets=0).outputs.detach().cpu()


def read(outputs: Tensor, targets: Tensor, head: str, scale: Scale) -> Tensor:
    """The explained output (..., T) of outputs (..., T, C) on the scale that is compared."""
    place = targets.view(-1, 1).expand(*outputs.shape[:-1], 1)
    own = outputs.gather(-1, place)
    if head in ("regression", "generation"):
        return own[..., 0]
    if head == "multilabel":
        return (own if scale == "margin" else torch.nn.functional.logsigmoid(own))[..., 0]
    others = outputs.scatter(-1, place, -torch.inf) if scale == "margin" else outputs
    return own[..., 0] - others.logsumexp(-1)
