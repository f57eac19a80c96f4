"""Pictures, the choice of samples, citations, and plain numbers."""

import base64
import io
import re
from itertools import combinations

import pytest
import torch
from matplotlib.image import imread

import veridical as vd
from veridical.explainers import registry as explainers
from veridical.functional import spearman
from veridical.metrics import registry as metrics
from veridical.report.citations import bibtex, entries, papers_in
from veridical.report.gallery import SIDE, disagreement, encode, gallery, image_address, map_address
from veridical.testing import tiny_task


def pixels_of(png: bytes) -> list[list[list[int]]]:
    """What another program reads."""
    return (imread(io.BytesIO(png))[..., :3] * 255).round().astype(int).tolist()


def pixels_at(address: str) -> list[list[list[int]]]:
    return pixels_of(base64.b64decode(address.partition(",")[2]))


def test_png_holds_the_pixels() -> None:
    palette = bytes([255, 0, 0, 0, 0, 255])
    assert pixels_of(encode(torch.tensor([[0, 1]], dtype=torch.uint8), palette)) == [
        [[255, 0, 0], [0, 0, 255]]
    ]
    colours = torch.arange(24, dtype=torch.uint8).reshape(2, 4, 3)
    assert pixels_of(encode(colours)) == colours.tolist()


def test_maps_are_red_above_zero_blue_below_and_white_at_it() -> None:
    ((below, zero, above),) = pixels_at(map_address(torch.tensor([[-1.0, 0.0, 1.0]])))
    assert below[2] > 2 * below[0]
    assert above[0] > 2 * above[2]
    assert min(zero) > 240


def test_maps_of_one_sign_and_of_nothing() -> None:
    ((none, half, most),) = pixels_at(map_address(torch.tensor([[0.0, 0.5, 1.0]])))
    assert min(none) > 240
    assert sum(most) < sum(half)
    assert min(pixels_at(map_address(torch.zeros(2, 2)))[0][0]) > 240
    assert map_address(torch.full((2, 2), torch.nan)).startswith("data:image/png")


def test_large_images_are_made_small() -> None:
    pixels = pixels_at(image_address(torch.rand(3, 400, 200)))
    assert (len(pixels), len(pixels[0])) == (SIDE, SIDE // 2)


def test_disagreement_is_zero_for_equal_rankings_and_two_for_opposite() -> None:
    task = tiny_task("table")
    one = vd.explain("gradient", task)
    assert disagreement([one, one.with_values(3 * one.values)]) == pytest.approx(
        torch.zeros(len(task)).numpy()
    )
    assert disagreement([one, one.with_values(-one.values)]) == pytest.approx(
        2 * torch.ones(len(task)).numpy()
    )
    assert bool(disagreement([one]).isnan().all())
    assert len(disagreement([])) == 0


def mean_of_pairs(maps: list[torch.Tensor], where: torch.Tensor | None) -> torch.Tensor:
    pairs = [spearman(a, b, where) for a, b in combinations(maps, 2)]
    return 1 - torch.stack(pairs).nanmean(0)


@pytest.mark.parametrize("modality", ["table", "text"])
def test_disagreement_is_the_mean_over_pairs(modality: str) -> None:
    task = tiny_task(modality, padding=2 if modality == "text" else 0)
    made = [vd.explain(name, task) for name in ("gradient", "input_x_gradient", "occlusion", "random")]
    flat = made[0].values.clone()
    flat[0] = 1.0
    made.append(made[0].with_values(flat))
    wanted = mean_of_pairs([e.values.double() for e in made], made[0].valid)
    assert disagreement(made).numpy() == pytest.approx(wanted.numpy(), abs=1e-12)


def test_controls_do_not_count_as_disagreement() -> None:
    task = tiny_task("table")
    one = vd.explain("gradient", task)
    maps = {"a": one, "b": one.with_values(2 * one.values), "c": one.with_values(-one.values)}
    shown = gallery(task, maps, {"c": "control"})
    assert all(item["disagreement"] == pytest.approx(0.0, abs=1e-9) for item in shown["items"])
    assert all(len(item["maps"]) == 3 for item in shown["items"])


def test_gallery_spans_from_most_to_least_disputed() -> None:
    task = tiny_task("table")
    maps = {name: vd.explain(name, task) for name in ("gradient", "saliency", "input_x_gradient")}
    all_values = disagreement(list(maps.values()))
    shown = gallery(task, maps, {}, samples=3)
    values = [item["disagreement"] for item in shown["items"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(float(all_values.max()), rel=1e-5)
    assert values[-1] == pytest.approx(float(all_values.min()), rel=1e-5)


def test_padding_is_not_shown() -> None:
    task = tiny_task("text", padding=3)
    shown = gallery(task, {"gradient": vd.explain("gradient", task)}, {})
    for item in shown["items"]:
        sample = int((task.ids == item["id"]).nonzero())
        assert len(item["maps"][0]["words"]) == int(task.space.counts(len(task))[sample])


def test_a_sample_without_explanation_says_so() -> None:
    task = tiny_task("image")
    one = vd.explain("gradient", task)
    values = one.values.clone()
    values[0] = torch.nan
    shown = gallery(task, {"gappy": one.with_values(values), "whole": one}, {})
    first = next(item for item in shown["items"] if item["id"] == int(task.ids[0]))
    assert [m.get("missing", False) for m in first["maps"]] == [True, False]


@pytest.mark.extras  # a new metric is one new file; a paper new to us gets its entry before a release
def test_every_paper_our_cards_name_has_an_entry() -> None:
    makers = [registry.maker(name) for registry in (metrics, explainers) for name in registry]
    # not those that examples of the documentation registered in this process
    makers = [maker for maker in makers if maker.__module__.startswith("veridical.")]
    cards = {str(getattr(maker, "paper", "")) for maker in makers} - {"", "control"}
    assert len(cards) > 40
    for card in cards:
        named = papers_in(card)
        assert named, f"{card!r} names no paper as 'Yeh et al. 2019'"
        assert bibtex([card]).count("@") >= 2, f"{card!r} has no entry in report/bibliography.bib"


def test_entries_are_whole() -> None:
    for key, entry in entries().items():
        assert entry.count("{") == entry.count("}"), key
        assert re.search(r"\d{4}[ab]?$", key)
        assert all(field in entry for field in ("author", "title", "year"))


def test_bibtex_names_each_paper_once() -> None:
    text = bibtex(["Yeh et al. 2019", "Yeh et al. 2019; MetaQuantus eq. 18", "", "control"])
    assert text.count("@") == 3
    assert text.startswith("@software{veridical")
