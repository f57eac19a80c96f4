"""Each cheat exists where it can, keeps an explainer's promises, and cheats in the way it says."""

import pytest
import torch

import veridical as vd
from veridical.errors import UnknownNameError
from veridical.explainers import as_explainer
from veridical.testing import (
    MODALITIES,
    RedTeamMember,
    check_explainer,
    red_team,
    tiny_task,
)
from veridical.testing.red_team import CHEATS, unusual, weight_of_evidence
from veridical.values.task import Task

EVERYWHERE = {"moving_noise", "input_hash", "negated", "other_class", "constant", "label_leak"}
LEARNT = {"naive_bayes", "moving_template", "graded_template", "two_faced", "sceptic", "chameleon"}


def labelled(kind: str, samples: int = 9) -> Task:
    """A tiny task whose reference rows have labels."""
    task = tiny_task(kind, samples)
    rows = tiny_task(kind, 24).inputs if task.train is None else task.train
    labels = torch.arange(len(rows)) % task.n_outputs
    side = tiny_task(kind, 24).side if task.train is None else ()
    return Task(
        task.predictor.source.module,
        task.inputs,
        side=task.side,
        space=task.space,
        fill=task.fill,
        train=(rows, labels),
        train_side=side,
        ids=task.ids,
    )


def maps(cheat: str, task: Task) -> torch.Tensor:
    return RedTeamMember(cheat=cheat)(task).values.double()


@pytest.mark.parametrize("kind", MODALITIES)
def test_who_can_exist_where(kind: str) -> None:
    team = set(red_team(labelled(kind)))
    assert team >= EVERYWHERE | LEARNT | {"input_copy"}
    assert ("edges" in team) == (kind in ("image", "series"))
    assert ("class_template" in team) == (kind != "text")
    assert ("class_average" in team) == (kind in ("image", "table"))  # others have places of their own
    assert set(red_team(tiny_task(kind))) & LEARNT == set()
    assert "labelled reference rows" in str(
        RedTeamMember(cheat="sceptic").inapplicable_reason(tiny_task(kind))
    )


@pytest.mark.parametrize("kind", MODALITIES)
@pytest.mark.parametrize("cheat", sorted(EVERYWHERE | {"edges", "input_copy"}))
def test_they_keep_the_promises_of_explainers(cheat: str, kind: str) -> None:
    if cheat != "input_hash" or kind in ("image", "table"):  # it reads the padding too
        check_explainer(RedTeamMember(cheat=cheat), kind)


@pytest.mark.parametrize("kind", MODALITIES)
@pytest.mark.parametrize("cheat", sorted(LEARNT | {"class_template"}))
def test_learnt_cheats_do_not_depend_on_the_batch(cheat: str, kind: str) -> None:
    task = labelled(kind)
    if RedTeamMember(cheat=cheat).inapplicable_reason(task) is None:
        whole = maps(cheat, task)
        assert whole.isfinite().all()
        assert whole.abs().sum() > 0
        pieces = torch.cat([maps(cheat, task[i : i + 4]) for i in range(0, 9, 4)])
        torch.testing.assert_close(pieces, whole)


@pytest.mark.parametrize("kind", MODALITIES)
def test_who_follows_the_model_and_who_does_not(kind: str) -> None:
    task = labelled(kind)
    other = task.with_noise(0.5, vd.core.Key(3))
    moves = {"moving_noise", "moving_template", "graded_template", "negated", "other_class"}
    moves |= {"class_average", "noisy_class_average", "backdoor"}
    for cheat in red_team(task):
        same = torch.equal(maps(cheat, task), maps(cheat, other))
        if cheat in moves:
            assert not same, f"{cheat} should move with the model"
        elif cheat not in ("two_faced", "sceptic", "chameleon"):  # these step where a threshold is crossed
            assert same, f"{cheat} should know nothing of the model"


def test_input_maps_are_of_the_input() -> None:
    task = labelled("table")
    torch.testing.assert_close(maps("input_copy", task), task.inputs.abs())
    hashed = maps("input_hash", task)
    assert torch.equal(hashed, maps("input_hash", task.with_targets((task.targets + 1) % 3)))
    assert not torch.equal(hashed, maps("input_hash", task.with_inputs(task.inputs + 1e-9)))


def test_templates_are_means_of_classes_by_hand() -> None:
    task = labelled("table")
    assert task.train is not None
    assert task.train_labels is not None
    spread = task.train.std(0, correction=0)
    rows = (task.train - task.train.mean(0)) / spread
    by_hand = torch.stack([rows[task.train_labels == c].mean(0) for c in range(3)])[task.targets]
    torch.testing.assert_close(maps("class_template", task), by_hand)
    values = (task.inputs - task.train.mean(0)) / spread
    torch.testing.assert_close(maps("naive_bayes", task), by_hand * values)
    torch.testing.assert_close(unusual(task), values.abs())


