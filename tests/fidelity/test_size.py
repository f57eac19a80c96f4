"""Explanation size: recovered where the theorem allows it, and an honest answer where it does not."""

from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from torch import nn

import veridical as vd
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.fidelity import FFid, Finetuned, RFid, explanation_size, finetune
from veridical.fidelity.metrics import NO_FALL, SAME_CLASS
from veridical.fidelity.size import read_curves

N = 100


class Weighted(nn.Module):
    """The right answer's logit falls with the summed importance of what is missing."""

    def __init__(self, importance: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("importance", importance)
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = ((1 - x) * self.importance).sum(1)
        logit = 4 - missing + 0.0 * self.unused
        return torch.stack([torch.zeros_like(logit), logit], 1)


def tiers(first: int) -> torch.Tensor:
    return torch.where(torch.arange(N) < first, 8.0 / first, 0.0)


def setting(importance: torch.Tensor, folder: Path, beta: float = 0.25) -> tuple[vd.Task, Finetuned]:
    x = torch.ones(6, N)
    task = vd.Task(Weighted(importance), x, labels=torch.ones(6, dtype=torch.int64), train=x, fill="zero")
    return task, finetune(task, beta=beta, epochs=1, cache=folder)


def found_size(first: int, folder: Path, maps: torch.Tensor | None = None, **options):
    importance = tiers(first)
    task, tuned = setting(importance, folder)
    maps = importance.expand(6, -1).clone() if maps is None else maps
    return explanation_size(task, maps, finetuned=tuned, resamples=50, **options)


@pytest.mark.parametrize("first", [10, 15, 20, 25])
def test_the_size_of_the_first_tier_is_recovered(first: int, tmp_path: Path) -> None:
    found = found_size(first, tmp_path)
    assert found.estimate == pytest.approx(first / N, abs=0.03)
    low, high = found.interval
    assert low <= found.estimate <= high
    assert found.answer.startswith("c1 is")
    assert len(found.to_frame()) == 10 * 99


def test_the_embedded_task_of_the_theorem_has_its_size(tmp_path: Path) -> None:
    known = vd.tasks.known("tiers", samples=12)
    tuned = finetune(known.task, beta=0.25, cache=tmp_path, progress=False)
    sweep = {"betas": (0.15, 0.1, 0.05), "resamples": 20, "draws": 6}
    for model in ({"finetuned": tuned}, {"model": "original"}):
        found = explanation_size(known.task, known.truth, **sweep, **model)
        assert found.estimate == pytest.approx(0.2, abs=0.02)


def test_the_theorem_holds_through_ffid(tmp_path: Path) -> None:
    """Ten of 20, 30 and 50 features go: as many as there are up to c1 = 20, of which the plateau is flat."""
    known = vd.tasks.known("tiers", samples=12)
    tuned = finetune(known.task, cache=tmp_path, progress=False)
    metric = FFid(finetuned=tuned, alpha=1.0, draws=200, variant="probability")
    score = vd.score(metric, known.task, known.truth)
    assert NO_FALL not in score.flags
    judge, draw = tuned.on(known.task), torch.Generator().manual_seed(0)
    clean = judge.probabilities(judge.outputs)[:, 1]
    for place, kept in enumerate((1, 2, 3, 4, 6, 8, 12, 19)):
        x, size = judge.inputs.repeat(400, 1), 5 * kept
        # equal values tie, so the tie is drawn with the subset
        tied = x + 1e-6 * torch.rand(x.shape, generator=draw)
        top = tied.argsort(-1, descending=True)[:, :size]
        gone = top.gather(1, torch.rand(top.shape, generator=draw).argsort(-1)[:, : min(size, 10)])
        left = judge.probabilities(judge.predictor.outputs(x.scatter(1, gone, 0.0), ()))[:, 1]
        fall = (clean.repeat(400) - left).mean()
        assert float(score.curve.y[:, kept - 1].mean()) == pytest.approx(float(fall), abs=0.01), place
    curve = score.curve.y.mean(0)
    assert float(curve[1:4].max() - curve[1:4].min()) < 0.01
    assert bool((curve[:2].diff() > 0).all() and (curve[3:].diff() < 0).all())


def test_settings_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    task, tuned = setting(tiers(20), tmp_path)
    for given, message in (
        ({"finetuned": tuned, "beta": 0.1}, r"with beta 0\.25, not 0\.1"),
        ({"finetuned": tuned, "epochs": 3}, "epochs would be ignored"),
        ({"finetuned": tuned, "model": "original"}, "leave out finetuned="),
        ({"epochs": 3, "model": "original"}, "leave out finetuned="),
    ):
        with pytest.raises(InputError, match=message):
            explanation_size(task, tiers(20).expand(6, -1), **given)


def test_a_score_of_nothing_but_zeros_is_flagged(tmp_path: Path) -> None:
    task, _ = setting(torch.zeros(N), tmp_path)
    assert vd.score(RFid(draws=2), task, torch.rand(6, N)).flagged[NO_FALL] == 6
    other, tuned = setting(tiers(20), tmp_path, 0.05)
    moved = vd.score(RFid(draws=2), other, torch.rand(6, N)).flags
    assert not {NO_FALL, SAME_CLASS} & set(moved)
    # five of twenty are too few to change the class: the score is 0 and the probability is not
    few = {"finetuned": tuned, "beta": 0.05, "draws": 2, "alpha": 1.0}
    scores = vd.score(FFid(**few), other, torch.rand(6, N))
    assert scores.values.tolist() == [0.0] * 6
    assert scores.flagged[SAME_CLASS] == 6
    assert SAME_CLASS not in vd.score(FFid(variant="probability", **few), other, torch.rand(6, N)).flags


def test_the_estimate_is_not_just_any_number(tmp_path: Path) -> None:
    """A check that must be able to fail: the size of another tier is not recovered."""
    assert found_size(20, tmp_path).estimate != pytest.approx(0.1, abs=0.03)
    # a map that knows nothing has no plateau at the first tier
    random = torch.rand(6, N, generator=torch.Generator().manual_seed(0))
    wrong = found_size(20, tmp_path, random)
    assert wrong.estimate is None
    assert wrong.answer.startswith("not identifiable")


def test_a_tier_below_the_sweep_is_bounded_only(tmp_path: Path) -> None:
    found = found_size(3, tmp_path, betas=(0.25, 0.2, 0.15, 0.1))
    assert found.estimate is None
    assert found.answer == "c1 <= 0.1: the onset always lies at B/alpha"


def test_importance_that_varies_is_not_identifiable(tmp_path: Path) -> None:
    importance = 8 * torch.linspace(1, 0, N).exp2().sub(1).pow(6)
    importance = importance * 16 / importance.sum()
    task, tuned = setting(importance, tmp_path)
    found = explanation_size(
        task, importance.expand(6, -1).clone(), finetuned=tuned, betas=(0.1, 0.05, 0.02, 0.01), resamples=50
    )
    assert found.estimate is None
    assert "importance varies inside the tier" in found.answer


def test_a_model_that_needs_nothing_has_no_size(tmp_path: Path) -> None:
    task, tuned = setting(torch.zeros(N), tmp_path)
    found = explanation_size(task, torch.rand(6, N), finetuned=tuned, resamples=20)
    assert found.estimate is None
    assert "changes nothing" in found.answer
    assert "changes nothing" in repr(found)


def test_the_picture_shows_every_curve_and_the_estimate(tmp_path: Path) -> None:
    found = found_size(20, tmp_path)
    ax = found.plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == f"estimate {found.estimate:.3f}"
    assert len(labels) == len(found.curves) + 1
    pyplot.close("all")


def test_betas_above_the_fine_tuning_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"from 0\.25 downwards, that of the fine-tuning, got 0\.3"):
        found_size(20, tmp_path, betas=(0.3, 0.1))


