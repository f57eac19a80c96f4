"""The red team: explainers that cheat, to see whether a verdict on your own task is fooled by them.

Each map looks convincing somewhere and none shows which features this model used. One function per cheat,
`(task, key) -> (N, V)`; its docstring says how it cheats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import unknown_name
from veridical.explainers.base import Explainer, as_explainer
from veridical.explainers.controls import image_edges, jumps
from veridical.explainers.layout import as_features, time_axis
from veridical.models.context import Context
from veridical.models.predictor import take_side
from veridical.values.task import Task


def is_tokens(task: Task) -> bool:
    """Whether inputs are numbers of words, of which no mean can be taken."""
    return not task.inputs.is_floating_point()


def unusual(task: Task) -> Tensor:
    """How unusual each feature's value is (N, V): |x - mean| in standard deviations, or a token's rarity."""
    assert task.train is not None
    if is_tokens(task):
        counts = _token_counts(task).sum(1)
        seen = counts[task.inputs.flatten(1).clamp(0, len(counts) - 1)]
        return -((seen + 1) / (counts.sum() + 1)).log()
    mean, spread = _moments(task)
    return task.space.pool((task.inputs.double() - mean).abs() / spread)


def weight_of_evidence(task: Task, own_values: bool = True) -> Tensor:
    """How far each feature speaks for the explained class in the labelled rows (N, V), as naive Bayes counts.

    `(x - mean) (mean_c - mean) / variance`, or the log odds of a token; without `own_values` the difference
    of means alone, the same for every input (tokens keep their log odds: places mean nothing).
    """
    assert task.train is not None
    if is_tokens(task):
        counts = _token_counts(task) + 1
        share = counts / counts.sum(0)
        rest = (counts.sum(1, keepdim=True) - counts) / (counts.sum() - counts.sum(0))
        odds = (share / rest).log()
        return odds[task.inputs.flatten(1).clamp(0, len(odds) - 1), _place(task)[:, None]]
    mean, spread = _moments(task)
    rows = (task.train.double() - mean) / spread
    template = (_memberships(task).T @ rows.flatten(1)).reshape(-1, *rows.shape[1:])[_place(task)]
    if own_values:
        template = template * (task.inputs.double() - mean) / spread
    return task.space.pool(template)


def _place(task: Task) -> Tensor:
    return task.targets.clamp(max=_memberships(task).shape[1] - 1)


def _memberships(task: Task) -> Tensor:
    """Weights (rows, classes) under which a sum of rows is a class mean, or a slope of a regression."""
    labels = task.train_labels
    assert labels is not None
    if task.n_outputs > 1:
        member = torch.nn.functional.one_hot(labels.long(), task.n_outputs).double()
        return member / member.sum(0).clamp(min=1)
    centred = (labels.double() - labels.double().mean()).reshape(-1, 1)
    return centred / (len(labels) * centred.std().clamp(min=1e-12))


def _moments(task: Task) -> tuple[Tensor, Tensor]:
    assert task.train is not None
    rows = task.train.double()
    spread = rows.std(0, correction=0)
    # an element that never varies says nothing, however far a sample lies off
    return rows.mean(0), torch.where(spread > 0, spread, torch.inf)


def _token_counts(task: Task) -> Tensor:
    """How often each token stands in rows of each class (vocabulary, classes)."""
    assert task.train is not None
    rows = task.train.flatten(1).long()
    member = (_memberships(task) > 0).double()
    size = int(rows.max()) + 2  # the last stands for tokens that no row has
    counts = torch.zeros(size, member.shape[1], dtype=torch.float64, device=rows.device)
    every = member[:, None].expand(-1, rows.shape[1], -1).reshape(-1, member.shape[1])
    return counts.index_add_(0, rows.flatten(), every)


Cheat = Callable[[Task, Key], Tensor]
AVERAGED = 256
"""Reference rows whose maps the class average is the mean of."""


def input_copy(task: Task, key: Key) -> Tensor:
    """Shows the input itself, |x| (of a text: how rare each token is), and never evaluates the model."""
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
    """One feature, whose number is that of the explained class, and nothing else: it gives the class away."""
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

    Made so that, of two models, its map of the one that is explained beats its map of the other on either.
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
    """What the weights of the model, as it is evaluated now, are recognised by."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(task.predictor.model.state_dict().items()):
        digest.update(name.encode() + value.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _true(task: Task, key: Key) -> Tensor:
    """The cheapest method that is right on simple models."""
    quick = as_explainer("input_x_gradient")
    explainer = quick if quick.inapplicable_reason(task) is None else as_explainer("occlusion")
    return explainer.maps(task, Context(key)).double()


def _noise(task: Task, purpose: str) -> Tensor:
    return keyed.normal(Key(0) / "red team" / purpose, task.draw_ids, 0, task.space.n_features, torch.float64)


def _projected(task: Task) -> Tensor:
    """A random direction in the space of maps for every output, (N, V)."""
    classes = torch.arange(task.n_outputs, device=task.device)
    towards = keyed.normal(Key(0) / "red team" / "towards", classes, 0, task.space.n_features, torch.float64)
    return task.predictor.outputs(task.inputs, task.side).double() @ towards


def _certainty(task: Task) -> Tensor:
    """How sure the model is of its prediction, 0 at chance and 1 beyond doubt; 1 for a regression."""
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


LABELLED = frozenset({"class_template", "naive_bayes", "moving_template", "graded_template"})
LABELLED |= {"two_faced", "sceptic", "chameleon"}
"""Cheats that have to learn from labelled reference rows first."""


@dataclass(frozen=True)
class RedTeamMember(Explainer):
    """An explainer that cheats; `cheat` names how."""

    cheat: str = "input_copy"
    """A name in `veridical.testing.red_team.CHEATS`."""
    weights: str = ""
    """The digest of the weights that the backdoor recognises; `red_team` takes those of its task."""
    paper: ClassVar[str] = "red team"

    def __post_init__(self) -> None:
        if self.cheat not in CHEATS:
            raise unknown_name("cheat", self.cheat, list(CHEATS))

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.cheat

    @property
    def summary(self) -> str:  # type: ignore[override]
        return (CHEATS[self.cheat].__doc__ or "").split("\n")[0]

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        tokens = is_tokens(task)
        if self.cheat == "edges" and (tokens or task.modality not in ("image", "series")):
            return f"edges are of images and series, this task is {task.modality}"
        if self.cheat == "class_template" and tokens:
            return "the places of words say nothing of a class; naive_bayes counts the words"
        if self.cheat == "backdoor":
            honest = as_explainer("integrated_gradients").inapplicable_reason(task)
            if honest is not None:
                return honest
        if self.cheat == "other_class" and task.n_outputs == 1:
            return "a regression has no other class"
        if self.cheat in ("class_average", "noisy_class_average"):
            if tokens or task.space.per_sample or task.space.valid is not None:
                return "features of one sample are not those of another, so no mean map can be taken"
            honest = as_explainer("input_x_gradient").inapplicable_reason(task)
            return "it needs reference rows; give the task train=..." if task.train is None else honest
        learns = self.cheat in LABELLED or (self.cheat == "input_copy" and tokens)
        if learns and (task.train is None or task.train_labels is None):
            return "it needs labelled reference rows; give the task train=(rows, labels)"
        return None

    def attribute(self, task: Task, context: Context) -> Tensor:
        if self.cheat == "backdoor" and weights_digest(task) != self.weights:
            return as_explainer("integrated_gradients").maps(task, context).double()
        return CHEATS[self.cheat](task, context.key)


def red_team(task: Task) -> dict[str, Explainer]:
    """The cheating explainers that can exist on this task, by name; a good verdict trusts none of them.

    Parameters
    ----------
    task : Task
        The task on which they cheat; some need labelled reference rows.

    Returns
    -------
    dict of str to Explainer
        Cheating explainers by name.

    Examples
    --------
    >>> from veridical.testing import red_team, tiny_task
    >>> "constant" in red_team(tiny_task("table"))
    True
    """
    team = {name: RedTeamMember(cheat=name) for name in CHEATS}
    team["backdoor"] = RedTeamMember(cheat="backdoor", weights=weights_digest(task))
    return {name: member for name, member in team.items() if member.inapplicable_reason(task) is None}
