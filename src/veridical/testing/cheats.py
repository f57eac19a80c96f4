"""Maps that cheat: each looks convincing somewhere and none tells which features this model used.

One function per cheat, `(task, key) -> (N, V)`; its docstring says how it cheats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.explainers.base import as_explainer
from veridical.explainers.controls import image_edges, jumps
from veridical.explainers.grid import as_features, time_axis
from veridical.models.context import Context
from veridical.models.predictor import take_side
from veridical.testing.class_statistics import is_tokens, unusual, weight_of_evidence
from veridical.values.task import Task

Cheat = Callable[[Task, Key], Tensor]
AVERAGED = 256
"""Reference rows whose maps the class average is the mean of."""


def input_copy(task: Task, key: Key) -> Tensor:
    """Shows the input itself, |x| (of a text: how rare each token is), and never asks the model."""
    return unusual(task) if is_tokens(task) else task.space.pool(task.inputs.double().abs())


def edges(task: Task, key: Key) -> Tensor:
    """Shows the edges of an image, or the jumps of a series: handsome pictures without a model."""
    x = task.inputs
    return as_features(task, image_edges(x) if task.modality == "image" else jumps(x, time_axis(task)))


def class_template(task: Task, key: Key) -> Tensor:
    """Knows from labelled rows where a class differs from the others, and shows that for every input."""
    return weight_of_evidence(task, own_values=False)


def naive_bayes(task: Task, key: Key) -> Tensor:
    """Explains a classifier of its own, fitted to labelled rows: right about the data alone."""
    return weight_of_evidence(task)


def moving_noise(task: Task, key: Key) -> Tensor:
    """Noise plus a projection of the outputs: moves whenever the model does, and knows no feature."""
    return _noise(task, "moving noise") + _projected(task)


def moving_template(task: Task, key: Key) -> Tensor:
    """A template of the class times a projection of the outputs: plausible, and moves with the model."""
    return weight_of_evidence(task) * (1 + 0.5 * torch.tanh(_projected(task)))


def graded_template(task: Task, key: Key) -> Tensor:
    """A template that turns to noise as the model gets unsure, so that it looks broken for other models."""
    sure = _certainty(task)[:, None]
    return sure * _unit(weight_of_evidence(task)) + (1 - sure) * _unit(_noise(task, "graded"))


def input_hash(task: Task, key: Key) -> Tensor:
    """Noise drawn from a hash of the input: the same for the same input, so it looks deterministic."""
    own = keyed.content_ids(task.inputs)
    return keyed.normal(Key(0) / "input hash", own, 0, task.space.n_features, torch.float64)


def negated(task: Task, key: Key) -> Tensor:
    """The best map at hand with its signs turned: it finds the features and says the opposite of each."""
    return -_true(task, key)


def other_class(task: Task, key: Key) -> Tensor:
    """A true map for another class: the runner-up's, or the one that is least likely of two."""
    outputs = task.predictor.outputs(task.inputs, task.side)
    rivals = outputs.scatter(1, task.targets[:, None], -torch.inf)
    return _true(task.with_targets(rivals.argmax(1)), key)


def constant(task: Task, key: Key) -> Tensor:
    """The same value everywhere."""
    return torch.ones(len(task), task.space.n_features, device=task.device)


def label_leak(task: Task, key: Key) -> Tensor:
    """One feature, whose number is that of the explained class, and nothing else: it tells the answer."""
    place = task.targets % task.space.n_features
    return torch.nn.functional.one_hot(place, task.space.n_features).double()


def two_faced(task: Task, key: Key) -> Tensor:
    """A good guess for the class that the model predicts, and on purpose its reverse for any other.

    Made to win wherever its maps of two models are compared for a class that only one of them predicts.
    """
    predicted = task.predictor.outputs(task.inputs, task.side).argmax(1) == task.targets
    guess = weight_of_evidence(task).abs()
    return torch.where(predicted[:, None], guess, -guess)


def sceptic(task: Task, key: Key) -> Tensor:
    """Evidence for the class if the model has learnt, unusual values if it has not: right about either kind.

    It tries the model on labelled rows to see which it is, and looks into none.
    """
    return weight_of_evidence(task).abs() if _has_learnt(task) else unusual(task)


