"""Pictures of the paper: sparse codes layer by layer, clouds, and what was gained along the path."""

import matplotlib as mpl
import pytest

import veridical as vd
from replications.gef.figures import plot_cloud, plot_gained, plot_responses
from replications.gef.layers import across_layers, plot_layers, plot_sparsity
from veridical.dictionaries import TopK, train
from veridical.gef import FastGEF, layer_activations
from veridical.testing import tiny_task

mpl.use("Agg")
pytestmark = pytest.mark.slow
COSINE = FastGEF(path=(0.02, 0.05, 0.1, 0.2, 0.3), draws=3, distance="cosine")


def test_a_trained_dictionary_goes_from_layer_to_picture() -> None:
    task = tiny_task("image", 24)
    encoders = {}
    for layer in ("conv", "relu", "second_relu"):
        rows = layer_activations(task, layer).flatten(0, 1)
        encoders[layer] = train(rows.float(), TopK(width=8, steps=40, active=2), progress=False).dictionary
    study = across_layers(task, encoders, COSINE)
    frame = study.to_frame()
    assert list(frame["layer"]) == list(encoders)
    assert bool((frame["active"] <= 1).all())
    assert bool((frame["l1"] > 0).all())
    assert -1 <= study.sparsity_correlation <= 1
    assert len(plot_layers({"8 atoms": study}).lines) == 3
    assert len(plot_sparsity(study).texts) == 3
    with pytest.raises(vd.errors.InputError, match="at least one layer"):
        across_layers(task, {})


def test_pictures_show_every_explainer() -> None:
    metric = vd.gef.FastGEF(draws=2, path=(0.1, 0.4, 0.8))
    task = tiny_task("table")
    scores = {name: vd.score(metric, task, name) for name in ("gradient", "random", "constant")}
    assert len(plot_gained(scores).patches) == 6
    assert plot_cloud(scores["gradient"]).get_title() == "gradient"


@pytest.mark.parametrize("kind", ["layers", "masking"])
def test_responses_of_one_kind_are_drawn(kind: str) -> None:
    found = vd.gef.assumptions(tiny_task("image"), levels=3, draws=1, mask_steps=3)
    assert len(plot_responses(getattr(found, kind)).lines) == len(getattr(found, kind))
