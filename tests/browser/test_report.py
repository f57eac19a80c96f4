"""The report in a real browser: no errors, sorting, filtering, themes, a phone, CSV, the gallery, paper."""

import base64
import csv
import re
import time
from pathlib import Path
from typing import Any

import pytest

import veridical as vd
from tests.report.audits import FORMULA, QUOTE, SCRIPT, hostile, tiny_audit
from veridical.report.audit import contents
from veridical.report.rendering import write

pytestmark = pytest.mark.extras

PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="session")
def shown() -> dict[str, Any]:
    return contents(tiny_audit())


@pytest.fixture(scope="session")
def report(shown: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(shown, tmp_path_factory.mktemp("report") / "report.html").as_uri()


def opened(browser: Any, address: str, size: tuple[int, int] = DESK, dark: bool = False) -> Any:
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wanted = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})
    browser.get_log("browser")
    browser.get(address)
    return browser


def column(browser: Any, table: str, at: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(`table[data-name='${arguments[0]}'] tbody tr`)]"
        ".filter(row => !row.hidden).map(row => row.cells[arguments[1]].textContent.trim())"
    )
    return list(browser.execute_script(script, table, at))


def click_head(browser: Any, table: str, at: int) -> str | None:
    script = (
        "const table = document.querySelector(`table[data-name='${arguments[0]}']`);"
        "const head = table.tHead.rows[0].cells[arguments[1]];"
        "head.querySelector('button').click(); return head.getAttribute('aria-sort')"
    )
    return browser.execute_script(script, table, at)


