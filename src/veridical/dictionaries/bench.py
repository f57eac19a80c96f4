"""What dictionaries are judged on: activations of a layer, what is known about them, and their model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.dictionary_training import Recipe
from veridical.concepts.splitting import Split, at_layer, split
from veridical.core.allowed import Count
from veridical.core.key import Key, permutation
from veridical.core.settings import checked
from veridical.dictionaries.planted import Superposition, chance_mcc, truth_scores
from veridical.errors import InputError, NotApplicableError, ShapeError, warn
from veridical.gef import GEF, FastGEF
from veridical.gef.codes import End, layer_activations
from veridical.models.predictor import plain_output
from veridical.values.task import Task


@checked
def activations(task: Task, layer: str, *, axis: int = 1, end: End = "output") -> Tensor:
    """Rows (n, D) for `train` from any layer of a task: one per sample and position, padding left out.

    Parameters
    ----------
    task, layer
        Whose activations.
    axis
        Where the layer counts its units: 1 for channels of a convolution, -1 for a transformer.
    end
        What is read: the layer's "output" or its "input".

    Returns
    -------
    Tensor
        The rows, sample by sample.
    """
    states = layer_activations(task, layer, end, axis)
    return states[_words(task, states.shape[1])]


def _words(task: Task, positions: int) -> Tensor:
    """Which of so many positions (N, J) are no padding, by the space or else by a mask beside the inputs."""
    valid = task.space.valid
    if valid is None and isinstance(task.side, dict):
        valid = task.side.get("attention_mask")
    if task.modality == "text" and valid is not None and valid.shape[1] == positions:
        return valid.to(task.device).bool()
    return torch.ones(len(task), positions, dtype=torch.bool, device=task.device)


Change = Callable[[Tensor], Tensor]
"""Rows (n, D) in the place of rows (n, D)."""

RIDGE = 1e-3
"""Ridge of the probes, as a share of the mean variance of what they read."""


@dataclass(frozen=True, eq=False)
class Probes:
    """Linear least-squares probes: `h @ weight + bias` (n, L) is above 0.5 where the property is there."""

    weight: Tensor
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return rows.double() @ self.weight + self.bias


def fit(rows: Tensor, labels: Tensor) -> Probes:
    """Ridge regression of labels (n, L) on rows (n, D), classes weighted as if they were equally frequent.

    With one weight per class the weighted least-squares direction is that of linear discriminants, so it is
    fitted on all rows at once and each bias is set half-way between the two classes' means.
    """
    x, member = rows.double(), labels.double()
    x_mean, y_mean = x.mean(0), member.mean(0)
    x, y = x - x_mean, member - y_mean
    gram = x.T @ x / len(x)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean().clamp(min=1e-12))
    weight = torch.linalg.solve(gram, x.T @ y / len(x))
    outputs = x @ weight
    on, off = ((outputs * own).sum(0) / own.sum(0).clamp(min=1) for own in (member, 1 - member))
    half = (on - off).clamp(min=1e-12)
    return Probes(weight / half, 0.5 - (x_mean @ weight + (on + off) / 2) / half)


def fit_logistic(rows: Tensor, labels: Tensor) -> Probes:
    """Logistic regression of each label (n, L) by itself on rows (n, D), classes weighted alike."""
    from sklearn.linear_model import LogisticRegression

    x, solver = rows.double().cpu().numpy(), LogisticRegression(max_iter=1000, class_weight="balanced")
    found = [solver.fit(x, y).coef_[0].tolist() + solver.intercept_.tolist() for y in labels.T.cpu().numpy()]
    parts = torch.tensor(found, dtype=torch.float64, device=rows.device)
    return Probes(parts[:, :-1].T, parts[:, -1] + 0.5)  # decided at 0.5, as the others


@dataclass(frozen=True, eq=False)
class Bench:
    """Activations of one layer of a task, to train and to judge on, in `parts` that tell sampling noise.

    Labels tell which properties each row has (a planted feature fires, a token is a number, ...);
    probes are fitted on those of `train` and judged on those of the task's own rows.
    """

    task: Task
    layer: str
    train: Tensor
    """Rows (n, D) that dictionaries and probes are fitted on."""
    train_labels: Tensor | None = None
    """Properties (n, L) of the train rows, as 0 and 1."""
    labels: Tensor | None = None
    """Properties (m, L) of the task's rows, sample by sample and position by position."""
    axis: int = 1
    """Axis of the layer's units: 1 for channels, -1 for a transformer."""
    skip: int = 0
    """Positions at the beginning that are neither judged nor replaced: a language model's first token."""
    truth: Superposition | None = None
    """What was planted, where the rows are; the task's inputs are then the features."""
    untrained: Tensor | None = None
    """Rows of the same layer of an untrained model."""
    next_token: bool = False
    """Whether loss and KL are of every next token, of a model that gives logits (N, tokens, vocabulary) for
    token ids; otherwise they are of the task's one output."""
    probes: Literal["ridge", "logistic"] = "ridge"
    """How properties are read: ridge regressions and atoms picked by their standardised mean difference, or,
    as SAEBench does, logistic ones and atoms picked by their mean difference (times their effect on the probe
    for TPP and SCR)."""
    probe_atoms: Count = 4
    """Atoms of a property that sparse probing, absorption and disentanglement read."""
    tpp_atoms: Count = 4
    """Atoms of a property that TPP takes out."""
    scr_atoms: Count = 4
    """Atoms of a property that SCR takes out."""
    parts: int = 8
    """Disjoint parts of the samples; every metric has one value on each."""
    probe_rows: int = 65536
    """Train rows, from the first on, whose codes probes read."""
    gef: GEF = field(default_factory=lambda: FastGEF(distance="cosine", draws=2))
    """How codes are judged by GEF."""
    gef_samples: int = 64
    """Samples that GEF evaluates: each is explained in every perturbed model."""
    seed: int = 0
    """Seed of the parts and of GEF's draws."""
    trained: dict[tuple[Recipe, Key], Dictionary] = field(default_factory=dict, repr=False)
    """Dictionaries trained on the train rows, since several others begin with them."""

    def __post_init__(self) -> None:
        if len(self.task) < 2 * self.parts:
            raise InputError(f"{len(self.task)} samples are too few for {self.parts} parts")
        labels = self.train_labels
        if labels is not None and len(labels) != len(self.train):
            raise ShapeError(f"train_labels has {len(labels)} rows for {len(self.train)} activations")

    @classmethod
    def planted(
        cls, superposition: Superposition, samples: int = 2048, train: int = 16384, labels: int = 24
    ) -> Bench:
        """The bench of planted features: properties are the most frequent ones, parents of others first."""
        task = superposition.task(samples)
        known = superposition.codes(train, draw=2)
        parents = superposition.parents
        sets = torch.bincount(parents[parents >= 0], minlength=superposition.features) > 0
        rate = (known > 0).double().mean(0)
        rank = (rate.clamp(max=0.5) + sets) * (rate > 0.01)
        order = torch.argsort(rank, descending=True, stable=True)[:labels]
        other = replace(superposition, seed=superposition.seed + 1)
        return cls(
            task,
            "embed",
            known @ superposition.directions,
            known[:, order] > 0,
            task.inputs[:, order] > 0,
            truth=superposition,
            untrained=known @ other.directions,
        )

    @cached_property
    def states(self) -> Tensor:
        """The layer's activations (N, J, D) of the task's samples."""
        return layer_activations(self.task, self.layer, axis=self.axis).float()

    @cached_property
    def kept(self) -> Tensor:
        """Which positions (N, J) are judged and replaced: no padding, nor the first ones that are skipped."""
        kept = _words(self.task, self.states.shape[1]).clone()
        kept[:, : self.skip] = False
        return kept

    @cached_property
    def test(self) -> Tensor:
        """Rows (m, D) that dictionaries are judged on."""
        return self.states[self.kept]

    @cached_property
    def sample_part(self) -> Tensor:
        """The part of every sample (N,)."""
        one = torch.zeros(1, dtype=torch.int64)
        order = permutation(Key(self.seed) / "parts", one, 0, len(self.task))[0].to(self.task.device)
        return order % self.parts

    @property
    def row_part(self) -> Tensor:
        """The part of every row (m,)."""
        return self.sample_part.repeat_interleave(self.kept.sum(1))

    @property
    def properties(self) -> tuple[Tensor, Tensor]:
        """The properties of the train rows that probes read and of the test rows; refused without any."""
        if self.labels is None or self.train_labels is None:
            raise NotApplicableError("probing needs labels: properties of the rows")
        if len(self.labels) != len(self.test):
            raise ShapeError(f"labels has {len(self.labels)} rows for {len(self.test)} activations")
        return self.train_labels[: self.probe_rows].bool(), self.labels.bool()

    def fit(self, rows: Tensor, labels: Tensor) -> Probes:
        """Probes of the kind that was chosen."""
        return (fit if self.probes == "ridge" else fit_logistic)(rows, labels)

    @cached_property
    def dense_probes(self) -> Probes:
        """Probes of the activations themselves."""
        labels, _ = self.properties
        return self.fit(self.train[: self.probe_rows], labels)

    @cached_property
    def partners(self) -> Tensor:
        """Another row (m,) of the same part for every row."""
        one = torch.zeros(1, dtype=torch.int64)
        order = permutation(Key(self.seed) / "partners", one, 0, len(self.test))[0].to(self.row_part.device)
        found = torch.empty_like(order)
        for part in range(self.parts):
            here = order[self.row_part[order] == part]
            found[here] = here.roll(1)
        return found

    def answers(self, change: Change) -> tuple[Tensor, Tensor]:
        """Loss with the layer changed, and KL to the model as it is (N, answers); NaN for padding.

        Labels are the next tokens, the task's, or what the model itself predicts.
        """
        task = self.task
        if self.next_token:
            loss, divergence = spliced_outputs(self, change).double().chunk(2, 1)
            counted = _words(task, task.inputs.shape[1])[:, 1:].clone()
            counted[:, : self.skip] = False
            return tuple(values.masked_fill(~counted, torch.nan) for values in (loss, divergence))  # type: ignore[return-value]
        if task.head != "multiclass":
            raise NotApplicableError(f"loss and KL need classes; the task's head is {task.head}")
        labels = task.predictions if task.labels is None else task.labels
        outputs = spliced_outputs(self, change).double()
        loss = cross_entropy(outputs, labels.long(), reduction="none")
        own, new = (given.double().log_softmax(-1) for given in (task.outputs, outputs))
        return loss[:, None], kl_div(new, own, reduction="none", log_target=True).sum(-1, keepdim=True)

    @cached_property
    def losses(self) -> dict[str, Tensor]:
        """The loss of every answer (parts,): of the model, and with the layer's mean or zero in its place."""
        centre = self.train.mean(0)
        changes: dict[str, Change] = {"model": lambda rows: rows, "zero": torch.zeros_like}
        changes["mean"] = lambda rows: centre.expand_as(rows)
        return {name: self.means(self.answers(change)[0], samples=True) for name, change in changes.items()}

    @cached_property
    def head_split(self) -> Split:
        """The task at its head, if the layer is what the head reads."""
        parts = split(self.task)
        seen = parts.test().pooled
        mine = self.states.mean(1)
        if seen.shape != mine.shape or not torch.allclose(seen.float(), mine, rtol=1e-3, atol=1e-4):
            raise NotApplicableError(f"layer '{self.layer}' is not what the model's linear head reads")
        return parts

    def means(self, values: Tensor, samples: bool = False) -> Tensor:
        """The mean over each part (parts,) of a value per row, or of a sample's values; NaN is left out."""
        part = self.sample_part[: len(values)] if samples else self.row_part
        part, values = part.repeat_interleave(values[0].numel()), values.double().flatten()
        there = ~values.isnan()
        total = values.new_zeros(self.parts).index_add_(0, part[there], values[there])
        return total / torch.bincount(part[there], minlength=self.parts)


