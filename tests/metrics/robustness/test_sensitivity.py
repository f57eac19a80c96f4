"""Max- and average sensitivity and the Lipschitz estimate: closed forms, rewrites, counts, draws."""

import pytest
import torch

import veridical as vd
from tests.reference import metrics as robustness
from tests.reference.metric_cases import linear_task, mlp_task, one_gradient, text_task
from veridical.core.key import Key
from veridical.explainers import Gradient
from veridical.metrics import AvgSensitivity, LocalLipschitz, MaxSensitivity

NAMES = ["max_sensitivity", "avg_sensitivity", "local_lipschitz"]
DRAWS = 3


def neighbours(metric, task: vd.Task) -> list[torch.Tensor]:
    key = Key(0) / metric.name
    return [metric.neighbours(task, key, range(k, k + 1)).inputs for k in range(1, metric.draws + 1)]


def by_hand(metric, task: vd.Task, reduce) -> torch.Tensor:
    """Every gradient asked alone, every formula a loop."""
    near = neighbours(metric, task)
    out = []
    for i, target in enumerate(task.targets.tolist()):
        clean = one_gradient(task, task.inputs[i], target).numpy()
        moved = [one_gradient(task, n[i], target).numpy() for n in near]
        out.append(reduce(task.inputs[i].numpy(), clean, [n[i].numpy() for n in near], moved))
    return torch.tensor(out, dtype=torch.float64)


def largest(relative_to):
    return lambda x, clean, near, moved: max(robustness.sensitivities(x, clean, moved, relative_to))


def mean(relative_to):
    def reduce(x, clean, near, moved):
        return sum(robustness.sensitivities(x, clean, moved, relative_to)) / len(moved)

    return reduce


CASES = [
    (MaxSensitivity(draws=DRAWS), largest("input")),
    (MaxSensitivity(draws=DRAWS, relative_to="nothing"), largest("nothing")),
    (MaxSensitivity(draws=DRAWS, relative_to="explanation"), largest("explanation")),
    (AvgSensitivity(draws=DRAWS), mean("input")),
    (LocalLipschitz(draws=DRAWS), robustness.lipschitz),
]


def assert_by_hand(metric, reduce) -> None:
    task = mlp_task()
    got = metric(task, Gradient()).values
    torch.testing.assert_close(got, by_hand(metric, task, reduce), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("metric", "reduce"), CASES)
def test_agrees_with_the_definition_by_hand(metric, reduce) -> None:
    assert_by_hand(metric, reduce)


@pytest.mark.parametrize(
    ("metric", "wrong"),
    [
        (MaxSensitivity(draws=DRAWS), mean("input")),
        (MaxSensitivity(draws=DRAWS), largest("nothing")),
        (AvgSensitivity(draws=DRAWS), largest("input")),
        (LocalLipschitz(draws=DRAWS), largest("input")),
    ],
)
def test_a_wrong_definition_is_noticed(metric, wrong) -> None:
    with pytest.raises(AssertionError):
        assert_by_hand(metric, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_linear_model_never_moves(name: str) -> None:
    assert vd.score(name, linear_task(), "gradient").values.abs().max() < 1e-12


def test_input_x_gradient_of_a_linear_model_has_a_known_constant() -> None:
    # without normalising e = w x, so ‖e(x) - e(x + u)‖ / ‖u‖ = ‖w u‖ / ‖u‖
    task = linear_task()
    metric = LocalLipschitz(draws=DRAWS, normalise=False)
    weights = task.model.weight[task.targets]
    expected = []
    for near in neighbours(metric, task):
        u = near - task.inputs
        expected.append((weights * u).norm(dim=1) / u.norm(dim=1))
    got = vd.score(metric, task, "input_x_gradient").values
    torch.testing.assert_close(got, torch.stack(expected).amax(0).detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_one_batched_call_a_draw_is_all_it_costs(name: str) -> None:
    task = mlp_task(rows=6)
    cost = vd.score(name, task, "gradient", draws=DRAWS).cost
    assert (cost.forward, cost.backward) == ((DRAWS + 1) * 6, (DRAWS + 1) * 6)


def test_neighbours_stay_within_the_radius_and_differ_between_draws() -> None:
    task = mlp_task()
    metric = MaxSensitivity(draws=4, radius=0.25)
    steps = torch.stack([n - task.inputs for n in neighbours(metric, task)])
    assert steps.abs().max() <= 0.25
    assert steps.abs().max() > 0.2
    assert len(steps.reshape(-1).unique()) == steps.numel()


def test_in_ranges_scales_with_the_reference_rows() -> None:
    train = torch.tensor([[0.0] * 5, [1.0, 2.0, 10.0, 0.0, 1.0]], dtype=torch.float64)
    task = mlp_task(train=train)
    steps = torch.stack([n - task.inputs for n in neighbours(MaxSensitivity(in_ranges=True, draws=20), task)])
    reach = steps.abs().amax((0, 1))
    assert (reach <= 0.1 * train[1] + 1e-12).all()
    assert (reach >= 0.09 * train[1]).all()
    with pytest.raises(vd.errors.NotApplicableError, match="train="):
        vd.score("max_sensitivity", mlp_task(), "gradient", in_ranges=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_stochastic_explainer_gets_a_fresh_key_each_time(name: str) -> None:
    values = vd.score(name, mlp_task(), "random", draws=2).values
    assert (values > 0).all()


def test_text_is_moved_at_its_embeddings_and_integers_are_refused() -> None:
    assert (vd.score("max_sensitivity", text_task(), "gradient", draws=2).values > 0).all()
    pixels = torch.arange(2 * 16).reshape(2, 1, 4, 4).to(torch.uint8)
    task = vd.Task(lambda x: x.float().flatten(1)[:, :3], pixels)
    with pytest.raises(vd.errors.NotApplicableError, match=r"inputs\.float\(\)"):
        vd.score("max_sensitivity", task, "random")


def test_zero_maps_and_zero_inputs_are_flagged() -> None:
    def zeros(model, inputs, targets):
        return torch.zeros_like(inputs)

    scores = vd.score("max_sensitivity", mlp_task(), zeros, draws=2)
    assert scores.values.isnan().all()
    assert scores.flags["the map is all zeros"].all()
    task = mlp_task().with_inputs(torch.zeros(6, 5))
    scores = vd.score("max_sensitivity", task, "gradient", draws=2)
    assert scores.values.isnan().all()
    assert scores.flags["the input is all zeros"].all()
