"""Metrics without truth: closed forms at the two ends, and slow rewrites between them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.dictionaries import auc, balanced, saebench, taken_over
from veridical.dictionaries import MEASURES, Bench, Dictionary, Subject, Superposition, TopK, train
from veridical.dictionaries.bench import fit, spliced_outputs
from veridical.dictionaries.measures import _pairs, chosen_atoms
from veridical.errors import InputError, NotApplicableError, ShapeError, VeridicalWarning

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


def test_few_atoms_are_read_beside_the_activations(bench: Bench, subject: Subject) -> None:
    chosen = chosen_atoms(subject, 4)
    codes, y = subject.train_codes.double(), bench.train_labels
    for label in range(6):
        on, off = codes[y[:, label]].mean(0), codes[~y[:, label]].mean(0)
        apart = ((on - off).abs() / codes.std(0).clamp(min=1e-12)).topk(4).indices
        assert set(apart.tolist()) == set(chosen[label].tolist())
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


def test_scr_mends_a_confounded_probe(bench: Bench, subject: Subject) -> None:
    chosen, clean = chosen_atoms(subject, 4), bench.dense_probes
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
    probes, chosen = bench.dense_probes, chosen_atoms(subject, 4)
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


@pytest.mark.parametrize("count", [1, 4])
def test_probes_and_atoms_of_saebench_give_its_numbers(bench: Bench, subject: Subject, count: int) -> None:
    whole = replace(bench, parts=1, probes="logistic", probe_atoms=count, tpp_atoms=count)
    own = Subject(subject.dictionary, whole)
    rows = (whole.train, own.train_codes, whole.train_labels, whole.test, own.codes, whole.labels)
    arrays = [held.numpy() for held in (*rows, own.dictionary.decoder)]
    tpp, probing = saebench(*arrays, count)
    assert float(MEASURES["tpp"].evaluate(own)) == pytest.approx(tpp, abs=0.01)
    assert float(MEASURES["sparse probing"].evaluate(own)) == pytest.approx(probing, abs=0.01)
    parts = Subject(subject.dictionary, replace(whole, parts=8))
    assert float(MEASURES["tpp"].evaluate(parts).mean()) == pytest.approx(tpp, abs=0.03)  # 32 rows a part


@pytest.mark.parametrize(
    ("name", "change"), [("loss recovered", "mean"), ("loss recovered from zero", "zero")]
)
def test_loss_recovered_of_parts_is_that_of_all_rows(
    bench: Bench, subject: Subject, name: str, change: str
) -> None:
    head, held = bench.task.model.head, subject.dictionary
    nothing = torch.zeros_like(bench.test) if change == "zero" else bench.train.mean(0).expand_as(bench.test)
    loss = [
        nn.functional.cross_entropy(head(h), bench.task.labels).item()
        for h in (nothing, held.decode(held.encode(bench.test)), bench.test)
    ]
    expected = (loss[0] - loss[1]) / (loss[0] - loss[2])
    assert float(MEASURES[name].evaluate(Subject(held, replace(bench, parts=1)))) == pytest.approx(
        expected, abs=1e-4
    )
    assert float(read(name, subject).mean()) == pytest.approx(expected, abs=0.01)


class Words(nn.Module):
    """Logits of the next token from one residual block, as a causal language model gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 20)

    def states(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.block(self.embed(tokens).cumsum(1)))

    def forward(self, tokens: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(torch.tanh(self.block(self.embed(tokens).cumsum(1)))))


def test_loss_and_kl_of_every_next_token() -> None:
    torch.manual_seed(0)
    model, tokens = Words(), torch.randint(0, 20, (12, 7))
    for at in range(6):  # texts of which the model knows how they go on
        tokens[:, at + 1] = model(tokens).logits[:, at].argmax(-1)
    task = vd.Task(model, tokens, output=lambda found: found.logits[:, -1])
    rows = vd.dictionaries.activations(task, "block", axis=-1)
    bench = Bench(task, "block", rows, axis=-1, skip=1, parts=1, next_token=True)
    held = train(rows, TopK(12, 20, 32, active=2)).dictionary
    loss, kl = {"clean": [], "mean": [], "zero": [], "rebuilt": []}, []  # type: ignore[var-annotated]
    with torch.no_grad():
        for row in tokens:
            before = model.block(model.embed(row).cumsum(0))
            changed = {"clean": before, "mean": rows.mean(0).expand(7, 6), "zero": torch.zeros(7, 6)}
            changed["rebuilt"] = held.decode(held.encode(before))
            outputs = {n: model.head(torch.tanh(torch.cat([before[:1], h[1:]]))) for n, h in changed.items()}
            for at in range(1, 6):  # the first token's state stays, and the last token has none after it
                said = {n: logits[at].log_softmax(0) for n, logits in outputs.items()}
                for name, log_p in said.items():
                    loss[name].append(-float(log_p[row[at + 1]]))
                kl.append(float((said["clean"].exp() * (said["clean"] - said["rebuilt"])).sum()))
    mean = {name: np.mean(each) for name, each in loss.items()}
    own = Subject(held, bench)
    assert float(MEASURES["kl"].evaluate(own)) == pytest.approx(np.mean(kl), abs=1e-5)
    for name, nothing in (("loss recovered", "mean"), ("loss recovered from zero", "zero")):
        expected = (mean[nothing] - mean["rebuilt"]) / (mean[nothing] - mean["clean"])
        assert float(MEASURES[name].evaluate(own)) == pytest.approx(expected, abs=1e-3)


