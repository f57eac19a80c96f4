"""Which training rows made this answer: relevance of training rows, from gradients and from likeness.

Each function gives a map (tests, training rows): how far the explained output of a test is expected to fall
when the row is left out, so that rows which support it are positive. They go to `vd.data.Retraining`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import cross_entropy, normalize

from veridical.core.key import Key, normal, parameter_noise
from veridical.errors import InputError, ShapeError

Rows = tuple[Tensor, Tensor]
"""Inputs with the class, or value, of each."""
Read = Callable[[Tensor, Tensor], Tensor]
AT_ONCE = 64
"""Rows whose gradients are computed together."""


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The summed loss of rows: cross-entropy of classes, half the squared error of values."""
    if targets.is_floating_point():
        return (outputs.reshape(-1) - targets.reshape(-1)).square().sum() / 2
    return cross_entropy(outputs, targets, reduction="sum")


def margin_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The summed explained outputs of rows: log p / (1 - p) of a class, or the value that is predicted."""
    if targets.is_floating_point():
        return outputs.sum()
    own = torch.arange(outputs.shape[1], device=outputs.device) == targets[:, None]
    return (outputs * own).sum() - outputs.masked_fill(own, -torch.inf).logsumexp(1).sum()


class _Gradients:
    """A private copy of a model, and slopes with respect to its parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval()
        self.parameters = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InputError("the model has no parameter that is trained, so no slope tells its rows apart")

    def total(self, parameters: Any, x: Tensor, targets: Tensor, read: Read) -> Tensor:
        return read(functional_call(self.model, parameters, (x,)), targets)

    def rows(self, rows: Rows, read: Read) -> Iterator[Tensor]:
        """Slopes (n, P) of a few rows at a time."""
        x, targets = rows
        if len(x) != len(targets):
            raise ShapeError(f"{len(x)} rows have {len(targets)} labels; expected one label for each")
        one = vmap(grad(lambda p, a, b: self.total(p, a[None], b[None], read)), (None, 0, 0))
        for at in range(0, len(x), AT_ONCE):
            found = one(self.parameters, x[at : at + AT_ONCE], targets[at : at + AT_ONCE])
            yield torch.cat([part.detach().flatten(1) for part in found.values()], 1)

    def all_rows(self, rows: Rows, read: Read) -> Tensor:
        return torch.cat(list(self.rows(rows, read)))

    def curvature_times(self, train: Rows, vectors: Tensor) -> Tensor:
        """The second derivative of the summed loss times vectors (K, P)."""
        sizes = [p.numel() for p in self.parameters.values()]
        whole = torch.zeros_like(vectors)
        for at in range(0, len(train[0]), 1024):
            x, targets = (part[at : at + 1024] for part in train)
            slope = grad(partial(self.total, x=x, targets=targets, read=loss_of))
            for vector, into in zip(vectors, whole, strict=True):
                parts = zip(self.parameters.items(), vector.split(sizes), strict=True)
                along = {name: part.view_as(own) for (name, own), part in parts}
                bent = jvp(slope, (self.parameters,), (along,))[1]
                into += torch.cat([part.detach().flatten() for part in bent.values()])
        return whole


def grad_dot(model: nn.Module, train: Rows, tests: Rows) -> Tensor:
    """Product of gradients: minus the slope of the test's output times that of the row's loss.

    Parameters
    ----------
    model : nn.Module
        The trained model.
    train, tests : pair of Tensor
        Rows with their labels; tests with the class (integers) or value (floats) that is explained.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    gradients = _Gradients(model)
    own = gradients.all_rows(tests, margin_of)
    return -torch.cat([own @ some.T for some in gradients.rows(train, loss_of)], 1)


def grad_cos(model: nn.Module, train: Rows, tests: Rows) -> Tensor:
    """The cosine in place of the product of `grad_dot`.

    Parameters
    ----------
    model : nn.Module
        The trained model.
    train, tests : pair of Tensor
        As in `grad_dot`.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    gradients = _Gradients(model)
    own = normalize(gradients.all_rows(tests, margin_of))
    return -torch.cat([own @ normalize(some).T for some in gradients.rows(train, loss_of)], 1)


