"""What a GPU would have to do: operations are counted here on a CPU, where no GPU is needed to see them.

Nothing may wait for the device inside a loop over chunks or draws, and nothing may loop over samples.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from benchmarks.launches import counted
from veridical.metrics import ExplainerMetric, registry
from veridical.metrics.base import Metric, Outcome

FEW = {
    "rfid_plus": {"draws": 4},
    "rfid_minus": {"draws": 4},
    "faithfulness_correlation": {"subset_size": 9},
    "irof": {"segments": 4},
}
OTHER_SYSTEMS = {"gef", "fast_gef", "ffid_plus", "ffid_minus"}
READERS = {"complexity", "localisation", "axiomatic"}


def task_of(samples: int, rows: int = 64) -> vd.Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples, 1, 8, 8, generator=generator)
    masks = torch.zeros(samples, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)).eval()
    return vd.Task(model, x, masks=masks, train=x[:4], plan=vd.Plan(rows=rows))


def seen(metric: vd.metrics.AnyMetric, task: vd.Task, explainer="gradient"):
    """What the second score of a task does: whatever is prepared once is there by then."""
    subject = explainer if isinstance(metric, ExplainerMetric) else vd.explain(explainer, task)
    vd.score(metric, task, subject)
    return counted(lambda: vd.score(metric, task, subject))


def names(*categories: str) -> list[str]:
    task = task_of(4)
    made = {name: registry.make(name, **FEW.get(name, {})) for name in registry if name not in OTHER_SYSTEMS}
    fitting = {name: m for name, m in made.items() if m.why_not(task) is None}
    return [name for name, m in fitting.items() if not categories or m.category in categories]


BY_PARTS = {"consistency": 2, "sufficiency": 2}
"""Metrics that explain in parts where one chunk does not hold all, and look at each."""


def check_waits(metric) -> None:
    one, many = seen(metric, task_of(16, rows=1024)), seen(metric, task_of(16, rows=8))
    assert many.waits <= one.waits + BY_PARTS.get(metric.name, 0)


@pytest.mark.parametrize("name", names())
def test_nothing_waits_for_the_device_in_a_loop_over_chunks(name):
    check_waits(registry.make(name, **FEW.get(name, {})))


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("max_sensitivity", "draws"),
        ("local_lipschitz", "draws"),
        ("relative_input_stability", "draws"),
        ("relative_output_stability", "draws"),
        ("relative_representation_stability", "draws"),
        ("continuity", "steps"),
        ("mprt", "draws"),
        ("smooth_mprt", "noise_draws"),
        ("efficient_mprt", "draws"),
        ("random_logit", "draws"),
        ("non_sensitivity", "draws"),
        ("monotonicity_correlation", "draws"),
    ],
)
def test_nothing_waits_for_the_device_in_a_loop_over_draws(name, setting):
    # one draw a call, as for a chunk that holds no more
    few, many = (seen(registry.make(name, **{setting: count}), task_of(8, rows=8)) for count in (1, 3))
    allowed = 4 if setting == "draws" and name in ("non_sensitivity", "monotonicity_correlation") else 0
    assert many.waits <= few.waits + allowed


MAY_WAIT: dict[str, str] = {"gef_iso": "its p-value and its power are computed on the host"}
"""Metrics that wait for the device before they give a score, and why."""


@pytest.mark.parametrize("name", [name for name in names() if name not in MAY_WAIT])
def test_a_score_waits_for_the_device_a_few_times(name):
    # NaN and infinity are looked for where answers, maps and scores are made
    metric = registry.make(name, **FEW.get(name, {}))
    explainer = "gradient" if isinstance(metric, ExplainerMetric) else "random"
    assert seen(metric, task_of(16, rows=64), explainer).waits <= 8


@pytest.mark.parametrize("trip", ["tensor", "tolist", "cpu"])
def test_copies_between_host_and_device_count_as_waits(trip):
    ways = {
        "tensor": lambda: torch.tensor([1.0, 2.0], device="cpu"),
        "tolist": lambda: torch.arange(2).tolist(),
        "cpu": lambda: torch.arange(2).cpu(),
    }
    assert counted(ways[trip]).waits == 1


class Waiting(Metric):
    """A metric that looks at every chunk."""

    name = "waiting"

    def evaluate(self, task, explanation, context):
        with task.session() as model:
            for piece in task.chunks():
                assert bool(model(piece.inputs).isfinite().all())
        return Outcome(explanation.values.sum(-1))


def test_a_metric_that_waits_in_its_loop_is_caught():
    with pytest.raises(AssertionError):
        check_waits(Waiting())


@pytest.mark.parametrize("name", names(*READERS))
def test_no_metric_of_maps_loops_over_samples(name):
    metric = registry.make(name)
    few, many = seen(metric, task_of(4, rows=4096)), seen(metric, task_of(64, rows=4096))
    assert many.operations == few.operations


class Looping(Metric):
    """A metric that takes its samples one at a time."""

    name = "looping"

    def evaluate(self, task, explanation, context):
        return Outcome(torch.stack([row.sum() for row in explanation.values]))


def test_a_metric_that_loops_over_samples_is_caught():
    few, many = (seen(Looping(), task_of(samples)) for samples in (4, 64))
    assert many.operations > few.operations
