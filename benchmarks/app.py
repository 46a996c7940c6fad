"""`PYTHONPATH=tests python -m benchmarks.app`: the app in a real browser; takes about a quarter of an hour."""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import psutil
from browser_parts import DRAWN_CAMERA, App, chromium, open_page, running_alone, show_picture, started_app
from playwright.sync_api import Page, expect
from typer import Argument, Option

from benchmarks.runner import QUICK_HELP, Facts, run_parts
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.workbench import STAY, Film
from edge_hpcr.workspace.folder import Taken, Workspace

PAGE_SECONDS, ACKNOWLEDGED_MS, LEARNED_SECONDS, LARGEST_GROWTH = 5.0, 150.0, 2.0, 0.10
FIRST_MINUTE_SECONDS, PREVIEW_PER_SECOND = 60.0, 12.0
MANY_CLASSES, LARGEST_STATE = 2000, 20_000  # bytes
MANY_SETTINGS = {
    "backbone": "reduced_resnet18",
    "image_size": 32,
    "memory_bytes": 40_000_000,
    "idle_steps": 20,
}

# Presses a key, then waits for the message of this very label; both moments by the page's own clock.
PRESS = """async ([key, name]) => {
  const message = document.getElementById("message");
  message.textContent = "";
  const pressed = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  while (!message.textContent.startsWith("✓ " + name) && performance.now() - pressed < 20000) await new Promise(requestAnimationFrame);
  const saved = performance.now() - pressed;
  const lesson = document.getElementById("lesson");
  while (!/ in [0-9.]+ s/.test(lesson.textContent) && performance.now() - pressed < 20000) await new Promise(requestAnimationFrame);
  return [saved, performance.now() - pressed, message.textContent];
}"""
TICKS = """async (count) => {
  for (let number = 0; number < count; number++) {
    const answer = await fetch("/edge/state");
    if (!answer.ok) throw new Error("the state: " + answer.status);
    await answer.json();
  }
}"""
# A new picture from the browser's camera, seen by the learner, and then labelled; as often as asked.
LABELS = """async (count) => {
  const state = async () => (await fetch("/edge/state")).json();
  const canvas = Object.assign(document.createElement("canvas"), {width: 320, height: 240});
  const draw = canvas.getContext("2d");
  for (let number = 0; number < count; number++) {
    for (let stroke = 0; stroke < 40; stroke++) {
      draw.fillStyle = `hsl(${Math.random() * 360} 80% ${number % 2 ? 30 : 70}%)`;
      draw.fillRect(Math.random() * 320, Math.random() * 240, number % 2 ? 80 : 8, number % 2 ? 8 : 80);
    }
    const before = (await state()).frame?.number;
    const picture = await new Promise((done) => canvas.toBlob(done, "image/jpeg"));
    await fetch("/edge/camera", {method: "POST", body: picture});
    let now = await state();
    while (now.frame?.number === before) now = await state();
    const request = {do: "label", class: now.classes[number % 2].id, frames: [now.frame.number]};
    const answer = await fetch("/edge/act", {method: "POST", body: JSON.stringify(request)});
    if (!answer.ok) throw new Error("a label: " + await answer.text());
  }
}"""


commands = cli.new_commands()


@commands.command()
def app(
    part: Annotated[str, Argument(help="first_page, first_minute, use, many_classes or all")] = "all",
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/app.json"),
) -> int:
    """How soon the app's page is there, how soon a label is saved and learned, and what a day costs."""
    measures = {
        "first_page": measure_start,
        "first_minute": measure_first_minute,
        "use": measure_use,
        "many_classes": measure_many_classes,
    }
    return run_parts(part, {name: partial(each, quick=quick) for name, each in measures.items()}, out)


