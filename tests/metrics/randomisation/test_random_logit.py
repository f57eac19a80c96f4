"""Random logit: closed form on linear models, the drawn outputs, counts."""

import pytest
import torch

import veridical as vd
from tests.reference import metrics as randomisation
from tests.reference.metric_cases import image_task, linear_task, mlp_task
from veridical.core.key import Key
from veridical.metrics.randomisation.random_logit import other_targets


def assert_closed_form(shift: int) -> None:
    """On a linear model the maps are rows of W: their rank correlation is the score."""
    task = linear_task(columns=9)
    scores = vd.score("random_logit", task, "gradient")
    weights = task.model.weight.detach()
    others = (scores.details["other outputs"][:, 0] + shift) % task.n_outputs
    expected = [
        randomisation.spearman(weights[c].tolist(), weights[o].tolist())
        for c, o in zip(task.targets.tolist(), others.tolist(), strict=True)
    ]
    torch.testing.assert_close(scores.values, torch.tensor(expected, dtype=torch.float64))


def test_closed_form_on_a_linear_model() -> None:
    assert_closed_form(0)
    with pytest.raises(AssertionError):
        assert_closed_form(1)


def test_others_are_never_the_explained_output_and_cover_the_rest_evenly() -> None:
    task = linear_task(rows=600, outputs=4)
    one = other_targets(task, Key(0), 1)[:, 0]
    assert (one != task.targets).all()
    away = (one - task.targets) % 4
    counts = torch.bincount(away, minlength=4)
    assert counts[0] == 0
    assert (counts[1:] > 150).all()
    every = other_targets(task, Key(0), 3)
    full = torch.cat([every, task.targets[:, None]], 1).sort(-1).values
    assert torch.equal(full, torch.arange(4).expand(600, -1))


def test_a_map_that_ignores_the_output_scores_one_and_a_binary_head_minus_one() -> None:
    def brightness(model, inputs, targets):
        return inputs

    assert (vd.score("random_logit", mlp_task(), brightness).values == 1.0).all()
    binary = linear_task(outputs=1, head="binary")
    assert (vd.score("random_logit", binary, "gradient").values == -1.0).all()


def test_counts_and_ssim() -> None:
    task = image_task(rows=11)
    scores = vd.score("random_logit", task, "gradient", draws=2)
    assert (scores.cost.forward, scores.cost.backward) == (33, 33)
    assert (vd.score("random_logit", task, "gradient", similarity="ssim").values < 1).all()


def test_one_output_has_no_other() -> None:
    with pytest.raises(vd.errors.NotApplicableError, match="outputs"):
        vd.score("random_logit", linear_task(outputs=1, head="regression"), "gradient")


def test_flat_maps_are_flagged() -> None:
    def even(model, inputs, targets):
        return torch.ones_like(inputs)

    scores = vd.score("random_logit", mlp_task(), even)
    assert scores.values.isnan().all()
    assert scores.flags["a map has no spread"].all()
