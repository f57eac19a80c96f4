"""Units of inner layers as the model function, and the pictures."""

import matplotlib as mpl
import pytest
import torch

import veridical as vd
from veridical.gef import at_neuron, plot_path, plot_scores_by_explainer
from veridical.testing import tiny_task

mpl.use("Agg")


def test_a_neuron_is_the_mean_activation_of_its_unit() -> None:
    task = tiny_task("image")
    neuron = at_neuron(task, "second_relu", 2)
    model = task.model
    inner = model.pool(model.relu(model.conv(task.inputs)))  # type: ignore[operator,union-attr]
    maps = model.second_relu(model.second(inner))  # type: ignore[operator,union-attr]
    assert torch.allclose(neuron.outputs, maps.mean((2, 3)))
    assert neuron.targets.tolist() == [2] * len(task)
    slope = vd.explain("gradient", neuron)
    assert slope.values.shape == (9, 36)


def test_an_output_unit_is_the_logit_of_its_class() -> None:
    task = tiny_task("table").with_targets(1)
    neuron = at_neuron(task, "2", 1)
    assert torch.allclose(neuron.outputs, task.outputs)
    assert torch.allclose(vd.explain("gradient", neuron).values, vd.explain("gradient", task).values)


def test_the_whole_map_of_a_unit_may_be_the_model() -> None:
    """Appendix A.1.2: y is the unit's w x h map; what is explained is its mean."""
    task = tiny_task("image")
    mean, whole = (at_neuron(task, "relu", 2, whole=whole) for whole in (False, True))
    assert torch.equal(whole.outputs[:, 0], mean.outputs[:, 2])
    assert torch.allclose(whole.outputs[:, 1:].mean(1), whole.outputs[:, 0])
    assert torch.equal(vd.explain("gradient", whole).values, vd.explain("gradient", mean).values)
    settings = {"draws": 1, "path": (0.1, 0.4, 0.8), "model_distance": "outputs"}
    scores = vd.score(vd.gef.FastGEF(**settings), whole, "gradient")
    key = vd.core.Key(0) / "gef" / "noise" / 0 / 1
    moved = whole.with_noise(0.4, key).outputs - whole.outputs
    assert torch.allclose(scores.details["model_distortion"][:, 0, 1], moved.norm(dim=1).double(), rtol=1e-4)
    dense = tiny_task("table")
    alone = at_neuron(dense, "0", 1).outputs[:, 1]
    assert torch.equal(at_neuron(dense, "0", 1, whole=True).outputs, torch.stack([alone, alone], 1))


def test_units_and_layers_are_checked() -> None:
    task = tiny_task("table")
    with pytest.raises(vd.errors.InputError, match="units 0 to 7"):
        at_neuron(task, "0", 8)
    with pytest.raises(vd.errors.InputError, match="no layer"):
        at_neuron(task, "nowhere", 0)
    assert not task.model.get_submodule("0")._forward_hooks


def test_pictures_show_every_explainer() -> None:
    task = tiny_task("table")
    metric = vd.gef.FastGEF(draws=2, path=(0.1, 0.4, 0.8))
    scores = {name: vd.score(metric, task, name) for name in ("gradient", "random", "constant")}
    assert len(plot_path(scores).get_legend().get_texts()) == 3  # type: ignore[union-attr]
    labels = [text.get_text() for text in plot_scores_by_explainer(scores).get_yticklabels()]
    assert set(labels) == set(scores)
    with pytest.raises(vd.errors.InputError, match="not of GEF"):
        plot_path(vd.score("sparseness", task, "gradient"))