def measure_start(folder: Path, quick: bool) -> Facts:
    """From the command to the first page, on which the source can be chosen, and to the page on which things can be named;
    in a browser that is open, with a new workspace."""
    first, ready, whole = [], [], []
    with chromium(windows=True) as browser:
        for number in range(1 if quick else 10):
            begun = time.monotonic()
            with started_app(folder / f"start-{number}") as app:
                page = browser.new_page()
                app.wait_until_open()
                page.goto(app.link)
                expect(page.locator("#choices")).to_be_visible()
                first.append(round(time.monotonic() - begun, 2))
                app.wait_until_ready()
                ready.append(round(time.monotonic() - begun, 2))
                expect(page.get_by_role("tab", name="Review")).to_be_visible()
                expect(page.locator("#choices")).to_be_visible()
                whole.append(round(time.monotonic() - begun, 2))
                page.close()
    return {
        "first_page_seconds": first,
        "healthz_seconds": ready,
        "seconds": whole,
        "quick": quick,
        "passed": float(np.median(first)) < PAGE_SECONDS,
    }


def measure_first_minute(folder: Path, quick: bool) -> Facts:
    """The time of a page from its opening to three things, three labels each, that are right in poses never shown; and how
    many pictures of the camera it shows in a second meanwhile."""
    film, seconds, pictures = Film(seed=7), [], []
    with chromium(windows=True) as browser, running_alone(folder / "workspace") as app:
        context = browser.new_context(viewport={"width": 1200, "height": 850})
        context.add_init_script(DRAWN_CAMERA)
        page = context.new_page()
        page.goto(app.link)
        begun = time.monotonic()
        expect(page.locator("#choices")).to_be_visible()
        page.click("#source-browser")
        expect(page.locator("#preview")).to_be_visible()
        for visit in range(3):
            for place, moment in enumerate((8, 20, 32)):
                show_picture(page, film.frame(visit * STAY + moment))
                name = film.shows(visit * STAY)
                if place == 0:
                    teach(page, name)
                else:
                    page.evaluate(PRESS, [str(visit + 1), name])
        for visit in range(3):
            show_picture(page, film.frame(visit * STAY + 14))
            expect(page.locator("#answer .teach-name")).to_have_text(film.shows(visit * STAY))
        seconds.append(round(time.monotonic() - begun, 1))
        for _ in range(1 if quick else 5):
            before = int(page.locator("#screen").get_attribute("data-shown") or 0)
            page.wait_for_timeout(4000)
            pictures.append((int(page.locator("#screen").get_attribute("data-shown") or 0) - before) / 4)
    passed = seconds[0] < FIRST_MINUTE_SECONDS and float(np.median(pictures)) >= PREVIEW_PER_SECOND
    return {"seconds": seconds[0], "preview_per_second": pictures, "quick": quick, "passed": passed}


def measure_use(folder: Path, quick: bool) -> Facts:
    presses, ticks, labels = (20, 400, 40) if quick else (200, 20_000, 2_000)
    with chromium(windows=True) as browser, running_alone(folder / "workspace", source="workbench:1") as app:
        page = open_page(browser, app)
        expect(page.locator("#frame")).to_be_visible()
        parts = {"labels": measure_labels(page, presses), "day": measure_day(page, app, ticks, labels)}
    return {**parts, "quick": quick, "passed": all(part["passed"] for part in parts.values())}


def measure_many_classes(folder: Path, quick: bool) -> Facts:
    """Labels among thousands of classes, while the learner learns the first label of each, and what a page is sent."""
    count, labels = (200, 10) if quick else (MANY_CLASSES, 60)
    _fill(folder / "workspace", [f"part {number:04}" for number in range(count)])
    times, sizes = [], []
    with (
        running_alone(folder / "workspace") as app,
        httpx.Client(
            base_url=app.address, headers={"Authorization": f"Bearer {app.token}"}, timeout=60
        ) as page,
    ):
        first = page.get("/edge/state")
        now, ids = first.json(), [row["id"] for row in first.json()["classes"]]
        for number in range(labels):
            while (now := _ask(page, now, sizes))["frame"] is None:
                time.sleep(0.05)
            action = {"do": "label", "class": ids[number % count], "frames": [now["frame"]["number"]]}
            begun = time.perf_counter()
            answer = page.post("/edge/act", params={"since": now["version"]}, json=action)
            times.append(1e3 * (time.perf_counter() - begun))
            if answer.status_code != 200:
                raise UserError(f"a label was not saved: {answer.text}")
            now = answer.json()["state"]
            sizes.append(len(answer.content))
            time.sleep(0.1)
    saved, largest = _spread(times, 1), max(sizes)
    return {
        **{"classes": count, "labels": labels, "saved_ms": saved, "first_state_bytes": len(first.content)},
        **{"largest_later_state_bytes": largest, "settings": MANY_SETTINGS, "quick": quick},
        "passed": saved["p95"] < ACKNOWLEDGED_MS and largest < LARGEST_STATE,
    }


