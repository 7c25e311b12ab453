"""report.html in a real browser: drawn, clicked, searched, in light and dark, narrow and on paper, without one complaint.

Needs Chromium (`apt-get install chromium`) and Playwright, which the development extras bring; skipped where one is missing.
"""

from __future__ import annotations

import json
import shutil

import pytest
from made_cases import KINDS, accuracy
from test_report_verb import HOSTILE, every_text

from torchsleuth.core.cases.folder import CaseFolder, put_files
from torchsleuth.core.cases.model import case_from_json
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page, write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the page of a case; whatever the browser complains about, fetches or asks fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(folder, **how):
        path, _ = write_report(folder)  # as it lies on the disk, from which secrets were taken
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **how})
        contexts.append(context)
        found = context.new_page()
        found.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
        found.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        found.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        found.on(
            "request", lambda asked: asked.url.startswith(("file:", "data:")) or complaints.append(asked.url)
        )
        found.goto(path.as_uri())
        return found

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [1200, 360])
def test_each_kind_is_shown_and_fits(opened, tmp_path, make, width):
    seen = opened(make(tmp_path), viewport={"width": width, "height": 800})
    assert seen.locator("h2").count() == 10
    assert seen.evaluate("document.documentElement.scrollWidth") <= width


def test_the_minimal_graph_is_drawn(opened, tmp_path):
    seen = opened(accuracy(tmp_path))
    boxes = [seen.locator("svg.graph rect").nth(n).bounding_box() for n in range(3)]
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    texts = seen.locator("svg.graph text").all_text_contents()
    assert texts == ["x", "torch.randn(1, 1, 2, 1)", "F.interpolate", "returned"]
    label, box = seen.locator("svg.graph .input .below").bounding_box(), boxes[0]
    assert box["x"] < label["x"] and label["x"] + label["width"] < box["x"] + box["width"]


def test_modules_open_and_close_by_click_and_by_key(opened, tmp_path):
    seen = opened(accuracy(tmp_path))
    call = seen.locator("#tree li", has_text="conv2d = ").last
    seen.click("#none")
    assert not call.is_visible()
    seen.click("#tree summary >> nth=0")
    seen.locator("#tree summary").nth(1).focus()
    seen.keyboard.press("Enter")
    assert call.is_visible()
    seen.click("#none")
    seen.click("#all")
    assert call.is_visible()


def test_search_shows_what_fits_and_how_many(opened, tmp_path):
    seen = opened(accuracy(tmp_path))
    seen.keyboard.press("/")
    seen.keyboard.type("conv2d = ")
    assert seen.locator("#tree li:visible", has_text="torch.conv2d").count() > 0
    assert not seen.locator("#tree li", has_text="y.mean((2, 3))").first.is_visible()
    assert seen.inner_text("#found") == "1 of 4 calls"
    seen.keyboard.press("Escape")
    assert (
        seen.locator("#tree li", has_text="y.mean((2, 3))").first.is_visible()
        and seen.inner_text("#found") == ""
    )


def test_the_script_is_copied(opened, tmp_path):
    folder = accuracy(tmp_path)
    seen = opened(folder, permissions=["clipboard-read", "clipboard-write"])
    seen.click("button[data-copy=script]")
    seen.wait_for_selector("button:text('copied')")
    assert seen.evaluate("navigator.clipboard.readText()") == folder.text("repro.py")


def test_dark_and_light_are_the_systems_and_can_be_switched(opened, tmp_path):
    folder = accuracy(tmp_path)
    shade = "getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(folder, color_scheme=scheme) for scheme in ("light", "dark"))
    colours = light.evaluate(shade), dark.evaluate(shade)
    assert colours[0] != colours[1]
    light.click("#theme")
    dark.click("#theme")
    assert (light.evaluate(shade), dark.evaluate(shade)) == (colours[1], colours[0])


def test_without_scripts_it_is_still_whole(opened, tmp_path):
    seen = opened(accuracy(tmp_path), java_script_enabled=False)
    assert seen.locator("#tree .culprit").is_visible() and seen.locator("svg.graph rect").count() == 3


def test_on_paper_everything_that_was_said_is_there(opened, tmp_path):
    seen = opened(accuracy(tmp_path))
    seen.emulate_media(media="print")
    seen.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.locator("#error pre").is_visible() and not seen.locator("#theme").is_visible()
    assert len(seen.pdf()) > 10_000


def test_a_large_graph_is_there_at_once(opened, tmp_path):
    lines = "".join(f"        c{n} = torch.relu(c{n - 1})  # f32[2, 8]\n" for n in range(1, 3001))
    graph = f"class Repro(torch.nn.Module):\n    def forward(self, c0):\n{lines}        return (c3000,)\n"
    folder = accuracy(tmp_path)
    put_files(folder.path, {"graph.py": graph, "record.json": "{}"})
    seen = opened(folder)
    assert seen.locator("#tree li").count() == 3000
    seen.fill("#search", "c2999 =")
    assert seen.inner_text("#found") == "1 of 3000 calls"


@pytest.mark.parametrize("by", HOSTILE[:5])
def test_a_hostile_case_runs_nothing(opened, tmp_path, by):
    folder = accuracy(tmp_path)
    doc = json.loads(folder.text("case.json"))
    kept = {key: doc[key] for key in ("id", "kind", "phase", "direction", "after", "schema")}
    hostile = CaseFolder(folder.path, case_from_json({**every_text(doc, by), **kept}))
    put_files(
        folder.path,
        {"traceback.txt": by, "analysis.svg": f"<svg xmlns='http://www.w3.org/2000/svg'>{by}</svg>"},
    )
    seen = opened(hostile)
    assert seen.locator("script").count() == 1 and seen.locator("iframe").count() == 0


def test_even_what_was_not_escaped_would_not_run(browser, tmp_path):
    hole = "<script>document.title = 'owned'</script><img src='data:,' onerror=\"document.title = 'owned'\">"
    path = tmp_path / "hole.html"
    path.write_text(page(gather(accuracy(tmp_path))).replace("</main>", f"{hole}</main>"), encoding="utf-8")
    context = browser.new_context()
    seen = context.new_page()
    refused: list[str] = []
    seen.on("console", lambda said: refused.append(said.text))
    seen.goto(path.as_uri())
    assert seen.title() == "torchsleuth: case a0000001" and seen.locator("main script").count() == 1
    assert len(refused) >= 2 and all("Content Security Policy" in text for text in refused)
    context.close()
