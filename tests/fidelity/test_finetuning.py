"""Fine-tuning: a copy under random masks, checkpointed, cached by content, strict about use."""

import json
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import veridical as vd
from veridical import testing
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, VeridicalWarning
from veridical.fidelity import FFid, Fid, Finetuned, RFid, finetune
from veridical.fidelity.finetuning import cache_folder
from veridical.fidelity.training_rows import Rows, training_rows
from veridical.perturb.fills import Zero


def bars(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise images whose class is the row of a bright bar."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (rows,), generator=generator)
    x = 0.3 * torch.randn(rows, 2, 6, 6, generator=generator) + 0.2
    x[torch.arange(rows), :, labels * 2] += 1.0
    return x, labels


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


@pytest.fixture(scope="module")
def task() -> vd.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
        x, y = bars(200, 1)
        steps = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(30):
            loss = nn.functional.cross_entropy(net(x), y)
            steps.zero_grad()
            loss.backward()
            steps.step()
    test, labels = bars(24, 2)
    return vd.Task(net.eval(), test, labels=labels, train=(x, y))


QUICK = {"epochs": 3, "rate": 1e-3, "batch": 32}


def test_the_users_model_is_untouched_and_the_copy_differs(task: vd.Task, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    state = torch.get_rng_state()
    meter = task.predictor.meter.cost
    artefact = finetune(task, **QUICK, cache=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert not task.model.training
    assert not torch.equal(artefact.weights["head.weight"], before["head.weight"])
    assert not torch.equal(artefact.weights["norm.running_mean"], before["norm.running_mean"])
    assert task.predictor.meter.cost == meter
    # epochs, the loss before them, answers and two maps of the 20 held-out rows
    assert artefact.cost == vd.models.Cost(3 * 200 + 20 + 20 + 40, 3 * 180 + 40)
    assert artefact.labels == "given"
    assert "batch norm" in artefact.header["mode"]


def test_a_second_call_reads_and_any_change_trains_anew(task: vd.Task, tmp_path: Path) -> None:
    first = finetune(task, **QUICK, cache=tmp_path)
    written = Path(first.path).stat().st_mtime_ns
    assert finetune(task, **QUICK, cache=tmp_path) == first
    assert Path(first.path).stat().st_mtime_ns == written
    assert finetune(task[:5], **QUICK, cache=tmp_path) == first  # the evaluated rows do not matter
    x, y = task.train, task.train_labels
    others = [
        finetune(task, **{**QUICK, "rate": 2e-3}, cache=tmp_path),
        finetune(task, **QUICK, beta=0.2, cache=tmp_path),
        finetune(task, **QUICK, masks=False, cache=tmp_path),
        finetune(task, **QUICK, seed=1, cache=tmp_path),
        finetune(task, (x[:-1], y[:-1]), **QUICK, cache=tmp_path),
        finetune(task, (x, torch.where(torch.arange(200) == 0, (y + 1) % 3, y)), **QUICK, cache=tmp_path),
        finetune(task.with_fill("mean"), **QUICK, cache=tmp_path),
        finetune(task.with_space(vd.Space.patches((2, 6, 6), 2)), **{**QUICK, "beta": 0.2}, cache=tmp_path),
    ]
    assert len({artefact.path for artefact in (first, *others)}) == len(others) + 1
    assert not list(tmp_path.glob("*.part"))


def test_masks_have_counts_uniform_up_to_the_budget_and_cover_all_channels() -> None:
    x, none = torch.ones(3000, 2, 5, 6), torch.zeros(3000)
    rows = Rows(x, none, (), vd.Space.pixels((2, 5, 6)), Zero(), None, none, none, "", "given")
    masked = rows.masked(torch.arange(3000), 0.1, Key(0), 1)  # B = 3
    gone = masked == 0
    assert torch.equal(gone[:, 0], gone[:, 1])
    counts = gone[:, 0].flatten(1).sum(1).bincount(minlength=4)
    assert len(counts) == 4
    assert counts.min() > 650
    places = gone[:, 0].flatten(1).double().mean(0)
    assert torch.allclose(places, torch.full_like(places, 0.05), atol=0.02)
    assert not torch.equal(rows.masked(torch.arange(3000), 0.1, Key(0), 2), masked)
    some = torch.tensor([7, 3])
    assert torch.equal(rows.masked(some, 0.1, Key(0), 1), masked[some])


def test_early_stop_keeps_the_best_state(task: vd.Task, tmp_path: Path) -> None:
    artefact = finetune(task, epochs=40, rate=0.05, batch=32, patience=2, cache=tmp_path)
    losses = [epoch["validation"] for epoch in artefact.history]
    assert len(losses) < 40
    assert artefact.header["best_epoch"] == losses.index(min(losses)) + 1 == len(losses) - 2


def test_without_labels_the_models_own_answers_are_the_targets_and_it_says_so(
    task: vd.Task, tmp_path: Path
) -> None:
    assert task.train is not None
    artefact = finetune(task, task.train, **QUICK, cache=tmp_path)
    assert artefact.labels == "predicted"
    scores = FFid(finetuned=artefact, draws=2)(task, vd.explain("gradient", task))
    assert scores.provenance["finetuned"]["targets"] == "the original model's own predictions"
    assert scores.provenance["finetuned"]["evaluated rows that were trained on"] == 0


def test_by_name_it_fine_tunes_once(task: vd.Task, own_cache: Path) -> None:
    plus = vd.score("ffid_plus", task, "saliency", draws=3, variant="probability")
    files = set(own_cache.rglob("*.safetensors"))
    minus = vd.score("ffid_minus", task, "saliency", draws=3, variant="probability")
    assert set(own_cache.rglob("*.safetensors")) == files
    plus.save(own_cache / "scores.safetensors")
    assert vd.Scores.load(own_cache / "scores.safetensors").provenance["finetuned"]["beta"] == 0.1
    assert plus.cost.forward == minus.cost.forward == 24 * 19 * 3
    assert plus.mean(skip_nan=True) > minus.mean(skip_nan=True)


def test_the_fine_tuned_model_judges_and_explanations_stay_the_originals(
    task: vd.Task, tmp_path: Path
) -> None:
    artefact = finetune(task, **QUICK, cache=tmp_path)
    tuned = artefact.on(task)
    assert torch.equal(tuned.targets, task.targets)
    assert not torch.equal(tuned.outputs, task.outputs)
    explanation = vd.explain("saliency", task)
    plain = Fid()(task, explanation)
    ablation = Fid(finetuned=artefact)(task, explanation)
    assert plain.cost == ablation.cost
    assert not torch.equal(plain.details["probability"], ablation.details["probability"])


def test_a_mismatch_is_an_error(task: vd.Task, tmp_path: Path) -> None:
    artefact = finetune(task, **QUICK, cache=tmp_path)
    with pytest.raises(InputError, match=r"fine-tuned with beta 0\.1 and is to be evaluated with beta 0\.2"):
        FFid(finetuned=artefact, beta=0.2)
    metric = FFid(finetuned=artefact, draws=2)
    with pytest.raises(InputError, match="fine-tuned with fill"):
        vd.score(metric, task.with_fill("mean"), "saliency")
    with pytest.raises(InputError, match=r"36 pixel features .* the task has 9 patch features"):
        vd.score(metric, task.with_space(vd.Space.patches((2, 6, 6), 2)), "saliency")
    with pytest.raises(InputError, match="other weights"):
        vd.score(metric, task.with_noise(0.1, Key(0)), "saliency")


def test_artefacts_and_their_metrics_go_to_json_and_back(task: vd.Task, tmp_path: Path) -> None:
    artefact = finetune(task, **QUICK, cache=tmp_path)
    metric = FFid("minus", finetuned=artefact)
    again = FFid.from_json(json.loads(json.dumps(metric.to_json())))
    assert again == metric
    assert "beta 0.1, 3 epochs" in repr(artefact)
    assert "cannot be read" in repr(Finetuned(str(tmp_path / "none.safetensors")))


@pytest.mark.parametrize("head", ["multiclass", "binary", "multilabel", "regression"])
def test_every_head(head: str, tmp_path: Path) -> None:
    x = torch.randn(60, 12, generator=torch.Generator().manual_seed(0))
    outputs = {"multiclass": 3, "binary": 1, "multilabel": 3, "regression": 2}[head]
    model = nn.Linear(12, outputs)
    with torch.no_grad():
        answers = model(x)
    labels = {
        "multiclass": answers.argmax(-1),
        "binary": (answers[:, 0] > 0).long(),
        "multilabel": (answers > 0).long(),
        "regression": answers,
    }[head]
    chosen = {"targets": 0} if head == "regression" else {}
    task = vd.Task(model, x[:10], head=head, train=(x, labels), labels=labels[:10], fill="zero", **chosen)
    artefact = finetune(task, **QUICK, cache=tmp_path)
    scores = FFid(finetuned=artefact, draws=3, sizes=(0.5,))(task, vd.explain("gradient", task))
    assert not scores.values.isnan().any()


def test_text_leaves_pads_alone_and_asks_for_the_features_of_padded_series(tmp_path: Path) -> None:
    task = testing.tiny_task("text")
    tokens = torch.cat([task.inputs, task.inputs.flip(0)])
    keep = (tokens != 0).to(torch.float64)
    artefact = finetune(task, tokens, train_side=(keep,), beta=0.3, **QUICK, cache=tmp_path)
    assert artefact.labels == "predicted"
    series = testing.tiny_task("series")
    with pytest.raises(NotApplicableError, match="train_space"):
        finetune(series, cache=tmp_path)
    assert "train_space" in (FFid().inapplicable_reason(series) or "")
    space = vd.Space.steps((2, 10), lengths=torch.full((12,), 9))
    finetune(series, train_space=space, beta=0.2, **QUICK, cache=tmp_path)


@pytest.mark.extras
def test_zero_padded_series_tell_which_steps_training_rows_have(tmp_path: Path) -> None:
    task = vd.tasks.load("japanese_vowels_cnn", samples=8)
    assert task.train is not None
    assert task.train_side is not None
    rows = training_rows(task)
    (lengths,) = task.train_side
    assert torch.equal(rows.space.counts(len(task.train)), lengths)
    made = finetune(task, beta=0.1, **QUICK, cache=tmp_path)
    assert not vd.score(FFid(finetuned=made, draws=2, sizes=(0.5,)), task, "saliency").values.isnan().any()


def test_bad_input_is_refused(task: vd.Task, tmp_path: Path) -> None:
    bare = vd.Task(task.model, task.inputs)
    with pytest.raises(NotApplicableError, match="no training rows; give the task train="):
        finetune(bare, cache=tmp_path)
    with pytest.raises(NotApplicableError, match="no training rows"):
        vd.score("ffid_plus", bare, "saliency")
    x, y = bars(90, 5)
    with pytest.raises(InputError, match="none the model has learnt: it is right on"):
        finetune(task, (torch.randn(90, 2, 6, 6), y), cache=tmp_path)
    with pytest.raises(InputError, match="run from 0 to 5, the model has 3 outputs"):
        finetune(task, (x, y + 3 * (y == 2)), cache=tmp_path)
    with pytest.raises(InputError, match="wants one class index per row"):
        finetune(task, (x, nn.functional.one_hot(y)), cache=tmp_path)
    with pytest.raises(InputError, match="89 training labels for 90"):
        finetune(task, (x, y[1:]), cache=tmp_path)
    with pytest.raises(InputError, match="at least 2 rows"):
        finetune(task, (x[:1], y[:1]), cache=tmp_path)
    with pytest.raises(InputError, match="the task's inputs"):
        finetune(task, (x[:, :1], y), cache=tmp_path)
    with pytest.raises(InputError, match="lower the rate"):
        finetune(task, epochs=3, optimiser=partial(torch.optim.SGD, lr=1e30), key="wild", cache=tmp_path)
    with pytest.raises(NotApplicableError, match="noisy view"):
        finetune(task.with_noise(0.1, Key(0)), cache=tmp_path)
    with pytest.raises(NotApplicableError, match="no weights that torch can train"):
        finetune(vd.Task(lambda rows: rows.flatten(1)[:, :3], x, train=x), cache=tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_rows_the_model_knows_far_less_well_raise_a_warning(task: vd.Task, tmp_path: Path) -> None:
    x, y = bars(90, 5)
    noisy = x + 2.0 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with pytest.warns(VeridicalWarning, match="may never have seen"):
        finetune(task, (noisy, y), epochs=1, cache=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finetune(task, (x, y), epochs=1, cache=tmp_path)


FEW = {"sizes": (0.2, 0.5, 0.8), "draws": 3}


@pytest.mark.parametrize("modality", testing.MODALITIES)
@pytest.mark.parametrize(
    "metric", [Fid("minus"), RFid(**FEW), RFid(bernoulli=True, **FEW), FFid("minus", **FEW)]
)
def test_the_metrics_keep_their_promises(metric: vd.Metric, modality: str) -> None:
    testing.check_metric(metric, modality)


def test_the_folder_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VERIDICAL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("VERIDICAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "veridical"
