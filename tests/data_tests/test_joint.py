"""Several inputs explained jointly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.shapley import exact_shapley
from veridical.data import Part, from_parts, values_by_part
from veridical.errors import InputError, NotApplicableError

RNG = torch.Generator().manual_seed(0)
IMAGES, COLUMNS = torch.randn(5, 1, 4, 4, generator=RNG), torch.randn(5, 3, generator=RNG)
PREMISE = torch.randint(2, 9, (5, 3), generator=RNG)
HYPOTHESIS = torch.randint(2, 9, (5, 4), generator=RNG)


class Both(nn.Module):
    """Reads the first quarter of an image and multiplies it with a column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        score = self.weight * image[:, 0, :2, :2].mean((1, 2)) * (1 + table[:, 1]) + table[:, 2]
        return torch.stack([-score, score], 1)


class Pair(nn.Module):
    """Two texts by one embedding; the second counts twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 2)

    def forward(self, hypothesis: Tensor, premise: Tensor) -> Tensor:
        return self.embedding(premise).sum(1) + 2 * self.embedding(hypothesis).sum(1)


def picture_and_table() -> dict[str, Part]:
    names = ["age", "dose", "noise"]
    return {
        "image": Part(IMAGES, vd.Space.patches((1, 4, 4), 2)),
        "table": Part(COLUMNS, vd.Space.columns(3, names), fill=0.5),
    }


def test_the_map_is_that_of_the_joint_game() -> None:
    task = from_parts(Both(), picture_and_table(), targets=torch.ones(5, dtype=torch.int64))
    assert task.space.n_features == 7
    assert [task.space.feature_name(i) for i in (0, 4, 5)] == ["image: patch 0", "table: age", "table: dose"]
    found = vd.explain("exact_shapley", task).values
    for i in range(5):

        def game(kept: tuple[int, ...], i: int = i) -> float:
            image, table = torch.zeros(1, 1, 4, 4), torch.full((1, 3), 0.5)
            for feature in kept:
                if feature < 4:
                    down, across = divmod(feature, 2)
                    at = (
                        slice(None),
                        slice(None),
                        slice(2 * down, 2 * down + 2),
                        slice(2 * across, 2 * across + 2),
                    )
                    image[at] = IMAGES[i : i + 1][at]
                else:
                    table[:, feature - 4] = COLUMNS[i, feature - 4]
            return float(Both()(image, table)[0, 1].detach())

        np.testing.assert_allclose(found[i].numpy(), exact_shapley(game, 7), atol=1e-5)


def test_gradients_go_through_parts_of_fractions() -> None:
    task = from_parts(Both(), picture_and_table())
    slopes = vd.explain("gradient", task)
    image, table = IMAGES.clone().requires_grad_(), COLUMNS.clone().requires_grad_()
    Both()(image, table).gather(1, task.targets[:, None]).sum().backward()
    found = values_by_part(slopes, picture_and_table())
    assert image.grad is not None
    assert table.grad is not None
    pooled = vd.Space.patches((1, 4, 4), 2).pool(image.grad)
    torch.testing.assert_close(found["image"], pooled)
    torch.testing.assert_close(found["table"], table.grad)
    assert float(vd.score("fast_gef", task, "gradient").mean()) > 0.5


@pytest.mark.parametrize("by_name", [False, True])
def test_premise_and_hypothesis(by_name: bool) -> None:
    torch.manual_seed(0)
    model = Pair().eval()
    valid = PREMISE > 3
    valid[:, 0] = True
    both = {
        "premise": Part(PREMISE, vd.Space.tokens(3, valid), fill=1),
        "hypothesis": Part(HYPOTHESIS, fill=0),
    }
    if not by_name:
        both = dict(reversed(both.items()))
    task = from_parts(model, both, by_name=by_name)
    assert task.modality == "text"
    assert not task.predictor.differentiable
    found = values_by_part(vd.explain("occlusion", task), both)
    weights = model.embedding.weight.detach()[:, :].T[task.targets]  # (5, tokens)
    drop = weights.gather(1, PREMISE) - weights[:, 1:2]
    torch.testing.assert_close(found["premise"], torch.where(valid, drop, 0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        found["hypothesis"], 2 * (weights.gather(1, HYPOTHESIS) - weights[:, :1]), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(NotApplicableError, match="gradient"):
        vd.explain("gradient", task)


def test_tokens_beside_fractions_reach_the_model_as_whole_numbers() -> None:
    seen: list[torch.dtype] = []

    class Mixed(nn.Module):
        def forward(self, tokens: Tensor, table: Tensor) -> Tensor:
            seen.append(tokens.dtype)
            return table + (tokens == 5).sum(1, keepdim=True)

    task = from_parts(Mixed(), {"tokens": PREMISE, "table": COLUMNS})
    assert bool(torch.isfinite(vd.score("pixel_flipping", task, "occlusion").values).all())
    assert set(seen) == {torch.int64}
    assert "gradient" not in vd.explainers.applicable(task)
    with pytest.raises(InputError, match="not exact"):
        from_parts(Mixed(), {"tokens": PREMISE + 2**25, "table": COLUMNS})


def test_functions_of_arrays_superpixels_and_reference_rows() -> None:
    def numbers(image: np.ndarray, table: np.ndarray) -> np.ndarray:
        assert isinstance(image, np.ndarray)
        return np.stack([image.mean((1, 2, 3)), table.sum(1)], 1)

    segments = torch.tensor([0, 0, 1, 1]).repeat(5, 4, 1)
    segments[1] = segments[1].T.clone()
    parts = {
        "image": Part(IMAGES, vd.Space.superpixels((1, 4, 4), segments), train=IMAGES.flip(0)),
        "table": Part(COLUMNS, train=COLUMNS.flip(0)),
    }
    task = from_parts(numbers, parts, fill="mean")
    assert task.train is not None
    found = values_by_part(vd.explain("exact_shapley", task), parts)["image"]
    fall = (IMAGES - IMAGES.mean(0)) / 16
    expected = torch.where(task.targets[:, None, None] == 0, fall[:, 0], 0.0)
    torch.testing.assert_close(
        found[1].float(), expected[1].sum(1).unflatten(0, (2, 2)).sum(1), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        found[0].float(), expected[0].sum(0).unflatten(0, (2, 2)).sum(1), atol=1e-5, rtol=0
    )
    assert len(task[1:3]) == 2


def test_what_does_not_fit_is_said() -> None:
    for parts, message in (
        ({"image": IMAGES}, "at least two"),
        ({"image": IMAGES, "table": COLUMNS[:2]}, "differ in their samples"),
        ({"image": IMAGES, "table": COLUMNS[:, 0]}, r"expected \(samples"),
        ({"image": Part(IMAGES, train=IMAGES), "table": COLUMNS}, "image alone"),
        ({"image": Part(IMAGES, vd.Space.columns(3)), "table": COLUMNS}, "the space lies over"),
    ):
        with pytest.raises(InputError, match=message):
            from_parts(Both(), parts)
