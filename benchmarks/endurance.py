"""A long life: restarts with years of labels, thousands of classes, and hours of use."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.product import PATIENCE, App, encoded, read_json, running_app, spread, until
from benchmarks.runner import Facts
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.workspace import Workspace

PAGE_SECONDS, EVENT_MS, SAVED_MS, LARGEST_GROWTH = 10.0, 2.0, 250.0, 0.02
START_MB, WARM_SECONDS = 1000, 600


def measure_restart(folder: Path, labels: int = 100_000, starts: int = 3) -> Facts:
    """Years of labels on the default network: the page without a checkpoint, the learning that catches up behind it, and
    the page with a checkpoint.
    """
    workspace = folder / "workspace"
    write_years(workspace, labels)
    frame = encoded(np.zeros((480, 640, 3), np.uint8))
    begun, usable, worked = time.monotonic(), [], []
    with running_app(workspace) as app:
        usable.append(use(app, frame) - begun)
        waiting, process = app.state()["waiting"], psutil.Process(app.process.pid)
        before, events = sum(process.cpu_times()[:2]), learned_events(workspace)
        worked.append(before)
        until(
            lambda: read_json(workspace / "status.json")["events_waiting"] == 0, "the learner", 3 * PATIENCE
        )
        spent, events = sum(process.cpu_times()[:2]) - before, learned_events(workspace) - events
        caught_up = time.monotonic() - begun
    for _ in range(starts):
        begun = time.monotonic()
        with running_app(workspace) as app:
            usable.append(use(app, frame) - begun)
            worked.append(sum(psutil.Process(app.process.pid).cpu_times()[:2]))
    per_event = 1000 * spent / events
    return {
        "labels": labels,
        "without_checkpoint": {
            "usable_seconds": round(usable[0], 2),
            "usable_processor_seconds": round(worked[0], 2),
            "waiting_then": waiting,
            "caught_up_seconds": round(caught_up, 1),
            "processor_ms_per_event": round(per_event, 3),
            "events": events,
        },
        "with_checkpoint": {
            "usable_seconds": [round(each, 2) for each in usable[1:]],
            "usable_processor_seconds": [round(each, 2) for each in worked[1:]],
        },
        "passed": max(usable) <= PAGE_SECONDS and per_event <= EVENT_MS,
    }


def use(app: App, frame: bytes) -> float:
    """Open the page, show a picture and name it; returns when that was saved."""
    app.ask("GET", "/")
    shown = app.show(frame)
    name = app.state()["classes"][0]["id"]
    app.act("label", frames=[shown["number"]], **{"class": name})
    return time.monotonic()


def learned_events(workspace: Path) -> int:
    return int(read_json(workspace / "status.json")["applied"])


def measure_classes(folder: Path, classes: int = 5000, labels: int = 200) -> Facts:
    """Labels among thousands of classes, from the page's request to its answer, while the learner catches up."""
    workspace = folder / "workspace"
    write_years(workspace, 4 * classes, classes, memory_bytes=40_000 * classes)
    times, frame = [], encoded(np.zeros((480, 640, 3), np.uint8))
    with running_app(workspace) as app:
        process, now = psutil.Process(app.process.pid), app.state()
        ids = [row["id"] for row in now["classes"]]
        for number in range(labels):
            shown, begun = app.show(frame), time.monotonic()
            fields = {"do": "label", "class": ids[number], "frames": [shown["number"]]}
            answer = app.ask("POST", "/edge/act", params={"since": now["version"]}, json=fields)
            times.append(1000 * (time.monotonic() - begun))
            now = answer.json()["state"]
            time.sleep(0.1)
        resident = process.memory_info().rss / 1e6
    saved = spread(times)
    facts = {"classes": classes, "labels": labels, "saved_ms": saved, "still_waiting": now["waiting"]}
    return {**facts, "resident_mb": round(resident), "passed": saved["p95"] < SAVED_MS}