def test_atoms_that_are_properties_are_disentangled(bench: Bench, subject: Subject) -> None:
    held = torch.randint(0, 2, (400, 5), generator=torch.Generator().manual_seed(0)).float()
    model = nn.Sequential()
    model.add_module("embed", nn.Linear(5, 5, bias=False))
    model.add_module("head", nn.Linear(5, 3))
    nn.init.eye_(model.embed.weight)
    known = Bench(vd.Task(model, held), "embed", held, held > 0, held > 0, probe_atoms=1)
    axes, nothing = torch.eye(5), torch.zeros(5)
    for atoms, expected in ((axes, 1.0), (axes.roll(1, 0), 1.0), (torch.zeros(5, 5), 0.5)):
        own = Subject(Dictionary(axes if expected < 1 else atoms, nothing, atoms, nothing), known)
        assert torch.allclose(read("disentanglement", own), torch.full((8,), expected, dtype=torch.float64))
    probes, chosen, decoder = bench.dense_probes, chosen_atoms(subject, 4), subject.dictionary.decoder
    scores = []
    here = rows_of(bench, 3)
    for number, atoms in enumerate(chosen):
        taken = (subject.codes[bench.partners] - subject.codes)[:, atoms].double() @ decoder[atoms].double()
        moved = probes(bench.test.double() + taken) > 0.5
        wanted = bench.labels[bench.partners, number]
        held_by = (probes(bench.test) > 0.5, moved, wanted, bench.labels[:, number])
        scores.append(taken_over(*(each.numpy()[here] for each in held_by), number))
    assert float(read("disentanglement", subject)[3]) == pytest.approx(np.mean(scores), abs=1e-9)
    assert torch.equal(bench.row_part[bench.partners], bench.row_part)


def test_density_is_counted_atom_by_atom(bench: Bench, subject: Subject) -> None:
    here = (subject.codes != 0).numpy()[rows_of(bench, 4)].mean(0)
    assert float(read("dead atoms", subject)[4]) == pytest.approx(np.mean(here == 0))
    assert float(read("dense atoms", subject)[4]) == pytest.approx(np.mean(here > 0.1))
    assert float(subject.density.sum()) == pytest.approx(float((subject.codes != 0).sum(1).double().mean()))


@pytest.mark.parametrize(
    ("hook", "layer", "fits"),
    [
        ("blocks.1.hook_resid_post", "layers.1", True),
        ("blocks.2.hook_resid_pre", "layers.1", True),
        ("blocks.1.hook_mlp_out", "layers.1.mlp", True),
        ("resid_post_layer_1", "layers.1", True),
        ("layers.1", "layers.1.mlp", True),  # no kind is named
        ("blocks.1.hook_resid_pre", "layers.1", False),
        ("blocks.0.hook_resid_post", "layers.1", False),
        ("blocks.1.hook_mlp_out", "layers.1", False),
        ("blocks.1.hook_attn_out", "layers.1.mlp", False),
        (None, "layers.1", True),
    ],
)
def test_a_dictionary_of_another_layer_is_refused(hook: str | None, layer: str, fits: bool) -> None:
    bench = SimpleNamespace(
        layer=layer,
        train=torch.zeros(3, 12),
        task=SimpleNamespace(predictor=SimpleNamespace(model=nn.Identity())),
    )
    own = replace(lossless(12), hook=hook)
    if fits:
        Subject(own, bench)  # type: ignore[arg-type]
    else:
        with pytest.raises(InputError, match="was trained on"):
            Subject(own, bench)  # type: ignore[arg-type]


def test_another_model_is_told_and_another_width_refused(bench: Bench) -> None:
    bench.task.predictor.model.config = SimpleNamespace(name_or_path="org/gpt2")
    Subject(replace(lossless(12), model="gpt2-small"), bench)
    with pytest.warns(VeridicalWarning, match="pythia"):
        Subject(replace(lossless(12), model="pythia-70m"), bench)
    del bench.task.predictor.model.config
    with pytest.raises(ShapeError, match="atoms have 6 dimensions"):
        Subject(lossless(6), bench)


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


class Attending(Words):
    """A classifier that is told which tokens are words."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        return self.head((self.block(self.embed(tokens)) * attention_mask[..., None]).mean(1))


def test_an_attention_mask_tells_padding_too() -> None:
    """Only a space told it: where tokenizers give a mask beside the tokens, padding counted."""
    tokens = torch.randint(1, 20, (16, 7), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(7) < torch.arange(16)[:, None] % 6 + 2).long()
    task = vd.Task(Attending(), tokens * mask, side={"attention_mask": mask})
    rows = vd.dictionaries.activations(task, "block", axis=-1)
    bench = Bench(task, "block", rows, axis=-1, parts=2)
    assert len(bench.test) == len(rows) == int(mask.sum())


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
