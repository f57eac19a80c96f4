"""The first answers of a model: probabilities, chance and other rows are told; its rows stay as they are."""

import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.errors import NotApplicableError, VeridicalWarning
from veridical.models.output_heads import ONE_ROW, PROBABILITIES, UNSTEADY

ROWS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Around(nn.Module):
    """A linear layer with something done to its rows or answers."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.before, self.after = nn.Linear(4, 3), before, after

    def forward(self, rows: Tensor) -> Tensor:
        answer: Tensor = self.after(self.layer(self.before(rows)))
        return answer


def plain(rows: Tensor) -> Tensor:
    return rows


def softmax(rows: Tensor) -> Tensor:
    return rows.softmax(-1)


def always_dropout(rows: Tensor) -> Tensor:
    return nn.functional.dropout(rows, 0.5, training=True)


def batch_centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0, keepdim=True)


def double_in_place(rows: Tensor) -> Tensor:
    return rows.mul_(2)


def test_a_model_of_probabilities_is_told() -> None:
    with pytest.warns(VeridicalWarning, match=PROBABILITIES):
        vd.Task(Around(plain, softmax), ROWS)
    with pytest.warns(VeridicalWarning, match=PROBABILITIES):
        vd.Task(lambda rows: torch.eye(3)[torch.zeros(len(rows), dtype=torch.long)], ROWS)


@pytest.mark.parametrize("before", [always_dropout, batch_centred])
def test_an_answer_that_does_not_depend_on_its_row_alone_is_told(before: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(VeridicalWarning, match=UNSTEADY):
        task = vd.Task(Around(before, plain), ROWS)
    assert task.moves > 0.01
    assert task.predictor.meter.cost.forward == 0
    for metric, subject in (("pixel_flipping", MAPS), ("mprt", "gradient"), ("sparseness", "gradient")):
        scores = vd.score(metric, task, subject)
        assert scores.flagged[UNSTEADY] == 5, metric
        assert UNSTEADY in str(scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_others_are_left_in_peace(dtype: torch.dtype) -> None:
    model = Around(plain, plain).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the model computes in torch.bfloat16")
        vd.Task(model, ROWS.to(dtype))
        vd.Task(model, ROWS[:1].to(dtype))
        vd.Task(Around(plain, softmax), ROWS, output=lambda answer: answer.log())


def one_at_a_time(rows: Tensor) -> Tensor:
    if len(rows) > 1:
        raise ValueError("one at a time")
    return rows[:, :3]


@pytest.mark.parametrize("plan", [None, vd.Plan(rows=4), vd.Plan(rows=1)])
def test_a_model_of_one_row_at_a_time_is_run_one_row_at_a_time(plan: vd.Plan | None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        task = vd.Task(one_at_a_time, ROWS, targets=1, plan=plan)
    assert [ONE_ROW in str(each.message) for each in told] == ([] if plan == vd.Plan(rows=1) else [True])
    assert task.outputs.shape == (5, 3)
    assert vd.explain("occlusion", task).values.shape == (5, 4)
    assert UNSTEADY not in vd.score("pixel_flipping", task, MAPS).flagged


@pytest.mark.parametrize("explainer", ["gradient", "integrated_gradients", "occlusion"])
def test_a_model_that_writes_into_its_rows_gets_copies(explainer: str) -> None:
    writes, twin = Around(double_in_place, plain), Around(lambda rows: rows * 2, plain)
    rows = ROWS.clone()
    task, other = vd.Task(writes, rows, fill=0.0), vd.Task(twin, ROWS, fill=0.0)
    assert vd.explain(explainer, task).values.equal(vd.explain(explainer, other).values)
    for metric, maps in (("pixel_flipping", MAPS), ("rfid_plus", MAPS), ("fast_gef", explainer)):
        settings = {"path": (0.2, 0.6, 0.9)} if metric == "fast_gef" else {}
        assert vd.score(metric, task, maps, **settings).values.equal(
            vd.score(metric, other, maps, **settings).values
        )
    assert rows.equal(ROWS)
    assert task.inputs.equal(ROWS)


def test_a_script_that_writes_into_its_rows_is_refused() -> None:
    rows, scripted = ROWS.clone(), torch.jit.script(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)))
    with pytest.raises(NotApplicableError, match=r"rows\.clone"):
        vd.Task(scripted, rows)
    assert rows.equal(ROWS)


def test_so_do_functions_user_code_and_copies_of_a_task() -> None:
    rows = ROWS.clone()

    def own(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return model(inputs)[:, :1] * inputs

    for model in (Around(double_in_place, plain), lambda x: x.mul_(2)[:, :3]):
        task = vd.Task(model, rows, fill=0.0)
        vd.explain(own, task)
        vd.score("pixel_flipping", task.refreshed(), MAPS)
        assert rows.equal(ROWS)
    again = pickle.loads(pickle.dumps(vd.Task(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), rows)))
    assert again.outputs.shape == (5, 3)
    assert again.inputs.equal(ROWS)


def test_images_with_their_channels_last_are_told() -> None:
    def model(rows: Tensor) -> Tensor:
        return rows.flatten(1)[:, :3]

    with pytest.warns(VeridicalWarning, match="channels come last"):
        vd.Task(model, torch.randn(2, 8, 8, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vd.Task(model, torch.randn(2, 3, 8, 8))
        vd.Task(model, torch.randn(2, 3, 8, 3))
        vd.Task(model, torch.randn(2, 8, 8, 3), space=vd.Space.pixels((8, 8, 3)))
