"""Devices: what one trainer serves, how long a label takes to them, what they install, and what they keep meanwhile.

Everything on 127.0.0.1, in bounded numbers. Times count only where nothing else runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
from tqdm import tqdm

from benchmarks.product import (
    QUICK_NETWORK,
    command,
    encoded,
    free_port,
    read_json,
    running,
    spread,
    until,
    write_noise,
)
from benchmarks.runner import ROOT, Facts
from edge_hpcr.stream import open_stream

DEVICES, P95_MS, MOST_SLOWDOWN, LABEL_SECONDS = 200, 100.0, 0.10, 15.0
LARGEST_MEGABYTES, AWAY_SECONDS = 400.0, 600
TOKEN = "a-token-for-the-benchmark"
OWN = {"Authorization": f"Bearer {TOKEN}"}
TIMEOUT = 30.0
THREADS, ROUNDS, SECONDS = 4, 8, 15
REPORT_SECONDS = 30  # as a device does by default


# The trainer ----------------------------------------------------------------------------------------------------------


class Trainer:
    """A real `learn` with the default network, and the server of its models."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.token = folder / "parts", folder / "token.txt"
        said = until(
            lambda: re.search(r"(?m)^serving .*:(\d+)$", (folder / "serve.log").read_text()), "the server"
        )
        self.port = int(said[1])
        self.address = f"http://127.0.0.1:{self.port}"

    def fresh_status(self) -> dict[str, Any]:
        """One that was made after now: the learner writes one about every second, between two steps."""
        now, file = time.time(), self.workspace / "status.json"
        return dict(until(lambda: (found := read_json(file)) and found["at"] > now and found, "a report"))

    def current(self) -> tuple[int, int]:
        """The version, and how many classes it knows; 0 and 0 before there is one."""
        exports = self.workspace / "exports"
        if (latest := read_json(exports / "latest.json")) is None:
            return 0, 0
        return latest["version"], len(read_json(exports / latest["folder"] / "manifest.json")["classes"])


@contextmanager
def training(folder: Path, *arguments: object) -> Iterator[Trainer]:
    (folder / "token.txt").write_text(TOKEN)
    where = ("--workspace", folder / "parts")
    publishing = (*where, "--publish-every", "5s", *arguments)
    with running("edge_hpcr", "learn", *publishing, log=folder / "learn.log"):
        until((folder / "parts" / "settings.json").exists, "the workspace")
        serving = (*where, "--port", 0, "--token", folder / "token.txt")
        with running("export", "serve", *serving, log=folder / "serve.log"):
            yield Trainer(folder)


def pictures(count: int) -> dict[str, list[np.ndarray]]:
    """So many of each of the workbench's parts."""
    found: dict[str, list[np.ndarray]] = {}
    with open_stream("workbench", "folders", fps=1000) as stream:
        while len(found) < 8 or min(map(len, found.values())) < count:
            frame = stream.read(1.0)
            if frame is not None and frame.label is not None:
                kept = found.setdefault(frame.label, [])
                if len(kept) < count:
                    kept.append(frame.image)
    return found


# Simulated devices ----------------------------------------------------------------------------------------------------


class Polling:
    """Devices that each ask for latest.json every second, and report as often as a real one.

    A few threads ask for all, because they share the processors with the trainer that is measured. An answer's time counts
    from when its device was to ask: a wait behind others is in it.
    """

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count
        self._known: dict[str, str] = {}  # what each device has, by the server's ETag
        self.answers: list[tuple[str, float]] = []  # status, or what went wrong, and seconds

    def run(self, seconds: int) -> None:
        begun = time.monotonic()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(partial(self._ask_for_some, begun, seconds), range(THREADS)))

    def _ask_for_some(self, begun: float, seconds: int, thread: int) -> None:
        for second in range(seconds):
            for number in range(thread, self._count, THREADS):
                device = f"sim-{number}"
                due = begun + second + number / self._count  # spread, as devices are
                time.sleep(max(0.0, due - time.monotonic()))
                known = {"If-None-Match": self._known[device]} if device in self._known else {}
                self._ask("GET", "/latest.json", due, **{"Device-Id": device, **known})
                if (second + number) % REPORT_SECONDS == 0:
                    self._ask("POST", f"/devices/{device}/report", time.monotonic(), report(device))

    def _ask(self, method: str, path: str, due: float, data: str = "", **headers: str) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)) as connection:
            try:
                connection.request(method, path, data or None, {**OWN, **headers})
                answer = connection.getresponse()
                answer.read()
                status = str(answer.status)
            except (OSError, HTTPException) as error:
                status = type(error).__name__
            else:
                if answer.status == 200 and (etag := answer.headers["ETag"]):
                    self._known[headers["Device-Id"]] = etag
        self.answers.append((status, time.monotonic() - due))


