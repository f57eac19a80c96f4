"""SURF and ICE-Eval: how far the surrogate made of concepts and importances is from the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts, Linear
from veridical.concepts.embeddings import Embeddings, Head
from veridical.core.settings import checked
from veridical.errors import InputError, ShapeError, unknown_name
from veridical.functional import spearman
from veridical.values.scores import Direction, Scores

if TYPE_CHECKING:
    import pandas as pd


HIGHER = {"top1", "rank", "attributes"}
"""Measures where more is better; all others are errors."""

LABELS = {
    "top1": "Top-1 (%)",
    "rank": "Rank corr",
    "norm_l1": "Norm L1",
    "mae": "SURF_MAE",
    "emd": "SURF_EMD",
    "rmse": "RMSE",
    "attributes": "Attributes (%)",
    "without_concepts": "Bare outputs",
    "normalised_accuracy": "C-SHAP acc",
    "parameters": "Params",
    "flops": "FLOPs",
}


@dataclass(frozen=True, eq=False, repr=False)
class Judgement:
    """One value per sample of every measure, and facts of the explanation as a whole.

    `judgement.mae`, `.emd`, ... are means; `judgement.scores("mae")` gives the values of the samples.
    """

    method: str
    measure: str
    values: Mapping[str, Tensor]
    ids: Tensor
    chance: float
    facts: Mapping[str, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scores(self, name: str) -> Scores:
        """The values of one measure as scores; `rmse` has none per sample (`squared` has)."""
        if name not in self.values:
            raise unknown_name("measure", name, self.values)
        direction = Direction.HIGHER if name in HIGHER else Direction.LOWER
        flags = {"undefined: no spread over outputs, or a logit of 0": self.values[name].isnan()}
        label = f"{self.measure.lower()}_{name}"
        return Scores(self.values[name], direction, label, self.ids, self.method, flags)

    @property
    def summary(self) -> dict[str, float]:
        """The mean of every measure, and the facts."""
        hidden = ("squared", "model_right", "surrogate_right")
        out = {name: float(v.nanmean()) for name, v in self.values.items() if name not in hidden}
        out["rmse"] = math.sqrt(float(self.values["squared"].mean()))
        if "model_right" in self.values:
            model = float(self.values["model_right"].mean()) - self.chance
            surrogate = float(self.values["surrogate_right"].mean()) - self.chance
            out["normalised_accuracy"] = surrogate / model if model else math.nan
        return {**out, **self.facts}

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):
            raise AttributeError(name)
        summary = self.summary
        if name not in summary:
            raise AttributeError(f"this judgement has no '{name}'; it has {', '.join(summary)}")
        return summary[name]

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        import pandas as pd

        columns = {name: values.cpu().numpy() for name, values in self.values.items()}
        return pd.DataFrame({"id": self.ids.cpu().numpy(), "method": self.method, **columns})

    def __repr__(self) -> str:
        summary = self.summary
        parts = [f"{LABELS[n]} {shown(n, summary[n])}" for n in LABELS if n in summary]
        return f"{self.measure} of {self.method} over {len(self.ids)} samples: {', '.join(parts)}{self.bare}"

    @property
    def bare(self) -> str:
        """How many outputs have no concepts, in words; nothing where all have."""
        return f"; {len(self.flags)} outputs without concepts" if self.flags else ""


def shown(name: str, value: float) -> str:
    """A number as the paper's tables print it."""
    if math.isnan(value):
        return "-"
    if name in ("top1", "attributes"):
        return f"{100 * value:.1f}"
    if name in ("flops", "parameters"):
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
            if value >= size:
                return f"{value / size:.0f}{letter}"
        return f"{value:.0f}"
    return f"{value:.3f}" if name in ("emd", "rank") else f"{value:.4g}"


_ELEMENTS = 2**20
"""Numbers of the widest tensor of a chunk: 8 MiB in float64, enough rows for products to be efficient."""

