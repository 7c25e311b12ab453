"""The picture on README's first screen: the head of the report of `examples/vision_transformer.py`, drawn by Chromium.

    python docs/picture.py torchsleuth-cases/last-case

Needs Playwright, which the development extras bring, and Chromium. The page is narrow, so that its text can be read at
the width that a README has.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "_static" / "report.png"
WIDTH, HEIGHT = 920, 800


def draw(report: Path, picture: Path = PICTURE) -> None:
    """Draws the head of a report: `draw(Path("torchsleuth-cases/1a2b3c4d/report.html"))`."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]) / "report.html")
    sys.stderr.write(f"{PICTURE}: {PICTURE.stat().st_size} bytes\n")
