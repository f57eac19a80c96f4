"""The site as a reader gets it: built strictly, links lead somewhere, nothing is fetched, it fits."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from scripts.docs_site import notebooks
from tests.browser.conftest import browser, downloads  # noqa: F401 (fixtures)
from veridical.explainers import registry as explainers
from veridical.metrics import registry as metrics

pytestmark = pytest.mark.extras
ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (390, 820, 1280)
PAGES = (
    *("", "metrics/", "explainers/", "gallery/", "performance/", "replications/", "choose/", "deprecations/"),
    *("tutorials/tutorial/", "tutorials/tabular/", "tutorials/concepts/", "understand/explainers/"),
    *("metrics/pixel_flipping/", "metrics/gef/", "metrics/comprehensiveness/"),
    *("explainers/kernel_shap/", "explainers/exact_shapley/", "how-to/audit/", "how-to/coming-from/"),
)


class Page(HTMLParser):
    """The links of a page, what it loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # not --quiet: with it mkdocs does not count warnings, and broken links pass
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_everything_has_its_page(site: Path) -> None:
    wanted = [f"metrics/{name}" for name in metrics] + [f"explainers/{name}" for name in explainers]
    wanted += [f"tutorials/{name}" for name in notebooks.NAMES]
    missing = [name for name in wanted if not (site / name / "index.html").is_file()]
    assert not missing


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are made for the root of a server
            continue
        for link in [*page.links, *page.loads]:
            where, place = urldefrag(link)
            if urlparse(where).scheme or where.startswith("//"):
                continue
            target = path if not where else (path.parent / unquote(where)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (place and target in pages and place not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    foreign = {
        load for page in pages.values() for load in page.loads if urlparse(load).scheme in ("http", "https")
    }
    assert not foreign


def test_formulas_are_drawn_and_no_sign_of_their_source_is_left(site: Path) -> None:
    for name in ("pixel_flipping", "fast_gef", "infidelity"):
        text = (site / "metrics" / name / "index.html").read_text("utf-8")
        assert "<math" in text
        assert "$`" not in text
        assert "```" not in text


def test_pages_can_be_found(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    places = {entry["location"] for entry in index}
    assert {"metrics/pixel_flipping/", "explainers/lime/", "tutorials/tutorial/"} <= places


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_the_screen(site: Path, browser: Any, width: int) -> None:  # noqa: F811
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wide, said = [], []
    browser.get_log("browser")
    for page in PAGES:
        browser.get((site / page / "index.html").as_uri())
        inner, needed = browser.execute_script(
            "return [window.innerWidth, document.documentElement.scrollWidth]"
        )
        if needed > inner + 1:
            wide.append(f"{page}: {needed} pixels on a screen of {inner}")
        # a page from disk may not read the search index; from a server it can
        said += [each["message"] for each in browser.get_log("browser") if "search" not in each["message"]]
    assert not wide
    assert not [message for message in said if "file:" not in message], said
