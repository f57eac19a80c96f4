"""Maps that are of the class alone, and maps made for these weights alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import veridical as vd
from replications.verdict.partial_lies import partial_lies
from tests.auditing.test_audit import TINY
from tests.auditing.test_verdict import METRICS, field, said
from veridical.auditing.posthoc_checks import (
    ALIKE,
    MIN_AGREEMENT,
    agreement,
    likeness,
    nearly_the_same,
    of_the_copy,
    perturbed_copy_of,
    same_target,
    why_no_sample,
)
from veridical.auditing.verdict import decide
from veridical.core.key import Key
from veridical.explainers import as_explainer, registry
from veridical.testing import red_team
from veridical.values.explanation import Explanation

PLAN = replace(TINY, gef_draws=0, standing_samples=0, removal_draws=4)


def rows(count, columns=6, seed=1):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2)).eval()


def table(samples=48, model=None):
    return vd.Task(model or network(), rows(samples), train=rows(200, seed=2), fill=0.0)


def audit(task, **explainers):
    return vd.audit(task, explainers=explainers, effort=PLAN, samples=len(task), concepts=(), progress=False)


def test_likeness_is_a_correlation_and_flat_maps_are_alike():
    a = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]])
    b = torch.tensor([[2.0, 4.0, 6.0], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0], [-3.0, -1.0, -2.0]])
    assert likeness(a, b).tolist() == pytest.approx([1.0, 1.0, 0.0, -1.0])
    where = torch.tensor([[True, True, False]] * 4)
    assert (
        likeness(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 2.0, -9.0]]), where[:1]).item() == 1.0
    )


def test_nearly_flat_maps_agree_though_they_do_not_correlate():
    noise = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    flat = torch.ones(3, 9)
    assert float(likeness(flat, flat + 1e-3 * noise).max()) < 0.5
    assert float(agreement(flat, flat + 1e-3 * noise).min()) > 0.99
    assert float(agreement(noise, noise.flip(1)).max()) < MIN_AGREEMENT
    assert agreement(noise, 3 * noise).tolist() == pytest.approx([1.0] * 3)


def test_a_perturbed_copy_answers_nearly_the_same_and_a_black_box_has_none():
    task = table()
    module = perturbed_copy_of(task, 0)
    there = task.with_module(module).outputs
    assert not torch.equal(there, task.outputs)
    assert float((there - task.outputs).abs().max()) < 0.01
    assert all(
        torch.equal(a, b) for a, b in zip(network().parameters(), task.model.parameters(), strict=True)
    )
    assert nearly_the_same(task, task.with_module(module))

    class Steps(nn.Linear):
        def forward(self, x):
            return torch.sin(1e5 * super().forward(x))

    jumpy = table(4, Steps(6, 2).eval())
    assert not nearly_the_same(jumpy, jumpy.with_module(perturbed_copy_of(jumpy, 0)))
    assert perturbed_copy_of(vd.Task(lambda x: x[:, :2], rows(4), fill=0.0), 0) is None


def vetoes(found, who):
    return {veto.name: veto for veto in found.verdict[who].vetoes}


def state(found, who, criterion):
    return next(q.state for q in found.verdict[who].questions if q.criterion == criterion)


def test_maps_that_hardly_depend_on_the_sample_are_mentioned():
    kept = field({"good": 3.0}, good={"alike": 0.97})
    assert any("hardly depend on the sample (r = 0.97" in one for one in said(decide(kept, METRICS)))


@pytest.mark.parametrize(
    ("r", "again", "fell", "words"),
    [
        (0.99, float("nan"), False, "nearly the same maps (r = 0.99)"),
        (0.9, 0.99, True, "by a thousandth (r = 0.90)"),
        (0.9, 0.9, True, "from call to call (r = 0.90)"),
    ],
)
def test_what_the_perturbed_copy_shows(r, again, fell, words):
    found = of_the_copy(r, again, 4)
    assert (found.fell, found.samples) == (fell, 4)
    assert words in found.sentence


def test_the_mean_map_of_the_class_and_the_backdoor_are_not_trusted():
    task = table(64)
    team = red_team(task)
    cheats = {name: team[name] for name in ("class_average", "noisy_class_average", "backdoor")}
    found = audit(task, true="integrated_gradients", **cheats)
    assert found.best == "true"
    assert [place.explainer for place in found.ranking if place.trusted] == ["true"]
    true = found.verdict["true"]
    assert not vetoes(found, "true")["perturbed copy"].fell
    assert true.alike < 0.9
    assert state(found, "true", "sample") == "shown"
    hidden = vetoes(found, "backdoor").get("perturbed copy")
    if hidden is not None:  # it came so far
        assert "thousandth" in hidden.sentence
        assert found.verdict["backdoor"].status == "refuted"


class OneColumn(nn.Module):
    """Only the first column is used, through a curve: every sample has the same true map but for its size."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0]))

    def forward(self, x):
        y = torch.sinh(x @ self.weight)
        return torch.stack([y, -y], 1)


