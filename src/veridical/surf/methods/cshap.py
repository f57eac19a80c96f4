"""ConceptSHAP: global directions from which the model's answers can be rebuilt, with Shapley values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.random.keyed import Key, as_key, integers, normal, uniform
from veridical.surf.concepts import Concepts
from veridical.surf.cshap_network import Network
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.surf.methods.base import ConceptMethod, check_embeddings, too_few
from veridical.surf.projection import Linear


@dataclass(frozen=True)
class ConceptSHAP(ConceptMethod):
    """C-SHAP (Yeh et al. 2020): `pool` unit vectors, learned with a network that rebuilds h from `h . v`.

    The loss is that of completeness: cross-entropy between the model's probabilities and the head's after
    rebuilding (squared error for a regression). The Shapley value of a concept for a class is its share of
    the agreement with the model on that class, by KernelSHAP over sampled coalitions; the K largest in
    magnitude are the class's concepts. Regressions and attributes learn K vectors only.
    """

    name = "c-shap"
    pool: int = 100
    hidden: int = 500
    steps: int = 1000
    batch: int = 256
    rate: float = 1e-2
    coalitions: int = 512
    class_rows: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool < self.n_concepts:
            raise InputError(f"a pool of {self.pool} vectors is smaller than {self.n_concepts} concepts")
        if min(self.steps, self.batch, self.coalitions, self.class_rows) < 1 or self.rate <= 0:
            raise InputError("steps, batch, coalitions, class_rows and rate must be positive")

    def fit(self, embeddings: Embeddings, head: Head, seed: int | Key = 0) -> Concepts:
        """Learn the vectors, then weigh them for every output."""
        check_embeddings(self, embeddings, head, False)
        if len(embeddings) < self.n_concepts:
            raise InputError(
                f"{len(embeddings)} embeddings are fewer than the {self.n_concepts} concepts asked for"
            )
        key = as_key(seed) / self.name
        if head.classifies:
            return self._fit_one(embeddings, head, self.pool, key)
        parts = []
        for output in range(head.n_outputs):
            weight, bias = head.weight[output : output + 1], head.bias[output : output + 1]
            kind = "regression"
            if head.kind == "multilabel":
                weight, bias, kind = torch.cat([-weight, weight]), torch.cat([-bias, bias]), "binary"
            own = Head(weight, bias, kind)  # type: ignore[arg-type]
            one = Embeddings.of(embeddings.pooled, own, ids=embeddings.ids)
            parts.append(self._fit_one(one, own, self.n_concepts, key / output))
        vectors = torch.cat([part.vectors[-1:] for part in parts])
        importances = torch.cat([part.importances[-1:] for part in parts])
        return Concepts(self.name, vectors, importances, Linear(vectors), torch.zeros_like(head.bias))

    def _fit_one(self, embeddings: Embeddings, head: Head, pool: int, key: Key) -> Concepts:
        h = embeddings.pooled
        with torch.enable_grad():
            vectors, network = self.learn(h, head, pool, key)
        members = head.membership(embeddings.outputs)
        chosen = head.weight.new_zeros(head.n_outputs, self.n_concepts, head.dimension)
        importances = head.weight.new_zeros(head.n_outputs, self.n_concepts)
        flags: dict[int, str] = {}
        for output, count in enumerate(members.sum(0).tolist()):
            if count < self.n_concepts:
                flags[output] = too_few(count, self.n_concepts)
                continue
            rows = h[members[:, output]][: self.class_rows]
            values = self.shapley(rows, vectors, network, head, output, key / "shapley" / output)
            pick = values.abs().topk(self.n_concepts).indices
            chosen[output], importances[output] = vectors[pick].double(), values[pick]
        return Concepts(
            self.name, chosen, importances, Linear(chosen), torch.zeros_like(head.bias), None, flags
        )

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
            answer = network((h[rows] @ unit.T)[:, None])
            if head.kind == "regression":
                loss = (answer - target[rows]).square().mean()
            else:
                loss = -(target[rows] * torch.log_softmax(answer * scale, -1)).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return torch.nn.functional.normalize(vectors.detach(), dim=-1), network

    def shapley(
        self, rows: Tensor, vectors: Tensor, network: Network, head: Head, output: int, key: Key
    ) -> Tensor:
        """Each vector's share of completeness on these rows, all of which the model gives to `output`."""
        codes = rows.float() @ vectors.T
        wanted = head.outputs(rows)

        @torch.no_grad()
        def completeness(kept: Tensor) -> Tensor:
            masked = codes[None] * kept[:, None].float()
            answers = network(masked.reshape(-1, 1, codes.shape[-1])).double()
            answers = answers.reshape(len(kept), len(rows), -1)
            if head.kind == "regression":
                return -(answers - wanted).square().mean((1, 2))
            return (answers.argmax(-1) == output).double().mean(1)

        return kernel_shap(completeness, vectors.shape[0], self.coalitions, key, vectors.device)


def kernel_shap(
    ask: Callable[[Tensor], Tensor],
    count: int,
    coalitions: int,
    key: Key,
    device: torch.device | None = None,
) -> Tensor:
    """Shapley values (K,) of the game `ask(coalitions (M, K)) -> (M,)`, by weighted least squares.

    Coalitions come with their complements, their sizes drawn with Shapley's kernel, so each weighs the same;
    that the values sum to `v(all) - v(none)` is put in exactly. With few players all coalitions are asked,
    and values are exact.
    """
    ends = torch.tensor([[False] * count, [True] * count], device=device)
    empty, full = ask(ends).double()
    if count == 1:
        return (full - empty)[None]
    kept, weight = _coalitions(count, coalitions, key, device)
    answers = torch.cat([ask(part).double() for part in kept.split(64)])
    # the last player's value is what the others leave of the total
    design = kept.double()[:, :-1] - kept.double()[:, -1:]
    right = answers - empty - kept.double()[:, -1] * (full - empty)
    gram = (design * weight[:, None]).T @ design
    gram += 1e-9 * gram.diagonal().mean() * torch.eye(count - 1, dtype=gram.dtype, device=device)
    found = torch.linalg.solve(gram, (design * weight[:, None]).T @ right)
    return torch.cat([found, (full - empty - found.sum())[None]])


def _coalitions(count: int, budget: int, key: Key, device: torch.device | None) -> tuple[Tensor, Tensor]:
    if 2**count - 2 <= budget:
        numbers = torch.arange(1, 2**count - 1, device=device)
        kept = (numbers[:, None] >> torch.arange(count, device=device)) % 2 == 1
        weight = [(count - 1) / (math.comb(count, s) * s * (count - s)) for s in kept.sum(-1).tolist()]
        return kept, torch.tensor(weight, dtype=torch.float64, device=device)
    ids = torch.arange((budget + 1) // 2, device=device)
    sizes = torch.arange(1, count, dtype=torch.float64, device=device)
    chance = (1 / (sizes * (count - sizes))).cumsum(0)
    draw = uniform(key / "sizes", ids, 0, 1, torch.float64)[:, 0] * chance[-1]
    size = torch.searchsorted(chance, draw) + 1
    rank = uniform(key / "members", ids, 0, count, torch.float64).argsort(-1).argsort(-1)
    kept = rank < size[:, None]
    both = torch.cat([kept, ~kept])
    return both, torch.ones(len(both), dtype=torch.float64, device=device)
