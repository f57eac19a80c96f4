"""GEF of prompts and heads against a loop of deep copies with noise written by hand."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import veridical as vd
from tests.reference import gated
from veridical.data import known_language
from veridical.data.known_language import WordTokenizer
from veridical.data.networks import HEADS
from veridical.explainers.gradients import IntegratedGradients
from veridical.gef import log_weight_noise
from veridical.models import weights as drawing

PATH, DRAWS = (0.05, 0.1, 0.2), 2
GRADIENTS = ["gradient", "saliency", "input_x_gradient", "integrated_gradients"]


def planted(units="sentence", samples=2):
    """The prompts of known/prompt in double precision, so that two ways to compute agree."""
    known = known_language.prompt_task(samples).task
    asked = [p.text.removesuffix("So it is ") for p in known.prompts]
    model = known.predictor.source.module.model.double()
    return model, vd.models.Generation(
        model,
        WordTokenizer(known_language.PROMPT_WORDS),
        asked,
        [a.text for a in known.answers],
        foils=[a.foil for a in known.answers],
        questions=["So it is "] * samples,
        units=units,
    )


def check(task, name, want):
    """Score, the model's and the explanation's movement are those of the loop."""
    method = IntegratedGradients(steps=4) if name == "integrated_gradients" else name
    found = vd.score(vd.gef.FastGEF(path=PATH, draws=DRAWS), task, method)
    ours = found.values, found.details["model_distortion"], found.details["explanation_distortion"]
    for own, theirs in zip(ours, want, strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-7, rtol=0)


@pytest.mark.parametrize("units", ["sentence", "token"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_units_of_a_prompt(units, name):
    model, task = planted(units)
    respond = gated.over_tokens(task, stand_in=0)
    widths = [len(prompt.units) for prompt in task.prompts]
    check(task, name, gated.gef(respond, model, name, widths, PATH, DRAWS))


@pytest.mark.parametrize("off", ["zero", "mean", "paired"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_heads_with_every_meaning_of_off(off, name):
    """What stands in for a head is made by each noisy model anew."""
    model, task = planted()
    # the same speakers name other colours
    paired = vd.models.Generation(
        model,
        task.tokenizer,
        [
            p.text.removesuffix("So it is ").replace("red", "blue").replace("green", "black")
            for p in task.prompts
        ],
        [a.text for a in task.answers],
        foils=[a.foil for a in task.answers],
        questions=["So it is "] * len(task),
    )
    how = {
        "zero": vd.models.Zeroed(),
        "mean": vd.models.MeanOver(paired),
        "paired": vd.models.Counterfactual(paired),
    }[off]
    heads = vd.data.switch(task, vd.models.Heads(), how)
    respond = gated.over_heads(task, HEADS, off, paired)
    widths = [heads.space.n_features] * len(task)
    check(heads, name, gated.gef(respond, model, name, widths, PATH, DRAWS))


def test_methods_that_are_evaluated_together_meet_the_same_models():
    """Scores and costs are those of each alone, and every noisy model is drawn once."""
    _, task = planted(samples=3)
    metric, names = vd.gef.FastGEF(path=PATH, draws=DRAWS), ["gradient", "saliency", "occlusion"]
    log_weight_noise(task)  # it draws for its self-check, once a task
    alone = {name: vd.score(metric, task, name) for name in names}
    with mock.patch.object(drawing, "noise_by_name", wraps=drawing.noise_by_name) as draw:
        found = vd.evaluate(task, names, metric)
    drawn = [name for call in draw.call_args_list for name in call.args[1]]
    assert len(drawn) == DRAWS * len(PATH) * len(list(task.model.parameters()))
    for name in names:
        assert torch.equal(found.scores[name, "fast_gef"].values, alone[name].values)
    assert {name: found.scores[name, "fast_gef"].cost for name in names} == {n: alone[n].cost for n in names}
