"""TreeSHAP: exact Shapley values of tree ensembles, read from the trees of five packages' models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.facts import fact
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers.base import Explainer, register
from veridical.models.context import Context
from veridical.models.estimators import Logits, estimator_response
from veridical.values.task import Task

Array = NDArray[Any]
SAME = 1e-4
"""How far sums over trees may lie from the model's own margins, as a share of the largest: float32."""


@register
@dataclass(frozen=True)
class TreeShap(Explainer):
    """Exact interventional Shapley values of a tree, forest or boosted ensemble over reference rows.

    They are Shapley values of what the ensemble itself adds up: the margin of boosted trees, the probability
    of forests and single trees (the provenance says which), whatever scale the task explains. The trees of
    scikit-learn, XGBoost and LightGBM are read with their categories and the side that missing values take;
    CatBoost computes its own. Where a pipeline encodes columns one by one, values are those of the columns
    before. It evaluates no rows but those that show that the trees were read rightly.
    """

    background: Count = 100
    """The most reference rows, from the first on, that stand for removed features."""
    name: ClassVar[str] = "tree_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "exact Shapley values of tree ensembles"
    paper: ClassVar[str] = "Lundberg et al. 2020"
    modalities: ClassVar[frozenset[str]] = frozenset({"table"})
    needs: ClassVar[frozenset[str]] = frozenset({"train"})
    completeness: ClassVar[str] = "values sum to the ensemble's own output less its mean over the background"

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        if task.space.kind not in ("column", "column_group"):
            return "it reads trees over the columns of a table"
        try:
            _ensemble(task, self.background)
        except NotApplicableError as error:
            return str(error)
        return None

    def _stated(self, task: Task) -> dict[str, Any]:
        forest = isinstance(getattr(task.predictor.model, "function", None), Logits)
        return {"scale": "output of the trees" if forest else "margin of the ensemble"}

    def rows_per_sample(self, task: Task) -> int:
        return 0

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        found = _ensemble(task, self.background)
        return _of_target(found.raw(task.inputs) - found.raw(found.background).mean(0), task)

    def attribute(self, task: Task, context: Context) -> Tensor:
        return _of_target(_ensemble(task, self.background).values(task.inputs), task)


def _of_target(values: Array, task: Task) -> Tensor:
    """Of values (N, ..., K) those of the explained output; one alone speaks for the second of two classes."""
    found = torch.as_tensor(values, dtype=torch.float64)
    targets = task.targets.cpu()
    per_row = (-1, *[1] * (found.dim() - 1))
    if found.shape[-1] == 1:
        side = targets * 2.0 - 1 if task.head == "binary" else torch.ones(len(task))
        return (found * side.view(per_row))[..., 0].to(task.outputs)
    at = targets.view(per_row).expand(*found.shape[:-1], 1)
    return found.gather(-1, at)[..., 0].to(task.outputs)


# --- trees ------------------------------------------------------------------------------------------------


class Tree(NamedTuple):
    """One tree in arrays over its nodes; a row goes left where its value is at most the threshold."""

    left: Array
    right: Array
    """Children; those of leaves are -1."""
    column: Array
    threshold: Array
    missing_left: Array
    """Whether missing values go left."""
    value: Array
    """What a leaf adds to each output (nodes, outputs)."""
    categories: Mapping[int, Any] = MappingProxyType({})
    """Categories that go left, at nodes that ask for them."""

    def goes_left(self, rows: Array) -> Array:
        """Which way encoded rows (R, E) take at every node (R, nodes)."""
        asked = rows[:, self.column]
        way = asked <= self.threshold
        for node, some in self.categories.items():
            way[:, node] = np.isin(asked[:, node], some)
        return np.where(np.isnan(asked), self.missing_left, way)

    def sums(self, rows: Array) -> Array:
        """What the tree adds to each output of the rows."""
        way, at = self.goes_left(rows), np.zeros(len(rows), dtype=int)
        while (inner := self.left[at] >= 0).any():
            step = np.where(way[np.arange(len(rows)), at], self.left[at], self.right[at])
            at = np.where(inner, step, at)
        return self.value[at]

    def leaves(
        self, own: Array, others: Array, player: Array
    ) -> Iterator[tuple[int, list[int], Array, Array]]:
        """Each leaf with the players asked on the way to it, and which of them a row fails, bit by bit."""
        start = np.zeros(len(own), dtype=np.int64), np.zeros(len(others), dtype=np.int64)
        stack: list[tuple[int, list[int], Array, Array]] = [(0, [], *start)]
        while stack:
            node, asked, mine, theirs = stack.pop()
            if self.left[node] < 0:
                yield node, asked, mine, theirs
                continue
            who = int(player[self.column[node]])
            asked = asked if who in asked else [*asked, who]
            bit = np.int64(1) << asked.index(who)
            for child, left in ((self.left[node], True), (self.right[node], False)):
                ways = [mine | bit * (own[:, node] != left), theirs | bit * (others[:, node] != left)]
                if min(ways[0].min(), ways[1].min()) == 0 or _meet(*ways):
                    stack.append((int(child), asked, *ways))