class Subject:
    """A dictionary on a bench, with what several metrics need of it, found once."""

    def __init__(self, dictionary: Dictionary, bench: Bench, sibling: Dictionary | None = None) -> None:
        self.dictionary, self.bench, self.sibling = dictionary.to(bench.train.device), bench, sibling
        check_origin(dictionary, bench)

    @cached_property
    def codes(self) -> Tensor:
        """Codes (m, atoms) of the test rows."""
        return self._codes(self.bench.test)

    @cached_property
    def train_codes(self) -> Tensor:
        """Codes of the train rows that probes read."""
        return self._codes(self.bench.train[: self.bench.probe_rows])

    @cached_property
    def rebuilt(self) -> tuple[Tensor, Tensor]:
        """Loss and KL of every answer through the dictionary."""
        return self.bench.answers(lambda rows: self.dictionary.decode(self.dictionary.encode(rows)))

    @property
    def density(self) -> Tensor:
        """The share of the test rows in which each atom (atoms,) is active."""
        return (self.codes != 0).double().mean(0)

    @cached_property
    def truth(self) -> dict[str, float]:
        """What is known of the dictionary where features were planted; nothing elsewhere."""
        planted, bench = self.bench.truth, self.bench
        if planted is None:
            return {}
        atoms = self.dictionary.decoder
        fires = bench.task.inputs > 0
        return truth_scores(atoms, self.codes, planted.directions, fires, chance_of(len(atoms), planted))

    def _codes(self, rows: Tensor) -> Tensor:
        return torch.cat([self.dictionary.encode(part) for part in rows.split(8192)])