def report(name: str) -> str:
    counts = {"frames": 100, "unknown": 3, "unsure_waiting": 0, "unsure_dropped": 0}
    return json.dumps({"device": name, "version": 1, **counts, "problem": None})


# 200 devices ----------------------------------------------------------------------------------------------------------


def measure_polls(folder: Path) -> Facts:
    """The learner's steps per second with and without devices that ask, in turns."""
    learning = ("--set", "idle_share=1.0", "--set", "idle_steps=100000000")
    source = ("--source", "workbench", "--labels", "folders", "--fps", "2")
    rates: dict[bool, list[float]] = {True: [], False: []}
    with training(folder, *source, *learning) as trainer:
        until(lambda: trainer.current()[1], "a first version")
        polling = Polling(trainer.port, DEVICES)
        for number in tqdm(range(ROUNDS), "rounds", disable=None, leave=False):
            for asked in (True, False) if number % 2 else (False, True):
                before = trainer.fresh_status()
                if asked:
                    polling.run(SECONDS)
                else:
                    time.sleep(SECONDS)
                after = trainer.fresh_status()
                rates[asked].append((after["step"] - before["step"]) / (after["at"] - before["at"]))
    slowdown = 1 - float(np.median(np.array(rates[True]) / np.array(rates[False])))
    answer_ms = spread([1e3 * each for _, each in polling.answers])
    errors = Counter(status for status, _ in polling.answers if status not in ("200", "204", "304"))
    return {
        "devices": DEVICES,
        "requests": len(polling.answers),
        "requests_per_second": len(polling.answers) / (ROUNDS * SECONDS),
        "answer_ms": answer_ms,
        "errors": errors,
        "steps_per_second": {"asked": rates[True], "left_alone": rates[False]},
        "slowdown": slowdown,
        "rounds": ROUNDS,
        "seconds": SECONDS,
        "passed": answer_ms["p95"] < P95_MS and slowdown <= MOST_SLOWDOWN and not errors,
    }


# A label --------------------------------------------------------------------------------------------------------------


def measure_label(folder: Path) -> Facts:
    """From the label command to the new answer of a real runtime: new classes, one picture each, default policy."""
    shown = pictures(4)
    known, new = list(shown)[:2], list(shown)[2:7]
    inbox, frames, log = folder / "inbox", folder / "frames", folder / "device.log"
    frames.mkdir()
    for name in known:
        (inbox / name).mkdir(parents=True)
        for number, image in enumerate(shown[name]):
            cv2.imwrite(str(inbox / name / f"{number}.png"), image[..., ::-1])
    with training(folder, "--source", f"watch:{inbox}", "--labels", "folders") as trainer:
        until(lambda: trainer.current()[1] == 2, "two classes")
        models = ("--models", trainer.address, "--token", trainer.token)
        source = ("--source", f"watch:{frames}", "--cpu", "--threads", "1", "--top", "1")
        with running("export.runtime", *models, *source, log=log, XDG_CACHE_HOME=str(folder / "cache")):
            taken = [_label(trainer, log, frames, name, shown[name][0]) for name in tqdm(new, disable=None)]
    slowest = max(taken)
    return {"seconds": taken, "slowest": slowest, "passed": slowest < LABEL_SECONDS}


