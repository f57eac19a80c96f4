"""C-SHAP-Eval: the rival that learns to rebuild embeddings with a small network (eq. 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from veridical.concepts import Concepts, Embeddings, Head, Judgement
from veridical.concepts.measures import sample_errors
from veridical.concepts.methods.cshap import Network
from veridical.core.key import Key, as_key, permutation
from veridical.errors import InputError, NotApplicableError

HIDDEN = 500
"""Width of C-SHAP's hidden layer."""
_RANK = 1e-6
"""Singular values of a head below this share of the largest are none."""

Loss = Literal["cross_entropy", "l1"]


def cshap_flops(outputs: int, concepts: int, dimension: int, hidden: int = HIDDEN) -> int:
    """`2 C (H K + H D + D)`: two layers to the embedding for every output, then its head.

    >>> cshap_flops(outputs=100, concepts=1, dimension=2048)
    205309600
    """
    return 2 * outputs * (hidden * concepts + hidden * dimension + dimension)


def cshap_parameters(concepts: int, dimension: int, hidden: int = HIDDEN) -> int:
    """Weights and biases of the two layers that all outputs share.

    >>> cshap_parameters(concepts=1, dimension=2048)
    1027048
    """
    return hidden * (concepts + 1) + dimension * (hidden + 1)


@dataclass(frozen=True, eq=False)
class Units:
    """The coordinates in which a network is trained: whatever they are, it rebuilds the same embeddings."""

    read: Tensor
    """What outputs are of the rebuilt embedding's coordinates (C, r)."""
    codes: float = 1.0
    """What codes are divided by."""
    answers: float = 1.0
    """What the coordinates are multiplied by."""
    hidden: float = 1.0
    """What a hidden unit counts for in a coordinate."""

    @classmethod
    def plain(cls, head: Head) -> Units:
        """The embedding as it is: outputs are `F psi`."""
        return cls(head.weight.float())

    @classmethod
    def of_head(cls, head: Head, codes: Tensor, wanted: Tensor, hidden: int) -> Units:
        """The outputs themselves, in units of their spread, so that a rate suits any head.

        Any outputs in the column space of F are those of some embedding, `psi = pinv(F) y`: the second layer
        is `pinv(F)` times what is trained here. In the embedding's own coordinates Adam cannot reach what F
        hardly sees: the weights of ResNet-20's classes sum to 0.4% of their length, and a perfect
        reconstruction lies along that sum.
        """
        left, sizes, _ = torch.linalg.svd(head.weight, full_matrices=False)
        left = left[:, sizes > _RANK * sizes[0]]
        full = left.shape[1] == head.n_outputs
        read = torch.eye(head.n_outputs).to(left) if full else left / max(1, left.shape[1]) ** 0.5
        return cls(read.float(), _spread(codes), _spread(wanted - head.bias), 1 / hidden)


class ScaledNetwork(Network):
    """C-SHAP's network in other coordinates: codes are divided, and what is read is multiplied."""

    def __init__(self, concepts: int, head: Head, hidden: int, key: Key, units: Units) -> None:
        super().__init__(concepts, head, hidden, key, units.read)
        self.units = units

    def __call__(self, codes: Tensor) -> Tensor:
        units = self.units
        hidden = torch.relu(codes.float() / units.codes @ self.first.T + self.first_bias)
        through = units.read @ self.second * (units.answers * units.hidden)
        seen = torch.einsum("nch,ch->nc", hidden.expand(-1, len(through), -1), through)
        return seen + units.read @ self.second_bias * units.answers + self.bias


@dataclass(frozen=True)
class Training:
    """How the network is trained (supplement B.2.3); batch and patience are not in the paper."""

    loss: Loss = "cross_entropy"
    """What is made small: the cross-entropy to the model's probabilities, or "l1", the error of logits."""
    rate: float = 0.1
    """Adam's learning rate at the start."""
    epochs: int = 100
    """Epochs at most."""
    batch: int = 64
    """Embeddings in a step."""
    patience: int = 2
    """Epochs without a lower loss after which the rate is halved."""
    smallest_rate: float = 1e-7
    """The rate below which training ends."""
    hidden: int = HIDDEN
    """Hidden units."""
    plain: bool = False
    """Whether the embedding's own coordinates are trained, as in the paper, where the rate suits few heads.

    Otherwise they are the head's outputs in units of their spread, which any head of full row rank allows."""

    def __post_init__(self) -> None:
        if self.loss not in ("cross_entropy", "l1"):
            raise InputError(f"the loss is 'cross_entropy' or 'l1', got {self.loss!r}")
        if self.rate <= 0 or min(self.epochs, self.batch) < 1:
            raise InputError("rate, epochs and batch must be positive")