def _meet(mine: Array, theirs: Array) -> bool:
    """Whether any pair of rows fails no player in common, so that some mixture of them gets there."""
    return bool(((np.unique(mine)[:, None] & np.unique(theirs)) == 0).any())


def _weights(most: int) -> Array:
    """(s - 1)! t! / (s + t)! at [s, t]: the share of orders in which a player comes last of s, before t."""
    s, t = np.ogrid[: most + 1, : most + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.exp(gammaln(s) + gammaln(t + 1) - gammaln(s + t + 1))
    found[0] = 0.0
    return found


MOST = 62
"""Players on one path that fit the bits of a number."""
WEIGHTS = _weights(MOST)


def shapley_of_tree(tree: Tree, rows: Array, others: Array, player: Array, out: Array) -> None:
    """Add the Shapley values of a tree to `out` (N, players, outputs), removal being another row's value.

    A mixture of a row and another one reaches a leaf where each player on the way is taken from one that
    passes there. So the other row's failures S must be the row's own, and its own failures T the other's:
    the leaf then adds (s - 1)! t! / (s + t)! to each of S, and takes s! (t - 1)! / (s + t)! from each of T.
    """
    own, there = tree.goes_left(rows), tree.goes_left(others)
    for leaf, asked, mine, theirs in tree.leaves(own, there, player):
        if not asked:
            continue
        if len(asked) > MOST:
            raise NotApplicableError(f"a tree asks for more than {MOST} columns on one path")
        (a, back), (b, count) = np.unique(mine, return_inverse=True), np.unique(theirs, return_counts=True)
        bits = np.arange(len(asked))
        of_a, of_b = ((codes[:, None] >> bits) & 1 for codes in (a, b))
        s, t = of_b.sum(1), of_a.sum(1)
        share = ((a[:, None] & b) == 0) * (count / len(others))
        given = (share * WEIGHTS[s, t[:, None]]) @ of_b
        taken = (share * WEIGHTS[t[:, None], s]).sum(1, keepdims=True) * of_a
        out[:, asked] += (given - taken)[back][..., None] * tree.value[leaf]


class Parts(NamedTuple):
    """What a reader finds in a model: its trees, how they see rows, and the model's own sums."""

    trees: list[Tree]
    encode: Callable[[Any], Array]
    """Rows as the model takes them, as the numbers that trees ask for (R, E)."""
    raw: Callable[[Any], Any]
    """What the model itself says the trees sum to, but for what all rows share."""
    own: Callable[[Any, Any], Array] | None = None
    """The package's own values (N, columns, outputs) of rows over others, in the place of trees."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The trees of a task's model over its background rows, with columns gathered to the task's features."""

    parts: Parts
    prepare: Callable[[Tensor], Any]
    """A task's rows as the ensemble takes them."""
    background: Tensor
    feature: Array
    """Which of the task's features each of its columns belongs to."""

    def raw(self, rows: Tensor) -> Array:
        """The ensemble's own sums (R, outputs)."""
        found = np.asarray(self.parts.raw(self.prepare(rows)), dtype=np.float64)
        return found.reshape(len(rows), -1)

    def encoded(self, rows: Tensor) -> Array:
        """Rows as trees ask for them (R, E)."""
        return self.parts.encode(self.prepare(rows))

    def check(self, rows: Tensor) -> None:
        """Refuse where the trees, as they were read, do not sum to what the model says."""
        seen, said = self.encoded(rows), self.raw(rows)
        apart = sum(tree.sums(seen) for tree in self.parts.trees) - said
        if np.abs(apart - apart[:1]).max() > SAME * max(1.0, np.abs(said).max()):
            raise NotApplicableError("its trees, as they are read here, do not sum to what the model says")

    def player(self, rows: Tensor) -> Array:
        """The feature that each encoded column comes from, found by exchanging one between rows."""
        before = self.encoded(rows)
        found = np.full(before.shape[1], -1)
        for feature in np.unique(self.feature):
            other, columns = rows.clone(), torch.as_tensor(np.flatnonzero(self.feature == feature))
            for turn in (1, len(rows) // 2, 3):
                other[:, columns] = rows.roll(turn, 0)[:, columns]
                now = self.encoded(other)
                moved = ((before != now) & ~(np.isnan(before) & np.isnan(now))).any(0)
                if ((found[moved] >= 0) & (found[moved] != feature)).any():
                    raise NotApplicableError("what comes before its trees mixes columns of the table")
                found[moved] = feature
        return found.clip(0)

    def values(self, rows: Tensor) -> Array:
        """The Shapley values of rows (N, features, outputs)."""
        own = self.parts.own
        if own is not None:
            columns = own(self.prepare(rows), self.prepare(self.background))
            out = np.zeros((len(rows), self.feature.max() + 1, columns.shape[2]))
            for column, feature in enumerate(self.feature):
                out[:, feature] += columns[:, column]
            return out
        mine, there = self.encoded(rows), self.encoded(self.background)
        player = self.player(torch.cat([rows, self.background]))
        out = np.zeros((len(rows), self.feature.max() + 1, self.parts.trees[0].value.shape[1]))
        for tree in self.parts.trees:
            shapley_of_tree(tree, mine, there, player, out)
        return out


@fact
def _read(task: Task, background: int) -> Ensemble:
    """The trees of a task's estimator, checked on reference rows; else the reason why there are none."""
    held, train = task.predictor.model, task.train
    model: Any = getattr(held, "estimator", None)
    codec = getattr(held, "codec", None)
    # one target of several has the steps of its pipeline, and is none
    steps = getattr(model, "steps", ()) if hasattr(type(model), "__getitem__") else ()
    first = model[:-1] if len(steps) > 1 else None
    last = steps[-1][1] if steps else model
    assert train is not None

    def prepare(rows: Tensor) -> Any:
        given = rows.cpu().numpy() if codec is None else codec.decode(rows)
        return given if first is None else first.transform(given)

    read = _READERS.get(type(last).__module__.partition(".")[0])
    if read is None:
        raise NotApplicableError(
            "it reads the trees of a scikit-learn, XGBoost, LightGBM or CatBoost model, and this is none"
        )
    some, feature = train[:background], task.space.labels.cpu().numpy().reshape(-1)
    try:
        found = Ensemble(read(last, prepare(some)), prepare, some, feature)
        if found.parts.trees:
            found.check(some)
            found.player(some)
    except NotApplicableError:
        raise
    except Exception as error:  # what is private in a package may be otherwise in another version
        said = str(error).partition("\n")[0][:99]
        raise NotApplicableError(f"it finds no trees it can read in {type(last).__name__}: {said}") from error
    if found.parts.own is not None and first is not None:
        raise NotApplicableError("CatBoost gives values of its own columns, and a pipeline makes these")
    return found


def _ensemble(task: Task, background: int) -> Ensemble:
    # the reference keeps them, unless another model, or another module around it, has taken its place
    own = task.predictor.source is not task.reference.predictor.source or bool(task.predictor.wraps)
    return _read(task if own else task.reference, background)


# --- readers ----------------------------------------------------------------------------------------------


def _numbers(rows: Any) -> Array:
    if hasattr(rows, "toarray"):
        rows = rows.toarray()
    return np.asarray(rows, dtype=np.float64)


def _of_output(values: Array, output: int, outputs: int) -> Array:
    """What leaves add to one of several outputs (nodes, outputs)."""
    found = np.zeros((len(values), outputs))
    found[:, output] = values
    return found


def _scikit_learn(model: Any, rows: Any) -> Parts:
    if hasattr(model, "_predictors"):
        return _histogram(model)
    if hasattr(model, "tree_"):
        grown, share = [[model]], 1.0
    elif hasattr(model, "_raw_predict"):  # gradient boosting
        grown, share = [list(stage) for stage in model.estimators_], model.learning_rate
    else:
        grown, share = [[one] for one in model.estimators_], 1.0 / len(model.estimators_)
    trees = []
    for stage in grown:
        for output, one in enumerate(stage):
            tree = one.tree_
            value = tree.value[:, 0, :] * share
            value = _of_output(value[:, 0], output, len(stage)) if len(stage) > 1 else value
            missing = tree.missing_go_to_left.astype(bool)
            trees.append(
                Tree(tree.children_left, tree.children_right, tree.feature, tree.threshold, missing, value)
            )
    say = getattr(model, "_raw_predict", None) or getattr(model, "predict_proba", model.predict)
    # they ask in single precision
    single: Callable[[Any], Any] = lambda rows: np.ascontiguousarray(_numbers(rows), np.float32)  # noqa: E731
    raw = (lambda rows: say(single(rows))) if say.__name__ == "_raw_predict" else say
    return Parts(trees, lambda rows: single(rows).astype(np.float64), raw)


def _histogram(model: Any) -> Parts:
    trees = []
    for stage in model._predictors:
        for output, one in enumerate(stage):
            nodes, end = one.nodes, one.nodes["is_leaf"].astype(bool)
            left, right = (np.where(end, -1, nodes[side].astype(int)) for side in ("left", "right"))
            bits = np.unpackbits(one.raw_left_cat_bitsets.view(np.uint8), axis=1, bitorder="little")
            asks = np.flatnonzero(nodes["is_categorical"])
            some = {int(n): np.flatnonzero(bits[nodes["bitset_idx"][n]]) for n in asks}
            ways = nodes["feature_idx"], nodes["num_threshold"], nodes["missing_go_to_left"].astype(bool)
            trees.append(Tree(left, right, *ways, _of_output(nodes["value"], output, len(stage)), some))
    return Parts(trees, lambda rows: _numbers(model._preprocess_X(rows, reset=False)), model._raw_predict)


def _lightgbm(model: Any, rows: Any) -> Parts:
    booster = getattr(model, "booster_", model)
    dump = booster.dump_model()
    levels = dump["pandas_categorical"] or []
    outputs = dump["num_tree_per_iteration"]
    share = 1 / (len(dump["tree_info"]) // outputs) if dump["average_output"] else 1.0

    def encode(rows: Any) -> Array:
        if not levels:
            return _numbers(rows)
        given, known = rows.copy(), iter(levels)
        for name in given.columns[[str(kind) == "category" for kind in given.dtypes]]:
            place = {level: code for code, level in enumerate(next(known))}
            given[name] = [place.get(value, np.nan) for value in given[name]]
        return _numbers(given)

    trees = [
        _nested(one["tree_structure"], i % outputs, outputs, share) for i, one in enumerate(dump["tree_info"])
    ]
    return Parts(trees, encode, lambda rows: model.predict(rows, raw_score=True))


def _nested(root: dict[str, Any], output: int, outputs: int, share: float) -> Tree:
    """A tree of LightGBM, whose nodes lie in each other."""
    nodes, children, some = [root], [], {}
    for node in nodes:  # it grows on the way
        inner = "left_child" in node
        children.append((len(nodes), len(nodes) + 1) if inner else (-1, -1))
        nodes += [node["left_child"], node["right_child"]] if inner else []
    column, threshold, missing, value = [], [], [], []
    for number, node in enumerate(nodes):
        by_name = node.get("decision_type") == "=="
        border = np.nan if by_name else float(node.get("threshold", 0.0))
        if by_name:
            some[number] = [float(code) for code in node["threshold"].split("||")]
        column.append(node.get("split_feature", 0))
        threshold.append(border)
        # without a way of their own missing values are zeros; of categories they are no member
        zero = border >= 0 if node.get("missing_type") == "None" else bool(node.get("default_left"))
        missing.append(zero and not by_name)
        value.append(share * node.get("leaf_value", 0.0))
    left, right = np.array(children).T
    about = np.array(column), np.array(threshold), np.array(missing)
    return Tree(left, right, *about, _of_output(np.array(value), output, outputs), some)


def _xgboost(model: Any, rows: Any) -> Parts:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    if getattr(model, "best_iteration", None) is not None:
        booster = booster[: model.best_iteration + 1]
    grown = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    held = grown.get("gbtree", grown)["model"]
    outputs = max(held["tree_info"], default=0) + 1
    weights = grown.get("weight_drop", [1.0] * len(held["trees"]))
    trees = []
    for one, output, weight in zip(held["trees"], held["tree_info"], weights, strict=True):
        left, column = np.array(one["left_children"]), np.array(one["split_indices"])
        border = np.array(one["split_conditions"], dtype=np.float32)
        # left is below the threshold, in single precision; a leaf's value lies in its place
        below = np.nextafter(border, np.float32(-np.inf)).astype(np.float64)
        missing, some = np.array(one["default_left"], dtype=bool), {}
        of_nodes = zip(
            one["categories_nodes"], one["categories_segments"], one["categories_sizes"], strict=True
        )
        for node, start, size in of_nodes:  # those that go right
            right = one["categories"][start : start + size]
            some[node] = np.setdiff1d(np.arange(MOST_CATEGORIES), right)
        value = _of_output(np.where(left < 0, weight * border, 0.0), output, outputs)
        trees.append(Tree(left, np.array(one["right_children"]), column, below, missing, value, some))

    def encode(rows: Any) -> Array:
        if hasattr(rows, "dtypes") and hasattr(rows, "columns"):
            names = [name for name, kind in rows.dtypes.items() if str(kind) == "category"]
            rows = rows.assign(**{n: rows[n].cat.codes.where(rows[n].notna(), np.nan) for n in names})
        return _numbers(rows).astype(np.float32).astype(np.float64)

    respond: Callable[[Any], Any]
    if booster is model:
        respond = estimator_response(model)[0]
    else:
        respond = lambda rows: model.predict(rows, output_margin=True)  # noqa: E731
    return Parts(trees, encode, respond)


MOST_CATEGORIES = 4096
"""Categories of one column of XGBoost that are told apart."""


def _catboost(model: Any, rows: Any) -> Parts:
    from catboost import Pool  # type: ignore[import-not-found, import-untyped, unused-ignore]

    def pool(rows: Any) -> Any:
        # to go by other rows it wants labels, which it does not read
        return Pool(rows, label=np.ravel(model.predict(rows)), cat_features=model.get_cat_feature_indices())

    def own(rows: Any, others: Any) -> Array:
        found = model.get_feature_importance(pool(rows), type="ShapValues", reference_data=pool(others))
        found = found[:, None] if found.ndim == 2 else found
        return np.moveaxis(found[..., :-1], 1, 2)

    own(rows[:1], rows[:1])  # it refuses what it cannot do
    return Parts([], _numbers, lambda rows: model.predict(rows, prediction_type="RawFormulaVal"), own)


_READERS: dict[str, Callable[[Any, Any], Parts]] = {
    "sklearn": _scikit_learn,
    "lightgbm": _lightgbm,
    "xgboost": _xgboost,
    "catboost": _catboost,
}
"""Who reads the trees of which package's models."""