_ROUNDING = 1e-12
"""A difference below this share of a row's largest output is none."""

_WHOLE = 1e-12
"""An error of rebuilding below this share of the embeddings' squared length is none."""
REBUILT = "rebuild every embedding judged: nothing is left out, and a small error shows nothing"

Surrogate = Callable[[Tensor], Tensor]


def chunks(count: int, width: int, most: int = _ELEMENTS) -> Iterator[slice]:
    """Slices of rows whose widest tensor, `width` numbers per row, stays within a fixed size."""
    rows = max(1, most // max(1, width))
    for at in range(0, count, rows):
        yield slice(at, min(count, at + rows))


def absolute_error(y: Tensor, guess: Tensor) -> Tensor:
    """Mean over outputs of `|y - y_hat|`: SURF_MAE (eq. 11) of each sample."""
    return (y - guess).abs_().mean(-1)


def total_variation(p: Tensor, guess: Tensor) -> Tensor:
    """`sum_i |p_i - p_hat_i| / 2`, the total variation: SURF_EMD (eq. 12) of each sample."""
    return (p - guess).abs_().sum(-1) / 2


def normalised_error(y: Tensor, guess: Tensor, labels: Tensor) -> Tensor:
    """`|y_t - y_hat_t| / |y_t|` on the true class (eq. 5); NaN where the model's logit is 0."""
    truth = y.gather(1, labels[:, None]).squeeze(1)
    error = (truth - guess.gather(1, labels[:, None]).squeeze(1)).abs()
    return torch.where(truth == 0, torch.nan, error / truth.abs())


def settled(guess: Tensor, y: Tensor) -> Tensor:
    """The guess with the model's own value where the two differ by rounding only (1e-12 of the row's scale).

    A perfect explanation then scores exactly 0, and no last bit decides a rank.
    """
    rounding = _ROUNDING * y.abs().amax(-1, keepdim=True)
    return torch.where((guess - y).abs_() <= rounding, y, guess)


def sample_errors(
    surrogate: Surrogate,
    embeddings: Embeddings,
    head: Head,
    width: int = 1,
    companions: bool = True,
    positions: bool = False,
) -> dict[str, Tensor]:
    """All measures that apply to the head, one value per sample each (N,).

    The model's outputs are `F h + b` in float64 where the head is exact, so that a perfect explanation
    scores 0 and not the rounding of the model; otherwise they are the model's own.
    """
    kept: dict[str, list[Tensor]] = {}
    each = embeddings.values.shape[1] if positions else 1
    for piece in chunks(len(embeddings), max(embeddings.values[0].numel(), head.n_outputs, width * each)):
        part = embeddings.take(piece)
        # of a head that answers one token, the others are no part of the outputs
        h = (part.values if positions and part.spatial and part.seen is None else part.pooled).double()
        linear = head.outputs(h)
        y = linear if head.exact else part.outputs.double()
        guess = settled(surrogate(h), y)
        found = _errors(y, guess, head, part.labels, companions)
        if not head.exact:
            found |= {
                "linearisation": absolute_error(y, linear),
                "explanation": absolute_error(linear, guess),
            }
        for name, values in found.items():
            kept.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in kept.items()}


def _errors(
    y: Tensor, guess: Tensor, head: Head, labels: Tensor | None, companions: bool
) -> dict[str, Tensor]:
    found = {"mae": absolute_error(y, guess), "squared": (y - guess).square().mean(-1)}
    if head.kind == "multilabel":
        found["attributes"] = ((y > 0) == (guess > 0)).double().mean(-1)
    if not head.classifies:
        return found
    own, guessed = y.argmax(-1), guess.argmax(-1)
    found["emd"] = total_variation(head.probabilities(y), head.probabilities(guess))
    found["top1"] = (own == guessed).double()
    if not companions:
        return found
    found["rank"] = spearman(y, guess)
    if labels is not None:
        found["norm_l1"] = normalised_error(y, guess, labels)
        found["model_right"] = (own == labels).double()
        found["surrogate_right"] = (guessed == labels).double()
    return found


