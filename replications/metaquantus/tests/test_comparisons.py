"""Tables and pictures of several meta-evaluations: convergence, sets of explainers, networks, wins."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from replications.metaquantus.comparisons import (
    area_grid,
    category_averages,
    category_convergence,
    explainer_dependence,
    plot_categories,
    plot_explainer_sets,
    plot_side_by_side,
    plot_wins,
    ranking_consistency,
    scatter,
    side_by_side,
)
from tests.meta.test_result import made, result, scored  # noqa: F401 (a fixture)
from veridical.errors import InputError

mpl.use("Agg")
pytestmark = pytest.mark.slow


def test_the_scatter_names_the_dependence_of_each_metric(made):  # noqa: F811
    labels = [text.get_text() for text in scatter(made).get_legend().get_texts()]
    assert labels[0] == "steady (permuted maps change 100%)"


def test_sets_of_explainers_ask_no_model(made):  # noqa: F811
    table = explainer_dependence(made)
    assert len(table) == 4 * 4
    assert sorted(set(table["count"])) == [2, 3]
    whole = table[(table["count"] == 3) & (table["metric"] == "steady")]["mc"].item()
    assert whole == pytest.approx(made.mc("steady"))


def test_wins_are_counted_over_results(made):  # noqa: F811
    counts = ranking_consistency({"this": made, "that": made}).set_index("metric")
    assert counts.loc["steady", "wins"] == 2
    assert counts.loc["blind", "first"] == 2
    assert counts.loc["blind", "wins"] == 0
    assert len(side_by_side({"a": made, "b": made})) == 8


def test_convergence_correlates_eight_entries_inside_and_outside(made):  # noqa: F811
    table = category_convergence(made)
    assert len(table) == 6
    assert (table["where"] == "inside").sum() == 2
    twins = result(
        scored("a", "x", 0.3, 0.3, 5), scored("b", "x", 0.3, 0.3, 5), scored("c", "y", 2.0, 0.0, 6)
    )
    inside = category_convergence(twins).iloc[0]
    assert inside["where"] == "inside"
    assert inside["spearman"] == pytest.approx(1.0)


def test_categories_are_averaged_without_metrics_that_read_no_map(made):  # noqa: F811
    table = category_averages({"a": made, "b": made})
    assert list(table["category"]) == ["good", "other"] * 2
    good, other = table.iloc[0], table.iloc[1]
    assert good["mc"] == pytest.approx((made.mc("steady") + made.mc("shaky")) / 2)
    assert good["dependence"] == 1.0
    assert other["mc"] == pytest.approx(made.mc("middling"))
    assert (other["metrics"], other["blind"]) == (1, 1)
    with_the_cheat = (made.mc("middling") + made.mc("blind")) / 2
    assert other["mc"] != pytest.approx(with_the_cheat), "a mutant that counts the cheat"
    with pytest.raises(InputError, match="at least one result"):
        category_averages({})


def test_every_picture_of_mc_shows_the_share_beside_it(made):  # noqa: F811
    from matplotlib import pyplot

    results = {"a": made, "b": made}
    sides = plot_side_by_side(side_by_side(results))
    sets = plot_explainer_sets(explainer_dependence(made))
    categories = plot_categories(category_averages(results))
    for ax, first in ((sides, "steady (100%)"), (sets, "steady (100%)"), (categories, "good (100%)")):
        assert ax.get_xticklabels()[0].get_text() == first
        assert "permuted maps change" in ax.get_title()
    grid = area_grid(results)
    assert grid.shape == (2, 4)
    assert "permuted maps change 0%, blind" in grid[1, 3].get_title()
    with pytest.raises(InputError, match="at least one result"):
        area_grid({})
    pyplot.close("all")


def test_every_picture_of_several_results_takes_results_by_name(made):  # noqa: F811
    results = {"a": made, "b": made}
    for plot in (plot_side_by_side, plot_categories, plot_wins):
        assert plot(results).get_legend() is not None
    assert area_grid(results).shape[0] == 2
    assert plot_side_by_side(side_by_side(results)).get_legend() is not None
