"""No explainer waits for a GPU: what it asks next is asked while the device still works on the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import veridical as vd
from benchmarks.launches import as_on_a_gpu, counted
from veridical.errors import ModelError
from veridical.explainers import Explainer, Lime, Rise, as_explainer, mask_rules, registry
from veridical.explainers.coalitions import FitsCells, MaskingExplainer
from veridical.explainers.least_squares import _in_stretches, shared_counts, solved
from veridical.perturb.subset_table import has_few
from veridical.testing import MODALITIES, tiny_task

FEW: dict[str, dict[str, int]] = {
    "lime": {"draws": 40},
    "rise": {"draws": 40},
    "kernel_shap": {"budget": 40},
}
WAITING = {
    ("partition_shap", kind): "of few features the branches run out: it must know when"
    for kind in MODALITIES
    if kind != "image"
} | {
    (
        "kernel_shap",
        "text",
    ): "sentences of few words are enumerated and long ones sampled: it must know which",
    ("kernel_shap", "series"): "the same of series of unequal length",
}
ONCE = "of few features no mask is asked twice: it must know which are new"
BY_MASKS = ("hsic", "permutation_importance", "shapley_sampling", "sobol")
WAITING |= {(name, kind): ONCE for name in BY_MASKS for kind in ("table", "series", "text")}


def cases() -> Iterator[tuple[str, str]]:
    for kind in MODALITIES:
        task = tiny_task(kind)
        for name in registry:
            if registry.make(name, **FEW.get(name, {})).why_not(task) is None:
                yield name, kind


def waits(explainer: Explainer, task: vd.Task) -> int:
    """Times the second map of a task waits: what is prepared once is there by then."""
    vd.explain(explainer, task)
    return counted(lambda: vd.explain(explainer, task)).waits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), [case for case in cases() if case not in WAITING])
def test_nothing_waits_for_the_device(name: str, kind: str) -> None:
    explainer, task = registry.make(name, **FEW.get(name, {})), tiny_task(kind)
    # which masks of few features were asked before is looked at, a few times for each number of features
    asks_by_masks = isinstance(explainer, MaskingExplainer | Lime | Rise)
    joined = explainer.cells_of(task) if isinstance(explainer, FitsCells) else None
    asked = task if joined is None else joined.over(task)
    most = 24 if asks_by_masks and has_few(asked, asked.fill) is not None else 0
    assert waits(explainer, task) <= most


def test_one_that_waits_is_found() -> None:
    def looks(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return inputs * float(inputs.amax())

    assert waits(as_explainer(looks), tiny_task("image")) > 0


def test_a_number_that_is_sent_to_the_device_is_found() -> None:
    x, places = torch.zeros(5), torch.tensor([1, 3])

    def write(where: Any, what: Any) -> None:
        x[where] = what

    assert counted(lambda: write(places, 1.0)).waits == 1
    assert counted(lambda: write((places,), 1.0)).waits == 1
    assert counted(lambda: torch.as_tensor(0.5, device=x.device)).waits == 1
    assert counted(lambda: write(slice(2, 4), 1.0)).waits == 0
    assert counted(lambda: write(places, torch.ones(2))).waits == 0


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "rise", "feature_ablation"])
def test_an_answer_that_is_not_finite_is_found_when_the_map_is_read(name: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.flatten(1).sum(-1, keepdim=True) > 8.5, x.flatten(1)[:, :3], torch.nan)

    task = vd.Task(broken, torch.ones(2, 1, 3, 3), fill=0.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.explain(name, task)
    with as_on_a_gpu():
        made = vd.explain(name, task)
        for _ in range(2):
            with pytest.raises(ModelError, match="NaN or infinity"):
                _ = made.values


def test_common_features_are_counted_exactly_in_stretches() -> None:
    truths = torch.rand(3, 7, 5000, generator=torch.Generator().manual_seed(0)) < 0.9
    counts = truths.double() @ truths.double().mT
    assert torch.equal(_in_stretches(truths.view(torch.uint8)), counts)
    assert torch.equal(shared_counts(truths), counts)
    # in one stretch half floats would round
    assert not torch.equal((truths.half() @ truths.half().mT).double(), counts)


def test_a_system_that_has_no_answer_is_told_by_nan() -> None:
    gram = torch.stack([torch.eye(3), torch.ones(3, 3) - torch.eye(3)]).double()
    found = solved(gram, torch.ones(2, 3, 1, dtype=torch.float64))
    assert torch.equal(found[0], torch.ones(3, 1, dtype=torch.float64))
    assert bool(found[1].isnan().all())


def test_pieces_of_masks_fill_whole_chunks_and_a_fixed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task("table")
    features = task.space.n_features
    many = task[torch.arange(50) % len(task)].with_plan(vd.Plan(rows=64))
    for most, expected in ((1, [6] * 8 + [2]), (20 * 10 * features, [18, 18, 14]), (2**30, [50])):
        monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (most, 2**28))
        assert [len(piece) for piece in mask_rules.mask_pieces(many, 10)] == expected
    assert [len(piece) for piece in mask_rules.mask_pieces(many[:3], 1000)] == [3]
    monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (1, 2**28))
    assert [len(piece) for piece in mask_rules.mask_pieces(many[:3], 1000)] == [1, 1, 1]