@lru_cache
def chance_of(width: int, planted: Superposition) -> float:
    """The MCC of as many random atoms."""
    return chance_mcc(width, planted.directions)


def check_origin(dictionary: Dictionary, bench: Bench) -> None:
    """Refuse a dictionary of another layer than the bench's; of another model, warn.

    Its file may name a block by number and a place in it: "resid_pre" is what the block before gives.
    """
    width, own = bench.train.shape[1], dictionary.decoder.shape[1]
    if own != width:
        raise ShapeError(f"the dictionary's atoms have {own} dimensions, layer '{bench.layer}' has {width}")
    hook, layer = dictionary.hook or "", bench.layer
    numbers, ours = (re.findall(r"(?<![^._])\d+(?![^._])", name) for name in (hook, layer))
    named, place = re.search("resid|mlp|att", hook), re.search("mlp|att", layer)
    if numbers and ours:
        block = int(numbers[-1]) - ("resid_pre" in hook)
        inner = "resid" if place is None else place[0]
        if block != int(ours[-1]) or (named is not None and named[0] != inner):
            raise InputError(
                f"the dictionary was trained on '{hook}', the bench reads '{layer}'; if these are one place, "
                "dataclasses.replace(dictionary, hook=None) says so"
            )
    configs = [getattr(m, "config", None) for m in bench.task.predictor.model.modules()]
    known = next((str(c.name_or_path) for c in configs if c is not None and hasattr(c, "name_or_path")), "")
    both = (name.rstrip("/").rsplit("/", 1)[-1].lower() for name in (dictionary.model or "", known))
    own_name, here = (name.removesuffix("-small") for name in both)
    if own_name and here and own_name != here:
        warn(f"the dictionary was trained on the model '{dictionary.model}'; this one is '{known}'")


