"""Photographs of every tab, light and dark, on a desktop and on a phone: `make screenshots`.

The workspace is taught with the demonstration first, so that every tab has something to show.
"""

import argparse
import tempfile
from pathlib import Path

from browser_parts import chromium, go_to, running
from playwright.sync_api import Page, expect

from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings

TABS = ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings")
SCREENS = {"desktop": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
LABELS_SHOWN = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/screenshots"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        photograph(Path(folder) / "workspace", options.out)


def photograph(workspace: Path, out: Path) -> None:
    with Workspace.open(workspace):
        Settings(gate_per_second=1.0).save(workspace / "settings.json")
    with running(workspace) as app, chromium() as browser:
        studio = app.server.studio
        studio.feeder.choose("workbench", "folders")  # learns the demonstration's own labels, two a second
        while studio.state()["labels"] < LABELS_SHOWN:
            studio.live.wait_until_caught_up(1.0)
        studio.feeder.choose("workbench")
        for screen, size in SCREENS.items():
            for theme in ("light", "dark"):
                page = browser.new_page(viewport=size)
                page.goto(app.link)
                page.goto(f"{app.address}/?__theme={theme}")
                expect(page.locator("#strip")).to_contain_text("label")
                for tab in TABS:
                    show(page, tab)
                    page.screenshot(path=out / f"{tab.lower()}-{screen}-{theme}.png", full_page=True)
                page.close()
    print(f"{len(SCREENS) * 2 * len(TABS)} screenshots in {out}")


def show(page: Page, tab: str) -> None:
    go_to(page, tab)
    page.wait_for_timeout(3000)


if __name__ == "__main__":
    main()
