"""Pictures take `ax=`, return it, and show what they should."""

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure

import veridical as vd
from veridical.plots import as_image, html_summary
from veridical.testing import MODALITIES, tiny_task

mpl.use("Agg")


@pytest.mark.parametrize("modality", MODALITIES)
def test_explanations_of_every_kind_can_be_drawn(modality: str) -> None:
    task = tiny_task(modality)
    ax = Figure().subplots()
    assert vd.explain("gradient", task).plot(1, ax) is ax
    assert ax.get_title() == "gradient"
    assert ax.images or ax.lines or ax.patches


def test_token_bars_leave_padding_out() -> None:
    task = tiny_task("text")
    ax = Figure().subplots()
    vd.explain("gradient", task).plot(1, ax)
    assert len(ax.patches) == int(task.space.valid[1].sum())


def test_a_curve_is_drawn_over_the_share_removed() -> None:
    scores = vd.score("pixel_flipping", tiny_task("image"), "gradient")
    ax = Figure().subplots()
    assert scores.plot(ax) is ax
    line = ax.lines[0]
    assert line.get_xdata()[0] == 0
    assert line.get_xdata()[-1] == 1
    assert float(line.get_ydata()[0]) == pytest.approx(float(scores.curve.y[:, 0].mean()))


def test_scores_without_a_curve_are_a_histogram() -> None:
    ax = vd.score("sparseness", tiny_task("table"), "gradient").plot(Figure().subplots())
    assert sum(patch.get_height() for patch in ax.patches) == 9


def test_images_are_scaled_to_the_unit_range() -> None:
    assert as_image(torch.tensor([[[2.0, 4.0]]])).tolist() == [[0.0, 1.0]]
    assert as_image(torch.zeros(3, 2, 2)).shape == (2, 2, 3)


def test_notebook_summaries_escape_what_users_wrote() -> None:
    assert "<script>" not in html_summary("<script>", ("a",), [("<b>",)])
    assert "&lt;script&gt;" in html_summary("<script>", ("a",), [("<b>",)])
