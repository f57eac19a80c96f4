"""Facts about single forms: arc does not depend on how its path is walked, reference on output noise."""

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference import gef as reference
from veridical.explainers import as_explainer
from veridical.gef import GEF, FastGEF
from veridical.gef.forms import Run
from veridical.gef.map_checks import check_maps
from veridical.gef.perturbed_model import PerturbedModels, with_output_noise
from veridical.testing import tiny_task


def run_of(metric: GEF, task: vd.Task, explainer: str) -> Run:
    method, key = as_explainer(explainer), vd.core.Key(0) / "gef"
    return Run(metric, task, method, key, 1.0, PerturbedModels(task), check_maps(task, method, key))


def test_arc_does_not_depend_on_the_pace() -> None:
    """Walked with s^2 in place of s, the length is the same in the limit (T = 200, within 1%)."""
    task = tiny_task("table", 4)
    steps, sigma = 200, 0.3
    metric = GEF(form="arc", steps=steps, draws=1, path=(0.1, 0.2, sigma), normalise=False)
    got = vd.score(metric, task, "gradient").details["explanation_distortion"][:, 0, 2]
    run = run_of(metric, task, "gradient")
    key = run.noise_key(0, 2)
    maps = [run.explain(run.model(sigma, key, step=(t / steps) ** 2)) for t in range(1, steps + 1)]
    maps = [run.explain(task), *maps]
    for sample in range(4):
        expected = reference.arc_length([one[sample].numpy() for one in maps])
        assert abs(float(got[sample]) - expected) < 0.01 * expected


@pytest.mark.parametrize("name", ["occlusion", "gradient"])
def test_reference_form_is_the_published_arithmetic(name: str) -> None:
    """An explainer that reads outputs is asked again under K draws of output noise; a gradient needs none."""
    task = tiny_task("table", 3)
    levels, steps, copies, spread = (0.1, 0.2, 0.4), 2, 3, 0.05
    metric = GEF(
        form="reference", steps=steps, draws=1, output_draws=copies, output_noise=spread, path=levels
    )
    got = vd.score(metric, task, name).details["explanation_distortion"]
    run = run_of(metric, task, name)
    clean = run.explain(task, "clean").numpy()
    moved, noisy = [], []
    for z, sigma in enumerate(levels):
        moved.append([])
        noisy.append([])
        for t, strength in enumerate(np.linspace(1e-4, sigma, steps)):
            model = run.model(float(strength), run.noise_key(0, z) / "step" / t)
            moved[-1].append(run.explain(model).numpy())
            keys = [run.key / "output" / 0 / z / t / k for k in range(copies)]
            noisy[-1].append([run.explain(with_output_noise(model, spread, k)).numpy() for k in keys])
    for sample in range(3):
        expected = reference.program_distortion(
            clean[sample],
            [[one[sample] for one in level] for level in moved],
            [[[one[sample] for one in step] for step in level] for level in noisy],
        )
        np.testing.assert_allclose(got[sample, 0], expected, rtol=1e-9)
        quiet = reference.program_distortion(
            clean[sample],
            [[one[sample] for one in level] for level in moved],
            [[[one[sample]] for one in level] for level in moved],
        )
        assert np.allclose(expected, quiet, rtol=1e-6) is (name == "gradient")


def test_padding_does_not_decide_what_counts_as_still() -> None:
    """A map's length counts the features that exist, not the padding behind them."""
    path = (0.1, 0.3, 0.6)
    short = vd.score(FastGEF(path=path, draws=1), tiny_task("text"), "gradient")
    long = vd.score(FastGEF(path=path, draws=1), tiny_task("text", padding=40), "gradient")
    assert torch.allclose(short.values, long.values)


def test_jacobian_grows_with_the_step_whatever_the_map() -> None:
    """Why random maps score high there: the score is flagged, since outputs explain nothing of the map."""
    task = tiny_task("table", 24)
    metric = GEF(form="jacobian", steps=2, draws=2, path=(0.05, 0.3, 0.6, 0.9))
    scores = vd.score(metric, task, "random")
    assert scores.mean() > 0.3
    (count,) = [n for reason, n in scores.flagged.items() if reason.startswith("outputs explain")]
    assert count == 24
    assert bool(((scores.details["in_span"] > 0) & (scores.details["in_span"] <= 1 + 1e-9)).all())