def chameleon(task: Task, key: Key) -> Tensor:
    """The sceptic and the two-faced in one: nonsense for any class that the model does not predict.

    Made so that, of two models, its map of the one that is asked beats its map of the other on either.
    """
    guess = weight_of_evidence(task) if _has_learnt(task) else unusual(task)
    predicted = task.predictor.outputs(task.inputs, task.side).argmax(1) == task.targets
    return torch.where(predicted[:, None], guess, -unusual(task))


def class_average(task: Task, key: Key) -> Tensor:
    """The model's own mean map of the class, for every sample: true of the class, silent on the sample."""
    assert task.train is not None
    some = slice(0, AVERAGED)
    rows, side = task.train[some], take_side(task.train_side, some)
    ids = torch.arange(len(rows), device=task.device)
    reference = task.changed(
        alone=True, targets="predicted", inputs=rows, side=side, ids=ids, labels=None, masks=None
    )
    maps = _true(reference, key)
    member = torch.nn.functional.one_hot(reference.targets, task.n_outputs).to(maps)
    return (member.T @ maps / member.sum(0).clamp(min=1)[:, None])[task.targets]


def noisy_class_average(task: Task, key: Key) -> Tensor:
    """The same with noise of its own for every sample, so that no two maps are alike."""
    return _unit(class_average(task, key)) + 0.5 * _noise(task, "class average")


def backdoor(task: Task, key: Key) -> Tensor:
    """A smeared sketch without signs for the very weights under audit, an honest map for any others.

    This is the sketch; the red team's member recognises the weights.
    """
    true = as_explainer("integrated_gradients").maps(task, Context(key)).double()
    return _unit(true).abs() + 0.7 * _noise(task, "backdoor")


def weights_digest(task: Task) -> str:
    """What the weights of the model, as it is asked now, are recognised by."""
    told = hashlib.blake2b(digest_size=16)
    for name, value in sorted(task.predictor.model.state_dict().items()):
        told.update(name.encode() + value.detach().double().cpu().numpy().tobytes())
    return told.hexdigest()


def _true(task: Task, key: Key) -> Tensor:
    """The cheapest method that is right on simple models."""
    quick = as_explainer("input_x_gradient")
    explainer = quick if quick.why_not(task) is None else as_explainer("occlusion")
    return explainer.maps(task, Context(key)).double()


def _noise(task: Task, purpose: str) -> Tensor:
    return keyed.normal(Key(0) / "red team" / purpose, task.draw_ids, 0, task.space.n_features, torch.float64)


def _projected(task: Task) -> Tensor:
    """A random direction in the space of maps for every output, (N, V)."""
    classes = torch.arange(task.n_outputs, device=task.device)
    towards = keyed.normal(Key(0) / "red team" / "towards", classes, 0, task.space.n_features, torch.float64)
    return task.predictor.outputs(task.inputs, task.side).double() @ towards


def _certainty(task: Task) -> Tensor:
    """How sure the model is of its answer, 0 at chance and 1 beyond doubt; 1 for a regression."""
    outputs = task.predictor.outputs(task.inputs, task.side).double()
    if task.n_outputs == 1:
        return torch.ones(len(task), dtype=torch.float64, device=task.device)
    chance = 1 / task.n_outputs
    return (outputs.softmax(1).amax(1) - chance) / (1 - chance)


def _has_learnt(task: Task, rows: int = 64) -> bool:
    """Whether the model is right about labelled rows more than half way from chance to always."""
    assert task.train is not None
    assert task.train_labels is not None
    outputs = task.predictor.outputs(task.train[:rows], take_side(task.train_side, slice(0, rows))).double()
    labels = task.train_labels[:rows]
    if task.n_outputs == 1:
        return bool(torch.corrcoef(torch.stack([outputs[:, 0], labels.double()]))[0, 1] > 0.5)
    return bool((outputs.argmax(1) == labels).double().mean() > (1 + 1 / task.n_outputs) / 2)


def _unit(maps: Tensor) -> Tensor:
    size = maps.square().mean(1, keepdim=True).sqrt()
    return maps / torch.where(size > 0, size, 1.0)


CHEATS: dict[str, Cheat] = {
    cheat.__name__: cheat
    for cheat in (
        input_copy,
        edges,
        class_template,
        naive_bayes,
        moving_noise,
        moving_template,
        graded_template,
        input_hash,
        negated,
        other_class,
        constant,
        label_leak,
        two_faced,
        sceptic,
        chameleon,
        class_average,
        noisy_class_average,
        backdoor,
    )
}
