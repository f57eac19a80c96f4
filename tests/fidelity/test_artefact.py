"""The fine-tuned model: when it may stand in, what its file remembers, and when it is made anew."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.errors import InputError, NotApplicableError, VeridicalWarning
from veridical.fidelity import FFid, Fid, finetune, robustness_table
from veridical.fidelity.artefact import FEW_ROWS, FLAGGED, MAPS_REFUSED, REFUSED, HeldOutCheck

QUICK = {"epochs": 2, "rate": 1e-3}


def gaussian(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (rows,), generator=draw)
    x = torch.randn(rows, 15, generator=draw)
    x[torch.arange(rows), y * 5] += 4.0
    return x, y


def trained(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 3))
        x, y = gaussian(600, 1)
        steps = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(60):
            steps.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            steps.step()
    return net.eval()


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return trained()


def task_of(net: nn.Module, **extra) -> vd.Task:
    x, y = gaussian(40, 2)
    return vd.Task(net, x, labels=y, **{"train": gaussian(600, 1), "fill": "zero", **extra})


@pytest.fixture(scope="module")
def task(net: nn.Module) -> vd.Task:
    return task_of(net)


# --- a copy that is not the model any more ---------------------------------------------------------------


def test_steps_that_ruin_the_model_leave_the_starting_weights(task: vd.Task, tmp_path: Path) -> None:
    artefact = finetune(task, epochs=2, rate=50.0, cache=tmp_path)
    assert artefact.header["best_epoch"] == 0
    assert artefact.held_out.agreement == 1.0
    for name, value in task.model.state_dict().items():
        assert torch.equal(artefact.weights[name], value)
    assert min(e["validation"] for e in artefact.history) > artefact.header["start"]
    assert "the original weights were best" in repr(artefact)
    scores = vd.score(FFid(finetuned=artefact, draws=2), task, "gradient")
    assert scores.provenance["finetuned"]["best epoch"] == 0


def forgetting(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is low where class 0 has been unlearnt."""
    return nn.functional.cross_entropy(outputs, torch.where(targets == 0, 1, targets))


def turning(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, (targets + 1) % 3)


def test_a_copy_that_is_another_model_is_refused(task: vd.Task, tmp_path: Path) -> None:
    settings = {"epochs": 20, "rate": 1e-2, "cache": tmp_path}
    forgot = finetune(task, loss=forgetting, key="forgetting", **settings)
    assert forgot.held_out.accuracy < 0.8
    turned = finetune(task, loss=turning, key="turning", **settings)
    assert turned.held_out.agreement < REFUSED
    assert turned.held_out.rows == 60
    for artefact, reason in ((forgot, "points of accuracy on 60"), (turned, "of 60 whole held-out inputs")):
        for metric in (FFid(finetuned=artefact, draws=2), Fid(finetuned=artefact)):
            with pytest.raises(NotApplicableError, match=reason):
                vd.score(metric, task, "gradient")
    table = robustness_table(task, turned, cache=tmp_path)
    assert "use FFid" not in table.advice
    assert "another model" in table.advice


def test_between_the_limits_scores_are_flagged() -> None:
    def check(rows=60, agreement=1.0, maps=0.9, before=1.0, after=1.0) -> HeldOutCheck:
        return HeldOutCheck(rows, agreement, maps, before, after)

    assert check().flags == check(maps=None).flags == ()
    assert check().inapplicable_reason is None
    (flag,) = check(agreement=FLAGGED - 0.01).flags
    assert "89% of 60 whole held-out inputs" in flag
    assert check(agreement=REFUSED).inapplicable_reason is None
    assert check(agreement=REFUSED - 0.01).inapplicable_reason
    assert check(agreement=float("nan")).inapplicable_reason
    (flag,) = check(after=0.93).flags
    assert "7 points of accuracy" in flag
    assert check(after=0.91).inapplicable_reason is None
    assert "18 points of accuracy" in (check(after=0.82).inapplicable_reason or "")
    assert check(after=0.82, rows=6).inapplicable_reason is None  # of six rows one, which chance may do
    assert check(after=0.5, rows=6).inapplicable_reason
    assert check(before=0.8, after=0.9).flags == ()  # better is no loss
    (flag,) = check(rows=FEW_ROWS - 1).flags
    assert "too few" in flag
    (flag,) = check(maps=0.5).flags
    assert "reads inputs elsewhere" in flag
    assert check(maps=MAPS_REFUSED).inapplicable_reason is None
    assert "saliency maps" in (check(maps=0.1).inapplicable_reason or "")


