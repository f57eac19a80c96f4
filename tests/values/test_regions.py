"""Regions: orders in terms of features, squares with ragged edges, superpixels by colour."""

import pytest
import torch

from veridical.errors import InputError
from veridical.values.regions import Regions, each_feature, removal, squares, superpixels
from veridical.values.space import Space


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


def test_squares_are_made_once_and_the_largest_number_of_regions_is_known():
    assert squares(Space.pixels((3, 5, 4)), 2) is squares(Space.pixels((3, 5, 4)), 2)
    assert squares(Space.pixels((3, 5, 4)), 2).most == 6
    assert Regions(torch.tensor([[0, 1, 1], [0, 2, -1]]), 4).most == 2