def small(features: int, folder: Path):
    """A table of few columns, of which the first two matter."""
    importance = torch.zeros(features)
    importance[:2] = 4.0
    x = torch.ones(6, features)
    task = vd.Task(Weighted(importance), x, labels=torch.ones(6, dtype=torch.int64), train=x, fill="zero")
    tuned = finetune(task, beta=0.25, epochs=1, cache=folder)
    return explanation_size(task, importance.expand(6, -1).clone(), finetuned=tuned, resamples=20)


@pytest.mark.parametrize("features", [2, 9, 12, 30])
def test_few_features_have_no_size(features: int, tmp_path: Path) -> None:
    found = small(features, tmp_path)
    assert found.estimate is None
    assert found.interval is None
    assert found.answer.startswith("not identifiable: ")
    assert f"{features} features" in found.answer


def test_no_bound_where_the_onsets_do_not_follow() -> None:
    """Curves that hardly differ in height, with onsets far behind B/alpha, bound nothing."""
    s = torch.tensor([percent / 100 for percent in range(1, 100)], dtype=torch.float64)
    late = torch.where(s <= 0.5, 1.0, (0.5 / s) ** 4).expand(6, -1)
    limits, onsets = {0.02: 0.02, 0.01: 0.01}, {0.02: 0.5, 0.01: 0.5}
    estimate, _, answer = read_curves({0.02: late, 0.01: late}, limits, onsets, s.tolist(), 20, Key(0))
    assert estimate is None
    assert "c1 <=" not in answer
    assert answer.startswith("not identifiable")


def test_sizes_that_remove_nothing_are_left_out_of_the_curves(tmp_path: Path) -> None:
    found = found_size(20, tmp_path, alpha=0.5)
    assert all(curve[0].isnan() for curve in found.curves.values())  # half of one feature is none
    assert found.estimate is None or found.estimate == pytest.approx(0.2, abs=0.04)


def test_samples_without_a_map_do_not_count(tmp_path: Path) -> None:
    maps = tiers(20).expand(6, -1).clone()
    maps[:2] = torch.nan
    found = found_size(20, tmp_path, maps)
    assert found.estimate == pytest.approx(0.2, abs=0.03)
    assert "2 of 6 samples have no map and are left out" in repr(found)
