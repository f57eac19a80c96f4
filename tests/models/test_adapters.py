"""Anything that answers rows: scikit-learn estimators, pipelines on data frames, numpy, torch functions."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import veridical as vd
from tests.reference.small_models import mlp
from veridical.errors import InputError, ModelError, NotApplicableError, ShapeError, VeridicalWarning
from veridical.models.adapters import ArrayModel, FunctionModel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
THREE = X[:, :3].argmax(1)
TWO = (X[:, 0] + X[:, 1] > 0).astype(int)
W = RNG.normal(size=(4, 3))


def applies_without_gradients(task: vd.Task) -> None:
    """Everything that needs no gradient works, and the rest says what does."""
    assert vd.explain("occlusion", task).values.shape == (len(task), task.space.n_features)
    assert bool(torch.isfinite(vd.score("pixel_flipping", task, "occlusion").values).all())
    assert "saliency" not in vd.explainers.applicable(task)
    with pytest.raises(NotApplicableError, match=r"saliency.*not a torch function.*These do:.*occlusion"):
        vd.explain("saliency", task)


def test_decision_function_of_many_classes() -> None:
    model = LogisticRegression().fit(X, THREE)
    task = vd.Task(model, X, train=X)
    np.testing.assert_allclose(task.outputs.numpy(), model.decision_function(X))
    np.testing.assert_allclose(task.probabilities(task.outputs).numpy(), model.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(task.targets.numpy(), model.predict(X))
    applies_without_gradients(task)


def test_decision_function_of_two_classes_needs_no_question_about_its_head() -> None:
    model = LogisticRegression().fit(X, TWO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = vd.Task(model, X, train=X)
    assert task.head == "binary"
    assert task.n_outputs == 2
    np.testing.assert_allclose(task.probabilities(task.outputs).numpy(), model.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(task.targets.numpy(), model.predict(X))


def smoothed(probabilities: np.ndarray, rows: int) -> np.ndarray:
    """Half a row more of each class."""
    return (rows * probabilities + 0.5) / (rows + 0.5 * probabilities.shape[-1])


@pytest.mark.parametrize("labels", [TWO, THREE])
def test_trees_forests_and_neighbours_answer_finite_logits_in_the_order_of_their_probabilities(
    labels,
) -> None:
    for model in (
        KNeighborsClassifier(),
        RandomForestClassifier(5, random_state=0),
        DecisionTreeClassifier(),
    ):
        with pytest.warns(VeridicalWarning, match=r"exactly 0 or 1.*n = 40"):
            task = vd.Task(model.fit(X, labels), X)
        assert task.head == ("binary" if labels is TWO else "multiclass")
        expected = smoothed(model.predict_proba(X), 40)
        np.testing.assert_allclose(task.probabilities(task.outputs).numpy(), expected, atol=1e-11)
        assert float(task.outputs.abs().max()) < 6  # log of half a row in forty-one, not of a bound


class OnlyProbabilities:
    """A model behind `predict_proba` alone."""

    def __init__(self, model):
        self.model, self.classes_ = model, model.classes_

    def predict(self, rows):
        return self.model.predict(rows)

    def predict_proba(self, rows):
        return self.model.predict_proba(rows)


def test_a_model_is_explained_alike_whether_it_gives_margins_or_probabilities() -> None:
    model = LogisticRegression().fit(X, TWO)
    margin, chance = vd.Task(model, X, train=X), vd.Task(OnlyProbabilities(model), X, train=X)
    assert chance.head == "binary"
    np.testing.assert_allclose(chance.outputs.numpy(), margin.outputs.numpy(), atol=1e-9)
    both = [vd.explain("kernel_shap", task).values for task in (margin, chance)]
    np.testing.assert_allclose(both[0], both[1], atol=1e-7)


SEVERAL = np.stack([TWO, THREE, TWO * (THREE == 1)], 1)


@pytest.mark.parametrize(
    "model",
    [
        MultiOutputClassifier(LogisticRegression()),
        RandomForestClassifier(5, random_state=0),
        make_pipeline(StandardScaler(), KNeighborsClassifier()),
    ],
    ids=["one each", "forest", "pipeline"],
)
@pytest.mark.filterwarnings("ignore")
def test_of_several_targets_one_is_explained(model) -> None:
    model.fit(X, SEVERAL)
    with pytest.raises(NotApplicableError, match=r"3 targets at once.*output=0 to output=2"):
        vd.Task(model, X)
    for target in range(3):
        task = vd.Task(model, X, train=X, output=target, labels=SEVERAL[:, target])
        assert task.head == ("multiclass" if target == 1 else "binary")
        np.testing.assert_array_equal(task.predictions.numpy(), model.predict(X)[:, target])
        applies_without_gradients(task)
    alone = DecisionTreeClassifier(random_state=0).fit(X, THREE)
    same = MultiOutputClassifier(DecisionTreeClassifier(random_state=0)).fit(X, SEVERAL)
    tasks = vd.Task(alone, X, train=X), vd.Task(same, X, train=X, output=1)
    np.testing.assert_array_equal(tasks[0].outputs.numpy(), tasks[1].outputs.numpy())
    with pytest.raises(InputError, match="predicts targets 0 to 2"):
        vd.Task(model, X, output=3)


def test_regressors_answer_their_prediction() -> None:
    model = LinearRegression().fit(X, X @ W[:, 0])
    task = vd.Task(model, X)
    assert task.head == "regression"
    assert task.n_outputs == 1
    assert task.targets.tolist() == [0] * 40
    np.testing.assert_allclose(task.outputs[:, 0].numpy(), model.predict(X))
    falls = vd.explain("occlusion", task).values.numpy()
    np.testing.assert_allclose(falls, X * model.coef_, atol=1e-6)


def test_a_classifier_that_only_names_classes_is_refused() -> None:
    hard = VotingClassifier([("a", LogisticRegression()), ("b", KNeighborsClassifier())]).fit(X, THREE)
    with pytest.raises(NotApplicableError, match="VotingClassifier names a class and gives it no score"):
        vd.Task(hard, X)


def pipeline() -> tuple[object, pd.DataFrame, pd.Series]:
    frame = pd.DataFrame(
        {
            "age": RNG.integers(18, 80, 60),
            "city": RNG.choice(["Rome", "Oslo", "Bern"], 60),
            "income": RNG.normal(size=60),
            "job": pd.Categorical(RNG.choice(["a", "b"], 60)),
        }
    )
    label = ((frame["age"] > 50) ^ (frame["city"] == "Rome")).astype(int)
    encode = ColumnTransformer(
        [("number", StandardScaler(), ["age", "income"]), ("name", OneHotEncoder(), ["city", "job"])]
    )
    return make_pipeline(encode, LogisticRegression()).fit(frame, label), frame, label


def test_pipelines_are_explained_in_raw_columns() -> None:
    model, frame, label = pipeline()
    task = vd.Task(model, frame[:10], train=(frame, label))
    assert task.space.n_features == 4
    assert [task.space.feature_name(i) for i in range(4)] == ["age", "city", "income", "job"]
    assert task.fill == vd.fills.Marginal()
    np.testing.assert_allclose(
        task.probabilities(task.outputs).numpy(), model.predict_proba(frame[:10]), atol=1e-12
    )
    assert task.train_labels is not None
    assert task.train_labels.tolist() == label.tolist()
    applies_without_gradients(task)


def test_filled_columns_reach_the_pipeline_as_values_they_really_take() -> None:
    model, frame, _ = pipeline()
    seen: list[pd.DataFrame] = []

    def watched(rows: pd.DataFrame) -> np.ndarray:
        seen.append(rows)
        return model.predict_proba(rows)

    task = vd.Task(watched, frame[:4], train=frame)
    vd.explain("occlusion", task)
    asked = pd.concat(seen)
    assert set(asked["city"]) <= {"Rome", "Oslo", "Bern"}
    assert set(asked["age"]) <= set(frame["age"].astype(float))


def test_numpy_functions_work_without_gradients() -> None:
    task = vd.Task(lambda x: x @ W, X)
    assert isinstance(task.model, ArrayModel)
    np.testing.assert_allclose(task.outputs.numpy(), X @ W)
    applies_without_gradients(task)


def test_numpy_functions_that_also_swallow_tensors_are_not_taken_for_torch() -> None:
    # np.exp of a tensor is a tensor, but one without a gradient
    task = vd.Task(lambda x: np.exp(x)[:, :3] - x[:, :1], X)
    assert not task.differentiable
    np.testing.assert_allclose(task.outputs.numpy(), np.exp(X)[:, :3] - X[:, :1], atol=1e-12)
    applies_without_gradients(task)


def test_torch_functions_have_gradients() -> None:
    weight = torch.tensor(W)
    task = vd.Task(lambda x: torch.tanh(x @ weight), torch.tensor(X))
    assert isinstance(task.model, FunctionModel)
    assert task.differentiable
    slopes = vd.explain("gradient", task).values
    y = torch.tanh(torch.tensor(X) @ weight).gather(1, task.targets[:, None])
    expected = (1 - y**2) * weight.T[task.targets]
    torch.testing.assert_close(slopes, expected)


@pytest.mark.parametrize("by_name", [True, False])
def test_functions_get_their_side_inputs(by_name: bool) -> None:
    weight = torch.tensor(W)

    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight) * scale[:, None]

    scale = torch.arange(1.0, 41.0, dtype=torch.float64)
    task = vd.Task(scaled, torch.tensor(X), side={"scale": scale} if by_name else (scale,))
    assert task.differentiable
    torch.testing.assert_close(task.outputs, scaled(torch.tensor(X), scale))


def test_a_function_that_writes_into_its_rows_is_still_a_torch_function() -> None:
    def clipped(x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 0
        return x[:, :3] * 2

    given = torch.tensor(X)
    assert vd.Task(clipped, given).differentiable
    assert torch.equal(given[1:], torch.tensor(X)[1:])


def test_torch_functions_under_no_grad_refuse_gradient_methods() -> None:
    model = mlp()

    @torch.no_grad()
    def silent(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    applies_without_gradients(vd.Task(silent, torch.tensor(X).float()))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="got int"):
        vd.Task(3, X)
    with pytest.raises(InputError, match="data frame but the model is a torch module"):
        vd.Task(mlp(), pd.DataFrame(X))
    with pytest.raises(ModelError, match="expected numbers"):
        vd.Task(lambda x: np.array(["a"] * len(x)), X)
    with pytest.raises(ShapeError, match=r"returned shape \(4, 3, 1\)|returned shape \(1, 3, 1\)"):
        vd.Task(lambda x: (x @ W)[:, :, None], X)


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
