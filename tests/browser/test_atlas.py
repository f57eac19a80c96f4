"""The page of an atlas in a real browser: no errors, sorting, a phone without sideways scrolling."""

from pathlib import Path
from typing import Any

import pytest

import veridical as vd
from benchmarks.atlas.page import write_atlas
from tests.browser.test_report import DESK, PHONE, click_head, column, opened

pytestmark = pytest.mark.extras
DATA = Path(__file__).resolve().parents[2] / "docs" / "atlas"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_atlas(vd.atlas.load(DATA), tmp_path_factory.mktemp("atlas"))[0].as_uri()


def test_figures_sort_and_empty_ones_stay_last(page: str, browser: Any) -> None:
    opened(browser, page)
    assert browser.get_log("browser") == []
    table = "metrics on images"
    assert click_head(browser, table, 2) == "ascending"
    rising = [float(cell) for cell in column(browser, table, 2) if cell]
    assert len(rising) > 20
    assert rising == sorted(rising)


@pytest.mark.parametrize("size", [PHONE, (768, 1024), DESK])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_screen(size: tuple[int, int], dark: bool, page: str, browser: Any) -> None:
    opened(browser, page, size, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    wide = "return [...document.querySelectorAll('svg.chart')].map(s => s.getBoundingClientRect().width)"
    assert all(0 < width <= size[0] for width in browser.execute_script(wide))
