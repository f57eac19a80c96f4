"""Metrics of dictionaries that need no truth: each has one value on every part of a bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.concepts.measures import judge, least_squares_importances
from veridical.concepts.splitting import Split
from veridical.core.key import Key, permutation
from veridical.dictionaries.bench import Bench, Subject
from veridical.dictionaries.planted import mcc
from veridical.errors import NotApplicableError
from veridical.functional import average_ranks
from veridical.gef.codes import LayerCodes
from veridical.values.scores import Direction


def explained_variance(subject: Subject) -> Tensor:
    """`1 - sum |h - rebuilt|^2 / sum |h - mean|^2` in each part; the mean is that of the train rows."""
    bench = subject.bench
    left = (bench.test - subject.dictionary.decode(subject.codes)).double().square().sum(-1)
    away = (bench.test - bench.train.mean(0)).double().square().sum(-1)
    return 1 - _ratio(bench.means(left), bench.means(away))


def _ratio(above: Tensor, below: Tensor, least: float = 0.0) -> Tensor:
    """The ratio of two means over parts, as values of parts (parts,) whose mean it is; NaN if undefined.

    `r + (a_p - r b_p) / b`, to first order what each part would make of it: a mean of the parts' own ratios
    would be biased where parts are small.
    """
    ratio = above.mean() / below.mean()
    found = ratio + (above - ratio * below) / below.mean()
    return found if float(below.mean()) > least else torch.full_like(found, torch.nan)


def active_atoms(subject: Subject) -> Tensor:
    """L0: atoms that are active in a row, on average."""
    return subject.bench.means((subject.codes != 0).sum(-1))


def dead_atoms(subject: Subject) -> Tensor:
    """The share of atoms that are active in no row of a part."""
    return (_by_part(subject) == 0).double().mean(1)


def dense_atoms(subject: Subject) -> Tensor:
    """The share of atoms that are active in more than a tenth of a part's rows; `Subject.density` has all."""
    return (_by_part(subject) > 0.1).double().mean(1)


def _by_part(subject: Subject) -> Tensor:
    """The share of a part's rows in which each atom is active (parts, atoms)."""
    part = subject.bench.row_part
    return torch.stack([(subject.codes[part == p] != 0).double().mean(0) for p in range(subject.bench.parts)])


def loss_recovered(subject: Subject, without: str = "mean") -> Tensor:
    """`(L_without - L_rebuilt) / (L_without - L)`: 1 without loss, 0 as if there was no layer.

    In its place is then the mean of the train rows, or zero.
    """
    losses = subject.bench.losses
    rebuilt = subject.bench.means(subject.rebuilt[0], samples=True)
    return _ratio(losses[without] - rebuilt, losses[without] - losses["model"], 1e-6)


def kl(subject: Subject) -> Tensor:
    """KL(model || model through the dictionary) over classes or next tokens, in nats."""
    return subject.bench.means(subject.rebuilt[1], samples=True)


def surf(subject: Subject) -> Tensor:
    """SURF_MAE: how far the outputs made of codes and the head's own importances are from the model's."""
    parts = subject.bench.head_split
    concepts = subject.dictionary.concepts(parts.head)
    return _mae(subject, parts, concepts)


def surf_concepts(subject: Subject) -> Tensor:
    """The part of SURF_MAE that is the atoms' fault: importances are the best that the train rows allow."""
    parts = subject.bench.head_split
    concepts = subject.dictionary.concepts(parts.head)
    best = least_squares_importances(concepts, parts.train(), parts.head)
    return _mae(subject, parts, concepts.with_importances(best))


def gef(subject: Subject) -> Tensor:
    """GEF of codes: whether they move as the model moves when its weights get noise."""
    bench = subject.bench
    task = bench.task[: bench.gef_samples]
    codes = LayerCodes(subject.dictionary, bench.layer, axis=bench.axis)
    scores = bench.gef(task, codes, Key(bench.seed) / "gef")
    return bench.means(scores.values, samples=True)


def _mae(subject: Subject, parts: Split, concepts: object) -> Tensor:
    found = judge(concepts, parts.test(), parts.head, companions=False)  # type: ignore[arg-type]
    return subject.bench.means(found.values["mae"], samples=True)


# --- properties read from a few atoms, and removed with them ----------------------------------------------


def chosen_atoms(subject: Subject, count: int, effect: Tensor | None = None, either: bool = False) -> Tensor:
    """The atoms (L, count) whose codes differ most with a property, in their standard deviations.

    Under logistic probes the difference itself counts, times the atom's `effect` (L, atoms) on the probe
    where that is given: of atoms that are more active with the property, or of `either` kind.
    """
    bench = subject.bench
    train, _ = bench.properties
    codes = subject.train_codes.double()
    y = train.double()
    share = y.mean(0)[:, None]
    gap = (y.T @ codes / len(codes) - share * codes.mean(0)) / (share * (1 - share)).clamp(min=1e-12)
    if bench.probes == "ridge":
        score = gap.abs() / codes.std(0).clamp(min=1e-12)
    else:
        score = gap.abs() if effect is None else (gap if either else gap.clamp(min=0)) * effect
        score = score.abs() if either else score
    return score.topk(min(count, codes.shape[1]), -1).indices


