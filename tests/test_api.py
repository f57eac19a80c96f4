"""The verbs: explain, score, evaluate; every accepted form, shared work, failures, interruption."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.api import labelled
from veridical.core.key import Key
from veridical.errors import InputError, UnknownNameError, VeridicalWarning
from veridical.explainers import Explainer, Occlusion, Saliency, ShapleySampling, as_explainer
from veridical.explainers import registry as explainer_registry
from veridical.metrics import registry as metric_registry
from veridical.metrics.base import ExplainerMetric, Metric, Outcome
from veridical.metrics.complexity import Sparseness
from veridical.metrics.faithfulness import FaithfulnessCorrelation, PixelFlipping
from veridical.models.context import Context

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def task(**keywords: object) -> vd.Task:
    return vd.Task(mlp(), X, **keywords)


def absolute_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    inputs.requires_grad_(True)
    (slope,) = torch.autograd.grad(model(inputs).gather(1, targets[:, None]).sum(), inputs)
    return slope.abs()


# --- every accepted form ----------------------------------------------------------------------------------


def test_score_takes_an_explanation_in_every_form() -> None:
    t = task()
    e = vd.explain("saliency", t)
    expected = vd.score("pixel_flipping", t, e).values
    forms = [e.values, e.values.numpy(), "saliency", Saliency(), Saliency, absolute_gradient]
    for form in forms:
        torch.testing.assert_close(vd.score("pixel_flipping", t, form).values, expected)


def test_evaluate_takes_finished_maps_beside_explainers(tmp_path: Path) -> None:
    t = task()
    e = vd.explain("saliency", t)
    saved = vd.Explanation.load(e.save(tmp_path / "maps.safetensors"))
    forms = {"array": e.values.numpy(), "tensor": e.values, "own": e, "saved": saved}
    table = vd.evaluate(t, {**forms, "again": "saliency"}, ["pixel_flipping", "max_sensitivity", "fast_gef"])
    for form in forms:
        found, expected = table.scores[form, "pixel_flipping"], table.scores["again", "pixel_flipping"]
        torch.testing.assert_close(found.values, expected.values)
    told = [failure.message for failure in table.failures]
    assert len(told) == 2 * len(forms)
    assert all("explains again under noise" in message for message in told)
    assert ("again", "fast_gef") in table.scores
    alone = vd.evaluate(t, e.values.numpy(), "sparseness")
    assert list(alone.explanations) == ["given"]


def test_finished_maps_of_other_outputs_or_samples_are_told_apart() -> None:
    t = task()
    e = vd.explain("saliency", t)
    other = t.with_targets((t.targets + 1) % t.n_outputs)
    assert vd.evaluate(other, {"mine": e}, "pixel_flipping").scores["mine", "pixel_flipping"].flagged
    kept = vd.api.as_method(e, t)
    assert torch.equal(kept(t[torch.tensor([4, 1])]).values, e.values[[4, 1]])
    for elsewhere, said in ((other, "other outputs"), (t.with_inputs(t.inputs + 1).changed(), "")):
        if said:
            with pytest.raises(vd.errors.NotApplicableError, match=said):
                kept(elsewhere)
    with pytest.raises(vd.errors.NotApplicableError, match="another model"):
        kept(t.with_noise(0.1, Key(1)))


def test_values_that_are_drawn_several_times_have_error_bars(tmp_path: Path) -> None:
    t = task(train=X)
    exact = vd.explain("exact_shapley", t).values
    drawn = vd.explain("shapley_sampling", t, orders=4, repeats=30)
    low, high = drawn.interval(0.99)
    inside = ((low - 1e-6 <= exact) & (exact <= high + 1e-6)).double().mean()
    assert inside > 0.9
    once = vd.explain("shapley_sampling", t, orders=4)
    assert drawn.cost.forward > 20 * once.cost.forward
    assert drawn.inverted().error is None
    saved = vd.Explanation.load(drawn.save(tmp_path / "drawn.safetensors"))
    assert torch.equal(saved.interval(0.99)[0], low)
    assert torch.equal(drawn.take(slice(2, 4)).error, drawn.error[2:4])
    with pytest.raises(InputError, match="draw it several times"):
        once.interval()
    with pytest.raises(InputError, match="draws nothing here"):
        vd.explain("saliency", t, repeats=3)


def test_two_fills_are_compared() -> None:
    t = task(train=X)
    one = vd.evaluate(t, ["exact_shapley", "random"], ["pixel_flipping", "sparseness"])
    same = one.compare(one)
    assert same["tau"].tolist() == [1.0, 1.0]
    assert same["turned"].tolist() == ["", ""]
    swapped = vd.evaluate(t, {"exact_shapley": "random", "random": "exact_shapley"}, "pixel_flipping")
    found = one.compare(swapped).iloc[0]
    assert (found["best"], found["best there"], found["tau"]) == ("exact_shapley", "random", -1.0)
    assert found["turned"] == "exact_shapley and random"
    other = vd.evaluate(t.with_fill("mean"), ["exact_shapley", "random"], "pixel_flipping")
    assert other.compare(one)["metric"].tolist() == ["pixel_flipping"]


def test_score_takes_a_metric_in_every_form() -> None:
    t = task()
    expected = vd.score(PixelFlipping(steps=2), t, "saliency").values
    assert torch.equal(vd.score("pixel_flipping", t, "saliency", steps=2).values, expected)
    assert torch.equal(vd.score(PixelFlipping, t, "saliency", steps=2).values, expected)
    with pytest.raises(InputError, match=r"settings .'steps'. go with a metric's name"):
        vd.score(PixelFlipping(), t, "saliency", steps=2)
    with pytest.raises(InputError, match="a metric is a name or a Metric; got int"):
        vd.score(3, t, "saliency")


def test_explain_takes_an_explainer_in_every_form() -> None:
    t = task()
    expected = vd.explain("occlusion", t).values
    for form in (Occlusion(), Occlusion):
        assert torch.equal(vd.explain(form, t).values, expected)
    assert vd.explain("integrated_gradients", t, steps=3).cost.forward == 18
    with pytest.raises(InputError, match="go with an explainer's name or class"):
        vd.explain(Occlusion(), t, window=2)
    with pytest.raises(InputError, match=r"an explainer is a name.*got list"):
        vd.explain([1, 2], t)


def test_functions_get_key_and_side_inputs_only_if_they_name_them() -> None:
    seen: dict[str, object] = {}

    def asks(model: nn.Module, inputs: Tensor, targets: Tensor, key: Key, scale: Tensor) -> Tensor:
        seen.update(key=key, scale=scale)
        return inputs

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.inner(x) * scale[:, None]

    t = vd.Task(Scaled(), X, side={"scale": torch.arange(1.0, 7.0)})
    vd.explain(asks, t, seed=9)
    assert seen["key"].seed == 9
    assert torch.equal(seen["scale"], torch.arange(1.0, 7.0))
    vd.explain(lambda model, inputs, targets: inputs, t)


def test_a_function_draws_the_same_numbers_by_the_same_seed_and_disturbs_nobody() -> None:
    def draws(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.randn(inputs.shape) + torch.from_numpy(np.random.rand(*inputs.shape)).float()  # noqa: NPY002

    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (vd.explain(draws, task(), seed=seed).values for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_what_a_function_asks_is_counted() -> None:
    assert vd.explain(absolute_gradient, task()).cost == vd.models.Cost(6, 6)


def test_seeds_may_come_from_numpy() -> None:
    t = task()
    assert torch.equal(
        vd.explain("random", t, seed=np.int64(3)).values, vd.explain("random", t, seed=3).values
    )
    assert not torch.equal(vd.explain("random", t, seed=3).values, vd.explain("random", t, seed=4).values)
    scores = vd.score("faithfulness_correlation", t, "random", seed=np.int64(3))
    assert scores.provenance["seed"] == 3


def test_provenance_tells_how_a_score_came_about(tmp_path: Path) -> None:
    scores = vd.score("pixel_flipping", task(), "saliency", seed=5)
    assert scores.provenance["metric"]["name"] == "pixel_flipping"
    assert scores.provenance["explainer"]["name"] == "saliency"
    assert scores.provenance["seed"] == 5
    assert scores.provenance["plan"]["rows"] % 8 == 0
    assert vd.Scores.load(scores.save(tmp_path / "s")).provenance == scores.provenance


# --- the three promises for what there was first ------------------------------------------------------------

EXPLAINERS = ("gradient", "saliency", "input_x_gradient", "integrated_gradients", "occlusion", "random")
METRICS = (PixelFlipping(), FaithfulnessCorrelation(runs=8), Sparseness())


def results(t: vd.Task) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name in EXPLAINERS:
        e = vd.explain(name, t)
        out[name] = e.values.double()
        out |= {f"{name} {metric.name}": metric(t, e).values for metric in METRICS}
    return out


def wide_task(rows: int) -> vd.Task:
    torch.manual_seed(0)
    x = torch.randn(19, 4, dtype=torch.float64)
    return vd.Task(mlp().double(), x, train=x.flip(0), plan=vd.Plan(rows=rows))


@cache
def usual() -> dict[str, Tensor]:
    return results(wide_task(16))


def test_the_same_plan_gives_the_same_bits() -> None:
    first, second = usual(), results(wide_task(16))
    for name in first:
        assert torch.equal(first[name].nan_to_num(), second[name].nan_to_num()), name


@pytest.mark.parametrize("rows", [8, 64])
def test_other_plans_agree_to_nine_digits(rows: int) -> None:
    expected, got = usual(), results(wide_task(rows))
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, atol=1e-9, rtol=1e-9, equal_nan=True, msg=name)


def test_order_and_batch_do_not_matter() -> None:
    whole, expected = wide_task(16), usual()
    order = torch.randperm(19, generator=torch.Generator().manual_seed(1))
    shuffled = results(whole[order])
    pieces = [results(whole[piece]) for piece in order.split(7)]
    for name, value in expected.items():
        torch.testing.assert_close(shuffled[name], value[order], atol=1e-9, rtol=1e-9, equal_nan=True)
        joined = torch.cat([piece[name] for piece in pieces])
        torch.testing.assert_close(joined, value[order], atol=1e-9, rtol=1e-9, equal_nan=True)


# --- evaluate ---------------------------------------------------------------------------------------------


def test_each_explanation_is_made_once_and_serves_all_metrics() -> None:
    calls: list[int] = []

    def counted(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(len(inputs))
        return inputs

    table = vd.evaluate(
        task(), [counted, "saliency"], ["pixel_flipping", "sparseness", "faithfulness_correlation"]
    )
    assert calls == [6]
    assert table.explainers == ["counted", "saliency"]
    assert table.metrics == ["pixel_flipping", "sparseness", "faithfulness_correlation"]
    assert set(table.explanations) == {"counted", "saliency"}
    assert not table.failures
    single = vd.score("pixel_flipping", task(), "saliency")
    assert torch.equal(table["saliency", "pixel_flipping"].values, single.values)


def test_tables_as_frames() -> None:
    table = vd.evaluate(task(), ["saliency", "random"], ["pixel_flipping", "sparseness"], seed=2)
    frame = table.to_frame()
    assert len(frame) == 4
    assert {"explainer", "metric", "mean", "low", "high", "direction", "undefined", "forward"} <= set(frame)
    means = frame.set_index(["explainer", "metric"])["mean"]
    assert means["random", "sparseness"] == table["random", "sparseness"].mean()
    assert "pixel_flipping" in repr(table)
    assert "<table" in table._repr_html_()
    assert table.seed == 2


def test_failed_cells_are_kept_and_announced_and_the_others_go_on() -> None:
    def broken(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("no luck")

    @dataclass(frozen=True)
    class Picky(Metric):
        name: ClassVar[str] = "picky"

        def evaluate(self, task: vd.Task, explanation: vd.Explanation, context: Context) -> Outcome:
            raise ValueError("not this one")

    with pytest.warns(VeridicalWarning) as warned:
        table = vd.evaluate(task(), [broken, "saliency"], [Picky(), "sparseness"])
    messages = [str(w.message) for w in warned]
    assert "explainer 'broken' failed: no luck" in messages
    assert "metric 'picky' on 'saliency' failed: not this one" in messages
    assert set(table.scores) == {("saliency", "sparseness")}
    assert [(f.explainer, f.metric) for f in table.failures] == [("broken", None), ("saliency", "picky")]
    assert "no luck" in table.failures[0].traceback
    assert "2 cells failed" in repr(table)
    assert table.to_frame()["flags"].str.contains("failed: no luck").sum() == 1


def test_control_c_keeps_what_is_finished() -> None:
    def impatient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.warns(VeridicalWarning, match="interrupted; the finished cells are kept"):
        table = vd.evaluate(task(), ["saliency", impatient, "random"], ["sparseness"])
    assert table.interrupted
    assert set(table.scores) == {("saliency", "sparseness")}
    assert "interrupted" in repr(table)
    with pytest.warns(VeridicalWarning):
        nothing = vd.evaluate(task(), [impatient], ["sparseness"])
    assert "interrupted" in repr(nothing)


def test_labels_tell_duplicates_apart_or_are_the_callers() -> None:
    table = vd.evaluate(task(), ["occlusion", Occlusion(window=1, stride=1), "occlusion"], ["sparseness"])
    assert table.explainers == ["occlusion", "occlusion 2", "occlusion 3"]
    named = vd.evaluate(task(), {"mine": "saliency"}, {"gini": "sparseness"})
    assert set(named.scores) == {("mine", "gini")}
    assert set(vd.evaluate(task(), "saliency", Sparseness()).scores) == {("saliency", "sparseness")}
    assert list(labelled([Saliency, "saliency"], as_explainer)) == ["saliency", "saliency 2"]
    with pytest.raises(InputError, match="at least one explainer and one metric"):
        vd.evaluate(task(), [], ["sparseness"])
    with pytest.raises(UnknownNameError, match="did you mean 'saliency'"):
        vd.evaluate(task(), ["salienci"], ["sparseness"])


def test_progress_is_silent_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    vd.evaluate(task(), ["random"], ["sparseness"])
    assert capsys.readouterr() == ("", "")
    vd.evaluate(task(), ["random"], ["sparseness"], progress=True)
    assert capsys.readouterr().out == ""


# --- names ------------------------------------------------------------------------------------------------


@pytest.fixture
def clean_registries() -> Iterator[None]:
    # all of ours are known before: a file that is imported in a test registers its names once
    before = [(r, {name: r.maker(name) for name in r}) for r in (explainer_registry, metric_registry)]
    yield
    for registry, makers in before:
        registry.makers = makers


@pytest.mark.usefixtures("clean_registries")
def test_register_makes_a_users_classes_known_by_name() -> None:
    @vd.register
    @dataclass(frozen=True)
    class Ones(Explainer):
        name: ClassVar[str] = "ones"
        summary: ClassVar[str] = "all alike"

        def attribute(self, task: vd.Task, context: Context) -> Tensor:
            return torch.ones(len(task), task.space.n_features)

    @vd.register
    @dataclass(frozen=True)
    class Largest(Metric):
        name: ClassVar[str] = "largest"

        def evaluate(self, task: vd.Task, explanation: vd.Explanation, context: Context) -> Outcome:
            return Outcome(explanation.values.amax(-1))

    assert "all alike" in vd.list_explainers()["ones"]
    assert "largest" in vd.list_metrics()
    assert vd.score("largest", task(), "ones").values.tolist() == [1.0] * 6
    assert "ones" in vd.explainers.applicable(task())
    with pytest.raises(InputError, match="register takes a subclass"):
        vd.register(int)


def test_catalogues_say_on_what_each_applies() -> None:
    assert set(EXPLAINERS) <= set(vd.list_explainers())
    assert {"pixel_flipping", "faithfulness_correlation", "sparseness"} <= set(vd.list_metrics())
    assert "[" in vd.list_metrics()["pixel_flipping"]
    assert "image" in vd.list_explainers()["saliency"]


def test_metrics_of_methods_ask_for_the_method() -> None:
    @dataclass(frozen=True)
    class Twice(ExplainerMetric):
        name: ClassVar[str] = "twice"

        def evaluate(self, task: vd.Task, explainer: Explainer, context: Context) -> Outcome:
            return Outcome(
                (explainer(task, context.key).values - explainer(task, context.key / 1).values).abs().sum(-1)
            )

    assert vd.score(Twice(), task(), "saliency").values.tolist() == [0.0] * 6
    assert bool((vd.score(Twice(), task(), "random").values > 0).all())
    with pytest.raises(InputError, match="'twice' explains again under noise: give it the explainer"):
        vd.score(Twice(), task(), torch.rand(6, 4))
    table = vd.evaluate(task(), ["saliency"], [Twice(), "sparseness"])
    assert len(table.scores) == 2


@pytest.mark.parametrize("metric", ["pixel_flipping", "qge:pixel_flipping", "completeness", "infidelity"])
def test_a_map_of_another_output_is_flagged(metric: str) -> None:
    task = vd.Task(torch.nn.Linear(4, 3), torch.eye(4)[:3], fill=0.0).with_targets([0, 1, 2])
    maps = vd.explain("gradient", task)
    there = [reason for reason in vd.score(metric, task, maps).flagged if "another output" in reason]
    other = vd.score(metric, task.with_targets([0, 2, 1]), maps)
    assert not there
    assert other.flags[vd.api.OTHER_OUTPUT].tolist() == [False, True, True]
    assert vd.api.OTHER_OUTPUT in vd.score(metric, task.with_targets([0, 2, 1]), maps, repeats=2).flags
    alike = vd.score(metric, task.with_targets([0, 1, 2]), maps)  # the same outputs, said anew
    assert vd.api.OTHER_OUTPUT not in alike.flags


def test_maps_that_no_output_is_asked_about_are_not_flagged() -> None:
    task = vd.Task(torch.nn.Linear(4, 3), torch.eye(4)[:3], fill=0.0).with_targets([0, 1, 2])
    maps = vd.explain("gradient", task)
    assert not vd.score("sparseness", task.with_targets([0, 2, 1]), maps).flagged


def test_large_integers_in_a_map_do_not_tie() -> None:
    task = vd.Task(torch.nn.Linear(4, 3), torch.eye(4)[:2], fill=0.0)
    maps = torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3]])
    large = vd.explain(maps + 2**24, task)
    assert large.ranks.equal(vd.explain(maps, task).ranks)
    assert not large.has_ties


# --- where warnings point -------------------------------------------------------------------


def test_warnings_point_at_the_callers_line() -> None:
    def broken(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("no map")

    with pytest.warns(VeridicalWarning, match="no map") as said:
        vd.evaluate(task(), {"broken": broken, "saliency": "saliency"}, "sparseness")
    with pytest.warns(VeridicalWarning, match="one output") as of_task:
        vd.Task(nn.Linear(4, 1), X)
    assert {note.filename for note in [*said, *of_task]} == {__file__}


# --- many rows are said first ---------------------------------------------------------------


class Rows(nn.Module):
    """A linear model that counts its rows; the number is that of all rows of the process."""

    seen = 0

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        Rows.seen += len(x)
        return self.layer(x)


MANY: dict[str, tuple[object, str]] = {
    "explain": (
        lambda t: vd.explain("shapley_sampling", t),
        r"'shapley_sampling' .* \(orders=10\).*Marginal",
    ),
    "by gradients": (
        lambda t: vd.explain("smoothgrad", t, samples=3000),
        r"3,000 for each of 40.*samples=3000",
    ),
    "score": (lambda t: vd.score("pixel_flipping", t, "random"), r"40 samples under 30 masks, each with 100"),
    "score an explainer": (lambda t: vd.score("max_sensitivity", t[:3], "lime", draws=1), r"'lime' 51,100"),
    "evaluate": (
        lambda t: vd.evaluate(t[:2], ["occlusion", "rise", "lime", "gradient"], "sparseness"),
        r"maps of 4 explainers, 102,400 of them '(rise|lime)' 51,200 for each of 2",
    ),
}


@pytest.mark.parametrize("call", MANY)
def test_many_rows_are_said_before_they_are_evaluated_and_once(call: str, monkeypatch) -> None:
    rows = torch.randn(140, 30, generator=torch.Generator().manual_seed(0))
    table = vd.Task(Rows(30), rows[:40], train=rows[40:])
    run, words = MANY[call]
    _ = table.outputs
    said = []

    def warned(message: str) -> None:
        if "rows of the model" in message:
            said.append((message, Rows.seen - before))

    monkeypatch.setattr("veridical.models.context.warn", warned)
    before = Rows.seen
    run(table)
    assert len(said) == 1
    assert re.search(words, said[0][0])
    assert said[0][1] < 1000
    assert Rows.seen - before > 100_000


def test_few_rows_and_calls_by_hand_say_nothing(recwarn) -> None:
    rows = torch.randn(140, 30, generator=torch.Generator().manual_seed(0))
    table = vd.Task(Rows(30), rows[:40], train=rows[40:])
    vd.explain("shapley_sampling", table[:3])
    ShapleySampling()(table, Key(0))
    assert not [note for note in recwarn if "rows of the model" in str(note.message)]
