"""Other models: how copies are made, when they are refused, and which cheats they call out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.base import clone
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import veridical as vd
from tests.auditing.test_audit import TINY
from veridical.auditing import model_randomisation as test
from veridical.auditing.evidence import Grid, units
from veridical.auditing.model_randomisation import (
    COPIES,
    GAP,
    given_models,
    on,
    other_models,
    pairings,
    randomisation_jobs,
    randomisation_units,
    size_jobs,
)
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import as_explainer
from veridical.metrics import registry
from veridical.models.randomised_layers import estimate_batch_norm, reinitialised
from veridical.testing import red_team


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def task(samples=24, model=None):
    x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
    return vd.Task((model or net()).eval(), x, fill=0.0)


class Own(nn.Module):
    """A parameter of its own beside a layer that knows how to begin."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.arange(18.0).reshape(6, 3))
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x @ self.weight)


def test_layers_are_drawn_anew_and_other_parameters_permuted():
    before = Own()
    after = reinitialised(Own(), Key(0))
    assert not torch.equal(before.layer.weight, after.layer.weight)
    assert after.layer.weight.abs().max() <= 3**-0.5
    assert not torch.equal(before.weight, after.weight)
    assert sorted(after.weight.flatten().tolist()) == sorted(before.weight.flatten().tolist())
    again = reinitialised(Own(), Key(0))
    assert torch.equal(after.weight, again.weight)
    assert not torch.equal(reinitialised(Own(), Key(1)).weight, after.weight)


def test_batch_normalisation_takes_the_rows_statistics():
    rows = 3 + 2 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    estimate_batch_norm(model, rows)
    torch.testing.assert_close(model[0].running_mean, rows.mean(0))
    torch.testing.assert_close(model[0].running_var, rows.var(0))
    assert not model[0].training
    assert model[0].momentum == 0.1


def test_copies_leave_the_model_alone_and_differ_from_each_other():
    given = task()
    before = [p.clone() for p in given.model.parameters()]
    copies, note = other_models(given, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, given.model.parameters(), strict=True))
    assert copies.kind == "re-initialised"
    assert note == ""
    answers = [on(given, module).outputs for module in copies.modules]
    assert len({float(a.sum()) for a in answers} | {float(given.outputs.sum())}) == COPIES + 1
    for module, factor in zip(copies.modules, copies.factors, strict=True):
        first, second = on(given, module, factor).outputs.topk(2, -1).values.unbind(-1)
        assert float((first - second).median()) == pytest.approx(GAP, rel=1e-4)


def test_a_copy_that_no_mask_moves_gives_way_to_noise():
    class Still(nn.Linear):
        def reset_parameters(self):
            nn.init.zeros_(self.weight)
            nn.init.ones_(self.bias)

    model = Still(6, 3)
    with torch.no_grad():
        model.weight.copy_(torch.randn(3, 6, generator=torch.Generator().manual_seed(0)))
    copies, note = other_models(task(model=model), 0)
    assert copies.kind == "noisy"
    assert "masking everything leaves the output" in note
    with torch.no_grad():
        model.weight.zero_()
    nothing, why = other_models(task(model=model), 0)
    assert nothing is None
    assert "neither re-initialised nor noisy" in why


class Sum(nn.Module):
    """Equal weights: permuted they are what they were."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = x @ self.weight
        return torch.stack([y, -y], 1)


def test_a_copy_that_is_the_model_is_none():
    copies, note = other_models(task(model=Sum()), 0)
    assert copies.kind == "noisy"
    assert "outputs of a copy are those of the model in 100% of the samples" in note
    with pytest.raises(InputError, match=r"model 0 of others .* are those of the model"):
        given_models(task(model=Sum()), [Sum()])
    found = vd.audit(task(40, Sum()), explainers=["exact_shapley"], effort=TINY, concepts=(), progress=False)
    assert found.verdict["exact_shapley"].status == "trusted"


class Buffered(nn.Module):
    """What it has learnt is a temperature alone: any other one gives the same answers, larger or smaller."""

    def __init__(self):
        super().__init__()
        self.register_buffer("coefficients", torch.tensor([2.0, -1.5, 1.0, 1.0, -0.5, 0.5]))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        y = self.temperature * (x @ self.coefficients)
        return torch.stack([y, -y], 1)


class OneColumn(nn.Module):
    """One weight is not 0: one permuted copy in six is the model."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0, 0.0]))

    def forward(self, x):
        y = x @ self.weight + 0.5 * x.prod(1)
        return torch.stack([y, -y], 1)


