"""Fills: what shows through a removed feature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

import veridical as vd
from tests.reference.small_models import mlp
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, UnknownNameError
from veridical.metrics.faithfulness import PixelFlipping
from veridical.perturb import fills
from veridical.perturb.fills import as_fill, default_fill
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given

KEY = Key(0)
IDS = torch.arange(3)
X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
TRAIN = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
COLUMNS = Space.columns(5)


def background(fill: fills.Fill, x: torch.Tensor = X, ids: torch.Tensor = IDS) -> torch.Tensor:
    return fill.background(fill.prepare(TRAIN, COLUMNS), x, ids, KEY)


def test_constant_zero_and_token_are_one_value() -> None:
    assert bool((background(fills.Zero()) == 0).all())
    assert bool((background(fills.Constant(0.5)) == 0.5).all())
    tokens = torch.ones(3, 5, dtype=torch.int64)
    filled = background(fills.Token(7), tokens)
    assert filled.dtype == torch.int64
    assert bool((filled == 7).all())


def test_mean_of_integer_reference_rows_is_not_cut() -> None:
    task = vd.Task(mlp(), torch.zeros(2, 4), train=torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]), fill="mean")
    state = task.fill.prepare(task.train, task.space)
    assert state is not None
    assert state[0, 0].tolist() == [0.5, 1.0, 1.5, 2.0]


def test_marginal_takes_different_rows_of_train_the_same_for_all_samples() -> None:
    fill = fills.Marginal(rows=6)
    rows = background(fill)
    assert rows.shape == (1, 6, 5)
    found = (rows[0, :, None] == TRAIN).all(-1)
    assert bool(found.any(-1).all())
    assert len(found.to(torch.int8).argmax(-1).unique()) == 6


def test_marginal_takes_all_rows_where_there_are_no_more_than_it_wants() -> None:
    for fill in (fills.Marginal(), fills.Marginal(len(TRAIN))):
        assert torch.equal(fill.background(TRAIN, X, IDS, KEY), TRAIN[None])


def test_marginal_rows_follow_the_seed_and_nothing_else() -> None:
    fill = fills.Marginal(6)

    def rows(key: Key, ids: torch.Tensor = IDS, fill: fills.Marginal = fill) -> list[list[float]]:
        return fill.background(TRAIN, X, ids, key)[0].tolist()

    assert rows(Key(3) / "one") == rows(Key(3) / "other", IDS + 7)
    assert rows(Key(3)) != rows(Key(4))
    assert rows(Key(3)) != rows(Key(3), fill=fills.Marginal(6, draw=1))


def test_a_single_row_differs_between_samples_and_draws() -> None:
    train, ids = torch.arange(1000.0)[:, None], torch.arange(8)
    one, other = (
        fills.Marginal(1).background(train, torch.zeros(8, 1), ids, Key(3) / draw).flatten()
        for draw in range(2)
    )
    assert len(one.unique()) > 4
    assert not torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_uniform_noise_is_drawn_anew_in_every_element(dtype: torch.dtype) -> None:
    noise = background(fills.UniformNoise(), X.to(dtype))[:, 0]
    assert bool(torch.isfinite(noise).all())
    low, high = TRAIN.amin(0), TRAIN.amax(0)
    slack = 1e-2 if dtype == torch.float16 else 0
    assert bool(((noise >= low - slack) & (noise <= high + slack)).all())
    share = (noise - low) / (high - low)
    # the fault seen elsewhere: one scalar a sample
    assert bool((share.std(-1) > 0.05).all())


def test_uniform_noise_without_reference_rows_keeps_to_the_range_of_the_sample() -> None:
    fill = fills.UniformNoise()
    noise = fill.background(fill.prepare(None, COLUMNS), X, IDS, KEY)[:, 0]
    assert bool((noise >= X.amin(-1, keepdim=True)).all())
    assert bool((noise <= X.amax(-1, keepdim=True)).all())
    assert bool((noise.std(-1) > 0).all())


@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_blur_is_scipys_gaussian_filter(sigma: float) -> None:
    image = torch.randn(2, 3, 16, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    space = Space.pixels((3, 16, 13))
    fill = fills.Blur(sigma)
    got = fill.background(fill.prepare(None, space), image, IDS[:2], KEY)[:, 0]
    expected = ndimage.gaussian_filter(image.numpy(), (0, 0, sigma, sigma), mode="mirror", truncate=4.0)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("shape", "axis"), [((2, 30), -1), ((30, 2), 0)])
def test_blur_goes_along_time_wherever_its_axis_is(shape: tuple[int, int], axis: int) -> None:
    series = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    fill = fills.Blur(1.0)
    state = fill.prepare(None, Space.steps(shape, time_axis=axis))
    got = fill.background(state, series, IDS[:2], KEY)[:, 0]
    expected = ndimage.gaussian_filter1d(series.numpy(), 1.0, axis=axis % 2 + 1, mode="mirror")
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


def test_blur_refuses_rows_and_tokens() -> None:
    with pytest.raises(NotApplicableError, match="images and series"):
        fills.Blur().background(None, X, IDS, KEY)
    with pytest.raises(NotApplicableError, match="int64"):
        fills.Blur().background(None, torch.ones(3, 1, 4, 4, dtype=torch.int64), IDS, KEY)


def test_a_users_function_fills_and_cannot_touch_the_inputs() -> None:
    def halve(x: torch.Tensor, removed: torch.Tensor) -> torch.Tensor:
        assert removed.shape == x.shape
        x[removed] *= 0.5
        return x

    image = torch.ones(1, 2, 3, 3)
    fill = as_fill(halve)
    removed = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    removed[..., 0, 0] = True
    filled = fill.impute(image, removed, IDS[:1], KEY)
    assert filled[0, :, 0, 0].tolist() == [0.5, 0.5]
    assert bool((image == 1).all())


def test_a_users_function_must_keep_the_shape() -> None:
    with pytest.raises(InputError, match=r"returned \(3,\), expected a tensor of shape \(3, 5\)"):
        as_fill(lambda x, removed: x[:, 0]).impute(X, X > 0, IDS, KEY)
    with pytest.raises(InputError, match="returned NoneType"):
        as_fill(lambda x, removed: None).impute(X, X > 0, IDS, KEY)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("name", ["mean", "marginal"])
def test_fills_that_need_reference_rows_say_so(name: str) -> None:
    task = vd.Task(mlp(), torch.zeros(2, 4), fill=name)
    with pytest.raises(NotApplicableError, match=rf"'{name}' takes its values from reference rows.*train="):
        vd.score("pixel_flipping", task, torch.rand(2, 4))


def test_defaults_follow_the_space() -> None:
    assert default_fill(Space.pixels((1, 2, 2)), True) == fills.Zero()
    assert default_fill(Space.steps((1, 3)), True) == fills.Zero()
    assert default_fill(COLUMNS, True) == fills.Marginal()
    assert default_fill(Space.column_groups([0, 0, 1]), True) == fills.Marginal()
    assert default_fill(COLUMNS, False) == fills.Zero()
    assert default_fill(Space.tokens(3), False) == fills.Token(0)
    assert default_fill(Space.tokens(3).at_embeddings(2), False) == fills.Zero()


def test_a_fill_is_accepted_in_many_forms() -> None:
    assert as_fill(fills.Blur(2.0)) == fills.Blur(2.0)
    assert as_fill("zero") == fills.Zero()
    assert as_fill(1) == fills.Constant(1.0)
    assert as_fill(np.float32(0.5)) == fills.Constant(0.5)
    assert as_fill(fills.Blur) == fills.Blur()
    with pytest.raises(UnknownNameError, match="did you mean 'marginal'"):
        as_fill("marginals")
    with pytest.raises(InputError, match="got list"):
        as_fill([0.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fill",
    [fills.Zero(), fills.Constant(2.0), fills.Token(3), fills.Mean(), fills.Marginal(7), fills.Summary(9),
     fills.UniformNoise(),
     fills.Blur(1.5)],
    ids=lambda fill: fill.name,
)  # fmt: skip
def test_json_round_trip_alone_and_inside_a_metric(fill: fills.Fill) -> None:
    assert type(fill).from_json(fill.to_json()) == fill
    judge = PixelFlipping(fill=fill)
    assert PixelFlipping.from_json(judge.to_json()) == judge


def test_a_summary_stands_for_all_rows_by_its_weights() -> None:
    """Against all rows one by one, of which some are equal."""
    few = torch.tensor([[0.0, 1.0], [4.0, -1.0], [4.0, -1.0], [9.0, 3.0]])
    task = vd.Task(mlp(2), torch.randn(3, 2, dtype=few.dtype), train=few, fill=fills.Summary(3))
    behind = fills.Backgrounds(task, task.fill, KEY)
    assert behind.repeats == 3
    assert sorted(behind.weights.tolist()) == [0.25, 0.25, 0.5]
    rule = Given(torch.tensor([[True, False], [False, True], [True, True]]))
    for summary in (fills.Summary(3), fills.Summary(4)):
        torch.testing.assert_close(
            probe(task, rule, fill=summary), probe(task, rule, fill=fills.Marginal(4)), rtol=0, atol=1e-6
        )
    # more features than a table of subsets holds
    wide = vd.Task(mlp(15), torch.randn(3, 15), train=torch.randn(4, 15)[[0, 1, 1, 2, 3, 3]], fill="summary")
    masks = Given(torch.rand(5, 15, generator=torch.Generator().manual_seed(0)) < 0.5)
    torch.testing.assert_close(
        probe(wide, masks), probe(wide, masks, fill=fills.Marginal()), rtol=0, atol=1e-6
    )
    sizes = [
        vd.explain("input_magnitude", wide.changed(fill=fill)).values
        for fill in (wide.fill, fills.Marginal())
    ]
    torch.testing.assert_close(*sizes, rtol=0, atol=1e-6)


def test_a_summary_is_nearer_to_all_rows_than_as_many_drawn_ones() -> None:
    task = vd.tasks.load("wine")[:12]
    masks = Given(torch.rand(20, 13, generator=torch.Generator().manual_seed(0)) < 0.5)
    full = probe(task, masks, fill=fills.Marginal(10**6))

    def error(fill: fills.Fill) -> float:
        return float((probe(task, masks, fill=fill) - full).square().mean().sqrt())

    drawn = [error(fills.Marginal(20, draw=draw)) for draw in range(5)]
    assert error(fills.Summary(20)) < min(drawn) / 1.3