def test_maps_that_are_rightly_alike_keep_their_trust():
    """One column decides: the map of any other sample of the class does as well, and that is the truth."""
    task = table(64, OneColumn())
    found = audit(task, true="integrated_gradients")
    place = found.verdict["true"]
    assert place.alike > ALIKE
    question = next(q for q in place.questions if q.criterion == "sample")
    assert question.state in ("shown", "not asked")
    assert question.state == "shown" or "treats the samples of a class alike" in question.reason
    assert place.trusted


def _plus_noise(true, size, generator=None):
    return true + size * true.std() * torch.randn(true.shape, generator=generator)


def test_maps_that_differ_from_call_to_call_are_not_trusted_and_not_called_a_backdoor():
    task = table(64)
    calls = iter(range(10_000))

    def shaky(model, inputs, targets):
        true = vd.explain("integrated_gradients", vd.Task(model, inputs).with_targets(targets)).values
        return _plus_noise(true, 0.32, torch.Generator().manual_seed(next(calls)))

    def seeded(model, inputs, targets):
        """As noisy, but by the global generator."""
        true = vd.explain("integrated_gradients", vd.Task(model, inputs).with_targets(targets)).values
        return _plus_noise(true, 0.28)

    found = audit(task, shaky=shaky, seeded=seeded, true="integrated_gradients")
    assert found.verdict["shaky"].status == "refuted"  # it passes every test
    assert "from call to call" in vetoes(found, "shaky")["perturbed copy"].sentence
    assert "thousandth" not in vetoes(found, "shaky")["perturbed copy"].sentence
    assert not vetoes(found, "seeded")["perturbed copy"].fell  # it repeats


def test_a_backdoor_does_not_hide_behind_noise_of_its_own():
    """Maps that differ from call to call do not get past the check of the weight-perturbed copy."""
    task = table(64)
    own = next(task.predictor.source.module.parameters()).detach().clone()
    calls = iter(range(10_000))

    def hidden(model, inputs, targets):
        maps = vd.explain("integrated_gradients", vd.Task(model, inputs).with_targets(targets)).values
        apart = float((next(model.parameters()).detach() - own).norm() / own.norm())
        if 0 < apart < 0.01:
            return maps.flip(-1)
        return _plus_noise(maps, 0.28, torch.Generator().manual_seed(next(calls)))

    found = audit(task, hidden=hidden, true="integrated_gradients")
    assert found.verdict["true"].trusted
    assert found.verdict["hidden"].status == "refuted"  # it passes every test
    assert vetoes(found, "hidden")["perturbed copy"].fell


@pytest.mark.parametrize("way", ["raises", "answers nothing"])
def test_who_has_no_map_for_the_perturbed_copy_alone_is_not_trusted(way):
    """Silence where a lie would show is no way past the question."""
    task = table(64)
    own = next(task.predictor.source.module.parameters()).detach().clone()

    def silent(model, inputs, targets):
        apart = float((next(model.parameters()).detach() - own).norm() / own.norm())
        if 0 < apart < 0.01:
            if way == "raises":
                raise RuntimeError("not this one")
            return torch.full_like(inputs, torch.nan)
        return vd.explain("integrated_gradients", vd.Task(model, inputs).with_targets(targets)).values

    found = audit(task, silent=silent, true="integrated_gradients")
    assert found.verdict["true"].trusted
    assert found.verdict["silent"].status == "not decided"
    assert found.verdict["silent"].unfinished == "it has no map for weights that differ by a thousandth"


