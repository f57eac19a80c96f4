"""What an estimator returns: one scale for all of them, the logit where it tells classes apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from veridical.errors import InputError, NotApplicableError, warn

Respond = Callable[[Any], Any]
TINY = 2.0**-53
"""The smallest distance from 0 and 1 that a probability in float64 is taken to have."""


def is_estimator(model: Any) -> bool:
    """Whether this is an estimator in scikit-learn's manner, or a booster of XGBoost or LightGBM."""
    fitted = hasattr(model, "predict") and (hasattr(model, "get_params") or hasattr(model, "classes_"))
    return fitted or _is_booster(model)


def estimator_response(model: Any, rows: Any = None) -> tuple[Respond, str | None]:
    """How to evaluate an estimator, and the head this implies.

    A margin or decision function is taken as it is; else probabilities become logits. `rows` (reference
    rows) show whether probabilities of exactly 0 or 1 occur.
    """
    if _is_booster(model):
        return _booster_response(model)
    classes = class_names(model)
    if isinstance(classes, list):
        raise NotApplicableError(
            f"{type(model).__name__} predicts {len(classes)} targets at once, and one of them is explained: "
            f"say which with output=0 to output={len(classes) - 1}"
        )
    margin = _margin(model)
    if margin is not None:
        return margin, None if classes is None else _head(classes)
    if hasattr(model, "predict_proba"):
        found = None if rows is None else model.predict_proba(rows)
        return Logits(model, _smoothing(model, found, rows)), "multiclass" if classes is None else _head(
            classes
        )
    if classes is not None:
        raise NotApplicableError(
            f"{type(model).__name__} names a class and gives it no score; explaining needs decision_function "
            "or predict_proba (probability=True, voting='soft', or CalibratedClassifierCV add one)"
        )
    return model.predict, "regression"


@dataclass(frozen=True)
class OneTarget:
    """One of the targets that an estimator predicts at once, as an estimator of its own."""

    model: Any
    """The estimator of several targets."""
    target: int
    """Which of them, counted from 0."""

    def __getattr__(self, name: str) -> Any:
        if name in ("feature_names_in_", "n_features_in_", "get_params", "steps"):
            return getattr(self.model, name)
        if name == "classes_" and class_names(self.model) is not None:
            return self.model.classes_[self.target]
        if name == "predict_proba" and hasattr(self.model, "predict_proba"):
            return self._chances
        raise AttributeError(name)

    def predict(self, rows: Any) -> Any:
        """What is predicted of this target."""
        found = np.asarray(self.model.predict(rows))
        many = 1 if found.ndim < 2 else found.shape[1]
        if self.target >= many:
            raise InputError(
                f"output={self.target}: {type(self.model).__name__} predicts targets 0 to {many - 1}"
            )
        return found.reshape(len(found), many)[:, self.target]

    def _chances(self, rows: Any) -> Any:
        found = self.model.predict_proba(rows)
        if isinstance(found, list):
            return found[self.target]
        # a chain of classifiers gives the chance of each target's second class alone
        second = np.asarray(found)[:, self.target]
        return np.stack([1 - second, second], 1)


def one_target(model: Any, target: int) -> OneTarget:
    """One of several targets of an estimator, or the sentence that says why there is no such one."""
    classes = class_names(model)
    several = isinstance(classes, list) or (classes is None and is_estimator(model))
    if not several:
        raise InputError(
            f"output={target} chooses one of the targets that an estimator predicts at once, and this "
            f"{type(model).__name__} predicts one; elsewhere output is a function of what the model returns"
        )
    if target < 0 or (isinstance(classes, list) and target >= len(classes)):
        last = f"to {len(classes) - 1}" if isinstance(classes, list) else "and more"
        raise InputError(f"output={target}: {type(model).__name__} predicts targets 0 {last}")
    return OneTarget(model, target)


@dataclass(frozen=True)
class Logits:
    """The logits of an estimator that gives probabilities: one per row for two classes, else one per class.

    Trees and forests return 0 and 1 exactly, whose logits are infinite. Where they do, every probability of
    the n rows they learnt from counts half a row more of each class: p' = (n p + 1/2) / (n + C/2), which
    keeps all orders.
    """

    model: Any
    """What gives the probabilities."""
    counted: int = 0
    """Rows by which probabilities are moved away from 0 and 1; 0 leaves them as they are."""

    def __call__(self, rows: Any) -> Any:
        p = np.asarray(self.model.predict_proba(rows), dtype=np.float64)
        if self.counted:
            p = (self.counted * p + 0.5) / (self.counted + 0.5 * p.shape[-1])
        logs = np.log(np.clip(p, TINY, 1.0))
        return logs[:, 1] - logs[:, 0] if logs.shape[-1] == 2 else logs