def write_years(path: Path, labels: int, classes: int = 100, **settings: object) -> None:
    """A workspace with so many labels and the latents of their samples, made up; the pictures themselves are gone."""
    rng = np.random.default_rng(0)
    with Workspace.open(path) as workspace:
        # A tenth of the room on the disk is for latents.
        workspace.change_settings(disk_bytes=200_000 * labels, **settings)
        live, journal = LiveLearner(workspace), workspace.journal
        trunk, kept = live.learner.network.backbone.trunk, live.predictor.encoder.stored
        assert trunk is not None and kept is not None
        ids = [journal.create_class(f"class {number}") for number in range(classes)]
        centres = rng.standard_normal((100, *trunk.latent_shape), np.float32)
        noise = rng.standard_normal((200, *trunk.latent_shape), np.float32)
        for first in range(0, labels, 1000):
            samples = journal.reserve_ids(min(1000, labels - first))
            rows = [
                SampleRow(i, f"{i % 100:02}/{i:06}.png", f"{i:064x}", 40_000, "camera 0", hash64=int(code))
                for i, code in zip(samples, rng.integers(1, 2**63, len(samples)), strict=True)
            ]
            chosen = rng.integers(classes, size=len(samples)).tolist()
            with journal.transaction():
                journal.add_samples(rows)
                for sample, number in zip(samples, chosen, strict=True):
                    journal.label([sample], ids[number])
            for sample, number in zip(samples, chosen, strict=True):
                kept.keep(sample, centres[number % 100] + noise[sample % len(noise)])
        kept.close()


def measure_soak(folder: Path, seconds: int = 3600) -> Facts:
    """A day's work on the default network: labels, undo, imports, publications, and pages that are opened and ask.

    What the app holds in memory is looked at all the time, and compared with what it held after ten minutes.
    """
    workspace, resident, rng = folder / "workspace", list[tuple[float, float]](), np.random.default_rng(0)
    with Workspace.open(workspace) as made:
        made.change_settings(publish_steps=100, disk_bytes=50_000_000)
    with running_app(workspace) as app:
        process, begun, labels, imported = psutil.Process(app.process.pid), time.monotonic(), 0, 0
        ids = [app.act("new_class", name=f"class {number}")["class_id"] for number in range(5)]
        version = ""
        while (now := time.monotonic() - begun) < seconds:
            resident.append((now, process.memory_info().rss / 1e6))
            chosen = int(rng.integers(5))
            shown = app.show(drawn(chosen, rng))
            app.act("label", frames=[shown["number"]], **{"class": ids[chosen]})
            labels += 1
            if labels % 10 == 0:
                app.act("undo")
                app.act("redo")
            if labels % 50 == 0:
                app.ask("GET", "/")
                files = [
                    ("files", (f"class {each}/{labels}.jpg", drawn(each, rng), "image/jpeg"))
                    for each in range(5)
                ]
                number = app.ask("POST", "/edge/import", files=files).json()["state"]["import"]["number"]
                until(partial(import_is, app, "asking"), "the pictures to be looked at")
                app.act("take_import", number=number)
                until(partial(import_is, app, "done"), "the import")
                imported += 1
            for _ in range(4):
                version = app.ask("GET", "/edge/state", params={"since": version}).json()["version"]
                time.sleep(0.1)
        state = app.state()
    after = [size for at, size in resident if at >= WARM_SECONDS] or [resident[-1][1]]
    growth = max(after) / after[0] - 1
    return {
        "seconds": seconds,
        "labels": labels,
        "imports": imported,
        "versions": state["model"],
        "memory_bytes": state["memory"]["used"],
        "resident_mb": {
            "start": round(resident[0][1]),
            "after_ten_minutes": round(after[0]),
            "most_later": round(max(after)),
            "every_minute": [round(size) for size in {int(at // 60): size for at, size in resident}.values()],
        },
        "growth": round(growth, 4),
        "passed": resident[0][1] < START_MB and growth < LARGEST_GROWTH,
    }


def drawn(number: int, rng: np.random.Generator) -> bytes:
    """A picture of a class that is like no other."""
    coarse = np.random.default_rng(number).integers(0, 200, (6, 8, 3), np.uint8)
    image = np.kron(coarse, np.ones((60, 60, 1), np.uint8)) + rng.integers(0, 40, (360, 480, 3), np.uint8)
    return encoded(np.roll(image, rng.integers(480, size=2), (0, 1)))


def import_is(app: App, phase: str) -> bool:
    return bool(app.state()["import"]["phase"] == phase)
