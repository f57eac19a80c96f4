"""Properties removed with a few atoms: TPP and SCR of SAEBench, with linear probes, and absorption."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.dictionaries.bench import Bench
from veridical.dictionaries.measures.probing import chosen_atoms, dense, fit, labels_of
from veridical.dictionaries.subject import Subject

ALIGNED = 0.025
"""Cosine between an atom and a probe from which on the atom may have absorbed the property."""
PAIRS = 8
"""Pairs of properties that SCR confounds."""


def _accuracy(bench: Bench, answers: Tensor, labels: Tensor, cells: Tensor) -> Tensor:
    """Accuracy in each part (parts, L), where every cell (n, L) that occurs there counts alike."""
    right = ((answers > 0.5) == labels).double()
    found = []
    for part in range(bench.parts):
        here = bench.row_part == part
        each = [torch.where(cells[here] == c, right[here], torch.nan).nanmean(0) for c in cells.unique()]
        found.append(torch.stack(each).nanmean(0))
    return torch.stack(found)


def tpp(subject: Subject) -> Tensor:
    """Targeted probe perturbation: what removing a property's atoms costs its probe more than the others'."""
    bench = subject.bench
    probes, (_, labels) = dense(bench), labels_of(bench)
    answers = probes(bench.test)
    reach = subject.dictionary.decoder.double() @ probes.weight
    before = _accuracy(bench, answers, labels, labels)
    found = []
    for number, atoms in enumerate(chosen_atoms(subject)):
        without = answers - subject.codes[:, atoms].double() @ reach[atoms]
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
    train, labels = labels_of(bench)
    clean, chosen = dense(bench)(bench.test), chosen_atoms(subject)
    found = []
    for a, b in _pairs(train):
        agree = train[:, a] == train[:, b]
        probe = fit(bench.train[: len(train)][agree], train[agree][:, [a]])
        answers = probe(bench.test)
        reach = subject.dictionary.decoder.double()[chosen[b]] @ probe.weight
        mended = answers - subject.codes[:, chosen[b]].double() @ reach
        cells = 2 * labels[:, [a]].long() + labels[:, [b]].long()
        each = [_accuracy(bench, x, labels[:, [a]], cells)[:, 0] for x in (answers, mended, clean[:, [a]])]
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
    probes, (_, labels) = dense(bench), labels_of(bench)
    answers = probes(bench.test) > 0.5
    reach = subject.dictionary.decoder.double() @ probes.weight
    cosine = normalize(subject.dictionary.decoder.double(), dim=-1) @ normalize(probes.weight, dim=0)
    found = []
    for number, atoms in enumerate(chosen_atoms(subject)):
        rows = (labels[:, number] & answers[:, number]).nonzero()[:, 0]
        codes = subject.codes[rows].double()
        carried, most = (codes * reach[:, number]).max(1)
        silent = (codes[:, atoms] == 0).all(1)
        absorbed = silent & (carried > 0) & (cosine[most, number] >= ALIGNED)
        each = torch.full((len(labels),), torch.nan, dtype=torch.float64, device=codes.device)
        each[rows] = absorbed.double()
        found.append(bench.means(each))
    return torch.stack(found).nanmean(0)


def _pairs(labels: Tensor) -> list[tuple[int, int]]:
    """Neighbours in frequency, both ways, the most frequent first."""
    order = labels.double().mean(0).argsort(descending=True).tolist()
    pairs = [(order[i], order[i + 1]) for i in range(0, len(order) - 1, 2)]
    return [pair for one in pairs for pair in (one, one[::-1])][:PAIRS]