def test_copies_that_go_with_the_model_are_no_other_models():
    given = task(model=Buffered())
    nothing, why = other_models(given, 0)
    assert nothing is None
    assert "1.00 over samples" in why
    found = vd.audit(task(40, Buffered()), explainers=["exact_shapley"], effort=TINY, progress=False)
    assert found.verdict["exact_shapley"].status == "provisional"
    for factor in (2, -2):  # of the opposite sign the same features matter
        with pytest.raises(InputError, match=rf"model 0 of others .*r = {factor / 2:.2f} over samples"):
            given_models(given, [lambda x, factor=factor: factor * given.model(x)])


def test_copies_are_drawn_until_four_are_other_models():
    given = task(40, OneColumn())
    for seed in range(4):
        copies, note = other_models(given, seed)
        assert (copies.kind, note) == ("re-initialised", "")
        assert all(int(module.weight.argmax()) != 0 for module in copies.modules)
    found = vd.audit(given, explainers=["exact_shapley"], effort=TINY, progress=False)
    assert found.verdict["exact_shapley"].status == "trusted"


def test_a_test_that_could_not_be_run_is_no_finding():
    """A method bound to one model has no maps of copies: that is said, and not held against it."""
    given = task(40)
    weights = [p.detach().clone() for p in given.model.parameters()]

    def bound(model, inputs, targets):
        if not all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True)):
            raise RuntimeError("bound to its own model")
        return vd.explain("input_x_gradient", vd.Task(model, inputs, targets=targets, fill=0.0)).values

    with pytest.warns(vd.errors.VeridicalWarning, match="bound to its own model"):
        found = vd.audit(given, explainers={"bound": bound}, effort=TINY, concepts=(), progress=False)
    assert found.verdict["bound"].status == "not decided"
    assert any(
        "the model randomisation test could not be run: bound to its own model" in one
        for one in found.sentences
    )
    assert not any("Do not" in one for one in found.sentences)


def test_models_without_weights_have_no_copies():
    rows = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    tree = DecisionTreeClassifier(random_state=0).fit(rows.numpy(), (rows[:, 0] > 0).numpy())
    for black in (tree, lambda x: torch.stack([x.sum(1), -x.sum(1)], 1)):
        copies, why = other_models(vd.Task(black, rows, fill=0.0), 0)
        assert copies is None
        assert "no weights" in why


def test_every_sample_meets_the_copy_of_its_number():
    given = task(10)
    copies, _ = other_models(given, 0)
    found = pairings(given[4:], 4, copies)
    assert {pair.copy: (pair.rows + 4).tolist() for pair in found} == {0: [4, 8], 1: [5, 9], 2: [6], 3: [7]}
    for pair in found:
        assert torch.equal(pair.theirs.targets, pair.theirs.outputs.argmax(1))
        assert torch.equal(pair.mine.targets, given[4:][pair.rows].targets)


def test_units_are_those_of_maps_made_one_by_one():
    """Against the long way: every map made and scored by itself, for the class its own model predicts."""
    from veridical.auditing.jobs import carry_out

    given = task(40)
    copies, _ = other_models(given, 0)
    pairs = pairings(given, 0, copies)
    explainer, metrics = as_explainer("lime", draws=40), {"flip": registry.make("pixel_flipping")}

    def scored(explained, on, who=explainer):
        made = carry_out(test.Job("x", who, metrics, explained, on, ""), 0)
        return test.sample_scores([made], [len(on)], metrics)

    def wins(first, other):
        each = [units(first(pair), [other(pair)], Grid.of(given)) for pair in pairs]
        return torch.cat(each)[torch.cat([pair.rows for pair in pairs]).argsort()]

    own = scored(given, given)
    jobs = randomisation_jobs("x", explainer, metrics, pairs, "", explainer(given, Key(0)))
    bare = [carry_out(job, 0) for job in size_jobs(metrics, pairs, "")]
    found = randomisation_units(
        own, pairs, [carry_out(job, 0) for job in jobs], bare, list(metrics), Grid.of(given)
    )
    there = wins(lambda p: scored(p.theirs, p.theirs), lambda p: scored(p.mine, p.theirs))
    size = as_explainer("input_magnitude")
    assert torch.equal(found[0], wins(lambda p: own.take(p.rows), lambda p: scored(p.theirs, p.mine)))
    assert torch.equal(found[1], there)
    sizes = wins(lambda p: scored(p.theirs, p.theirs), lambda p: scored(p.theirs, p.theirs, size))
    assert torch.equal(found[2], sizes)


