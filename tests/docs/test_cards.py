"""Pages of metrics and explainers are made from the code: nothing is missing, and formulas are formulas."""

import html
import re
from dataclasses import fields
from typing import Any

import pytest

from scripts.docs_site import cards, examples, facts, mathematics, settings_table
from veridical.explainers import registry as explainers
from veridical.metrics import registry as metrics


def test_every_metric_states_its_facts() -> None:
    for name in metrics:
        metric = metrics.make(name)
        for fact in ("category", "summary", "assumes", "misleads", "paper"):
            assert getattr(metric, fact), f"{name} does not state its {fact}, a line of its class"


def test_formulas_are_of_what_there_is_and_can_be_set() -> None:
    assert set(facts.FORMULAS) <= {*metrics, *explainers}
    for name, known in facts.FORMULAS.items():
        made = mathematics.block(known["math"]) + mathematics.rendered(known.get("where", ""))
        assert made.count("<math") == made.count("</math>") >= 1, name
        assert "\\" not in re.sub(r'alttext="[^"]*"', "", made), f"{name}: a command that was not understood"


def test_examples_of_docstrings_stay_out_of_pages() -> None:
    class Shown:
        """A value.

        >>> 1 + 1
        2

        More of it.
        """

    assert facts.formula("shown", Shown) == "A value.\n\nMore of it."


def test_mathematics_leaves_code_alone() -> None:
    page = "a $`x_1`$\n\n```math\nx\n\ny\n```\n\n```python\nprint('$`x`$')\n```\n"
    made = mathematics.rendered(page)
    assert made.count("<math") == 3
    assert "print('$`x`$')" in made


@pytest.mark.parametrize(("registry", "name"), [(metrics, "pixel_flipping"), (explainers, "lime")])
def test_settings_are_explained_with_their_defaults(registry: Any, name: str) -> None:
    entry = registry.make(name)
    text = "\n".join(settings_table.lines(type(entry)))
    for field in fields(entry):
        name = re.escape(settings_table.code(field.name))
        row = re.search(rf"^\| {name} \| (.+?) \| (.+) \|$", text, re.MULTILINE)
        assert row is not None
        assert row[1] == settings_table.code(repr(getattr(entry, field.name)))
        assert row[2].endswith(".")


def test_code_in_a_cell_breaks_between_words_and_holds_anything() -> None:
    import markdown

    for said in ("output_draws", "(0.1, 'a|b')", "Mine(x=[1, 2], y_z='<*_`')"):
        table = f"| a |\n|---|\n| {settings_table.code(said)} |"
        shown = markdown.markdown(table, extensions=["tables"])
        assert html.unescape(re.sub(r"<[^>]+>", "", shown)).split("a", 1)[1].strip() == said
    assert "<wbr>draws" in settings_table.code("output_draws")


def test_families_hold_every_explainer_once() -> None:
    found = [name for names in facts.families().values() for name in names]
    assert sorted(found) == sorted(explainers)
    found = [name for names in facts.categories().values() for name in names]
    assert sorted(found) == sorted(metrics)


METRICS = ("pixel_flipping", "max_sensitivity", "sparseness", "pointing_game", "comprehensiveness")
PARTS = {
    cards.metric_page: ("# `", "## What it asks", "import veridical as vd", "integrated_gradients  "),
    cards.explainer_page: ("# `", "Explanation by"),
}


@pytest.mark.parametrize(
    ("page", "name"),
    [(cards.metric_page, name) for name in METRICS]
    + [(cards.explainer_page, name) for name in ("gradient", "occlusion", "exact_shapley", "random")],
)
def test_a_page_is_whole(page: Any, name: str) -> None:
    text, pictures = page(name)
    everywhere = ("## What it computes", "```math", "When it misleads", "## Example", "## Papers")
    assert [part for part in (*everywhere, *PARTS[page]) if part not in text] == []
    assert set(re.findall(r"\]\((.+\.png)\)", text)) == set(pictures)
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())


def test_an_example_that_fails_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        examples.run("1 / 0")
