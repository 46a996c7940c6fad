"""What the journeys share: commands as a person types them, the app in a process of its own, digits as picture files."""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from playwright.sync_api import Browser, Page, expect, sync_playwright
from process_parts import ROOT, free_port
from sklearn.datasets import load_digits, load_sample_images

OLD_WORKSPACE = ROOT / "tests" / "data" / "workspace-1.tar.xz"
PATIENCE = 120  # seconds: two busy cores may take long
# Small pictures and a small network: what a test learns, it learns in milliseconds.
SETTINGS = ("backbone=reduced_resnet18", "image_size=8", "threads=1", "idle_steps=0")
QUICK = tuple(word for setting in SETTINGS for word in ("--set", setting))


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "GRADIO_ANALYTICS_ENABLED": "False"}


def run(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`python -m ARGUMENTS…` to its end; another exit code than this fails the test, and says why."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == status, f"{command[2:]} ended with {done.returncode}: {done.stderr[-2000:]}"
    return done


def edge(*arguments: object, status: int = 0) -> str:
    """What `python -m edge_hpcr ARGUMENTS…` prints."""
    return run("edge_hpcr", *arguments, status=status).stdout


def edge_json(*arguments: object, status: int = 0) -> Any:
    return json.loads(edge(*arguments, "--json", status=status))


@contextmanager
def started(*arguments: object, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """`python -m ARGUMENTS…` in the background; however the test ends, it is killed and waited for."""
    with (log or Path(os.devnull)).open("a") as said:
        command = [sys.executable, "-m", *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=said, stderr=said, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true answer of the condition."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)
    return answer


def ask(address: str, data: bytes | None = None, token: str | None = None) -> tuple[int, bytes]:
    """The status and the content; with data, a POST."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


class App:
    """`python -m app`, and what its pages ask for."""

    def __init__(self, workspace: Path, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.workspace, self.process, self.log = workspace, process, log
        self.address = f"http://127.0.0.1:{port}"

    @property
    def token(self) -> str:
        return (self.workspace / "token").read_text().strip()

    @property
    def link(self) -> str:
        return f"{self.address}/?token={self.token}"

    def wait_until_ready(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, f"the app has ended: {self.log.read_text()[-2000:]}"
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                return ask(f"{self.address}/healthz")[0] == 200
            return False

        wait_for(answers, "the app")

    def get(self, path: str, data: bytes | None = None) -> tuple[int, bytes]:
        return ask(self.address + path, data, self.token)

    def json(self, path: str, data: bytes | None = None) -> Any:
        status, content = self.get(path, data)
        assert status == 200, content
        return json.loads(content)

    def state(self) -> Any:
        return self.json("/edge/state")

    def act(self, do: str, **fields: object) -> Any:
        return self.json("/edge/act", json.dumps({"do": do, **fields}).encode())

    def show(self, picture: bytes, name: str) -> Any:
        """Bring a picture of this name, and ask about it: its number and the answer."""
        return self.json(f"/edge/picture?ask=1&name={name}", picture)

    def labels(self) -> dict[str, int]:
        return labels_of(self.workspace)


@contextmanager
def running_app(workspace: Path, *options: object) -> Iterator[App]:
    port, log = free_port(), workspace.with_suffix(".log")
    with started("app", "--workspace", workspace, "--port", port, *options, log=log) as process:
        app = App(workspace, process, port, log)
        app.wait_until_ready()
        yield app


def labels_of(workspace: Path) -> dict[str, int]:
    """Live classes and how many labels each has, as the command says them."""
    return {row["name"]: row["labels"] for row in edge_json("classes", workspace, "list")}


def digits(digit: int) -> np.ndarray:
    """The pictures of a digit that scikit-learn brings along: uint8, grey, 8x8."""
    data = load_digits()
    return (data.images[data.target == digit] * 15.9).astype(np.uint8)


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def digit_folders(folder: Path, classes: int = 3, each: int = 15) -> Path:
    """A folder per class with so many pictures."""
    for digit in range(classes):
        (folder / f"digit {digit}").mkdir(parents=True)
        for number, image in enumerate(digits(digit)[:each]):
            (folder / f"digit {digit}" / f"{number:02}.png").write_bytes(png(image))
    return folder


def taught_workspace(folder: Path, **sizes: int) -> Path:
    """A workspace that has learned digits from folders, made by `learn`."""
    pictures = digit_folders(folder / "pictures", **sizes)
    edge("learn", "--workspace", folder / "workspace", "--source", pictures, "--labels", "folders", *QUICK)
    return folder / "workspace"


def old_workspace(folder: Path) -> Path:
    """A fresh copy of the workspace that an earlier version has made."""
    with tarfile.open(OLD_WORKSPACE) as archive:
        archive.extractall(folder, filter="data")
    return folder


# In the browser ---------------------------------------------------------------------------------------------------------

PAGE_PATIENCE = 40_000  # milliseconds
# In the place of the browser's camera a picture that a test draws; everything behind it is the page's own.
DRAWN_CAMERA = """
const canvas = Object.assign(document.createElement("canvas"), { width: 640, height: 480 });
const copy = Object.assign(document.createElement("canvas"), { width: 640, height: 480 }).getContext("2d", { willReadFrequently: true });
const pixels = (shown) => {
  copy.drawImage(shown, 0, 0, 640, 480);
  return copy.getImageData(0, 0, 640, 480).data.filter((value, place) => place % 97 === 0);
};
window.showPicture = async (url) => {
  const picture = Object.assign(new Image(), { src: url });
  await picture.decode();
  window.drawPicture = () => canvas.getContext("2d").drawImage(picture, 0, 0, 640, 480);
  window.drawPicture();
  // Until the page shows it, and not the picture before: a video is behind its camera. One that is hidden shows nothing.
  const wanted = pixels(canvas), begun = performance.now();
  const video = () => document.querySelector("#preview:not([hidden])");
  while (video() && pixels(video()).some((value, place) => Math.abs(value - wanted[place]) > 8)) {
    if (performance.now() - begun > 40000) throw new Error("the page does not show the picture that is before its camera");
    await new Promise((then) => setTimeout(then, 20));
  }
};
setInterval(() => window.drawPicture?.(), 40); // a stream of one still picture stands still
navigator.mediaDevices.getUserMedia = async () => (window.cameraOfTheTest = canvas.captureStream(25));
"""
expect.set_options(timeout=PAGE_PATIENCE)


@contextmanager
def chromium(film: Path | None = None, cameras: int = 0) -> Iterator[Browser]:
    """A real browser; with a film, its camera shows that, and pages may use it without asking, as they may several cameras."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)  # None: Playwright's own
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


def open_page(browser: Browser, app: App, tab: str = "Teach", **options: Any) -> Page:
    """The app's page, with a drawn camera, and one of its tabs open."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 850}, **options})
    context.add_init_script(DRAWN_CAMERA)
    page = context.new_page()
    page.set_default_timeout(PAGE_PATIENCE)
    page.goto(app.link)
    expect(page.locator("#strip")).to_contain_text("label")
    go_to(page, tab)
    return page


def go_to(page: Page, tab: str) -> None:
    expect(page.get_by_role("tab").filter(visible=True).first).to_be_visible()
    shown = page.get_by_role("tab").filter(has_text=tab).filter(visible=True)
    if shown.count():
        shown.first.click()
    else:  # on a phone the last tabs are behind a menu
        page.get_by_role("button", name="More tabs").click()
        page.locator(".overflow-dropdown button", has_text=tab).click()


def open_choices(page: Page) -> None:
    """Where pictures may come from: open already, if there is no source."""
    choices, change = page.locator("#choices"), page.locator("#source-change")
    expect(choices.or_(change).filter(visible=True).first).to_be_visible()
    if not choices.is_visible():
        change.click()


def use_camera(page: Page) -> None:
    open_choices(page)
    page.click("#source-browser")
    expect(page.locator("#preview")).to_be_visible()
    expect(page.locator("#source-state")).to_contain_text("browser camera")  # the server knows it, too


# The tabs, and what is to be seen there once they have been filled with what has been taught.
FILLED = {
    "Teach": ".class-card",
    "Review": "#review-grid .review-cell",
    "Accuracy": "#accuracy-confusion td.right",
    "Memory": "#memory-facts :text('MB')",
    "Classes": "#classes-table tbody tr",
    "Models": "#models-publish",
    "Benchmarks": "#benchmarks-start",
    "Settings": "#settings-save",
}
# Gradio fills a tab after it has been shown: until nothing has changed for a while, but no longer than the app's own polling may take.
STILL = """
async () => {
  const begun = performance.now();
  let changed = begun;
  const watching = new MutationObserver(() => { changed = performance.now(); });
  watching.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  while (performance.now() - changed < 400 && performance.now() - begun < 1500) await new Promise((then) => setTimeout(then, 50));
  watching.disconnect();
}
"""


def wait_until_filled(page: Page, content: str) -> None:
    """Until this content of the tab is there, and the tab stands still."""
    expect(page.locator(content).first).to_be_visible()
    page.evaluate(STILL)


# What is on the screen: a moment of the camera's picture, or the frame of another source.
SHOWN = "(document.querySelector('#preview:not([hidden])')?.currentTime || document.querySelector('#screen')?.dataset.shown)"


def next_frame(page: Page) -> None:
    page.wait_for_function(f"before => {SHOWN} && {SHOWN} !== before", arg=page.evaluate(SHOWN))


def make_class(page: Page, name: str) -> None:
    """Of a frame that has no label yet."""
    next_frame(page)
    page.keyboard.press("n")
    page.locator("#new-class-name").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text(f"{name} saved")
    expect(page.locator("#new-class")).to_be_hidden()


def tap(page: Page, key: str) -> None:
    """Press and let go within one moment, however slow the machine is: a key that is held down records a burst."""
    page.evaluate(
        "key => ['keydown', 'keyup'].forEach((type) => document.body.dispatchEvent(new KeyboardEvent(type, { key, bubbles: true })))",
        key,
    )


def hold_up(page: Page, image: np.ndarray) -> None:
    """Show a picture, blue first, to the page's camera."""
    data = base64.b64encode(cv2.imencode(".jpg", image)[1].tobytes()).decode()
    page.evaluate("showPicture", f"data:image/jpeg;base64,{data}")


def views(name: str, count: int, seed: int = 0) -> list[np.ndarray]:
    """A temple or a flower as a hand that is never still shows them to a camera, or a board of stripes."""
    rng = np.random.default_rng(seed)
    if name == "stripes":
        image = np.full((427, 640, 3), 230, np.uint8)
        image[:, ::20] = image[:, 1::20] = image[:, 2::20] = image[:, 3::20] = (200, 60, 20)
    else:
        image = load_sample_images().images[["temple", "flower"].index(name)][..., ::-1]
    places = rng.integers(0, 80, (count, 2))
    return [np.ascontiguousarray(image[top : top + 340, left : left + 540]) for top, left in places]


def zip_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()