@pytest.mark.parametrize("attack", [False, True])
def test_loads_without_errors_and_no_attack_runs(
    attack: bool, shown: dict[str, Any], browser: Any, tmp_path: Path
) -> None:
    page = write(hostile(shown) if attack else shown, tmp_path / "page.html")
    opened(browser, page.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('script').length") == 1
    assert browser.execute_script("return [...document.images].every(i => i.naturalWidth > 0)")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.find_element("css selector", "h1").is_displayed()


def test_policy_stops_a_script_that_got_in(report: str, browser: Any) -> None:
    """Were escaping to fail, the policy would still refuse handlers, scripts and styles."""
    opened(browser, report)
    browser.execute_script(
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.caught=1'>`);"
        "const s = document.createElement('script'); s.textContent = 'window.caught=2';"
        "document.body.append(s);"
    )
    time.sleep(0.2)
    assert browser.execute_script("return window.caught") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_sorting_goes_both_ways_and_says_so(report: str, browser: Any) -> None:
    opened(browser, report)
    before = column(browser, "ranking", 1)
    assert click_head(browser, "ranking", 1) == "ascending"
    rising = [float(cell.rstrip("%")) for cell in column(browser, "ranking", 1)]
    assert rising == sorted(rising)
    assert len(set(rising)) > 2
    assert column(browser, "ranking", 1) != before
    assert click_head(browser, "ranking", 1) == "descending"
    assert [float(cell.rstrip("%")) for cell in column(browser, "ranking", 1)] == sorted(rising, reverse=True)
    assert click_head(browser, "ranking", 0) == "ascending"
    sorted_heads = "return document.querySelectorAll('table[data-name=ranking] th[aria-sort]').length"
    assert browser.execute_script(sorted_heads) == 1


def test_sorting_by_keyboard(report: str, browser: Any) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    opened(browser, report)
    button = browser.find_element("css selector", "table[data-name=ranking] th button")
    button.send_keys(keys.ENTER)
    assert (
        browser.execute_script("return arguments[0].parentElement.getAttribute('aria-sort')", button)
        == "ascending"
    )
    assert browser.execute_script("return document.activeElement === arguments[0]", button)


def test_filter_keeps_rows_that_hold_all_words(report: str, browser: Any) -> None:
    opened(browser, report)
    browser.execute_script("document.querySelector('details.paper').open = true")
    field = browser.find_element("css selector", "[aria-label='Filter rows of pairs of explainers']")
    everything = column(browser, "pairs of explainers", 0)
    field.send_keys("broken SVG")
    kept = list(
        zip(column(browser, "pairs of explainers", 0), column(browser, "pairs of explainers", 1), strict=True)
    )
    assert [set(pair) for pair in kept] == [{"broken", QUOTE}]
    said = browser.execute_script("return arguments[0].nextElementSibling.textContent", field)
    assert said == f"1 of {len(everything)}"
    field.clear()
    field.send_keys(" ")
    assert column(browser, "pairs of explainers", 0) == everything


@pytest.mark.parametrize("dark", [False, True])
def test_theme_follows_the_system_until_the_button_is_pressed(dark: bool, report: str, browser: Any) -> None:
    opened(browser, report, dark=dark)
    lightness = (
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    before = sum(browser.execute_script(lightness))
    assert (before < 200) == dark
    browser.find_element("css selector", "button.theme").click()
    after = sum(browser.execute_script(lightness))
    assert (after < 200) != dark
    browser.find_element("css selector", "button.theme").click()
    assert sum(browser.execute_script(lightness)) == before


CONTRAST = """
const channel = (v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const colour = (text) => { probe.clearRect(0, 0, 1, 1); probe.fillStyle = text; probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data]; };
const bright = (c) => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const c = colour(getComputedStyle(node).backgroundColor);
    if (c[3] > 250) return c;
  }
  return [255, 255, 255, 255];
};
const poor = [];
const texts = 'p, li, td, th, dd, dt, figcaption, summary, h1, h2, h3, a, small, span, svg text';
for (const node of document.querySelectorAll(texts)) {
  if (!node.textContent.trim() || !node.getClientRects().length) continue;
  const style = getComputedStyle(node), back = behind(node.closest('svg')?.parentElement ?? node);
  const a = bright(colour(node.closest('svg') ? style.fill : style.color)), b = bright(back);
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const named = node.className.baseVal ?? node.className;
  if (ratio < 4.5) poor.push([node.tagName, named, node.textContent.slice(0, 30), ratio.toFixed(2)]);
}
return poor;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(dark: bool, report: str, browser: Any) -> None:
    opened(browser, report, dark=dark)
    assert browser.execute_script(CONTRAST) == []


def test_phone_has_no_sideways_scroll(report: str, browser: Any) -> None:
    opened(browser, report, PHONE)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    wide, screen = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= screen == PHONE[0]
    size = browser.execute_script(
        "return parseFloat(getComputedStyle(document.querySelector('.verdict p:not(.eyebrow)')).fontSize)"
    )
    assert size >= 15


def ranking_csv(browser: Any, downloads: Path) -> list[dict[str, str]]:
    """The rows of the file that the button of the ranking saves."""
    where = {"behavior": "allow", "downloadPath": str(downloads)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    for old in downloads.iterdir():
        old.unlink()
    browser.find_element("css selector", "[aria-label='Download ranking as CSV']").click()
    return list(csv.DictReader(saved(downloads, "ranking.csv").splitlines()))


def saved(downloads: Path, name: str) -> str:
    for _ in range(50):
        if (downloads / name).is_file():
            return (downloads / name).read_bytes().decode("utf-8-sig")
        time.sleep(0.1)
    raise AssertionError(f"{name} was not saved; there is {[p.name for p in downloads.iterdir()]}")


def test_csv_holds_the_table_and_no_formula(
    report: str, shown: dict[str, Any], browser: Any, downloads: Path
) -> None:
    opened(browser, report)
    rows = ranking_csv(browser, downloads)
    assert [row["explainer"] for row in rows] == [
        "'" + one["explainer"] if one["explainer"].startswith("=") else one["explainer"]
        for one in shown["ranking"]
    ]
    assert "'" + FORMULA in {row["explainer"] for row in rows}
    assert {SCRIPT, QUOTE} <= {row["explainer"] for row in rows}
    assert [float(row["wins"]) for row in rows] == [one["score"] for one in shown["ranking"]]
    assert "0 to 100% of samples" not in rows[0]
    assert [row["interval"] for row in rows] == [f"{one['low']} to {one['high']}" for one in shown["ranking"]]


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ('a,"b"', 'a,"b"'),
        ("-0.25", "-0.25"),
        ("1e-07", "1e-07"),
        ("plain", "plain"),
    ],
)
def test_csv_cells_that_begin_like_a_formula_are_quoted(
    cell: str, written: str, report: str, browser: Any, downloads: Path
) -> None:
    opened(browser, report)
    place = "document.querySelector('table[data-name=ranking] tbody').rows[0].cells[0]"
    browser.execute_script(f"{place}.textContent = arguments[0]", cell)
    assert ranking_csv(browser, downloads)[0]["explainer"] == written


def test_gallery_sorts_by_disagreement(report: str, browser: Any) -> None:
    opened(browser, report)
    read = (
        "return [...document.querySelectorAll('#samples article')]"
        ".map(a => parseFloat(a.dataset[arguments[0]]))"
    )
    choose = (
        "const s = document.querySelector('#gallery-order'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))"
    )
    disputed = browser.execute_script(read, "disagreement")
    assert disputed == sorted(disputed, reverse=True)
    browser.execute_script(choose, "disagreement up")
    assert browser.execute_script(read, "disagreement") == sorted(disputed)
    browser.execute_script(choose, "id up")
    identities = browser.execute_script(read, "id")
    assert identities == sorted(identities)


def test_prints_light_and_whole(report: str, browser: Any) -> None:
    opened(browser, report, dark=True)
    pdf = base64.b64decode(browser.print_page())
    pages = len(re.findall(rb"/Type\s*/Page[^s]", pdf))
    assert 2 <= pages <= 20
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    hidden = "return getComputedStyle(document.querySelector('.tools')).display"
    assert browser.execute_script(hidden) == "none"


def test_without_script_everything_is_there(shown: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    page = write(shown, tmp_path / "page.html")
    page.write_text(re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S))
    opened(browser, page.as_uri())
    assert len(column(browser, "ranking", 0)) == len(shown["ranking"])
    assert not browser.find_element("css selector", "button.theme").is_displayed()
    assert not browser.find_element("css selector", "#gallery-order").is_displayed()


def test_evaluation_page(browser: Any, tmp_path: Path) -> None:
    table = vd.evaluate(vd.tasks.load("digits")[:8], ["gradient", "random"], ["pixel_flipping", "sparseness"])
    page = table.report(tmp_path / "page.html")
    opened(browser, page.as_uri(), PHONE)
    assert "digits" in browser.title
    wide, screen = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= screen
    assert browser.execute_script("return [...document.images].every(i => i.naturalWidth > 0)")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_prompts_and_heads_fit_the_screen(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    from veridical.data import known_language
    from veridical.data.known_language import WordTokenizer
    from veridical.data.networks import CausalTransformer

    words = ("...", "one ", "two ", ". ", "verylongword" * 12 + " ")
    texts = ["one two . " * 12, words[-1] + "one . two . "]
    model = CausalTransformer(len(words), 64, 8, 2, 1).eval()
    prompts = vd.models.Generation(
        model, WordTokenizer(words), texts, ["one "] * 2, foils=["two "] * 2, units="word"
    )
    for task, part in (
        (prompts, ".prompt .sentence"),
        (known_language.induction_heads(3).task, "table.heads"),
    ):
        found = vd.evaluate(task, ["occlusion", "random"], ["deletion"])
        shown = opened(browser, found.report(tmp_path / "page.html").as_uri(), size)
        assert shown.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert shown.find_elements("css selector", part)
        assert not [line for line in shown.get_log("browser") if line["level"] == "SEVERE"]