def class_names(model: Any) -> Any:
    """The classes an estimator tells apart, in the order of its outputs; None for a regressor."""
    classes = getattr(model, "classes_", None)
    # CatBoost's regressors have an empty list of them
    return None if classes is None or len(classes) == 0 else classes


def output_names(module: Any) -> list[Any]:
    """What a task's model calls its outputs; nothing where it does not say.

    An estimator lists its classes, a network of transformers has them in its configuration.
    """
    classes = class_names(getattr(module, "estimator", None))
    if classes is not None:
        return list(classes)
    for part in (module, getattr(module, "module", None)):
        names = getattr(getattr(part, "config", None), "id2label", None)
        if names:
            return [names[number] for number in sorted(names)]
    return []


def column_names(model: Any) -> list[str] | None:
    """The columns an estimator or booster was fitted on; None where it was given no names."""
    named = getattr(model, "feature_names_in_", None)
    if named is None and type(model).__module__.startswith("catboost"):
        # numbers stand for columns without names
        named = [name for name in model.feature_names_ or () if not name.isdigit()]
    if named is None and _is_booster(model):
        named = model.feature_name() if hasattr(model, "feature_name") else model.feature_names
        named = [name for name in named or () if not name.startswith("Column_")]
    return [str(name) for name in named] if named is not None and len(named) else None


def other_columns(model: Any, given: Iterable[Any]) -> str:
    """The sentence that says how a table's columns differ from those of the fit; none where they do not."""
    wanted, there = column_names(model), [str(name) for name in given]
    if wanted is None or wanted == there:
        return ""
    missing = [name for name in wanted if name not in there]
    if missing:
        return f"The model was fitted on columns {missing}, which are not there; the table has {there}"
    return f"The model was fitted on other columns, or these in another order; pass df[{wanted}]"


def _head(classes: Any) -> str:
    return "binary" if len(classes) == 2 else "multiclass"


def _margin(model: Any) -> Respond | None:
    """The scores behind an estimator's probabilities, where it gives them."""
    if hasattr(model, "decision_function"):
        decide: Respond = model.decision_function
        return decide
    if class_names(model) is None:
        return None
    named = _MARGINS.get(type(model).__module__.partition(".")[0])
    return None if named is None else partial(model.predict, **named)


_MARGINS: dict[str, dict[str, Any]] = {
    "xgboost": {"output_margin": True},
    "lightgbm": {"raw_score": True},
    "catboost": {"prediction_type": "RawFormulaVal"},
}
"""What boosted trees of other packages need to give their margins."""


def _smoothing(model: Any, probabilities: Any, rows: Any) -> int:
    """Over how many rows probabilities are smoothed: those learnt from, or else the reference rows."""
    learnt_from = _learnt_from(model)
    if probabilities is None:
        return learnt_from
    p = np.asarray(probabilities)
    if not bool(((p <= 0) | (p >= 1)).any()):
        return 0
    counted = learnt_from or len(rows)
    warn(
        f"{type(model).__name__} answers probabilities of exactly 0 or 1, whose logits are infinite; all are "
        f"taken as (n p + 1/2) / (n + C/2) with n = {counted} rows and C classes, which keeps their order"
    )
    return counted


def _learnt_from(model: Any) -> int:
    """How many rows trees, forests and neighbours learnt from; 0 where they do not say."""
    if isinstance(model, OneTarget):
        return _learnt_from(model.model)
    if hasattr(model, "steps"):
        return _learnt_from(model.steps[-1][1])
    trees = np.ravel(getattr(model, "estimators_", [model]))
    of_tree = getattr(trees[0] if len(trees) else model, "tree_", None)
    if of_tree is not None:
        return round(float(of_tree.weighted_n_node_samples[0]))
    return int(getattr(model, "n_samples_fit_", 0))


def _is_booster(model: Any) -> bool:
    package = type(model).__module__.split(".")[0]
    return type(model).__name__ == "Booster" and package in ("xgboost", "lightgbm")


def _booster_response(model: Any) -> tuple[Respond, str | None]:
    if type(model).__module__.startswith("xgboost"):
        import json

        objective = json.loads(model.save_config())["learner"]["objective"]["name"]
        return partial(_xgboost_margins, model), _objective_head(objective)
    objective = str(model.params.get("objective") or model.dump_model()["objective"])
    return partial(model.predict, raw_score=True), _objective_head(objective)


def _xgboost_margins(model: Any, rows: Any) -> Any:
    """Margins of XGBoost's own booster, which reads no arrays."""
    import xgboost  # type: ignore[import-not-found, unused-ignore]

    return model.predict(xgboost.DMatrix(rows, enable_categorical=True), output_margin=True)


def _objective_head(objective: str) -> str:
    if "multi" in objective:
        return "multiclass"
    return "binary" if objective.startswith(("binary", "cross_entropy", "reg:logistic")) else "regression"