def rates(given, explainer, metrics=("pixel_flipping",)):
    """The three win rates of the test."""
    from veridical.auditing.jobs import carry_out
    from veridical.qge import QGE

    explainer = as_explainer(explainer)
    scoring = {name: QGE(registry.make(name)) for name in metrics}
    copies, _ = other_models(given, 0)
    pairs = pairings(given, 0, copies)
    made = explainer(given, Key(0))
    jobs = randomisation_jobs("x", explainer, scoring, pairs, "here", made)
    done = [carry_out(job, 0) for job in jobs]
    own = test.sample_scores(
        [carry_out(test.Job("x", explainer, scoring, given, given, "own"), 0)], [len(given)], scoring
    )
    bare = [carry_out(job, 0) for job in size_jobs(scoring, pairs, "here")]
    return [
        float(won.mean())
        for won in randomisation_units(own, pairs, done, bare, list(scoring), Grid.of(given))
    ]


def test_a_true_method_wins_and_a_map_of_the_input_ties():
    given = task(48)
    found = rates(given, "input_x_gradient")
    assert min(found[:2]) > 0.7
    assert found[2] > 0.55  # six columns, of which a network with fresh weights uses all
    assert rates(given, "input_magnitude") == [0.5] * 3


def test_a_map_that_falls_apart_loses_on_the_other_model():
    """Right about the model it knows, noise about every other: it wins one half and not the other."""
    given = task(48)
    known = {
        int(i): row for i, row in zip(given.ids, vd.explain("input_x_gradient", given).values, strict=True)
    }
    home = given.outputs

    def graded(model, inputs, targets):
        ours = torch.stack([known[i] for i in identify(inputs)])
        same = torch.isclose(model(inputs), home[identify(inputs)], atol=1e-4).all(1)
        noise = torch.randn(ours.shape, generator=torch.Generator().manual_seed(4))
        return torch.where(same[:, None], ours, noise)

    def identify(inputs):
        return [int((given.inputs == row).all(1).nonzero()) for row in inputs]

    found = rates(given, graded)
    assert found[0] > 0.8
    assert min(found[1:]) < 0.65


def test_bad_maps_for_other_classes_win_nothing():
    """A map that is spoilt for classes a model does not predict meets what is made for those it does."""
    given = task(48)

    def spoilt(model, inputs, targets):
        good = (model(inputs).argmax(1) == targets)[:, None]
        return torch.where(good, inputs.abs(), -inputs.abs())

    assert rates(given, spoilt)[:2] == [0.5, 0.5]


def test_a_map_that_knows_what_untrained_models_look_at_is_no_better_than_that():
    """One map for the model it knows, the size of the input for all others: it wins all but the last test."""
    given = task(96)
    home = vd.explain("input_x_gradient", given).values.abs().mean(0)

    def knowing(model, inputs, targets):
        first = int((given.inputs == inputs[0]).all(1).nonzero())
        trained = torch.allclose(model(inputs[:1]), given.outputs[first], atol=1e-4)
        return inputs.abs() * home if trained else inputs.abs()

    found = rates(given, knowing)
    assert found[1] > 0.5
    assert found[2] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_cancer", "known/planted_patch"])
def test_no_cheat_is_trusted(name):
    given = vd.tasks.load(name)
    honest = {"occlusion": "occlusion", "integrated_gradients": "integrated_gradients"}
    found = vd.audit(given, explainers={**honest, **red_team(given)}, effort=TINY, samples=64, concepts=())
    assert {p.explainer for p in found.ranking if p.trusted} == set(honest)


def test_models_that_the_caller_trained_take_the_place_of_copies():
    """A black box cannot be copied with other weights; models trained on shuffled labels can be given."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, labels = load_breast_cancer(return_X_y=True)
    rows, shuffled = rows[:, :6], np.random.default_rng(0)
    kind = HistGradientBoostingClassifier(max_iter=20, random_state=0)
    others = [clone(kind).fit(rows[:300], shuffled.permutation(labels[:300])) for _ in range(2)]
    task = vd.Task(clone(kind).fit(rows[:300], labels[:300]), rows[300:340], train=rows[:300])
    methods = {"exact": "exact_shapley", "size": lambda model, inputs, targets: inputs.abs()}
    plan = replace(TINY, gef_draws=0, standing_samples=0)
    alone = vd.audit(task, explainers=methods, effort=plan, concepts=())
    found = vd.audit(task, explainers=methods, effort=plan, concepts=(), others=others)
    assert alone.verdict["exact"].status == "provisional"
    assert found.verdict["exact"].status == "trusted"
    assert "randomisation" not in found.verdict.absent
    assert found.verdict["size"].status == "not decided"
    with pytest.raises(InputError, match="others is a list of models"):
        vd.audit(task, explainers=methods, effort=plan, others=[])
    with pytest.raises(InputError, match="model 0 of others cannot distinguish maps: masking everything"):
        vd.audit(task, explainers=methods, effort=plan, others=[lambda x: 0 * x[:, :2]])