def _ask(page: httpx.Client, now: Facts, sizes: list[int]) -> Facts:
    answer = page.get("/edge/state", params={"since": now["version"]})
    sizes.append(len(answer.content))
    return dict(answer.json())


def _fill(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    with Workspace.open(folder) as workspace:
        workspace.change_settings(**MANY_SETTINGS, source="workbench:1")
        images = rng.integers(0, 256, (len(names), 32, 32, 3), np.uint8)
        ids = workspace.take_many([Taken(image, "noise") for image in images])
        journal = workspace.journal
        with journal.transaction():
            for sample_id, name in zip(ids, names, strict=True):
                journal.label([sample_id], journal.class_named(name))


def teach(page: Page, name: str) -> None:
    page.keyboard.press("n")
    page.locator("#new-class-name").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text(f"{name} saved")
    expect(page.locator("#new-class")).to_be_hidden()


def measure_labels(page: Page, count: int) -> Facts:
    """Key presses while the learner runs flat out: after the first label there is always something to rehearse."""
    names = ["odd", "even"]
    for name in names:
        teach(page, name)
    facts = press_labels(page, names, count)
    soon = facts["learned_seconds"]["p95"] < LEARNED_SECONDS
    return {**facts, "passed": soon and facts["saved_ms"]["p95"] < ACKNOWLEDGED_MS}


def press_labels(page: Page, names: list[str], count: int) -> Facts:
    """Label as the first and the second class in turn."""
    saved, learned, busy = [], [], 0
    for number in range(count):
        busy += page.evaluate("document.getElementById('strip').textContent.includes('idle')") is False
        until_saved, until_learned, message = page.evaluate(PRESS, ["12"[number % 2], names[number % 2]])
        if not message.startswith("✓"):
            raise UserError(f"a label was not saved: {message}")
        saved.append(until_saved)
        learned.append(until_learned / 1000)
        page.wait_for_timeout(150)
    times = {"saved_ms": _spread(saved, 1), "learned_seconds": _spread(learned, 2)}
    return {"presses": count, "learner_busy": busy, **times}


def _spread(values: list[float], digits: int) -> dict[str, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return {
        name: round(float(each), digits) for name, each in (("p50", p50), ("p95", p95), ("max", max(values)))
    }


def measure_day(page: Page, app: App, ticks: int, labels: int) -> Facts:
    """Eight hours of a page, faster: its questions for the state, new pictures with labels, tabs that tick by themselves."""
    process = psutil.Process(app.process.pid)
    sizes, looks = [], 20
    page.evaluate(
        "fetch('/edge/act', {method: 'POST', body: JSON.stringify({do: 'source', source: 'browser'})})"
    )
    for look in range(looks):
        page.evaluate(TICKS, ticks // looks)
        page.evaluate(LABELS, labels // looks)
        for tab in ("Accuracy", "Memory", "Models", "Benchmarks", "Teach"):  # whose own timers tick meanwhile
            page.get_by_role("tab").filter(has_text=tab).first.click()
            page.wait_for_timeout(2500)
        sizes.append((process.memory_info().rss, temporary_bytes(app.process.pid)))
        print(f"day: {look + 1} of {looks}, {sizes[-1][0] / 1e6:.0f} MB resident", flush=True)
    resident = [size for size, _ in sizes]
    warm = resident[looks // 4]
    growth = max(resident[looks // 4 :]) / warm - 1
    return {
        "ticks": ticks,
        "labels": labels,
        "resident_mb": [round(size / 1e6, 1) for size in resident],
        "growth_after_first_quarter": round(growth, 4),
        "temporary_bytes": [held for _, held in sizes],
        "passed": growth < LARGEST_GROWTH and max(held for _, held in sizes) < 1_000_000,
    }


def temporary_bytes(pid: int) -> int:
    files = Path(tempfile.gettempdir()).glob(f"edge-hpcr-page-{pid}-*/**/*")
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.app"))
