"""ConceptSHAP: global directions from which the model's outputs can be rebuilt, with Shapley values."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veridical.concepts.concepts import Concepts, Linear
from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.methods.base import (
    ConceptMethod,
    check_count,
    check_embeddings,
    refuse_if_none,
    too_few,
)
from veridical.core.allowed import Count, Positive
from veridical.core.key import Key, as_key, integers, normal, uniform
from veridical.errors import InputError, VeridicalWarning
from veridical.explainers.shapley import KernelShap
from veridical.functional import pearson
from veridical.values.task import Task


class Network:
    """`psi(p) = W2 relu(W1 p + b1) + b2`, shared by all outputs and seen through the head only.

    `f_i . psi(p_i)` needs `F W2` (C, H) and never an embedding, so nothing of size N x C x D is built.
    """

    def __init__(self, concepts: int, head: Head, hidden: int, key: Key, read: Tensor | None = None) -> None:
        place = head.weight.device
        self.read = head.weight.float() if read is None else read
        """What outputs are of the rebuilt embedding's coordinates (C, r): F, where these are its own."""
        self.bias = head.bias.float()
        width = self.read.shape[1]

        def start(name: str, *shape: int, fan_in: int) -> Tensor:
            one = torch.zeros(1, dtype=torch.int64, device=place)
            draw = uniform(key / name, one, 0, math.prod(shape)).reshape(shape)
            return ((2 * draw - 1) / math.sqrt(fan_in)).requires_grad_(True)

        self.first = start("first", hidden, concepts, fan_in=concepts)
        self.first_bias = start("first bias", hidden, fan_in=concepts)
        self.second = start("second", width, hidden, fan_in=hidden)
        self.second_bias = start("second bias", width, fan_in=hidden)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.first, self.first_bias, self.second, self.second_bias]

    def __call__(self, codes: Tensor) -> Tensor:
        """Outputs (N, C) of codes (N, K)."""
        hidden = torch.relu_(torch.addmm(self.first_bias, codes.float(), self.first.T))
        return hidden @ (self.read @ self.second).T + self.read @ self.second_bias + self.bias


_FIRST = 2048
"""Coalitions that every output is evaluated with at first."""
_RELIABLE = 0.9


