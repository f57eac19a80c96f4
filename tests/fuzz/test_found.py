"""What random calls once broke, asked again by name: right, flagged, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd
from tests.fuzz.calls import Any2D, Pictures, broken
from veridical.concepts.methods.decompositions import unmixing
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.meta.dependence import permuted, random_maps


def pictures(dtype: torch.dtype) -> vd.Task:
    rows = (torch.arange(2 * 36).view(2, 1, 6, 6) % 5).to(dtype)
    return vd.Task(Pictures().eval(), rows, train=(rows, torch.tensor([0, 1])))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("metric", ["road", "monotonicity_correlation", "pixel_flipping"])
def test_inputs_that_are_not_floats(metric: str, dtype: torch.dtype) -> None:
    task = pictures(dtype)
    assert broken(vd.score(metric, task, torch.rand(2, 36))) is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_masks_over_inputs_that_are_not_floats(dtype: torch.dtype) -> None:
    assert broken(vd.explain("rise", pictures(dtype), draws=4)) is None


def table(**given: Any) -> vd.Task:
    return vd.Task(Any2D(4).eval(), torch.ones(3, 4), **given)


@pytest.mark.parametrize("size", [1e300, 1e307, 1e-300])
def test_maps_of_any_size_are_scored_or_flagged(size: float) -> None:
    maps = torch.tensor([[1.0, -1.0, 2.0, 0.5]] * 3, dtype=torch.float64) * size
    for metric in ("infidelity", "faithfulness_correlation", "sparseness"):
        assert broken(vd.score(metric, table(), maps)) is None, metric


def known() -> vd.Task:
    return vd.tasks.load("known/linear", samples=4)


ODD_CALLS: dict[str, Callable[[], Any]] = {
    "no seed": lambda: vd.explain("random", table(), seed=None),  # type: ignore[arg-type]
    "a token that is none": lambda: vd.score("pixel_flipping", table(), "gradient", fill=vd.fills.Token(-1)),
    "layer by number": lambda: vd.explain("gradcam", pictures(torch.float32), layer=-1),
    "no target": lambda: table(targets=[None]),
    "very many samples": lambda: vd.tasks.load("known/linear", 2**70),
    "no features": lambda: vd.Task(nn.Linear(0, 2), torch.zeros(3, 0)),
    "a file that is no path": lambda: vd.explain("gradient", known()).save("a\0"),
    "a file to read that is no path": lambda: vd.Explanation.load("a\0"),
    "a cache that is no path": lambda: vd.fidelity.finetune(known(), known().inputs, epochs=1, cache="\0"),
    "a page that is no path": lambda: vd.evaluate(known(), "gradient", "sparseness").report("a\0.html"),
    "a metric of ranking that is none": lambda: vd.fidelity.ranking_study(
        known(),
        "gradient",
        metrics={"a": 1},  # type: ignore[dict-item]
    ),
}
for odd in (torch.ones(2), "a", [None], {"a": 1}):
    ODD_CALLS[f"draws {odd!r}"] = lambda odd=odd: vd.concepts.sanity(known(), draws=odd)
    ODD_CALLS[f"noise draws {odd!r}"] = lambda odd=odd: vd.meta.calibrate(known(), "ipt", "nr", draws=odd)
    ODD_CALLS[f"classes {odd!r}"] = lambda odd=odd: vd.gef.visualise(known(), odd, steps=1)
for odd in (3, [None], torch.ones(2)):
    ODD_CALLS[f"layer {odd!r}"] = lambda odd=odd: vd.concepts.split(known(), odd)
    ODD_CALLS[f"layer, expanded {odd!r}"] = lambda odd=odd: vd.concepts.split(known(), odd, first_order=True)
for odd in (torch.zeros(0), torch.zeros(0, dtype=torch.int64), np.zeros(0), ()):
    ODD_CALLS[f"counts {odd!r}"] = lambda odd=odd: vd.concepts.parsimony("pca", known(), counts=odd)
    ODD_CALLS[f"shares {odd!r}"] = lambda odd=odd: vd.fidelity.robustness_table(known(), shares=odd)
for odd in ([], torch.ones(3), np.ones(3), "a", 3, {}):
    ODD_CALLS[f"other models {odd!r}"] = lambda odd=odd: vd.audit(known(), effort="glance", others=odd)
for odd in (torch.tensor(1.0), np.array(1.0), torch.ones(2), np.ones(2)):
    ODD_CALLS[f"explainers {odd!r}"] = lambda odd=odd: vd.evaluate(known(), odd, ["sparseness"])
    ODD_CALLS[f"metrics {odd!r}"] = lambda odd=odd: vd.evaluate(known(), ["gradient"], odd)
for odd in ({"a": 1}, 3, [None], torch.ones(2)):
    ODD_CALLS[f"side {odd!r}"] = lambda odd=odd: vd.fidelity.finetune(known(), train_side=odd, epochs=1)


def test_independent_components_of_an_output_with_one_row() -> None:
    assert unmixing(torch.zeros(1, 1, dtype=torch.float64), Key(0), 5).isfinite().all()


def test_evaluations_that_share_no_cell_compare_as_nothing() -> None:
    one, other = (vd.evaluate(table(), who, "sparseness", progress=False) for who in ("gradient", "saliency"))
    assert one.compare(other).empty


def test_arrays_are_taken_where_several_numbers_are() -> None:
    found = vd.concepts.parsimony("pca", known(), counts=torch.tensor([1, 2]))
    assert found.counts == (1, 2)


@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (1, 3)])
def test_edges_of_a_series_of_one_step(shape: tuple[int, int]) -> None:
    space = vd.Space.steps(shape, time_axis=0) if shape == (1, 3) else None
    task = vd.Task(
        nn.Sequential(nn.Flatten(), nn.Linear(3 if 3 in shape else 1, 2)), torch.randn(2, *shape), space=space
    )
    assert vd.explain("sobel", task).values.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("size", [1e30, 1e38, 2.0**63])
def test_subsets_of_more_features_than_there_are(size: float) -> None:
    task = table()
    all_but_one = vd.score("faithfulness_correlation", task, "gradient", subset_size=3)
    found = vd.score("faithfulness_correlation", task, "gradient", subset_size=size)
    assert found.values.nan_to_num().equal(all_but_one.values.nan_to_num())


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_a_study_takes_every_plan(rows: int, tmp_path: Path) -> None:
    given = {"tasks": [{"name": "known/linear", "samples": 3}], "explainers": ["gradient"]}
    given |= {"metrics": ["pixel_flipping"], "plan": {"rows": rows}}
    assert vd.study.run(given, tmp_path / "s", executor="in-process", progress=False).status().complete


def test_permuted_maps_are_drawn_without_the_last_digits() -> None:
    """A map whose last bit came out otherwise, under another plan, met another permutation."""
    maps = torch.randn(40, 6, dtype=torch.float64)
    near = maps * (1 + 1e-15 * torch.randn(40, 6, dtype=torch.float64))
    assert not near.equal(maps)
    for alter in (permuted, random_maps):
        assert torch.allclose(alter(near, None, Key(0)), alter(maps, None, Key(0)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("call", ODD_CALLS.values(), ids=ODD_CALLS.keys())
def test_settings_that_make_no_sense_are_refused(call: Any) -> None:
    with pytest.raises(VeridicalError):
        call()