def test_samples_it_answers_otherwise_are_flagged(task: vd.Task, tmp_path: Path) -> None:
    artefact = finetune(task, **QUICK, cache=tmp_path)
    other = artefact.on(task).outputs.argmax(-1) != task.predictions
    scores = vd.score(FFid(finetuned=artefact, draws=2), task, "gradient")
    assert (
        scores.flagged.get("the fine-tuned model answers this whole input otherwise than the model", 0)
        == other.sum()
    )
    assert scores.provenance["finetuned"]["agreement on the evaluated rows"] == 1 - other.double().mean()


def test_agreement_is_that_of_held_out_rows_and_maps_are_compared(task: vd.Task, tmp_path: Path) -> None:
    from veridical.core.key import Key
    from veridical.fidelity.training import split

    artefact = finetune(task, epochs=6, rate=3e-2, cache=tmp_path)
    _, held = split(600, 0.1, Key(0) / "fine-tuning", torch.device("cpu"))
    model = trained()
    model.load_state_dict(artefact.weights)
    x, y = gaussian(600, 1)
    before, after = task.model(x[held]).argmax(-1), model(x[held]).argmax(-1)
    found = artefact.held_out
    assert found.agreement == pytest.approx(float((before == after).double().mean()))
    assert found.accuracy == pytest.approx(float((after == y[held]).double().mean()))
    assert found.original_accuracy == pytest.approx(float((before == y[held]).double().mean()))
    assert -1 <= found.maps < 1
    still = finetune(task, epochs=1, optimiser=partial(torch.optim.SGD, lr=0.0), key="still", cache=tmp_path)
    assert still.held_out.maps == pytest.approx(1.0)


# --- which rows it was made from --------------------------------------------------------------------------


def test_the_artefact_remembers_its_rows_whatever_the_task_says(net: nn.Module, tmp_path: Path) -> None:
    task = task_of(net)
    half = (torch.cat([task.inputs[:8], task.train]), torch.cat([task.labels[:8], task.train_labels]))
    some = finetune(task, half, **QUICK, cache=tmp_path)
    assert some.rows_seen(task.inputs) == 8
    scores = vd.score(FFid(finetuned=some, draws=2), task, "gradient")
    assert scores.provenance["finetuned"]["evaluated rows that were trained on"] == 8
    # a task that holds the evaluated rows as reference rows was not trained on them by that
    same = task_of(net, train=(task.inputs, task.labels))
    assert finetune(same, gaussian(600, 1), **QUICK, cache=tmp_path).rows_seen(task.inputs) == 0


def test_the_control_learns_from_the_same_rows(task: vd.Task, tmp_path: Path) -> None:
    mine = gaussian(120, 7)
    artefact = finetune(task, mine, **QUICK, cache=tmp_path)
    with pytest.raises(InputError, match="other rows than the fine-tuned model"):
        robustness_table(task, artefact, cache=tmp_path)
    table = robustness_table(task, artefact, train=mine, cache=tmp_path)
    assert table.rows == 40


# --- the address ------------------------------------------------------------------------------------------


def test_frozen_layers_are_part_of_the_address(tmp_path: Path) -> None:
    net = trained()
    task = task_of(net)
    free = finetune(task, **QUICK, cache=tmp_path)
    net[0].requires_grad_(False)
    frozen = finetune(task_of(net), **QUICK, cache=tmp_path)
    assert frozen.path != free.path
    if frozen.header["best_epoch"]:
        assert not torch.equal(frozen.weights["2.weight"], net.state_dict()["2.weight"])
    assert torch.equal(frozen.weights["0.weight"], net.state_dict()["0.weight"])
    # to judge it does not matter which layers were free
    net[0].requires_grad_(True)
    frozen.on(task_of(net))


