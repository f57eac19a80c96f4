"""Sparse codes and concepts as explanations: closed forms, a slow rewrite, and what must not pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.concepts import Concepts, Dictionary, Head
from veridical.core import key as keyed
from veridical.gef import (
    ConceptRelevance,
    FastGEF,
    LayerCodes,
    layer_activations,
)
from veridical.testing import tiny_task

PATH = (0.02, 0.05, 0.1, 0.2, 0.3)


def dictionary(width: int, dimension: int, activation: str, key: int = 3) -> Dictionary:
    """Random atoms, wide enough for several to be active."""
    ids = torch.arange(width)
    encoder = keyed.normal(vd.core.Key(key), ids, 0, dimension, torch.float64)
    bias = 0.1 * keyed.normal(vd.core.Key(key) / "bias", ids, 0, 1, torch.float64)[:, 0]
    threshold = torch.full((width,), 0.3, dtype=torch.float64) if activation == "jumprelu" else None
    active = 3 if activation == "topk" else None
    centre = torch.zeros(dimension, dtype=torch.float64)
    return Dictionary(encoder, bias, encoder, centre, activation, active, threshold, False)  # type: ignore[arg-type]


def identity(dimension: int) -> Dictionary:
    """A dictionary whose codes are the positive part of what it is given."""
    eye = torch.eye(dimension, dtype=torch.float64)
    zero = torch.zeros(dimension, dtype=torch.float64)
    return Dictionary(eye, zero, eye, zero, "relu", centred=False)


def linear_task(samples: int = 12) -> vd.Task:
    """A linear model whose outputs stay positive under little noise."""
    net = nn.Sequential(nn.Linear(5, 3)).double()
    with torch.no_grad():
        net[0].weight.copy_(0.2 * keyed.normal(vd.core.Key(1), torch.arange(3), 0, 5, torch.float64))  # type: ignore[operator,union-attr]
        net[0].bias.fill_(20.0)  # type: ignore[operator,union-attr]
    return vd.Task(net, keyed.normal(vd.core.Key(2), torch.arange(samples), 0, 5, torch.float64))


def test_identity_codes_of_a_linear_model_move_exactly_as_it_does() -> None:
    """D_phi = ||y - y_hat|| = D_f, so every draw scores 1."""
    task = linear_task()
    codes = LayerCodes(identity(3), "0")
    assert torch.allclose(codes(task).values, task.outputs)
    metric = FastGEF(path=PATH, draws=4, normalise=False, model_distance="outputs")
    scores = vd.score(metric, task, codes)
    assert torch.allclose(scores.values, torch.ones(len(task), dtype=torch.float64))
    gone = scores.details["explanation_distortion"] - scores.details["model_distortion"]
    assert float(gone.abs().max()) < 1e-4  # model answers are rounded to a grid


@pytest.mark.parametrize("activation", ["relu", "topk", "jumprelu"])
def test_codes_of_a_convolution_are_the_mean_over_its_positions(activation: str) -> None:
    task, held = tiny_task("image", 5), dictionary(9, 6, activation)
    seen: list[Tensor] = []
    hook = lambda _m, _i, out: seen.append(out.detach())  # noqa: E731
    handle = task.model.get_submodule("second_relu").register_forward_hook(hook)
    task.model(task.inputs)
    handle.remove()
    expected = [held.codes(one.flatten(1).T)[:, 0].mean(0) for one in seen[0]]
    assert torch.allclose(LayerCodes(held, "second_relu")(task).values, torch.stack(expected))


def follows_the_model(encoder: Callable[[Tensor], Tensor] | Dictionary, width: int | None = None) -> bool:
    """Whether codes score well above nothing and none is flagged as still."""
    task = tiny_task("image", 24)
    codes = LayerCodes(encoder, "second_relu", width=width)
    scores = vd.score(FastGEF(path=PATH, draws=5, distance="cosine"), task, codes)
    return scores.mean(skip_nan=True) > 0.4 and not scores.flagged


def test_codes_that_do_not_read_the_layer_are_rejected() -> None:
    assert follows_the_model(dictionary(9, 6, "relu"))

    def still(rows: Tensor) -> Tensor:
        return torch.ones(len(rows), 9, dtype=torch.float64)

    def noise(rows: Tensor) -> Tensor:
        return keyed.normal(vd.core.Key(5), keyed.content_ids(rows), 0, 9, torch.float64)

    assert not follows_the_model(still, 9)
    assert not follows_the_model(noise, 9)


def test_tokens_are_pooled_without_padding() -> None:
    task = tiny_task("text")
    layer = next(name for name, module in task.model.named_modules() if isinstance(module, nn.Embedding))
    activations = layer_activations(task, layer, axis=-1)
    valid = task.space.valid
    assert valid is not None
    assert activations.shape[:2] == valid.shape
    held = identity(activations.shape[-1])
    positive = activations.clamp(min=0).double()
    counts = valid.sum(1)
    rows = range(len(task))
    expected = {
        "mean": torch.stack([positive[i, valid[i]].mean(0) for i in rows]),
        "max": torch.stack([positive[i, valid[i]].amax(0) for i in rows]),
        "last": torch.stack([positive[i, int(counts[i]) - 1] for i in rows]),
    }
    for pool, values in expected.items():
        found = LayerCodes(held, layer, axis=-1, pool=pool)(task).values  # type: ignore[arg-type]
        assert torch.allclose(found.double(), values), pool


def test_concepts_of_a_perfect_explanation_give_the_logit_back() -> None:
    """v = f_c / ||f_c||, alpha = ||f_c||: the contribution is f_c . h, which is the logit less its bias."""
    task = tiny_task("table")
    head = task.model.get_submodule("2")
    weight, bias = head.weight.detach(), head.bias.detach()  # type: ignore[operator,union-attr]
    norms = weight.norm(dim=1)
    concepts = Concepts.of((weight / norms[:, None])[:, None], norms[:, None])
    place = torch.arange(len(task))
    contribution = ConceptRelevance(concepts, "2")(task).values[:, 0]
    assert torch.allclose(contribution, task.outputs[place, task.targets] - bias[task.targets])
    projection = LayerCodes(concepts, "2", end="input")(task).values[:, 0]
    assert torch.allclose(projection * norms[task.targets], contribution)


def test_gef_judges_concepts() -> None:
    task = tiny_task("table", 20)
    head = task.model.get_submodule("2")
    held = vd.concepts.PCA(n_concepts=4).fit(
        vd.concepts.split(task).test(),
        Head(head.weight, head.bias),  # type: ignore[arg-type]
    )
    codes = ConceptRelevance(held, "2")
    scores = vd.score(FastGEF(path=PATH, draws=5), task, codes)
    assert scores.mean(skip_nan=True) > 0.2


def test_what_cannot_be_is_said() -> None:
    task = tiny_task("table")
    held = dictionary(12, 8, "relu")
    with pytest.raises(vd.errors.NotApplicableError, match="no layer"):
        LayerCodes(held, "nowhere")(task)
    with pytest.raises(vd.errors.ShapeError, match="features"):
        vd.score("pixel_flipping", task, LayerCodes(held, "0"))
    with pytest.raises(vd.errors.InputError, match="width"):
        LayerCodes(lambda rows: rows, "0")
    with pytest.raises(vd.errors.InputError, match="cannot encode"):
        LayerCodes(3, "0")
    with pytest.raises(vd.errors.InputError, match="vectors and importances"):
        ConceptRelevance(held, "2")
    with pytest.raises(vd.errors.ShapeError, match="expected"):
        LayerCodes(lambda rows: rows, "0", width=3)(task)