def auc(bench: Bench, outputs: Tensor) -> Tensor:
    """The chance that a row with a property gets the higher output, mean over properties in each part."""
    _, labels = bench.properties
    found = []
    for part in range(bench.parts):
        here = bench.row_part == part
        y = labels[here].T
        ranks = average_ranks(outputs[here].T)
        on, off = y.sum(1).double(), (~y).sum(1).double()
        wins = (ranks * y).sum(1) - on * (on + 1) / 2
        found.append((wins / (on * off))[(on > 0) & (off > 0)].nanmean())
    return torch.stack(found)


def sparse_probing(subject: Subject) -> Tensor:
    """AUC of probes that read the few most telling atoms."""
    train, _ = subject.bench.properties
    outputs = []
    for number, atoms in enumerate(chosen_atoms(subject, subject.bench.probe_atoms)):
        probe = subject.bench.fit(subject.train_codes[:, atoms], train[:, number : number + 1])
        outputs.append(probe(subject.codes[:, atoms]))
    return auc(subject.bench, torch.cat(outputs, 1))


def probing_gap(subject: Subject) -> Tensor:
    """How much AUC a few atoms lack against the activations themselves (below 0 where they lack any)."""
    return sparse_probing(subject) - auc(subject.bench, subject.bench.dense_probes(subject.bench.test))


ALIGNED = 0.025
"""Cosine between an atom and a probe from which on the atom may have absorbed the property."""
PAIRS = 8
"""Pairs of properties that SCR confounds."""


def _accuracy(bench: Bench, outputs: Tensor, labels: Tensor, cells: Tensor) -> Tensor:
    """Accuracy in each part (parts, L), where every cell (n, L) that occurs there counts alike."""
    right = ((outputs > 0.5) == labels).double()
    found = []
    for part in range(bench.parts):
        here = bench.row_part == part
        each = [torch.where(cells[here] == c, right[here], torch.nan).nanmean(0) for c in cells.unique()]
        found.append(torch.stack(each).nanmean(0))
    return torch.stack(found)


def tpp(subject: Subject) -> Tensor:
    """Targeted probe perturbation: what removing a property's atoms costs its probe more than the others'."""
    bench = subject.bench
    probes, (_, labels) = bench.dense_probes, bench.properties
    outputs = probes(bench.test)
    reach = subject.dictionary.decoder.double() @ probes.weight
    before = _accuracy(bench, outputs, labels, labels)
    found = []
    for number, atoms in enumerate(chosen_atoms(subject, bench.tpp_atoms, reach.T)):
        without = outputs - subject.codes[:, atoms].double() @ reach[atoms]
        drop = before - _accuracy(bench, without, labels, labels)
        others = torch.cat([drop[:, :number], drop[:, number + 1 :]], 1)
        found.append(drop[:, number] - others.nanmean(1))
    return torch.stack(found).nanmean(0)


def scr(subject: Subject) -> Tensor:
    """Spurious correlation removal: how far removing another property's atoms mends a confounded probe.

    For pairs (a, b) a probe of a is fitted on rows where a and b agree, then judged on all four cells alike:
    `(without b's atoms - confounded) / (clean - confounded)`, over pairs that lose 2% or more by it.
    """
    bench = subject.bench
    train, labels = bench.properties
    decoder, found = subject.dictionary.decoder.double(), []
    clean = bench.dense_probes(bench.test)
    chosen = chosen_atoms(subject, bench.scr_atoms, (decoder @ bench.dense_probes.weight).T, either=True)
    for a, b in _pairs(train):
        agree = train[:, a] == train[:, b]
        probe = bench.fit(bench.train[: len(train)][agree], train[agree][:, [a]])
        outputs = probe(bench.test)
        reach = decoder[chosen[b]] @ probe.weight
        mended = outputs - subject.codes[:, chosen[b]].double() @ reach
        cells = 2 * labels[:, [a]].long() + labels[:, [b]].long()
        each = [_accuracy(bench, x, labels[:, [a]], cells)[:, 0] for x in (outputs, mended, clean[:, [a]])]
        gap = (each[2] - each[0]).mean()
        if gap >= 0.02:
            found.append((each[1] - each[0]) / gap)
    return torch.stack(found).nanmean(0) if found else torch.full((bench.parts,), torch.nan)