@dataclass(frozen=True)
class ConceptSHAP(ConceptMethod):
    """C-SHAP (Yeh et al. 2020): `pool` unit vectors, learned with a network that rebuilds h from `h . v`.

    The loss is that of completeness: cross-entropy between the model's probabilities and the head's after
    rebuilding (squared error for a regression). The Shapley value of a concept for a class is its share of
    the agreement with the model on that class, by KernelSHAP over sampled coalitions (agreement is a share of
    rows that keep their class, so there is no closed form; few vectors are enumerated); the K largest in
    magnitude are the class's concepts, and a note says how reliable the values are. Regressions and
    attributes learn K vectors only.
    """

    name = "c-shap"
    stochastic = True
    pool: Count = 100
    """Vectors that are learned, of which each class keeps `n_concepts`."""
    hidden: Count = 500
    """Hidden units of the network that rebuilds embeddings."""
    steps: Count = 1000
    """Steps of training."""
    batch: Count = 256
    """Embeddings in a step."""
    rate: Positive = 1e-2
    """Adam's learning rate."""
    coalitions: Count = 16384
    """Sets of vectors that are evaluated for a class at most: from 2,048 on, until two draws agree."""
    class_rows: Count = 64
    """Embeddings of a class on which its completeness is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool < self.n_concepts:
            raise InputError(f"a pool of {self.pool} vectors is smaller than {self.n_concepts} concepts")
        if self.shared:
            raise InputError("c-shap learns one pool, of which each output keeps its own: not shared")

    def fit(self, embeddings: Embeddings, head: Head, seed: int | Key = 0) -> Concepts:
        """Learn the vectors, then weigh them for every output."""
        check_embeddings(self, embeddings, head, False)
        check_count(self, len(embeddings))
        key = as_key(seed) / self.name
        if head.classifies:
            found = self._fit_one(embeddings, head, self.pool, key)
            refuse_if_none(len(found.flags) == head.n_outputs, self.n_concepts, len(embeddings))
            return found
        parts = []
        for output in range(head.n_outputs):
            weight, bias = head.weight[output : output + 1], head.bias[output : output + 1]
            kind = "regression"
            if head.kind == "multilabel":
                weight, bias, kind = torch.cat([-weight, weight]), torch.cat([-bias, bias]), "binary"
            own = Head(weight, bias, kind)  # type: ignore[arg-type]
            one = Embeddings.of(embeddings.pooled, own, ids=embeddings.ids)
            parts.append(self._fit_one(one, own, self.n_concepts, key / output))
        vectors, importances = (
            torch.cat([getattr(part, name)[-1:] for part in parts]) for name in ("vectors", "importances")
        )
        last = parts[0].n_outputs - 1
        flags = {i: part.flags[last] for i, part in enumerate(parts) if last in part.flags}
        refuse_if_none(len(flags) == head.n_outputs, self.n_concepts, len(embeddings))
        return self._found(vectors, importances, flags)

    def _fit_one(self, embeddings: Embeddings, head: Head, pool: int, key: Key) -> Concepts:
        h = embeddings.pooled
        with torch.enable_grad():
            vectors, network = self.learn(h, head, pool, key)
        members = head.membership(embeddings.outputs)
        chosen = head.weight.new_zeros(head.n_outputs, self.n_concepts, head.dimension)
        importances = head.weight.new_zeros(head.n_outputs, self.n_concepts)
        flags: dict[int, str] = {}
        rows: dict[int, Tensor] = {}
        for output, count in enumerate(members.sum(0).tolist()):
            if count < self.n_concepts:
                flags[output] = too_few(count, self.n_concepts)
            else:
                rows[output] = h[members[:, output]][: self.class_rows]
        note = "no output has enough samples"
        if rows:
            values, reliable = self.shapley(rows, vectors, network, head, key / "shapley")
            pick = values.abs().topk(self.n_concepts).indices
            outputs = list(rows)
            chosen[outputs], importances[outputs] = vectors[pick].double(), values.gather(1, pick)
            note = f"Shapley values have a reliability of at least {float(reliable.min()):.2f}"
        return self._found(chosen, importances, flags, note)

    def _found(self, vectors: Tensor, importances: Tensor, flags: dict[int, str], *notes: str) -> Concepts:
        nothing = importances.new_zeros(len(importances))
        return Concepts(self.name, vectors, importances, Linear(vectors), nothing, None, flags, notes)

    def learn(self, h: Tensor, head: Head, pool: int, key: Key) -> tuple[Tensor, Network]:
        """Vectors (pool, D) of length 1 and the network that rebuilds embeddings from them."""
        h = h.float()
        wanted = head.outputs(h)
        target = wanted.float() if head.kind == "regression" else head.probabilities(wanted).float()
        ids = torch.arange(pool, device=h.device)
        vectors = torch.nn.functional.normalize(normal(key / "vectors", ids, 0, head.dimension), dim=-1)
        vectors.requires_grad_(True)
        network = Network(pool, head, self.hidden, key / "network")
        optimiser = torch.optim.Adam([vectors, *network.parameters], lr=self.rate)
        one = torch.zeros(1, dtype=torch.int64, device=h.device)
        scale = 0.5 if head.kind == "binary" else 1.0
        for step in range(self.steps):
            rows = integers(key / "batches", one, step, min(self.batch, len(h)), len(h))[0]
            unit = torch.nn.functional.normalize(vectors, dim=-1)
            guess = network(h[rows] @ unit.T)
            if head.kind == "regression":
                loss = (guess - target[rows]).square().mean()
            else:
                loss = -(target[rows] * torch.log_softmax(guess * scale, -1)).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return torch.nn.functional.normalize(vectors.detach(), dim=-1), network

    def shapley(
        self, rows: dict[int, Tensor], vectors: Tensor, network: Network, head: Head, key: Key
    ) -> tuple[Tensor, Tensor]:
        """Each vector's share of completeness for some outputs (n, pool), and how reliable they are (n,).

        Two independent halves of the coalitions are averaged; how well they agree, stepped up to the whole
        (Spearman and Brown), is the reliability. Outputs below 0.9 are evaluated with twice as many.
        """
        outputs = torch.tensor(list(rows), device=vectors.device)
        game = Completeness(rows, vectors, network, head)
        everybody = torch.ones(len(outputs), len(vectors), device=vectors.device)
        task = Task(game, everybody, side=(outputs[:, None],), ids=outputs, head="regression", fill=0.0)
        values = torch.zeros(len(outputs), len(vectors), dtype=torch.float64, device=vectors.device)
        reliable = torch.zeros(len(outputs), dtype=torch.float64, device=vectors.device)
        left, budget = torch.arange(len(outputs), device=vectors.device), min(_FIRST, self.coalitions)
        while len(left):
            some, half = task[left], KernelShap(budget=max(3, budget // 2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VeridicalWarning)  # of maps; the note tells the reliability
                one, other = (half(some, key / budget / name).values.double() for name in ("one", "other"))
            # no spread, or a single vector, leaves nothing that two draws could disagree about
            alike = pearson(one, other).nan_to_num(1.0)
            values[left], reliable[left] = (one + other) / 2, 2 * alike / (1 + alike).clamp(min=1e-12)
            if budget >= self.coalitions:
                break
            left, budget = left[reliable[left] < _RELIABLE], min(2 * budget, self.coalitions)
        return values, reliable


class Completeness(nn.Module):
    """The game: how well the outputs are rebuilt from the concepts that are there.

    Row by row: which concepts are kept (n, pool) and for which output (n, 1). A class is rebuilt on the share
    of its rows that stay in it; a regression as well as its squared error is small.
    """

    def __init__(self, rows: dict[int, Tensor], vectors: Tensor, network: Network, head: Head) -> None:
        super().__init__()
        self.codes = {output: own.float() @ vectors.T for output, own in rows.items()}
        self.wanted = {output: head.outputs(own) for output, own in rows.items()}
        self.network, self.regression = network, head.kind == "regression"

    @torch.no_grad()
    def forward(self, kept: Tensor, outputs: Tensor) -> Tensor:
        found = kept.new_zeros(len(kept), 1)
        for output in outputs.unique().tolist():
            chosen = (outputs[:, 0] == output).nonzero()[:, 0]
            masked = self.codes[output] * kept[chosen, None]
            guesses = self.network(masked.reshape(-1, kept.shape[1]))
            guesses = guesses.reshape(len(chosen), len(masked[0]), -1)
            if self.regression:
                found[chosen, 0] = -(guesses - self.wanted[output]).square().mean((1, 2)).to(found)
            else:
                found[chosen, 0] = (guesses.argmax(-1) == output).to(found).mean(1)
        return found
