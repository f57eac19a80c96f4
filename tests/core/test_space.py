"""Spaces: masks expand to elements, maps pool to features, and the two belong together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veridical.core.space import Space
from veridical.errors import InputError, ShapeError
from veridical.values.regions import Regions, each_feature, removal, squares, superpixels

SEGMENTS = torch.tensor([[0, 0, 1, -1], [0, 2, 1, 1]])
TWO_MAPS = torch.stack([SEGMENTS, SEGMENTS.clamp(max=1)])

SPACES = {
    "pixel": Space.pixels((3, 2, 4)),
    "patch": Space.patches((3, 5, 4), 2),
    "wide patch": Space.patches((1, 4, 6), (1, 3)),
    "superpixel": Space.superpixels((3, 2, 4), SEGMENTS),
    "superpixel a sample": Space.superpixels((3, 2, 4), TWO_MAPS),
    "step": Space.steps((3, 7)),
    "step first": Space.steps((7, 3), time_axis=0),
    "step of unequal length": Space.steps((3, 7), lengths=torch.tensor([7, 4])),
    "step channel": Space.step_channels((3, 7), lengths=torch.tensor([2, 7])),
    "token": Space.tokens(6, torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0]])),
    "token embedding": Space.tokens(6).at_embeddings(5),
    "column": Space.columns(5),
    "column group": Space.column_groups([0, 1, 1, -1, 2, 1]),
    "concept": Space.concepts(4),
    "element": Space.elements((2, 3, 2)),
}


def naive_expand(space: Space, features: torch.Tensor) -> torch.Tensor:
    """One element at a time: the value of the feature it belongs to, or 0."""
    shape = space.labels.shape[1 if space.per_sample else 0 :]
    out = torch.zeros(len(features), *shape, dtype=features.dtype)
    for n in range(len(features)):
        labels = (space.labels[n] if space.per_sample else space.labels).reshape(-1)
        out[n] = torch.stack(
            [features[n, i] if i >= 0 else torch.zeros((), dtype=features.dtype) for i in labels.tolist()]
        ).reshape(shape)
    return out


def naive_pool(space: Space, maps: torch.Tensor, reduce: str) -> torch.Tensor:
    """One feature at a time: collect its elements and reduce them."""
    out = torch.zeros(len(maps), space.n_features, dtype=maps.dtype)
    for n in range(len(maps)):
        labels = (space.labels[n] if space.per_sample else space.labels).expand(space.input_shape)
        for feature in range(space.n_features):
            held = maps[n][labels == feature]
            if len(held):
                out[n, feature] = held.sum() if reduce == "sum" else held.mean()
    return out


@pytest.mark.parametrize("name", SPACES)
def test_expand_lays_every_feature_over_its_elements(name: str) -> None:
    space = SPACES[name]
    features = torch.randn(2, space.n_features, generator=torch.Generator().manual_seed(0))
    assert torch.equal(space.expand(features), naive_expand(space, features))
    assert torch.equal(space.expand(features > 0), naive_expand(space, features > 0))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", SPACES)
def test_pool_collects_the_elements_of_every_feature(name: str, reduce: str) -> None:
    space = SPACES[name]
    maps = torch.randn(2, *space.input_shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(space.pool(maps, reduce), naive_pool(space, maps, reduce))


@pytest.mark.parametrize("name", SPACES)
def test_what_holds_of_any_element_holds_of_its_feature(name: str) -> None:
    space = SPACES[name]
    for limit in (0.0, 1.2, 9.0):
        truths = torch.randn(2, *space.input_shape, generator=torch.Generator().manual_seed(3)) > limit
        assert torch.equal(space.anywhere(truths), naive_pool(space, truths.float(), "max") > 0)


@given(st.data())
def test_pool_after_expand_counts_elements_for_random_label_maps(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)))
    count = data.draw(st.integers(1, 5))
    cells = shape[1] * shape[2]
    drawn = data.draw(st.lists(st.integers(-1, count - 1), min_size=2 * cells, max_size=2 * cells))
    labels = torch.tensor(drawn).reshape(2, 1, *shape[1:])
    space = Space("superpixel", shape, count, labels, per_sample=True)
    maps = torch.randn(2, *shape, dtype=torch.float64)
    pooled = space.pool(maps)
    inside = torch.where((labels >= 0).expand(2, *shape), maps, 0.0)
    torch.testing.assert_close(pooled.sum(-1), inside.flatten(1).sum(-1))
    torch.testing.assert_close(pooled, naive_pool(space, maps, "sum"))
    assert torch.equal(space.expand(pooled), naive_expand(space, pooled))


def test_patches_at_the_edge_are_smaller() -> None:
    space = Space.patches((1, 5, 4), 2)
    assert space.n_features == 6
    assert space.pool(torch.ones(1, 1, 5, 4)).tolist() == [[4, 4, 4, 4, 2, 2]]


def test_superpixels_that_a_sample_lacks_are_not_valid() -> None:
    space = SPACES["superpixel a sample"]
    assert space.valid is not None
    assert space.valid.tolist() == [[True, True, True], [True, True, False]]
    assert space.counts(2).tolist() == [3, 2]
    low = Space.superpixels((3, 2, 4), torch.where(TWO_MAPS == -1, -7, TWO_MAPS))
    assert torch.equal(low.labels, space.labels)
    assert torch.equal(low.valid, space.valid)


def test_a_label_map_with_gaps_is_refused_with_the_cure() -> None:
    labels = SEGMENTS.clamp(min=0) * 2 + 1
    with pytest.raises(InputError, match=r"\[0, 2, 4\] lie nowhere.*return_inverse"):
        Space.superpixels((1, 2, 4), labels)
    renumbered = torch.unique(labels, return_inverse=True)[1]
    assert Space.superpixels((1, 2, 4), renumbered).n_features == 3


def test_lengths_and_integer_masks_say_which_features_exist() -> None:
    assert SPACES["step of unequal length"].counts(2).tolist() == [7, 4]
    assert SPACES["step channel"].counts(2).tolist() == [6, 21]
    token = SPACES["token"]
    assert token.valid is not None
    assert token.valid.dtype == torch.bool
    assert token.counts(2).tolist() == [4, 2]
    assert SPACES["column"].counts(2).tolist() == [5, 5]


@pytest.mark.parametrize("index", [slice(1, 2), torch.tensor([1]), torch.tensor([False, True])])
def test_take_follows_a_subset_of_the_samples(index: slice | torch.Tensor) -> None:
    names = [["a", "b"], ["c", "d"]]
    tokens = Space.tokens(2, torch.tensor([[1, 0], [1, 1]]), names).take(index)
    assert tokens.valid is not None
    assert tokens.valid.tolist() == [[True, True]]
    assert tokens.names == (("c", "d"),)
    segments = SPACES["superpixel a sample"].take(index)
    assert torch.equal(segments.labels, TWO_MAPS[1:, None])
    assert SPACES["pixel"].take(index) is SPACES["pixel"]


def test_features_have_names() -> None:
    assert Space.pixels((1, 3, 4)).feature_name(5) == "pixel (1, 1)"
    assert Space.columns(2, ["age", "sex"]).feature_name(1) == "sex"
    assert Space.tokens(2, names=[["a", "b"], ["c", "d"]]).feature_name(0, 1) == "c"
    assert Space.steps((1, 3)).feature_name(2) == "step 2"


@pytest.mark.parametrize(
    ("shape", "kind", "features"),
    [
        ((3,), "column", 3),
        ((3, 4), "step", 4),
        ((2, 2, 2, 2, 2), "element", 32),
        ((3, 32, 32), "pixel", 1024),
        ((1, 64, 64), "pixel", 4096),
        ((1, 65, 64), "patch", 13 * 13),
        ((3, 224, 224), "patch", 14 * 14),
        ((3, 40, 300), "patch", 14 * 14),
        ((1, 16, 16, 16), "voxel", 4096),
        ((1, 64, 64, 64), "patch", 6 * 6 * 6),
    ],
)
def test_many_pixels_make_patches(shape: tuple[int, ...], kind: str, features: int) -> None:
    space = Space.of(torch.zeros(1, *shape))
    assert (space.kind, space.n_features) == (kind, features)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space("pixle", (2,), 2, torch.arange(2)), "'pixle' is unknown"),
        (lambda: Space("column", (3,), 2, torch.arange(2)), r"shape \(2,\) do not lie over .*\(3,\)"),
        (lambda: Space("column", (2,), 1, torch.arange(2)), "label 1 is out of range for 1 features"),
        (lambda: Space.tokens(3, torch.ones(2, 4)), r"valid has shape \(2, 4\), expected \(samples, 3\)"),
        (lambda: Space.pixels((3, 4)), r"\(channels, height, width\), got \(3, 4\)"),
        (lambda: Space.patches((1, 4, 4), 5), r"patch size \(5, 5\) does not fit"),
        (lambda: Space.superpixels((1, 4, 4), SEGMENTS), r"expected \(4, 4\) or \(N, 4, 4\)"),
        (lambda: Space.superpixels((1, 2, 4), SEGMENTS * 0 - 1), "no segment at all"),
        (lambda: Space.column_groups([0, 2]), r"must cover 0\.\.2"),
        (lambda: Space.column_groups([[0, 1], [3]]), "hold every column once, 0 to 2"),
        (lambda: Space.column_groups([[0, 1], 2]), "lists of columns"),
        (lambda: Space.columns(2, ["a"]), "1 names for 2 features"),
    ],
)
def test_what_is_no_space_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_map_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) does not lie over inputs \(N, 3, 2, 4\)"):
        SPACES["pixel"].pool(torch.ones(2, 3))


def test_removal_lists_features_region_after_region():
    regions = Regions(torch.tensor([[0, 0, 1, 2, 1, -1]]), 3)
    values = torch.tensor([[1.0, 1.0, 5.0, 0.5, -1.0, 99.0]])
    assert regions.relevance(values).tolist() == [[2.0, 4.0, 0.5]]
    assert regions.relevance(values, mean=True).tolist() == [[1.0, 2.0, 0.5]]
    order = removal(regions, regions.relevance(values))
    assert order.gone.tolist() == [[2, 4, 5]]
    assert order.ranks.tolist() == [[2, 3, 0, 4, 1, 5]]
    least = removal(regions, regions.relevance(values), least_first=True)
    assert least.gone.tolist() == [[1, 3, 5]]


def test_regions_a_sample_lacks_come_last_and_count_nothing():
    regions = Regions(torch.tensor([[0, 1, 2], [0, 2, 2]]), 3)
    order = removal(regions, regions.relevance(torch.tensor([[1.0, 2.0, 3.0], [-5.0, -3.0, -3.0]])))
    assert order.regions.tolist() == [3, 2]
    assert order.gone.tolist() == [[1, 2, 3], [1, 3, 3]]
    assert order.share(3)[1].tolist() == [0.0, 0.5, 1.0, 1.0]


def test_squares_cover_the_image_and_other_spaces_keep_their_features():
    regions = squares(Space.pixels((3, 5, 4)), 2)
    assert regions.count == 6
    assert regions.sizes(1).tolist() == [[4, 4, 4, 4, 2, 2]]
    assert squares(Space.columns(7), 2).count == 7
    valid = torch.tensor([[True, False, True]])
    assert each_feature(Space.tokens(3, valid)).labels.tolist() == [[0, -1, 2]]
    with pytest.raises(InputError):
        squares(Space.pixels((1, 4, 4)), 0)


def test_superpixels_follow_colour_edges():
    image = torch.zeros(2, 1, 12, 12)
    image[0, :, :, 5:] = 1.0  # an edge that no cell of a regular 3 x 3 grid lies along
    labels = superpixels(image, 9).labels.view(2, 12, 12)
    left, right = set(labels[0, :, :5].flatten().tolist()), set(labels[0, :, 5:].flatten().tolist())
    assert not left & right
    # without colour to follow, the grid stays; and images do not see each other
    assert labels[1].unique().numel() == 9
    assert torch.equal(superpixels(image[:1], 9).labels.view(12, 12), labels[0])
    with pytest.raises(InputError):
        superpixels(image, 1)


def test_groups_are_given_as_lists_too() -> None:
    nested = Space.column_groups([[0, 3], [2], [1]], ["a", "b", "c"])
    assert torch.equal(nested.labels, Space.column_groups([0, 2, 1, 0]).labels)
    assert nested.names == ("a", "b", "c")
