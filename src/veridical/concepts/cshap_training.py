"""C-SHAP-Eval: the rival that learns to rebuild embeddings with a small network (eq. 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from veridical.concepts.agreement import compare
from veridical.concepts.complexity import HIDDEN, cshap_flops, cshap_parameters
from veridical.concepts.concepts import Concepts
from veridical.concepts.cshap_network import Network, Units
from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.concepts.judgement import Judgement
from veridical.core.key import Key, as_key, permutation
from veridical.errors import InputError, NotApplicableError

Loss = Literal["cross_entropy", "l1"]


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


def train(concepts: Concepts, embeddings: Embeddings, head: Head, training: Training, key: Key) -> Network:
    """Fit the network to the model's answers on these embeddings."""
    codes = concepts.project(embeddings.pooled).float()
    wanted = head.outputs(embeddings.pooled)
    target = wanted.float() if training.loss == "l1" else head.probabilities(wanted).float()
    units = Units.plain(head) if training.plain else Units.of_head(head, codes, wanted, training.hidden)
    network = Network(codes.shape[-1], head, training.hidden, key, units)
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
    values = compare(answer, embeddings, head, width)
    count = concepts.vectors.shape[1]
    facts = {
        "parameters": cshap_parameters(count, head.dimension, training.hidden),
        "flops": cshap_flops(head.n_outputs, count, head.dimension, training.hidden),
    }
    loss = "CEL" if training.loss == "cross_entropy" else "L1"
    name = f"C-SHAP-Eval ({loss})"
    return Judgement(concepts.method, name, values, embeddings.ids, 1 / head.n_outputs, facts)