Positions = Literal["pooled", "each"]


@checked
def judge(
    concepts: Concepts,
    embeddings: Embeddings,
    head: Head,
    positions: Positions = "pooled",
    companions: bool = True,
) -> Judgement:
    """SURF: how far the linear surrogate made of concepts and importances is from the model (eqs. 10-12).

    Parameters
    ----------
    concepts
        The explanation.
    embeddings
        What it is judged on.
    head
        The head that it explains.
    positions
        "each" reads concepts at every position and averages, which differs from the pooled embedding where
        the projection is not linear.
    companions
        False leaves out everything but MAE, RMSE, EMD and top-1.

    Returns
    -------
    Judgement
        One value per sample of every measure that applies to the head.

    Raises
    ------
    ShapeError
        Concepts, embeddings and head do not belong together.
    InputError
        Positions are asked for and there are none, or labels are no class numbers.
    """
    _check(concepts, embeddings, head, positions)
    each, linear = positions == "each", isinstance(concepts.projection, Linear)
    direct, rebuilding = concepts.surrogate_of(head), Rebuilding(concepts, head)

    def surrogate(h: Tensor) -> Tensor:
        if not companions:
            return direct(h)
        pooled = h.mean(1) if h.dim() == 3 else h
        codes = concepts.project(pooled)  # found once: they are most of the work
        rebuilding.add(pooled, codes)
        return direct(h) if linear or each else concepts.outputs(codes, head)

    width = concepts.vectors.shape[0] * concepts.vectors.shape[1]
    values = sample_errors(surrogate, embeddings, head, width, companions, each)
    found, notes = rebuilding.facts() if companions else ({}, ())
    # of a sparse code a reader is shown what is active, which only the data can tell
    sparse = not linear and getattr(concepts.projection, "active", 0) is None
    charged = found.get("active", concepts.charged) if sparse else concepts.charged
    facts: dict[str, float] = {
        "concepts": charged,
        "without_concepts": len(concepts.flags),
        "parameters": 0,
        "flops": 2 * round(charged) * head.n_outputs,  # a multiplication and an addition each
    }
    if companions:
        facts |= {"plausibility": plausibility(concepts, head), **found}
    notes = (*concepts.notes, *notes, f"positions: {positions}")
    return Judgement(
        concepts.method, "SURF", values, embeddings.ids, 1 / head.n_outputs, facts, concepts.flags, notes
    )


@checked
def ice_eval(concepts: Concepts, embeddings: Embeddings, head: Head) -> Judgement:
    """ICE-Eval (eq. 4): rebuild the embedding from its concepts, then apply the head.

    `f_i . (V_i^T p_i + mu_i) + b_i` needs no embedding to be built: it is a surrogate whose importances are
    `f_i . v_ik`. The explanation's own importances play no part.

    Parameters
    ----------
    concepts, embeddings, head
        As for `judge`.

    Returns
    -------
    Judgement
        As of `judge`, without the facts of a reconstruction.
    """
    _check(concepts, embeddings, head, "pooled")
    rebuilt = _rebuilt(concepts, head)
    width = concepts.vectors.shape[0] * concepts.vectors.shape[1]
    values = sample_errors(rebuilt.surrogate_of(head), embeddings, head, width)
    # for every output the embedding is rebuilt, then read by the head
    flops = head.n_outputs * head.dimension * (2 * round(concepts.charged) + 1)
    facts = {"parameters": 0, "flops": flops}
    return Judgement(
        concepts.method, "ICE-Eval", values, embeddings.ids, 1 / head.n_outputs, facts, concepts.flags
    )


