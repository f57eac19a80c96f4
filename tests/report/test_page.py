"""The evaluation page: self-contained, escaped, and sound in a real browser."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import veridical as vd
from veridical.testing import MODALITIES, tiny_task


def written(tmp_path: Path, task: vd.Task, explainers: object, metrics: list[str]) -> str:
    table = vd.evaluate(task, explainers, metrics)  # type: ignore[arg-type]
    return table.report(tmp_path / "page.html").read_text()


@pytest.mark.parametrize("modality", MODALITIES)
def test_page_of_every_kind_of_input(modality: str, tmp_path: Path) -> None:
    page = written(tmp_path, tiny_task(modality), ["gradient", "random"], ["pixel_flipping", "sparseness"])
    assert page.count("<figure>") == 2 + 6
    assert "gradient" in page


def test_page_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    page = written(tmp_path, tiny_task("image"), ["gradient"], ["sparseness"])
    assert "default-src 'none'" in page
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]+)"', page))
    assert "http" not in page.replace("http-equiv", "")


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    task = tiny_task("table")
    task.__dict__["name"] = "<script>alert(1)</script>"
    page = written(tmp_path, task, {"<img src=x onerror=alert(2)>": "gradient"}, ["sparseness"])
    assert "<script>" not in page
    assert "<img src=x" not in page


def test_failures_are_shown_with_their_traceback(tmp_path: Path) -> None:
    def breaks(model: object, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ValueError("no map today")

    with pytest.warns(vd.errors.VeridicalWarning):
        page = written(tmp_path, tiny_task("table"), ["gradient", breaks], ["sparseness"])
    assert "What failed" in page
    assert "no map today" in page
    assert "Traceback" in page


@pytest.mark.extras
def test_page_in_a_real_browser(tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.fail("this test drives Debian's chromium: apt-get install chromium chromium-driver")
    written(tmp_path, vd.tasks.load("digits")[:8], ["gradient", "random"], ["pixel_flipping", "sparseness"])
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    for flag in (*flags, *quiet, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        browser.set_window_size(400, 800)
        browser.get((tmp_path / "page.html").as_uri())
        assert "digits" in browser.title
        widths = browser.execute_script(
            "return [document.documentElement.scrollWidth, window.innerWidth,"
            " [...document.images].every(i => i.naturalWidth > 0)]"
        )
        assert widths[0] <= widths[1], "the page is wider than a phone"
        assert widths[2], "a picture did not load"
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