class Spliced(nn.Module):
    """The model with one layer's output changed row by row, at the positions (N, J) given beside inputs.

    Of a model of next tokens: their loss and the KL to the model as it is, side by side (N, 2 (tokens - 1)).
    """

    def __init__(self, module: nn.Module, bench: Bench, change: Change) -> None:
        super().__init__()
        self.module, self.bench, self.change = module, bench, change

    def forward(self, *args: Any, **named: Any) -> Any:
        args, kept = (args, named.pop("kept")) if "kept" in named else (args[:-1], args[-1])
        axis = self.bench.axis

        def changed(found: Tensor) -> Tensor:
            states = found.movedim(axis, -1)
            flat = states.reshape(len(states), -1, states.shape[-1]).clone()
            flat[kept] = self.change(flat[kept]).to(flat)
            return flat.reshape(states.shape).movedim(-1, axis)

        with at_layer(self.module, self.bench.layer, "output", changed):
            found = self.module(*args, **named)
        if not self.bench.next_token:
            return found
        both = (plain_output(given) for given in (self.module(*args, **named), found))
        own, new = (logits[:, :-1].float().log_softmax(-1) for logits in both)
        loss = -new.gather(-1, args[0][:, 1:, None]).squeeze(-1)
        return torch.cat([loss, kl_div(new, own, reduction="none", log_target=True).sum(-1)], 1)


def spliced_outputs(bench: Bench, change: Change) -> Tensor:
    """The task's outputs (N, C) with the layer changed, or what `Spliced` says of next tokens."""
    task, kept = bench.task, bench.kept
    model = Spliced(task.predictor.model, bench, change)
    side = {**task.side, "kept": kept} if isinstance(task.side, dict) else (*task.side, kept)
    output = plain_output if bench.next_token else task.predictor.output
    return task.predictor.with_model(model, output).outputs(task.inputs, side)
