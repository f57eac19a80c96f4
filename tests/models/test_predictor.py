"""The one place that runs a model: flags put back, rows counted, chunks planned, memory errors survived."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import of_form
from tests.reference.small_models import Convolution, mlp
from veridical.errors import InputError, ModelError, ShapeError
from veridical.explainers import Gradient, IntegratedGradients
from veridical.models.plan import float32_products
from veridical.models.predictor import Plan, plain_output

ROWS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


class Watched(nn.Module):
    """Notes how many rows each call brought, and raises `error` above `limit` rows."""

    def __init__(self, limit: int = 10**9, error: Exception | None = None) -> None:
        super().__init__()
        self.inner = mlp()
        self.calls: list[int] = []
        self.limit = limit
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.limit and self.error is not None:
            raise self.error
        self.calls.append(len(x))
        return self.inner(x)


def mixed_flags() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Sequential(nn.Dropout(), nn.Linear(8, 3)))
    model.train()
    model[1].eval()
    model[2][1].eval()
    return model


# --- flags ------------------------------------------------------------------------------------------------


def test_every_flag_is_restored_and_eval_holds_inside() -> None:
    model = mixed_flags()
    before = [m.training for m in model.modules()]
    with pytest.warns(vd.errors.VeridicalWarning, match="training mode"):
        task = vd.Task(model, ROWS)
    with task.session() as view:
        assert not any(m.training for m in view.module.modules())
    vd.explain("gradient", task)
    vd.score("pixel_flipping", task, "occlusion")
    assert [m.training for m in model.modules()] == before
    assert torch.equal(task.outputs, vd.Task(model.eval(), ROWS).outputs)


@pytest.mark.parametrize("precision", ["tf32", "float32"])
def test_precision_is_what_the_plan_says_and_what_the_user_said_afterwards(precision: str) -> None:
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        chosen = [kind.fp32_precision for kind in kinds]
        with float32_products(precision):
            assert [kind.fp32_precision for kind in kinds] == ["tf32" if precision == "tf32" else "ieee"] * 3
        assert [kind.fp32_precision for kind in kinds] == chosen
        with pytest.raises(KeyError), float32_products(precision):
            raise KeyError
        assert [kind.fp32_precision for kind in kinds] == chosen
        # once these settings are touched the older ones cannot be read any more
        assert vd.Task(mlp(), ROWS).outputs.shape == (20, 3)
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


def test_autocast_is_off_unless_asked_for() -> None:
    task = vd.Task(mlp(), ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert task.predictor.outputs(ROWS).dtype == torch.float32
    half = task.with_plan(Plan(rows=8, autocast="bfloat16"))
    assert half.predictor.outputs(ROWS).dtype == torch.bfloat16


def test_threads_are_set_inside_only() -> None:
    outside = torch.get_num_threads()
    task = vd.Task(mlp(), ROWS, plan=Plan(threads=2))
    with task.session():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == outside


# --- counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_rows_forward_are_counted_without_padding(count: int) -> None:
    model = Watched()
    task = vd.Task(model, ROWS[:count], plan=Plan(rows=8))
    meter = task.predictor.meter
    assert meter.cost == vd.models.Cost()
    calls = task.predictor.model.calls
    calls.clear()
    task.predictor.outputs(task.inputs)
    assert meter.cost.forward == count
    assert set(calls) == {8}
    assert len(calls) == -(-count // 8)


def test_rows_backward_are_counted() -> None:
    task = vd.Task(mlp(), ROWS)
    assert vd.explain("gradient", task).cost == vd.models.Cost(20, 20)
    assert vd.explain(IntegratedGradients(steps=5), task).cost == vd.models.Cost(100, 100)
    assert vd.explain("random", task).cost == vd.models.Cost(0, 0)
    assert vd.explain("occlusion", task).cost == vd.models.Cost(80, 0)


def test_scores_cost_one_row_a_mask_and_sample() -> None:
    task = vd.Task(mlp(), ROWS, plan=Plan(rows=16))
    maps = torch.rand(20, 4)
    assert vd.score("pixel_flipping", task, maps).cost == vd.models.Cost(80, 0)
    assert vd.score(
        "pixel_flipping", task, maps, fill=vd.fills.Constant(1.0), steps=2
    ).cost == vd.models.Cost(40, 0)


# --- memory -----------------------------------------------------------------------------------------------

ERRORS = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_chunk_is_halved_until_it_fits(error: Exception) -> None:
    expected = vd.Task(mlp(), ROWS).outputs
    model = Watched(8, error)
    task = vd.Task(model, ROWS, plan=Plan(rows=64))
    torch.testing.assert_close(task.predictor.outputs(task.inputs), expected)
    meter = task.predictor.meter
    assert meter.cost.forward == 20
    assert meter.here.halvings == 2
    assert all(
        n == 8 for n in task.predictor.model.calls[3:]
    )  # after the first look: one row, then two, twice


def test_a_halved_chunk_is_noted_in_the_provenance_of_what_it_made_and_of_nothing_else() -> None:
    model = Watched(16, ERRORS[1])
    task = vd.Task(model, ROWS, plan=Plan(rows=64), targets=0)
    maps = torch.rand(20, 4)
    smooth = vd.score("pixel_flipping", vd.Task(mlp(), ROWS, targets=0), maps)
    halved = vd.score("pixel_flipping", task, maps)
    torch.testing.assert_close(halved.values, smooth.values)
    assert halved.provenance["halvings"] > 0
    assert smooth.provenance["halvings"] == 0
    task.predictor.model.limit = 10**9
    assert vd.score("pixel_flipping", task, maps).provenance["halvings"] == 0


@pytest.mark.parametrize("explainer", [Gradient(), IntegratedGradients(steps=4)], ids=lambda e: e.name)
def test_explainers_with_gradients_survive_too(explainer: vd.Explainer) -> None:
    expected = explainer(vd.Task(mlp(), ROWS, targets=0))
    task = vd.Task(Watched(8, ERRORS[0]), ROWS, plan=Plan(rows=64), targets=0)
    got = explainer(task)
    torch.testing.assert_close(got.values, expected.values)
    assert got.provenance["halvings"] > 0


def test_side_inputs_are_halved_along() -> None:
    class Scaled(Watched):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
            assert len(x) == len(scale)
            return super().forward(x) * scale[:, None]

    scale = torch.arange(1.0, 21.0)
    task = vd.Task(Scaled(8, ERRORS[2]), ROWS, side=(scale,), plan=Plan(rows=32))
    torch.testing.assert_close(task.outputs, vd.Task(mlp(), ROWS).outputs * scale[:, None])


def test_other_errors_and_the_smallest_chunk_are_not_retried() -> None:
    model = Watched(2, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    task = vd.Task(model, ROWS, plan=Plan(rows=64))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        _ = task.outputs
    assert task.predictor.meter.here.halvings == 0
    hopeless = vd.Task(Watched(2, ERRORS[0]), ROWS, plan=Plan(rows=64))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        _ = hopeless.outputs


def test_no_chunk_is_larger_than_the_plan_whatever_the_fill_repeats() -> None:
    model = Watched()
    task = vd.Task(model, ROWS, train=ROWS, fill=vd.fills.Marginal(21), plan=Plan(rows=8))
    calls = task.predictor.model.calls
    calls.clear()
    assert vd.score("pixel_flipping", task, torch.rand(20, 4)).cost.forward == 20 * 4 * 20
    assert max(calls) == 8


@pytest.mark.parametrize("form", ["arc", "reference", "jacobian"])
def test_a_plan_of_one_row_is_obeyed_under_weight_noise(form: str) -> None:
    task = vd.Task(Watched(1, ValueError("one row at a time")), ROWS[:4], plan=Plan(rows=1))
    metric = of_form(form, path=(0.1, 0.4, 0.8), draws=1, steps=2)
    assert vd.score(metric, task, "saliency").values.isfinite().all()


# --- plans ------------------------------------------------------------------------------------------------


def test_rows_are_a_power_of_two_that_fits_the_budget() -> None:
    small = vd.Task(Convolution().eval(), torch.randn(2, 1, 8, 8), plan=Plan(budget_mib=1))
    large = vd.Task(Convolution().eval(), torch.randn(2, 1, 8, 8), plan=Plan(budget_mib=4))
    for rows in (small.predictor.rows, large.predictor.rows):
        assert rows % 8 == 0
        assert rows & (rows - 1) == 0
    assert large.predictor.rows == 4 * small.predictor.rows
    # 8x8 floats and a copy, thrice 4 channels of them, once a quarter, the same flattened, 3 logits
    row = 4 * (2 * 64 + 3 * 256 + 64 + 64 + 3)
    assert small.predictor.rows * row <= 2**20 < 2 * small.predictor.rows * row


def test_the_plan_is_fixed_and_recorded() -> None:
    task = vd.Task(mlp(), ROWS)
    assert task.predictor.plan.rows == task.predictor.rows
    assert vd.explain("gradient", task).provenance["plan"]["rows"] == task.predictor.rows
    assert Plan(**asdict(Plan(rows=16, precision="tf32"))) == Plan(rows=16, precision="tf32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 12}, "multiple of 8 rows per chunk, got 12"),
        ({"rows": 0}, "got 0"),
        ({"autocast": "int8"}, "autocast is"),
    ],
)
def test_plans_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(**settings)


def test_channels_last_changes_the_layout_only() -> None:
    images = torch.randn(4, 3, 8, 8)
    task = vd.Task(Convolution(3).eval(), images)
    other = task.with_plan(Plan(channels_last=True))
    torch.testing.assert_close(other.predictor.outputs(images), task.outputs, atol=1e-5, rtol=1e-5)


# --- answers ----------------------------------------------------------------------------------------------


class Logits:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap", [lambda y: y, lambda y: (y, 1), lambda y: [y], lambda y: {"logits": y}, Logits]
)
def test_outputs_are_found_in_what_models_answer(wrap) -> None:
    answer = torch.ones(2, 3)
    assert plain_output(wrap(answer)) is answer
    assert plain_output(torch.ones(2)).shape == (2, 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: x[:, :, None], r"returned shape \(1, 4, 1\) for 1 rows of \(4,\).*Pass output="),
        (lambda x: torch.ones(5, 3), r"returned shape \(5, 3\) for 1 rows"),
        (lambda x: x.sum(), "returned shape"),
        (lambda x: x[:, :0], r"returned shape \(1, 0\)"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_cure(answer, message: str) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return answer(x)

    with pytest.raises(ShapeError, match=message):
        vd.Task(Odd(), ROWS)


def test_an_answer_without_a_tensor_is_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "seven"

    with pytest.raises(ModelError, match=r"returned a str; expected a tensor.*output="):
        vd.Task(Odd(), ROWS)


def test_output_turns_any_answer_into_rows() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"deep": x[:, :3, None]}

    task = vd.Task(Odd(), ROWS, output=lambda answer: answer["deep"][..., 0])
    assert torch.equal(task.outputs, ROWS[:, :3])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_answers_that_are_not_finite_are_refused(bad: float) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1] > 5, bad, x[:, :3])

    rows = ROWS.clone()
    rows[[3, 11], 0] = 9.0
    task = vd.Task(Odd(), rows)
    with pytest.raises(ModelError, match=r"NaN or infinity in 2 rows \(first: \[3, 11\]\)"):
        _ = task.outputs
    masked = vd.Task(Odd(), ROWS, fill=9.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.score("pixel_flipping", masked, torch.rand(20, 4))


def test_a_side_input_may_be_called_as_we_call_the_rows():
    """Names of side inputs are the model's own; those of our wrappers are nobody's business."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, rows: Tensor, x: Tensor) -> Tensor:
            return self.head(rows) * x

    task = vd.Task(Scaled(), torch.rand(3, 4), side={"x": torch.rand(3, 1)})
    assert vd.explain("gradient", task).values.shape == (3, 4)
    assert vd.score("input_invariance", task, "gradient").values.shape == (3,)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)

        def forward(self, ids: Tensor, token_ids: Tensor, x: Tensor) -> Tensor:
            return self.embed(ids).mean(1) * token_ids * x

    text = vd.Task(
        Words(), torch.randint(9, (3, 5)), side={"token_ids": torch.rand(3, 1), "x": torch.rand(3, 1)}
    )
    assert vd.explain("gradient", text).values.shape == (3, 5)
