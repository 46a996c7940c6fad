"""The photographs that the docs show: `make screenshots`. With --out, of every tab, light and dark, on a phone, a desktop and
a wide screen, to look at. With --film, the film of the README.

The workspace is taught with the demonstration first, so that every tab has something to show. In the film three parts of the
workbench are held before the camera, named, and recognised in poses that were never shown.
"""

import argparse
import io
import tempfile
from pathlib import Path

from browser_parts import chromium, running, show_picture
from journeys.parts import DRAWN_CAMERA, FILLED, go_to, wait_for, wait_until_filled
from PIL import Image
from playwright.sync_api import expect

from edge_hpcr.stream.workbench import STAY, Film
from edge_hpcr.workspace.workspace import Workspace

TABS = ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings")
SCREENS = {
    "desktop": {"width": 1280, "height": 860},
    "phone": {"width": 390, "height": 844},
    "wide": {"width": 1920, "height": 1080},
}
DOCS, SHOWN = Path("docs/screenshots"), ("accuracy-desktop-light", "teach-phone-dark")
LABELS_SHOWN = 150
FILM_SCREEN, FILM_WIDTH, FILM_QUALITY, LARGEST_FILM = {"width": 1120, "height": 700}, 900, 60, 3_000_000
LEARNED, NEVER_SHOWN = (8, 20, 32), (14, 26)  # moments of a part's stay on the bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--film", type=Path, metavar="FILE.webp", help="make the film instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.film:
            Recorder().record(Path(folder) / "workspace", options.film)
        else:
            options.out.mkdir(parents=True, exist_ok=True)
            photograph(Path(folder) / "workspace", options.out)


def photograph(workspace: Path, out: Path) -> None:
    with Workspace.open(workspace) as made:
        made.change_settings(gate_per_second=1.0)
    with running(workspace) as app, chromium() as browser:
        studio = app.server.studio

        def shoot(tabs: dict[str, str]) -> None:
            """These tabs, by their names in the photographs' names."""
            for screen, size in SCREENS.items():
                for theme in ("light", "dark"):
                    wanted = {tab: f"{name}-{screen}-{theme}" for tab, name in tabs.items()}
                    wanted = {tab: name for tab, name in wanted.items() if out != DOCS or name in SHOWN}
                    if not wanted:
                        continue
                    page = browser.new_page(viewport=size)
                    page.goto(app.link)
                    page.goto(f"{app.address}/?__theme={theme}")
                    expect(page.locator("#strip")).to_contain_text("label")
                    for tab, name in wanted.items():
                        go_to(page, tab)
                        wait_until_filled(page, "#screen" if tab == "Teach" else FILLED[tab])
                        # A bar that stays at the bottom of the window would lie across a longer picture.
                        page.screenshot(path=out / f"{name}.png", full_page=tab not in ("Teach", "Review"))
                    page.close()

        shoot({"Teach": "begin"})
        studio.feeder.choose("workbench", "folders")  # learns the demonstration's own labels, two a second
        while studio.state()["labels"] < LABELS_SHOWN:
            studio.live.wait_until_caught_up(1.0)
        studio.feeder.choose("workbench")
        wait_for(lambda: studio.verdict().number, "the verdict", 600)
        shoot({tab: tab.lower() for tab in TABS})
    print(f"the photographs are in {out}")


class Recorder:
    """The page while somebody teaches it, picture by picture: what the machine is slow at takes no time in the film."""

    def __init__(self) -> None:
        self._film = Film(seed=7)
        self._pictures: list[tuple[Image.Image, int]] = []

    def record(self, workspace: Path, out: Path) -> None:
        with Workspace.open(workspace) as made:
            made.change_settings(idle_steps=60)
        with running(workspace) as app, chromium() as browser:
            context = browser.new_context(viewport=FILM_SCREEN)
            context.add_init_script(DRAWN_CAMERA)
            self._page = context.new_page()
            self._page.goto(app.link)
            expect(self._page.locator("#choices")).to_be_visible()
            self._shoot(1500)
            self._page.click("#source-browser")
            expect(self._page.locator("#preview")).to_be_visible()
            for visit in range(3):
                self._teach(visit)
            wait_for(lambda: app.server.studio.live.progress is None, "the rehearsal")
            for moment in NEVER_SHOWN:
                for visit in range(3):
                    self._watch(visit, range(moment - 2, moment + 3, 2))
                    expect(self._page.locator("#answer .teach-name")).to_have_text(self._name(visit))
                    self._shoot(900)
        self._write(out)

    def _name(self, visit: int) -> str:
        return self._film.shows(visit * STAY)

    def _watch(self, visit: int, moments: range) -> None:
        for moment in moments:
            show_picture(self._page, self._film.frame(visit * STAY + moment))
            self._shoot(120)

    def _teach(self, visit: int) -> None:
        page, before = self._page, 0
        for number, moment in enumerate(LEARNED):
            self._watch(visit, range(before, moment + 1, 4))
            before = moment + 4
            if number == 0:
                page.keyboard.press("n")
                for letter in self._name(visit):
                    page.keyboard.type(letter)
                    self._shoot(90)
                page.keyboard.press("Enter")
            else:
                page.keyboard.press(str(visit + 1))
            expect(page.locator("#message")).to_contain_text(f"{self._name(visit)} saved")
            expect(page.locator("#lesson")).to_contain_text(" in ")
            self._shoot(700)

    def _shoot(self, milliseconds: int) -> None:
        shot = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        height = round(FILM_WIDTH * shot.height / shot.width)
        self._pictures.append((shot.resize((FILM_WIDTH, height), Image.Resampling.LANCZOS), milliseconds))

    def _write(self, out: Path) -> None:
        (first, *others), durations = zip(*self._pictures, strict=True)
        first.save(
            out,
            save_all=True,
            append_images=others,
            duration=list(durations),
            loop=0,
            quality=FILM_QUALITY,
            method=4,
        )
        size = out.stat().st_size
        print(f"{out}: {len(self._pictures)} pictures, {sum(durations) / 1000:.0f} s, {size / 1e6:.1f} MB")
        if size > LARGEST_FILM:
            raise SystemExit(f"{out} is larger than {LARGEST_FILM / 1e6:.0f} MB: lower its quality or width")


if __name__ == "__main__":
    main()