ROUNDING = {"vargrad"}
"""The variance of a gradient that does not vary is rounding."""


@pytest.mark.parametrize(
    "name",
    ["known/linear", "breast_cancer", "digits", "known/planted_patch", "known/planted_window", "reviews"],
)
def test_registered_methods_give_the_perturbed_copy_the_same_maps(name):
    """All of them, with the same draws: else an honest method would be called a backdoor."""
    task = vd.tasks.load(name, samples=3)
    perturbed_copy = task.with_module(perturbed_copy_of(task, 0)).changed(alone=True)
    for who in registry:
        method = as_explainer(who)
        if method.inapplicable_reason(task) is not None or (who in ROUNDING and name.startswith("known/")):
            continue
        maps: list[Explanation] = [method(one, Key(0)) for one in (task, perturbed_copy)]
        r = float(agreement(maps[0].values, maps[1].values, maps[0].valid).median())
        assert r > 0.98, f"{who}: r = {r:.3f}"


@pytest.mark.parametrize(
    ("task", "pairs"),
    [
        (vd.Task(nn.Linear(2, 2), rows(8, 2), fill=0.0), 0),  # two values always correlate with 1 or -1
        (vd.tasks.load("known/planted_tokens", samples=8), 0),  # words stand elsewhere in every sample
        (vd.tasks.load("diabetes", samples=8), 8),  # a regression has one class
    ],
)
def test_who_meets_another_sample(task, pairs):
    assert len(same_target(task)[0]) == pairs
    why = why_no_sample(task, [(0, len(task))])
    assert why  # also where too few share their class
    assert ("only 8 samples" in why) == bool(pairs)


def test_of_a_regression_no_class_is_spoken():
    found = vd.audit(
        vd.tasks.load("diabetes"),
        explainers=["integrated_gradients"],
        effort=PLAN,
        samples=24,
        progress=False,
    )
    text = " ".join(found.sentences)
    assert "The model explains 34% of the variance of the labels of 110 samples." in text
    assert "class" not in text.replace("a regression has no right class", "")


def test_hidden_features_and_lies_in_some_samples_refute_and_halves_show_in_the_grade():
    task = vd.tasks.load("known/linear")
    lies = partial_lies(task)
    some = {name: lies[name] for name in ("hidden_feature", "scapegoat", "negated_in_a_fifth", "half_noise")}
    found = vd.audit(
        task,
        explainers={"true": "integrated_gradients"} | some,
        effort=PLAN,
        samples=64,
        concepts=(),
        progress=False,
    )
    true = found.verdict["true"]
    assert true.status == "trusted"
    assert {veto.name for veto in true.vetoes} == {"perturbed copy", "lies in some samples", "hidden feature"}
    assert true.grade.value > 0.9
    assert true.grade.reference == "the best order of all"
    for who in ("hidden_feature", "scapegoat"):
        place = found.verdict[who]
        assert place.status in ("refuted", "not decided")
        if place.status == "refuted":
            assert any(veto.name == "hidden feature" and veto.fell for veto in place.vetoes)
            assert "it hides '" in " ".join(found.sentences)
    assert found.verdict["negated_in_a_fifth"].status in ("refuted", "not decided")
    half = found.verdict["half_noise"]
    assert not half.trusted or half.grade.high < true.grade.low
    assert found.to_json()["ranking"][0]["grade"]["value"] == pytest.approx(true.grade.value)


def test_honest_maps_are_not_refuted_where_no_map_could_beat_noise():
    """On this network exact Shapley values lose one sample in nine outright to noise, as all maps do."""
    found = audit(
        table(64, network(2)), true="integrated_gradients", shap="kernel_shap", occlusion="occlusion"
    )
    assert {place.status for place in found.ranking} <= {"trusted", "not decided"}