def tracin(
    checkpoints: Sequence[nn.Module], train: Rows, tests: Rows, rates: Sequence[float] | None = None
) -> Tensor:
    """TracIn (Pruthi et al. 2020): `grad_dot` summed over checkpoints of a training, times learning rates.

    Parameters
    ----------
    checkpoints : sequence of nn.Module
        The model at several times of its training.
    train, tests : pair of Tensor
        As in `grad_dot`.
    rates : sequence of float, optional
        The learning rate at each checkpoint; 1 by default.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    steps = [1.0] * len(checkpoints) if rates is None else list(rates)
    if not checkpoints or len(steps) != len(checkpoints):
        raise InputError(f"{len(checkpoints)} checkpoints have {len(steps)} rates; expected one for each")
    return sum(rate * grad_dot(m, train, tests) for rate, m in zip(steps, checkpoints, strict=True))  # type: ignore[return-value]


def influence(
    model: nn.Module,
    train: Rows,
    tests: Rows,
    damping: float = 1e-3,
    steps: int = 200,
    tolerance: float = 1e-8,
) -> Tensor:
    """Influence functions (Koh and Liang 2017), the curvature inverted by conjugate gradients.

    With g the slope of a test's output, H the second derivative of the summed loss and l_i the slope of a
    row's loss the output is expected to fall by -g H^-1 l_i when the row is left out.

    Parameters
    ----------
    model : nn.Module
        The trained model, small enough that a few vectors of its size fit into memory for each test.
    train, tests : pair of Tensor
        As in `grad_dot`.
    damping : float
        What is added to the diagonal of the *mean* curvature.
    steps : int
        Most steps of conjugate gradients.
    tolerance : float
        The share of the squared norm of g at which they end.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    gradients = _Gradients(model)
    own = gradients.all_rows(tests, margin_of)
    damped = damping * len(train[0])
    solved, left = torch.zeros_like(own), own.clone()
    direction, size = left.clone(), left.square().sum(1)
    enough = tolerance * size
    for _ in range(steps):
        open_ = (size > enough).nonzero()[:, 0]
        if not len(open_):
            break
        bent = gradients.curvature_times(train, direction[open_]) + damped * direction[open_]
        along = (direction[open_] * bent).sum(1)
        if bool((along <= 0).any()):
            raise InputError(
                f"the loss curves downwards at these weights: raise damping (now {damping:g}) or train on"
            )
        length = (size[open_] / along)[:, None]
        solved[open_] += length * direction[open_]
        left[open_] -= length * bent
        now = left[open_].square().sum(1)
        direction[open_] = left[open_] + (now / size[open_])[:, None] * direction[open_]
        size[open_] = now
    return -torch.cat([solved @ some.T for some in gradients.rows(train, loss_of)], 1)


def trak(
    models: nn.Module | Sequence[nn.Module],
    train: Rows,
    tests: Rows,
    dimensions: int | None = None,
    seed: int = 0,
) -> Tensor:
    """TRAK (Park et al. 2023): influence in a random projection of the slopes of the outputs.

    `phi(x) (Phi' Phi)^-1 Phi' (1 - p)`, the projected slopes phi of the margin and the probability p of each
    row's class, both averaged over models. Of values in place of classes 1 - p is the residual.

    Parameters
    ----------
    models : nn.Module or sequence of nn.Module
        Trained models, on subsets of the rows perhaps.
    train, tests : pair of Tensor
        As in `grad_dot`.
    dimensions : int, optional
        Into how many numbers each slope is projected; by default a quarter of the rows, at most 2,048.
    seed : int
        Seed of the projection.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    each = [models] if isinstance(models, nn.Module) else list(models)
    scores, weights = [], []
    wide = min(2048, max(1, len(train[0]) // 4)) if dimensions is None else dimensions
    for model in each:
        gradients, key = _Gradients(model), Key(seed) / "trak"
        size = sum(p.numel() for p in gradients.parameters.values())
        like = next(iter(gradients.parameters.values()))
        onto = (parameter_noise(key, "projection", torch.Size((size, wide))) / wide**0.5).to(like)
        rows = torch.cat([some @ onto for some in gradients.rows(train, margin_of)])
        own = torch.cat([some @ onto for some in gradients.rows(tests, margin_of)])
        scores.append(own @ torch.linalg.pinv(rows))
        with torch.no_grad():
            outputs = gradients.model(train[0])
        if train[1].is_floating_point():
            weights.append(train[1].reshape(-1) - outputs.reshape(-1))
        else:
            weights.append(1 - outputs.softmax(-1).gather(1, train[1][:, None])[:, 0])
    return torch.stack(scores).mean(0) * torch.stack(weights).mean(0)


def similarity(train: Rows, tests: Rows, embed: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Cosine of two rows' embeddings, negative where their classes differ.

    Parameters
    ----------
    train, tests : pair of Tensor
        Rows with their classes.
    embed : callable, optional
        Gives the embeddings of rows, such as the model without its last layer; by default the inputs less
        their mean, which knows nothing of the model.

    Returns
    -------
    Tensor
        Relevance (tests, training rows).
    """
    middle = train[0].flatten(1).mean(0) if embed is None else 0.0
    with torch.no_grad():
        ours, theirs = (
            normalize((x if embed is None else embed(x)).flatten(1) - middle) for x in (tests[0], train[0])
        )
    like = ours @ theirs.T
    return torch.where(tests[1][:, None] == train[1][None, :], like, -like.abs())


def random_rows(tests: int, rows: int, seed: int = 0) -> Tensor:
    """Relevance that is noise: the control that nothing should lose to.

    Parameters
    ----------
    tests, rows : int
        How many there are.
    seed : int
        Seed of the draw.

    Returns
    -------
    Tensor
        Relevance (tests, rows).
    """
    return normal(Key(seed) / "random rows", torch.arange(tests), 0, rows, torch.float64)