def train(
    concepts: Concepts, embeddings: Embeddings, head: Head, training: Training, key: Key
) -> ScaledNetwork:
    """Fit the network to the model's answers on these embeddings."""
    codes = concepts.project(embeddings.pooled).float()
    wanted = head.outputs(embeddings.pooled)
    target = wanted.float() if training.loss == "l1" else head.probabilities(wanted).float()
    units = Units.plain(head) if training.plain else Units.of_head(head, codes, wanted, training.hidden)
    network = ScaledNetwork(codes.shape[-1], head, training.hidden, key, units)
    optimiser = torch.optim.Adam(network.parameters, lr=training.rate)
    slower = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=training.patience)
    one = torch.zeros(1, dtype=torch.int64, device=codes.device)
    scale = 0.5 if head.kind == "binary" else 1.0
    for epoch in range(training.epochs):
        order = permutation(key / "order", one, epoch, len(codes))[0]
        total = torch.zeros((), device=codes.device)
        for at in range(0, len(codes), training.batch):
            rows = order[at : at + training.batch]
            answer = network(codes[rows])
            if training.loss == "l1":
                loss = (answer - target[rows]).abs().mean()
            else:
                loss = -(target[rows] * torch.log_softmax(answer * scale, -1)).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(rows)
        slower.step(float(total) / len(codes))
        if optimiser.param_groups[0]["lr"] < training.smallest_rate:
            break
    return network


def cshap_eval(
    concepts: Concepts,
    embeddings: Embeddings,
    head: Head,
    fitted_on: Embeddings | None = None,
    training: Training | None = None,
    seed: int | Key = 0,
) -> Judgement:
    """C-SHAP-Eval: train the network on `fitted_on` (default: the judged embeddings), then compare.

    Importances play no part, so an explanation with random ones scores the same; learning rate and seed do.
    """
    if not head.classifies:
        raise NotApplicableError(f"C-SHAP-Eval is a measure for classifiers; this head is a {head.kind}")
    training = training or Training()
    with torch.enable_grad():
        network = train(concepts, fitted_on or embeddings, head, training, as_key(seed) / "cshap_eval")

    def answer(h: Tensor) -> Tensor:
        with torch.no_grad():
            return network(concepts.project(h)).double()

    width = head.n_outputs * training.hidden
    values = sample_errors(answer, embeddings, head, width)
    count = concepts.vectors.shape[1]
    facts = {
        "parameters": sum(p.numel() for p in network.parameters),  # those that are trained
        "flops": cshap_flops(head.n_outputs, count, head.dimension, training.hidden),
    }
    loss = "CEL" if training.loss == "cross_entropy" else "L1"
    name = f"C-SHAP-Eval ({loss})"
    return Judgement(concepts.method, name, values, embeddings.ids, 1 / head.n_outputs, facts)


def learned_measures(
    fitted_on: Embeddings | None = None, plain: bool = False
) -> dict[str, Callable[[Concepts, Embeddings, Head, Key], Judgement]]:
    """C-SHAP-Eval under both losses, as measures for `veridical.concepts.sanity`; `plain` is as published."""

    def measure(loss: Loss) -> Callable[[Concepts, Embeddings, Head, Key], Judgement]:
        training = Training(loss=loss, plain=plain)
        return lambda concepts, rows, head, key: cshap_eval(concepts, rows, head, fitted_on, training, key)

    return {"C-SHAP-Eval (CEL)": measure("cross_entropy"), "C-SHAP-Eval (L1)": measure("l1")}


def _spread(values: Tensor) -> float:
    """The standard deviation; 1 where there is none."""
    return float(values.double().std(correction=0)) or 1.0