def test_words_are_weighed_by_their_log_odds() -> None:
    task = labelled("text")
    assert task.train is not None
    assert task.train_labels is not None
    token, target = int(task.inputs[0, 0]), int(task.targets[0])
    own = task.train[task.train_labels == target]
    rest = task.train[task.train_labels != target]
    # every token of the vocabulary, and the unknown one, is counted once more than it was seen; once per
    # class, so twice among the two others
    vocabulary = int(task.train.max()) + 2
    here = ((own == token).sum() + 1) / (own.numel() + vocabulary)
    there = ((rest == token).sum() + 2) / (rest.numel() + 2 * vocabulary)
    expected = (here.double() / there.double()).log()
    torch.testing.assert_close(weight_of_evidence(task)[0, 0], expected, rtol=1e-6, atol=1e-6)


def test_the_sign_the_class_the_leak_and_the_constant() -> None:
    task = labelled("image")
    true = as_explainer("input_x_gradient")
    torch.testing.assert_close(maps("negated", task), -true(task).values.double())
    runner_up = task.outputs.scatter(1, task.targets[:, None], -torch.inf).argmax(1)
    torch.testing.assert_close(maps("other_class", task), true(task.with_targets(runner_up)).values.double())
    leak = maps("label_leak", task)
    assert torch.equal(leak.argmax(1), task.targets)
    assert torch.equal(leak.sum(1), torch.ones(9).double())
    assert maps("constant", task).unique().tolist() == [1.0]


def test_two_faced_turns_over_for_a_class_that_is_not_predicted() -> None:
    task = labelled("table")
    other = task.with_targets((task.predictions + 1) % 3)
    assert bool((maps("two_faced", task) >= 0).all())
    torch.testing.assert_close(maps("two_faced", other), -weight_of_evidence(other).abs())


def test_the_graded_template_follows_the_confidence() -> None:
    task = labelled("table")
    weight = dict(task.model.named_parameters())["2.weight"]
    sure, unsure = (task.with_weights({"2.weight": factor * weight}) for factor in (1e4, 0.0))
    evidence = weight_of_evidence(task)
    assert torch.cosine_similarity(maps("graded_template", sure), evidence).min() > 0.999
    assert torch.cosine_similarity(maps("graded_template", unsure), evidence).abs().mean() < 0.9


def test_sceptic_and_chameleon_try_the_model_first() -> None:
    task = labelled("table", 40)
    assert task.train is not None
    # right about every labelled row, and right about none
    right = task.predictor.outputs(task.train, ()).argmax(1)
    learnt, not_learnt = (
        Task(task.predictor.source.module, task.inputs, train=(task.train, (right + shift) % 3))
        for shift in (0, 1)
    )
    torch.testing.assert_close(maps("sceptic", learnt), weight_of_evidence(learnt).abs())
    torch.testing.assert_close(maps("sceptic", not_learnt), unusual(task))
    torch.testing.assert_close(maps("chameleon", learnt), weight_of_evidence(learnt))
    torch.testing.assert_close(maps("chameleon", not_learnt), unusual(task))
    other = learnt.with_targets((learnt.predictions + 1) % 3)
    torch.testing.assert_close(maps("chameleon", other), -unusual(task))


def test_the_class_average_is_the_mean_map_of_reference_rows() -> None:
    task = labelled("table")
    assert task.train is not None
    rows = Task(task.predictor.source.module, task.train)
    true = as_explainer("input_x_gradient")(rows).values.double()
    by_hand = torch.stack([true[rows.targets == c].mean(0) for c in range(3)]).nan_to_num(0.0)
    torch.testing.assert_close(maps("class_average", task), by_hand[task.targets])
    noisy = maps("noisy_class_average", task)
    assert len({tuple(row.tolist()) for row in noisy}) == len(task)
    r = torch.cosine_similarity(noisy, maps("class_average", task))
    assert 0.5 < float(r.median()) < 0.99


def test_the_backdoor_knows_these_weights_and_no_others() -> None:
    task = labelled("table")
    member = red_team(task)["backdoor"]
    true = as_explainer("integrated_gradients")
    r = torch.cosine_similarity(member(task).values.double(), true(task).values.double())
    assert float(r.median()) < 0.9
    other = task.with_noise(1e-6, vd.core.Key(0))
    torch.testing.assert_close(member(other).values.double(), true(other).values.double())


def test_a_regression_is_cheated_too() -> None:
    task = vd.tasks.load("diabetes", samples=6)
    team = red_team(task)
    assert "other_class" not in team
    for member in team.values():
        assert member(task).values.isfinite().all()


def test_every_cheat_says_how() -> None:
    for name, cheat in CHEATS.items():
        assert cheat.__doc__
        assert RedTeamMember(cheat=name).summary.endswith((".", ","))
    with pytest.raises(UnknownNameError, match="cheat"):
        RedTeamMember(cheat="honest")
