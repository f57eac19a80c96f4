"""Lies in part: what each does to a true map, and where it can exist."""

import copy

import pytest
import torch

import veridical as vd
from replications.verdict.partial_lies import ABOUT_A_FEATURE, PARTIAL_LIES, PartialLie, partial_lies
from veridical.errors import UnknownNameError
from veridical.explainers import as_explainer
from veridical.testing import MODALITIES, check_explainer, tiny_task
from veridical.testing.red_team import weight_of_evidence
from veridical.values.task import Task


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


def another(kind: str) -> torch.nn.Module:
    """A model of the same kind with other weights."""
    model = copy.deepcopy(tiny_task(kind).predictor.source.module)
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            weight += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    return model


def lied(lie: str, task: Task, **settings: object) -> torch.Tensor:
    return PartialLie(lie=lie, **settings)(task).values.double()  # type: ignore[arg-type]


def true_maps(task: Task) -> torch.Tensor:
    return as_explainer("integrated_gradients")(task).values.double()


def unit(maps: torch.Tensor) -> torch.Tensor:
    return maps / maps.square().mean(1, keepdim=True).sqrt()


@pytest.mark.parametrize("kind", MODALITIES)
def test_which_partial_lies_can_exist_where(kind: str) -> None:
    task = labelled(kind)
    lies = partial_lies(task, another(kind))
    fixed = not task.space.per_sample and task.space.valid is None
    assert set(lies) == set(PARTIAL_LIES) - (set() if fixed else ABOUT_A_FEATURE)
    assert not {"half_labels", "half_other_model"} & set(partial_lies(tiny_task(kind)))
    for name, lie in lies.items():
        assert lie.summary == PARTIAL_LIES[name].__doc__
        assert lie(task).values.isfinite().all()


@pytest.mark.parametrize("kind", ["image", "table"])
@pytest.mark.parametrize("lie", sorted(set(PARTIAL_LIES) - {"half_labels", "half_other_model"}))
def test_partial_lies_keep_the_promises_of_explainers(lie: str, kind: str) -> None:
    check_explainer(PartialLie(lie=lie), kind)


def test_the_feature_that_is_used_most_is_hidden_or_exchanged() -> None:
    task = labelled("table")
    true, lies = true_maps(task), partial_lies(task)
    most, least = int(true.abs().mean(0).argmax()), int(true.abs().mean(0).argmin())
    hidden = lies["hidden_feature"](task).values.double()
    exchanged = lies["scapegoat"](task).values.double()
    for i in range(true.shape[1]):
        torch.testing.assert_close(hidden[:, i], torch.zeros(9).double() if i == most else true[:, i])
        other = {most: least, least: most}.get(i, i)
        torch.testing.assert_close(exchanged[:, i], true[:, other])


def test_halves_are_sums_of_maps_of_one_size() -> None:
    task, model = labelled("table"), another("table")
    other = true_maps(Task(model, task.inputs, targets=task.targets))
    half = unit(true_maps(task))
    torch.testing.assert_close(lied("half_other_model", task, other=model), half + unit(other))
    torch.testing.assert_close(lied("half_labels", task), half + unit(weight_of_evidence(task)))
    noise = lied("half_noise", task) - half
    torch.testing.assert_close(noise.square().mean(1), torch.ones(9).double())


@pytest.mark.parametrize(("lie", "share"), [("negated_in_a_fifth", 0.2), ("right_in_three_of_four", 0.25)])
def test_some_samples_are_lied_about(lie: str, share: float) -> None:
    rows = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    task = Task(torch.nn.Linear(4, 2), rows)
    true, maps = true_maps(task), lied(lie, task)
    wrong = (true - maps).abs().amax(1) > 1e-9
    assert float(wrong.double().mean()) == pytest.approx(share, abs=0.06)
    if lie == "negated_in_a_fifth":
        torch.testing.assert_close(maps[wrong], -true[wrong])
    # the same samples for another model
    other = task.with_noise(0.5, vd.core.Key(3))
    assert torch.equal((true_maps(other) - lied(lie, other)).abs().amax(1) > 1e-9, wrong)


def test_a_lie_has_a_name() -> None:
    with pytest.raises(UnknownNameError, match="lie"):
        PartialLie(lie="honest")
    assert "needs another trained model" in str(
        PartialLie(lie="half_other_model").inapplicable_reason(labelled("table"))
    )