def test_a_loss_or_an_optimiser_of_your_own_needs_a_key(task: vd.Task, tmp_path: Path) -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    for own in ({"loss": smooth}, {"optimiser": partial(torch.optim.SGD, lr=0.1)}):
        with pytest.raises(InputError, match=r"of your own needs key="):
            finetune(task, **own, **QUICK, cache=tmp_path)
    one = finetune(task, loss=smooth, key="smooth 1", **QUICK, cache=tmp_path)
    assert finetune(task, loss=smooth, key="smooth 1", **QUICK, cache=tmp_path).path == one.path
    assert finetune(task, loss=smooth, key="smooth 2", **QUICK, cache=tmp_path).path != one.path
    assert finetune(task, **QUICK, cache=tmp_path).path != one.path


def test_a_corrupt_artefact_is_made_anew(task: vd.Task, tmp_path: Path) -> None:
    first = finetune(task, **QUICK, cache=tmp_path)
    weights = {name: value.clone() for name, value in first.weights.items()}
    Path(first.path).write_bytes(Path(first.path).read_bytes()[:200])
    with pytest.warns(VeridicalWarning, match="cannot be read"):
        again = finetune(task, **QUICK, cache=tmp_path)
    assert again.path == first.path
    assert all(torch.equal(again.weights[name], value) for name, value in weights.items())


# --- rows that are read when they are needed --------------------------------------------------------------


class Pairs(torch.utils.data.Dataset):
    """Rows and labels, one at a time, counted."""

    def __init__(self, rows: int = 600, seed: int = 1) -> None:
        self.x, self.y = gaussian(rows, seed)
        self.read = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        self.read += 1
        return self.x[index], int(self.y[index])


class Columns:
    """What a Hugging Face dataset is to a reader: rows as mappings of plain lists, many at once."""

    def __init__(self) -> None:
        self.x, self.y = gaussian(600, 1)
        self.column_names = ["features", "label", "comment"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return {"features": self.x[index].tolist(), "label": int(self.y[index]), "comment": "text"}

    def __getitems__(self, index):
        return [self[i] for i in index]


def test_datasets_and_loaders_train_as_their_tensors_do(task: vd.Task, tmp_path: Path) -> None:
    plain = finetune(task, gaussian(600, 1), **QUICK, cache=tmp_path / "tensor")
    pairs = Pairs()
    sources = {
        "dataset": (pairs, {}),
        "loader": (torch.utils.data.DataLoader(Pairs(), batch_size=7, shuffle=True), {}),
        "columns": (Columns(), {"columns": ("features", "label")}),
    }
    for name, (source, options) in sources.items():
        found = finetune(task, source, **options, **QUICK, cache=tmp_path / name)
        assert found.labels == "given"
        assert Path(found.path).name == Path(plain.path).name, name  # the same rows, wherever they lie
        for layer, value in plain.weights.items():
            assert torch.equal(found.weights[layer], value), name
    assert pairs.read > 600  # read again in every epoch rather than kept
    unlabelled = finetune(task, Columns(), columns=("features", None), **QUICK, cache=tmp_path / "bare")
    assert unlabelled.labels == "predicted"


class Augmented(Pairs):
    def __getitem__(self, index: int):
        return self.x[index] + torch.rand(15), int(self.y[index])


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from Pairs()


def test_sources_that_cannot_be_read_twice_alike_are_refused(task: vd.Task, tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader
    weights = torch.utils.data.WeightedRandomSampler([1.0] * 600, 600)
    bad = [
        (Augmented(), {}, "differs when it is read again"),
        (Endless(), {}, "number of rows and rows by their number"),
        (loader(Endless()), {}, "number of rows and rows by their number"),
        (loader(Pairs(), sampler=weights), {}, "WeightedRandomSampler"),
        (loader(Pairs(), collate_fn=list), {}, "collate_fn"),
        (Columns(), {}, r"give columns=.*features, label, comment"),
        (Columns(), {"columns": ("pixels", "label")}, r"no column 'pixels'.*features, label, comment"),
        (list(gaussian(600, 1)), {}, r"\(rows, labels\)"),
        ("rows.csv", {}, "got a str"),
        (object(), {}, "got a object"),
    ]
    for source, options, message in bad:
        with pytest.raises(InputError, match=message):
            finetune(task, source, **options, **QUICK, cache=tmp_path)
    with pytest.raises(InputError, match="shape"):
        finetune(task, torch.utils.data.TensorDataset(torch.rand(20, 7)), **QUICK, cache=tmp_path)