def absorption(subject: Subject) -> Tensor:
    """The share of rows with a property in which its own atoms are silent and another carries it.

    Own atoms are those a sparse probe reads; the row must be one that the dense probe gets right; the atom
    that carries most of the probe's direction must lie along it (cosine >= 0.025).
    """
    bench = subject.bench
    probes, (_, labels) = bench.dense_probes, bench.properties
    outputs = probes(bench.test) > 0.5
    reach = subject.dictionary.decoder.double() @ probes.weight
    cosine = normalize(subject.dictionary.decoder.double(), dim=-1) @ normalize(probes.weight, dim=0)
    found = []
    for number, atoms in enumerate(chosen_atoms(subject, bench.probe_atoms)):
        rows = (labels[:, number] & outputs[:, number]).nonzero()[:, 0]
        codes = subject.codes[rows].double()
        carried, most = (codes * reach[:, number]).max(1)
        silent = (codes[:, atoms] == 0).all(1)
        absorbed = silent & (carried > 0) & (cosine[most, number] >= ALIGNED)
        each = torch.full((len(labels),), torch.nan, dtype=torch.float64, device=codes.device)
        each[rows] = absorbed.double()
        found.append(bench.means(each))
    return torch.stack(found).nanmean(0)


def disentanglement(subject: Subject) -> Tensor:
    """Whether a property's atoms carry it and nothing else, after RAVEL.

    A row takes over the codes of these atoms from another row that differs in the property. Mean of *cause*,
    how often its probe then says what the other row is, and *isolation*, how often other probes say what they
    said before. Atoms that carry nothing are about 0.5.
    """
    bench = subject.bench
    probes, (_, labels) = bench.dense_probes, bench.properties
    outputs = probes(bench.test)
    reach = subject.dictionary.decoder.double() @ probes.weight
    taken = (subject.codes[bench.partners] - subject.codes).double()
    found = []
    for number, atoms in enumerate(chosen_atoms(subject, bench.probe_atoms)):
        wanted = labels[bench.partners, number]
        says = outputs + taken[:, atoms] @ reach[atoms] > 0.5
        same = (says == (outputs > 0.5)).double()
        isolation = (same.sum(1) - same[:, number]) / max(1, same.shape[1] - 1)
        score = ((says[:, number] == wanted) + isolation) / 2
        found.append(bench.means(score.masked_fill(wanted == labels[:, number], torch.nan)))
    return torch.stack(found).nanmean(0)


def _pairs(labels: Tensor) -> list[tuple[int, int]]:
    """Neighbours in frequency, both ways, the most frequent first."""
    order = labels.double().mean(0).argsort(descending=True).tolist()
    pairs = [(order[i], order[i + 1]) for i in range(0, len(order) - 1, 2)]
    return [pair for one in pairs for pair in (one, one[::-1])][:PAIRS]


# --- all of them -------------------------------------------------------------------------------------------

MATCHED = 512
"""Atoms that are matched at most: the time of a matching grows with the cube of the width."""


def stability(subject: Subject) -> Tensor:
    """The mean cosine of atoms to their match in a dictionary trained with another seed.

    Of a wider dictionary 512 atoms, picked at random, are matched with all of the other's.
    """
    if subject.sibling is None:
        raise NotApplicableError("stability needs a second dictionary, trained with another seed")
    own = subject.dictionary.decoder
    some = permutation(Key(0), torch.zeros(1, dtype=torch.int64), 0, len(own))[0][:MATCHED]
    value = mcc(subject.sibling.decoder, own[some.to(own.device)])
    return torch.full((subject.bench.parts,), value, dtype=torch.float64)


@dataclass(frozen=True)
class Measure:
    """A metric of dictionaries."""

    name: str
    direction: Direction
    evaluate: Callable[[Subject], Tensor]
    """Gives one value per part of the bench (parts,)."""


HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("explained variance", HIGHER, explained_variance),
        Measure("active atoms", LOWER, active_atoms),
        Measure("dead atoms", LOWER, dead_atoms),
        Measure("dense atoms", LOWER, dense_atoms),
        Measure("loss recovered", HIGHER, loss_recovered),
        Measure("loss recovered from zero", HIGHER, partial(loss_recovered, without="zero")),
        Measure("kl", LOWER, kl),
        Measure("surf", LOWER, surf),
        Measure("surf concepts", LOWER, surf_concepts),
        Measure("gef", HIGHER, gef),
        Measure("sparse probing", HIGHER, sparse_probing),
        Measure("probing gap", HIGHER, probing_gap),
        Measure("tpp", HIGHER, tpp),
        Measure("scr", HIGHER, scr),
        Measure("absorption", LOWER, absorption),
        Measure("disentanglement", HIGHER, disentanglement),
        Measure("stability", HIGHER, stability),
    )
}
"""Every metric by its name."""
