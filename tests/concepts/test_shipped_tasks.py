"""Concept methods on the tasks shipped for them: a pooled map, a vision transformer, a regression."""

import pytest

import veridical as vd
from replications.surf.deletion import pixel_deletion

ALL = ("pca", "ica", "kmeans", "nmf", "ice", "cdisco", "c-shap", "mcd", "sae", "craft", "hu-mcd")
SIGNED = set(ALL) - {"nmf", "ice", "craft", "hu-mcd"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fitted"),
    [("colour_digits_cnn", set(ALL)), ("colour_digits_slant", set(ALL)), ("colour_digits_vit", SIGNED)],
)
def test_methods_run_in_one_line_or_say_why_not(name: str, fitted: set[str]) -> None:
    found = vd.concepts.compare(vd.tasks.load(name), list(ALL))
    assert {place.method for place in found.verdict.places} >= fitted
    assert set(found.refused) >= set(ALL) - fitted


def test_places_tokens_and_pixels_are_reached_in_one_call() -> None:
    task = vd.tasks.load("colour_digits_cnn", samples=12)
    parts = vd.concepts.split(task)
    assert parts.test(spatial=True).values.shape == (12, 49, 64)
    concepts = vd.concepts.ICE(2).fit(parts.train(), parts.head)
    each = vd.concepts.judge(concepts, parts.test(spatial=True), parts.head, positions="each")
    assert each.mae != vd.concepts.judge(concepts, parts.test(), parts.head).mae
    curve = pixel_deletion(concepts, parts, task.inputs)
    assert bool((curve.values >= 0).all())
    tokens = vd.concepts.split(
        vd.tasks.load("colour_digits_vit", samples=6), "blocks.2", first_order=True, read="each"
    )
    assert tokens.test().values.shape == (6, 48 * 50)