def _label(trainer: Trainer, log: Path, frames: Path, name: str, image: np.ndarray) -> float:
    """A device has sent this picture back; somebody labels it, while the device goes on seeing the same."""
    address = f"{trainer.address}/devices/bench/frames/{name.replace(' ', '-')}"
    httpx.post(address, content=encoded(image), headers={**OWN, "Reason": "unsure"}).raise_for_status()
    waiting = json.loads(command("edge_hpcr", "samples", trainer.workspace, "list", "--queue", "--json"))
    (sample,) = [row["id"] for row in waiting if row["origin"].startswith("device bench")]
    until(lambda: trainer.fresh_status()["phase"] == "idle", "a rest")

    def is_known() -> bool:
        _show(frames, image)
        time.sleep(0.5)
        return f'"name": "{name}"' in log.read_text()

    assert not is_known(), f"{name} is known before it was taught"
    begun = time.monotonic()
    command("edge_hpcr", "label", trainer.workspace, sample, name, "--create")
    until(is_known, f"{name} on the device")
    took = time.monotonic() - begun
    for left in frames.iterdir():
        left.unlink()
    return took


def _show(frames: Path, image: np.ndarray) -> None:
    """Another copy of the picture for the device, whole when it appears."""
    name = f"{time.monotonic_ns()}.png"
    temporary = frames.with_name(f"writing-{name}")
    cv2.imwrite(str(temporary), image[..., ::-1])
    shutil.move(temporary, frames / name)


# Without a trainer ----------------------------------------------------------------------------------------------------


def measure_installation(folder: Path) -> Facts:
    """A new .venv with the device's packages, as `make install-device` makes it, and what is in it."""
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-r", ROOT / "export" / "requirements.txt"], check=True)
    # As the disk counts them: whole blocks, links not followed.
    blocks = sum(
        (Path(where) / name).lstat().st_blocks for where, _, names in os.walk(place) for name in names
    )
    megabytes = blocks * 512 / 1e6
    return {"megabytes": round(megabytes, 1), "passed": megabytes < LARGEST_MEGABYTES}


def measure_away(folder: Path, seconds: int = AWAY_SECONDS) -> Facts:
    """A device whose trainer is away for so long: frames that it stored, and that the trainer has in the end."""
    workspace, token, port, served = folder / "workspace", folder / "token", free_port(), free_port()
    token.write_text(TOKEN)
    write_noise(folder / "pictures", 2, 5)
    learning = ("--source", folder / "pictures", "--labels", "folders", "--no-rehearsal", *QUICK_NETWORK)
    command("edge_hpcr", "learn", "--workspace", workspace, *learning, "--set", "queue_samples=10000")
    command("export", "--workspace", workspace, "--force")
    device = (
        *("--models", workspace / "exports", "--source", "workbench", "--http", port, "--token", token),
        *("--cache", folder / "cache", "--send-unsure", f"http://127.0.0.1:{served}"),
        *("--device-id", "measured", "--unsure-below", "1", "--cpu", "--threads", "1"),
    )
    with running("export.runtime", *device, log=folder / "log"):
        until(lambda: _health(port), "the device")
        time.sleep(seconds)
        stored = _health(port)
        where = ("--workspace", workspace, "--port", served, "--token", token)
        with running("export", "serve", *where, log=folder / "served"):
            until(lambda: not _health(port)["unsure_waiting"], "the last frame", 120 + seconds)
    rows = json.loads(command("edge_hpcr", "samples", workspace, "list", "--json"))
    came = [row["digest"] for row in rows if row["origin"].startswith("device measured")]
    facts = {
        "seconds_away": seconds,
        "stored": stored["unsure_waiting"],
        "reached_the_trainer": len(came),
        "twice": len(came) - len(set(came)),
        "dropped": stored["unsure_dropped"],
    }
    return {
        **facts,
        "passed": 0 < facts["stored"] <= len(came) and not facts["twice"] and not facts["dropped"],
    }


def _health(port: int) -> Facts:
    """What a device says of itself; nothing while it starts."""
    try:
        return dict(httpx.get(f"http://127.0.0.1:{port}/healthz", headers=OWN, timeout=20).json())
    except httpx.HTTPError:
        return {}
