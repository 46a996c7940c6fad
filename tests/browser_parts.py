"""What the browser's tests share: the app on a free port, a real Chromium, and films for its faked camera."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from playwright.sync_api import Browser, Page, expect, sync_playwright
from process_parts import started
from sklearn.datasets import load_sample_images
from workspace_parts import FROM_SCRATCH

from app.server import Server
from edge_hpcr.workspace.folder import Workspace

PASSWORD = "correct horse"  # of the app that the fixture `guarded` starts
PATIENCE = 40_000  # milliseconds: two busy cores may take long
expect.set_options(timeout=PATIENCE)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class App:
    """`python -m app` as a person starts it, in a process of its own; see `running_alone`."""

    def __init__(self, workspace: Path, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.workspace, self.process, self.port, self.log = workspace, process, port, log
        self.address = f"http://127.0.0.1:{port}"

    @property
    def token(self) -> str | None:
        """What lets in, unless a password does."""
        file = self.workspace / "token"
        return file.read_text() if file.exists() else None

    @property
    def link(self) -> str:
        """As it is printed."""
        return f"{self.address}/?token={self.token}" if self.token else f"{self.address}/"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the app ended with {self.process.returncode}: {self.log.read_text()}")
            try:
                with urllib.request.urlopen(f"{self.address}/healthz", timeout=5) as answer:
                    assert answer.status == 200
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise AssertionError(f"the app was not ready in time: {self.log.read_text()}")

    def wait_until_open(self) -> None:
        """Until the link is printed, and somebody answers there."""
        wait_for(lambda: "Open http" in self.log.read_text(), "the link", 120)

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    @contextmanager
    def look(self) -> Iterator[Workspace]:
        """What is in the workspace, as another process sees it."""
        with Workspace.open(self.workspace, learning=False) as workspace:
            yield workspace


class OwnServer:
    """The same app in this process: it starts in a second, since everything has been imported.

    A workspace that is not there yet is made with this source, so that there is something to label.
    """

    def __init__(
        self, workspace: Path, source: str = "workbench:1", port: int | None = None, **options: Any
    ) -> None:
        self.workspace = workspace
        self.port = port or free_port()
        if not workspace.exists():
            with Workspace.open(workspace) as fresh:
                # Rehearsal takes a core, of which a test machine has few.
                fresh.change_settings(**FROM_SCRATCH, idle_steps=20, source=source)
        self.server = Server(workspace, port=self.port, **options)
        self.address = self.server.start().rstrip("/")

    def stop(self) -> None:
        self.server.stop()

    look, token, link = App.look, App.token, App.link


@contextmanager
def running(workspace: Path, **options: Any) -> Iterator[OwnServer]:
    app = OwnServer(workspace, **options)
    try:
        yield app
    finally:
        app.stop()


@contextmanager
def started_app(workspace: Path, *options: str, environment: dict[str, str] | None = None) -> Iterator[App]:
    """`python -m app` from its first moment on; it is not waited for."""
    port, log = free_port(), workspace.with_suffix(".log")
    command = ("-m", "app", "--workspace", workspace, "--port", port, *options)
    with (
        log.open("a") as written,
        started(
            *command, patience=8 * 3600, stdout=written, stderr=written, env=os.environ | (environment or {})
        ) as process,
    ):
        app = App(workspace, process, port, log)
        yield app
        app.stop()


@contextmanager
def running_alone(
    workspace: Path, *options: str, source: str = "", environment: dict[str, str] | None = None
) -> Iterator[App]:
    if source:
        with Workspace.open(workspace) as made:
            made.change_settings(source=source)
    with started_app(workspace, *options, environment=environment) as app:
        app.wait_until_ready()
        yield app


@contextmanager
def chromium(film: Path | None = None, windows: bool = False, cameras: int = 0) -> Iterator[Browser]:
    """A real browser; with a film, its camera shows that, and pages may use it without asking, as they may several cameras.

    The same engine comes without windows, too, and loads a page in less time; measurements want what a person has.
    """
    shell, whole = ("chromium-headless-shell",), ("chromium", "chromium-browser", "google-chrome")
    names = (*whole, *shell) if windows else (*shell, *whole)
    path = next(
        filter(None, map(shutil.which, names)), None
    )  # None: Playwright's own, if it has been installed
    arguments = ["--no-sandbox", "--disable-gpu"]
    if film is not None or cameras:
        arguments += [
            f"--use-fake-device-for-media-stream=device-count={cameras or 1}",
            "--use-fake-ui-for-media-stream",
        ]
    if film is not None:
        arguments.append(f"--use-file-for-fake-video-capture={film}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser, app: App | OwnServer, tab: str = "Teach", **options: object) -> Page:
    """The app's page with one of its tabs open; an error in a script fails the test at its end."""
    context = browser.new_context(viewport={"width": 1200, "height": 850}, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(app.link)
    expect(page.locator("#strip")).to_contain_text("label")
    go_to(page, tab)
    return page


def go_to(page: Page, tab: str) -> None:
    expect(
        page.get_by_role("tab").filter(visible=True).first
    ).to_be_visible()  # after a reload it takes a moment
    shown = page.get_by_role("tab").filter(has_text=tab).filter(visible=True)
    if shown.count():
        shown.first.click()
    else:  # on a phone the last tabs are behind a menu
        page.get_by_role("button", name="More tabs").click()
        page.locator(".overflow-dropdown button", has_text=tab).click()


# Gradio fills a tab after it has been shown: until nothing has changed for a while, but no longer than the app's own polling may take.
STILL = """
async () => {
  const begun = performance.now();
  let changed = begun;
  const watching = new MutationObserver(() => { changed = performance.now(); });
  watching.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  while (performance.now() - changed < 400 && performance.now() - begun < 3000) await new Promise((then) => setTimeout(then, 50));
  watching.disconnect();
}
"""


def wait_until_filled(page: Page, content: str) -> None:
    """Until this content of the tab is there, and the tab stands still."""
    expect(page.locator(content).first).to_be_visible()
    page.evaluate(STILL)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def photos() -> dict[str, np.ndarray]:
    """Two real photographs that scikit-learn brings along, RGB."""
    china, flower = load_sample_images().images
    return {"temple": china, "flower": flower}


# In the place of the browser's camera a picture that a test draws; everything behind it is the page's own.
DRAWN_CAMERA = """
const canvas = Object.assign(document.createElement("canvas"), { width: 640, height: 480 });
window.showPicture = async (url) => {
  const picture = Object.assign(new Image(), { src: url });
  await picture.decode();
  window.drawPicture = () => canvas.getContext("2d").drawImage(picture, 0, 0, 640, 480);
  window.drawPicture();
  await new Promise((done) => setTimeout(done, 250)); // until the video shows it, and not the picture before
};
setInterval(() => window.drawPicture?.(), 40); // a stream of one still picture stands still
navigator.mediaDevices.getUserMedia = async () => (window.cameraOfTheTest = canvas.captureStream(25));
"""


def show_picture(page: Page, image: np.ndarray) -> None:
    """Hold an RGB picture before a camera that `DRAWN_CAMERA` has replaced."""
    data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
    page.evaluate("showPicture", f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}")


def film_of(image: np.ndarray, path: Path, frames: int = 60) -> Path:
    """A film in which a hand-held camera looks at a photograph: the view wanders a little."""
    rng = np.random.default_rng(0)
    place = np.array([40.0, 40.0])
    with path.open("wb") as file:
        for _ in range(frames):
            place = np.clip(place + rng.normal(0, 4, 2), 0, 80)
            top, left = place.astype(int)
            view = cv2.resize(image[top : top + 340, left : left + 540], (320, 240))
            file.write(cv2.imencode(".jpg", cv2.cvtColor(view, cv2.COLOR_RGB2BGR))[1].tobytes())
    return path
