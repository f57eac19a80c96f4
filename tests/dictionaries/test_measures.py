"""Metrics without truth: closed forms at the two ends, and slow rewrites between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.dictionaries import auc, balanced
from veridical.dictionaries import MEASURES, Bench, Dictionary, Subject, Superposition, TopK, probing, train
from veridical.dictionaries.bench import fit, spliced_outputs
from veridical.dictionaries.probing import _pairs
from veridical.errors import NotApplicableError, ShapeError

WORLD = Superposition(features=32, dimensions=12, active=3.0, groups=4)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.planted(WORLD, 256, 1024, labels=6)


@pytest.fixture(scope="module")
def subject(bench: Bench) -> Subject:
    recipe = TopK(32, steps=150, batch=64, rate=5e-3, active=3)
    return Subject(train(bench.train, recipe).dictionary, bench, train(bench.train, recipe, 1).dictionary)


def lossless(dimension: int) -> Dictionary:
    """Both signs of every axis: whatever is read is put together again."""
    atoms = torch.cat([torch.eye(dimension), -torch.eye(dimension)])
    return Dictionary(atoms, torch.zeros(2 * dimension), atoms, torch.zeros(dimension), "relu")


def empty(bench: Bench) -> Dictionary:
    """Atoms that are never active: everything is the mean."""
    atoms = torch.eye(bench.train.shape[1])
    return Dictionary(atoms, torch.full((len(atoms),), -1e6), atoms, bench.train.mean(0), "relu")


def read(name: str, subject: Subject) -> Tensor:
    value = MEASURES[name].evaluate(subject)
    assert value.shape == (subject.bench.parts,)
    return value


def test_a_lossless_dictionary_is_perfect(bench: Bench) -> None:
    best = Subject(lossless(12), bench)
    ones, zeros = torch.ones(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    assert torch.allclose(read("explained variance", best), ones, atol=1e-5)
    assert torch.allclose(read("loss recovered", best), ones, atol=1e-4)
    assert torch.allclose(read("kl", best), zeros, atol=1e-5)
    assert torch.allclose(read("surf", best), zeros, atol=1e-5)
    assert torch.allclose(read("surf concepts", best), zeros, atol=1e-3)
    assert torch.allclose(read("active atoms", best), bench.means((bench.test != 0).sum(1)))


def test_an_empty_dictionary_is_the_mean(bench: Bench) -> None:
    none = Subject(empty(bench), bench)
    zeros = torch.zeros(8, dtype=torch.float64)
    assert torch.allclose(read("explained variance", none), zeros, atol=1e-6)
    assert torch.allclose(read("loss recovered", none), zeros, atol=1e-5)
    assert torch.equal(read("active atoms", none), zeros)
    assert torch.equal(read("absorption", none), zeros)
    assert torch.allclose(read("tpp", none), zeros)
    assert torch.allclose(read("sparse probing", none), zeros + 0.5)


def test_every_metric_has_a_value_on_every_part(subject: Subject) -> None:
    for name in MEASURES:
        assert bool(torch.isfinite(read(name, subject)).all()), name


def rows_of(bench: Bench, part: int) -> np.ndarray:
    return (bench.row_part == part).numpy()


def test_splicing_is_what_the_rest_of_the_model_answers(bench: Bench, subject: Subject) -> None:
    held = subject.dictionary
    rebuilt = held.decode(held.encode(bench.test))
    outputs = bench.task.model.head(rebuilt).detach()
    own = torch.softmax(bench.task.outputs, 1)
    kl = (own * (own.log() - outputs.log_softmax(1))).sum(1)
    loss = nn.functional.cross_entropy(outputs, bench.task.labels, reduction="none")
    clean = nn.functional.cross_entropy(bench.task.outputs, bench.task.labels, reduction="none")
    mean = bench.task.model.head(bench.train.mean(0).expand_as(rebuilt)).detach()
    without = nn.functional.cross_entropy(mean, bench.task.labels, reduction="none")
    for part in range(8):
        here = rows_of(bench, part)
        assert float(read("kl", subject)[part]) == pytest.approx(float(kl[here].mean()), abs=1e-6)
        top, low = without[here].mean() - loss[here].mean(), without[here].mean() - clean[here].mean()
        assert float(read("loss recovered", subject)[part]) == pytest.approx(float(top / low), abs=1e-4)


def test_probes_are_ridge_regressions_half_way_between_the_classes(bench: Bench) -> None:
    probe = fit(bench.train, bench.train_labels)
    x, y = bench.train.double().numpy(), bench.train_labels.double().numpy()
    xc, yc = x - x.mean(0), y - y.mean(0)
    gram = xc.T @ xc / len(x)
    weight = np.linalg.inv(gram + 1e-3 * np.trace(gram) / 12 * np.eye(12)) @ (xc.T @ yc / len(x))
    for label in range(6):
        plain = x @ weight[:, label]
        on, off = plain[y[:, label] == 1].mean(), plain[y[:, label] == 0].mean()
        expected = (plain - off) / (on - off)
        assert np.allclose(probe(bench.train)[:, label].numpy(), expected, atol=1e-8)


def test_sparse_probing_is_the_auc_of_few_atoms(bench: Bench, subject: Subject) -> None:
    chosen = probing.chosen_atoms(subject)
    codes, y = subject.train_codes.double(), bench.train_labels
    for label in range(6):
        on, off = codes[y[:, label]].mean(0), codes[~y[:, label]].mean(0)
        apart = ((on - off).abs() / codes.std(0).clamp(min=1e-12)).topk(4).indices
        assert set(apart.tolist()) == set(chosen[label].tolist())
    answers = [
        fit(subject.train_codes[:, a], y[:, [i]])(subject.codes[:, a])[:, 0].numpy()
        for i, a in enumerate(chosen)
    ]
    for part in range(8):
        here = rows_of(bench, part)
        labels = bench.labels.numpy()[here]
        each = [
            auc(a[here], labels[:, i]) for i, a in enumerate(answers) if 0 < labels[:, i].sum() < here.sum()
        ]
        assert float(read("sparse probing", subject)[part]) == pytest.approx(np.mean(each), abs=1e-9)
    whole = bench.dense_probes(bench.test).numpy()
    gap = read("sparse probing", subject) - read("probing gap", subject)
    here = rows_of(bench, 0)
    labels = bench.labels.numpy()[here]
    each = [auc(whole[here][:, i], labels[:, i]) for i in range(6) if 0 < labels[:, i].sum() < here.sum()]
    assert float(gap[0]) == pytest.approx(np.mean(each), abs=1e-9)


def without(subject: Subject, atoms: Tensor) -> Tensor:
    """Activations after some atoms are taken out of them, as they stand."""
    return (
        subject.bench.test.double()
        - subject.codes[:, atoms].double() @ subject.dictionary.decoder[atoms].double()
    )


def test_tpp_takes_atoms_out_and_asks_the_probes_again(bench: Bench, subject: Subject) -> None:
    probes, chosen = bench.dense_probes, probing.chosen_atoms(subject)
    y, here = bench.labels.numpy(), rows_of(bench, 2)
    before = probes(bench.test).numpy() > 0.5
    found = []
    for number, atoms in enumerate(chosen):
        after = probes(without(subject, atoms)).numpy() > 0.5
        drops = [
            balanced((before == y)[here, j], y[here, j]) - balanced((after == y)[here, j], y[here, j])
            for j in range(6)
        ]
        found.append(drops[number] - np.mean([d for j, d in enumerate(drops) if j != number]))
    assert float(read("tpp", subject)[2]) == pytest.approx(np.mean(found), abs=1e-9)


def test_scr_mends_a_confounded_probe(bench: Bench, subject: Subject) -> None:
    chosen, clean = probing.chosen_atoms(subject), bench.dense_probes
    y = bench.labels.numpy()
    found = []
    for a, b in _pairs(bench.train_labels):
        agree = bench.train_labels[:, a] == bench.train_labels[:, b]
        probe = fit(bench.train[agree], bench.train_labels[agree][:, [a]])
        cells = 2 * y[:, a] + y[:, b]
        answers = [probe(bench.test)[:, 0], probe(without(subject, chosen[b]))[:, 0], clean(bench.test)[:, a]]
        each = np.array(
            [
                [
                    balanced(((x.numpy() > 0.5) == y[:, a])[rows_of(bench, p)], cells[rows_of(bench, p)])
                    for p in range(8)
                ]
                for x in answers
            ]
        )
        gap = (each[2] - each[0]).mean()
        if gap >= 0.02:
            found.append((each[1] - each[0]) / gap)
    assert found
    assert np.allclose(read("scr", subject).numpy(), np.mean(found, 0), atol=1e-9)


def test_absorption_row_by_row(bench: Bench, subject: Subject) -> None:
    probes, chosen = bench.dense_probes, probing.chosen_atoms(subject)
    answers, decoder = probes(bench.test), subject.dictionary.decoder.double()
    found: list[list[float]] = [[] for _ in range(6)]
    for row in np.flatnonzero(rows_of(bench, 1)):
        for label in range(6):
            if not bench.labels[row, label] or answers[row, label] <= 0.5:
                continue
            direction = probes.weight[:, label]
            carried = [float(subject.codes[row, k]) * float(decoder[k] @ direction) for k in range(32)]
            most = int(np.argmax(carried))
            cosine = float(decoder[most] @ direction / decoder[most].norm() / direction.norm())
            silent = all(float(subject.codes[row, k]) == 0 for k in chosen[label])
            found[label].append(float(silent and carried[most] > 0 and cosine >= 0.025))
    expected = np.mean([np.mean(each) for each in found if each])
    assert float(read("absorption", subject)[1]) == pytest.approx(expected, abs=1e-9)


def test_stability_is_1_with_itself_and_needs_a_sibling(bench: Bench, subject: Subject) -> None:
    twin = Subject(subject.dictionary, bench, subject.dictionary)
    assert float(read("stability", twin)[0]) == pytest.approx(1.0)
    assert float(read("stability", subject)[0]) < 0.99
    with pytest.raises(NotApplicableError, match="another seed"):
        read("stability", Subject(subject.dictionary, bench))


def test_positions_that_are_skipped_stay_as_they_are() -> None:
    task = vd.tasks.load("digits")[:16]
    states = vd.gef.layer_activations(task, "conv1")
    whole, most, none = (
        Bench(task, "conv1", states.flatten(0, 1), parts=2, skip=n) for n in (0, 3, states.shape[1])
    )
    assert torch.equal(most.test, states[:, 3:].flatten(0, 1))
    assert torch.allclose(spliced_outputs(none, torch.zeros_like), task.outputs, atol=1e-5)
    assert not torch.allclose(spliced_outputs(whole, torch.zeros_like), task.outputs, atol=1e-2)


def test_padding_is_neither_judged_nor_replaced() -> None:
    task = vd.tasks.load("reviews")[:16]
    words = vd.dictionaries.activations(task, "embedding", axis=-1)
    bench = Bench(task, "embedding", words, axis=-1, parts=2)
    assert torch.equal(bench.test, words)
    assert len(bench.row_part) == len(words) == int(task.space.valid.sum())
    changed: list[Tensor] = []
    unchanged = spliced_outputs(bench, lambda rows: changed.append(rows) or rows)
    assert torch.allclose(unchanged, task.outputs, atol=1e-5)
    assert torch.equal(torch.cat(changed), words)


def test_what_does_not_apply_says_why() -> None:
    task = vd.tasks.load("digits")[:32]
    name = next(n for n, m in task.model.named_modules() if isinstance(m, nn.Conv2d))
    states = vd.gef.layer_activations(task, name).flatten(0, 1)
    bench = Bench(task, name, states)
    own = Subject(train(states, TopK(16, 5, 32, active=2)).dictionary, bench)
    assert bool(torch.isfinite(read("loss recovered", own)).all())
    for metric, reason in (("surf", "linear head"), ("sparse probing", "needs labels")):
        with pytest.raises(NotApplicableError, match=reason):
            read(metric, own)
    short = Bench(task, name, states, torch.ones(len(states), 2), torch.ones(3, 2))
    with pytest.raises(ShapeError, match="labels has 3 rows"):
        read("sparse probing", Subject(own.dictionary, short))