def plausibility(concepts: Concepts, head: Head) -> float:
    """Mean over outputs of the largest cosine between a concept and the output's weights (supplement A)."""
    unit = torch.nn.functional.normalize(concepts.vectors, dim=-1)
    weight = torch.nn.functional.normalize(head.weight, dim=-1)
    if concepts.shared:
        cosine = weight @ unit[0].T
    else:
        cosine = torch.einsum("cd,ckd->ck", weight, unit)
    cosine = cosine.masked_fill(~concepts.present.expand_as(cosine), -torch.inf).amax(-1)
    kept = cosine[torch.isfinite(cosine)]
    return float(kept.mean()) if len(kept) else float("nan")


class Rebuilding:
    """How well embeddings are rebuilt from their concepts, gathered over pieces of them."""

    def __init__(self, concepts: Concepts, head: Head) -> None:
        self.concepts, self.head, self.rows = concepts, head, 0
        self.own = _rebuilt(concepts, head)
        zeros = concepts.vectors.new_zeros
        self.error, self.size, self.kl, self.active = (
            zeros(len(concepts.vectors)),
            zeros(()),
            zeros(()),
            zeros(()),
        )

    def add(self, h: Tensor, codes: Tensor) -> None:
        """Take in embeddings (N, D) with their codes (N, G, K)."""
        concepts, head = self.concepts, self.head
        groups, count, width = concepts.vectors.shape
        centre = torch.zeros_like(concepts.vectors[:, 0]) if concepts.centre is None else concepts.centre
        seen = (h @ concepts.vectors.reshape(-1, width).T).reshape(len(h), groups, count)
        seen = seen - torch.einsum("gkd,gd->gk", concepts.vectors, centre)
        size = h.square().sum(-1, keepdim=True)
        away = size - 2 * h @ centre.T + centre.square().sum(-1)
        if concepts.shared:  # one dictionary may be wide: no products of its atoms with each other
            inner = (codes[:, 0] @ concepts.vectors[0]).square().sum(-1, keepdim=True)
        else:
            inner = torch.einsum("ngk,gkj,ngj->ng", codes, concepts.vectors @ concepts.vectors.mT, codes)
        self.error += (away - 2 * (codes * seen).sum(-1) + inner).clamp(min=0).sum(0)
        self.size += size.sum()
        self.active += (codes != 0).double().sum(-1).mean(-1).sum()
        self.rows += len(h)
        if head.classifies:
            scale = 0.5 if head.kind == "binary" else 1.0
            log_p = torch.log_softmax(head.outputs(h) * scale, -1)
            log_q = torch.log_softmax(self.own.outputs(codes, head) * scale, -1)
            self.kl += (log_p.exp() * (log_p - log_q)).sum()

    def facts(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Mean squared error, KL(p || p_rebuilt), concepts in use; a note on outputs that lose nothing."""
        mse = float(self.error.mean()) / self.rows / self.concepts.vectors.shape[-1]
        facts = {"reconstruction_mse": mse, "active": float(self.active) / self.rows}
        facts |= {"reconstruction_kl": float(self.kl) / self.rows} if self.head.classifies else {}
        whole = (self.error <= _WHOLE * self.size).nonzero()[:, 0].tolist()
        if not whole:
            return facts, ()
        which = "all outputs" if len(whole) == len(self.error) else f"outputs {whole}"
        return facts, (f"the concepts of {which} {REBUILT}",)


def _rebuilt(concepts: Concepts, head: Head) -> Concepts:
    return concepts.with_importances(concepts.weights_of(head), concepts.reconstructed_offset(head))


def least_squares_importances(concepts: Concepts, embeddings: Embeddings, head: Head) -> Tensor:
    """The importances (C, K) that fit the model's outputs best on these embeddings, concepts as they are."""
    groups, count, _ = concepts.vectors.shape
    if concepts.shared and len(embeddings) < count:  # a wide dictionary: rows are fewer than atoms
        h = embeddings.pooled
        wanted = (
            (head.outputs(h) if head.exact else embeddings.outputs.double()) - head.bias - concepts.offset
        )
        return (torch.linalg.pinv(concepts.project(h)[:, 0].double(), rtol=1e-6) @ wanted).T
    gram = concepts.vectors.new_zeros(groups, count, count)
    seen = concepts.vectors.new_zeros(head.n_outputs, count)
    for piece in chunks(len(embeddings), groups * count):
        part = embeddings.take(piece)
        h = part.pooled
        # what is to be explained is the model: an expanded head is only near it
        wanted = (head.outputs(h) if head.exact else part.outputs.double()) - head.bias - concepts.offset
        codes = concepts.project(h)
        gram += torch.einsum("ngk,ngj->gkj", codes, codes)
        if concepts.shared:
            seen += wanted.T @ codes[:, 0]
        else:
            seen += torch.einsum("nc,nck->ck", wanted, codes)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
    return torch.einsum("ckj,cj->ck", inverse.expand(head.n_outputs, -1, -1), seen)


@dataclass(frozen=True, eq=False, repr=False)
class ErrorSplit:
    """An explanation as it is, and with the best importances its concepts allow.

    What is left with those importances is the concepts' fault; what they gain is the importances'. All are
    errors against the model's own outputs: where the head is expanded, `linearisation` is the part of them
    that any linear explanation has.
    """

    own: Judgement
    fitted: Judgement

    @property
    def concepts(self) -> float:
        """The error (MAE) that no importances would remove."""
        return self.fitted.mae

    @property
    def linearisation(self) -> float:
        """The error (MAE) of the expanded head itself; 0 where the head is linear."""
        return self.own.summary.get("linearisation", 0.0)

    @property
    def importances(self) -> float:
        """The error (MAE) that better importances would remove; below 0 where the fit did not carry over."""
        return self.own.mae - self.fitted.mae

    def __repr__(self) -> str:
        return (
            f"SURF_MAE of {self.own.method} {self.own.mae:.4g} = concepts {self.concepts:.4g} + importances "
            f"{self.importances:.4g}; RMSE {self.own.rmse:.4g}, fitted importances {self.fitted.rmse:.4g}"
            + self.own.bare
        )


@checked
def error_split(concepts: Concepts, train: Embeddings, test: Embeddings, head: Head) -> ErrorSplit:
    """Split SURF into what is the concepts' fault and what the importances'.

    Parameters
    ----------
    concepts
        The explanation.
    train
        Embeddings on which the best importances are fitted, by least squares.
    test, head
        What both are judged on.

    Returns
    -------
    ErrorSplit
        The explanation as it is, and with fitted importances.
    """
    best = concepts.with_importances(least_squares_importances(concepts, train, head))
    return ErrorSplit(*(judge(each, test, head, companions=False) for each in (concepts, best)))


def _check(concepts: Concepts, embeddings: Embeddings, head: Head, positions: str) -> None:
    if positions == "each" and not embeddings.spatial:
        raise InputError("positions='each' needs embeddings with positions: collect with spatial=True")
    if concepts.n_outputs != head.n_outputs:
        raise ShapeError(f"concepts explain {concepts.n_outputs} outputs, the head has {head.n_outputs}")
    if concepts.vectors.shape[-1] != head.dimension or embeddings.dimension != head.dimension:
        found = f"concepts have {concepts.vectors.shape[-1]} dimensions, embeddings {embeddings.dimension}"
        raise ShapeError(f"{found}; the head expects {head.dimension}")
    if not head.exact:  # otherwise the head's own outputs are taken, whatever those are
        embeddings.check_outputs(head)
    labels = embeddings.labels
    if labels is None or not head.classifies:
        return
    least, most = float(labels.min()), float(labels.max())
    if labels.dim() != 1 or labels.is_floating_point() or not 0 <= least <= most < head.n_outputs:
        found = f"{labels.dtype} of shape {tuple(labels.shape)} from {least:g} to {most:g}"
        raise InputError(f"labels are one class number each, from 0 to {head.n_outputs - 1}; got {found}")
