"""`python -m benchmarks.fleet`: what one trainer serves, and how long a label takes to a device; about ten minutes.

Everything on 127.0.0.1, in bounded numbers. Times count only where nothing else runs.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import httpx
import numpy as np
from tqdm import tqdm
from typer import Argument

from benchmarks.product import command, encoded, read_json, running, until
from benchmarks.runner import Facts, Out, run_parts
from edge_hpcr.commands import cli
from edge_hpcr.stream import open_stream

DEVICES, P95_MS, MOST_SLOWDOWN, LABEL_SECONDS = 200, 100.0, 0.10, 15.0
TOKEN = "a-token-for-the-benchmark"
PATIENCE = 600.0
TIMEOUT = 30.0
THREADS, ROUNDS, SECONDS = 4, 8, 15
REPORT_SECONDS = 30  # as a device does by default

commands = cli.new_commands()


@commands.command()
def fleet(
    part: Annotated[str, Argument(help="polls, label or all")] = "all",
    out: Out = Path("results/machine/fleet.json"),
) -> int:
    """200 devices that ask a trainer which learns, and the way of a label to a device."""
    parts = {"polls": measure_polls, "label": measure_label}
    return run_parts(part, parts, out)


# The trainer ----------------------------------------------------------------------------------------------------------


class Trainer:
    """A real `learn` with the default network, and the server of its models."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.workspace, self.token, self.process = folder / "parts", folder / "token.txt", process
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
        with running("export", "serve", *serving, log=folder / "serve.log") as process:
            yield Trainer(folder, process)


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


def request(path: str, method: str = "GET", data: bytes = b"", **headers: str) -> bytes:
    """With which a connection's first request is its last."""
    sent = {"Host": "trainer", "Authorization": f"Bearer {TOKEN}", "Connection": "close", **headers}
    if method == "POST":
        sent["Content-Length"] = str(len(data))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    return "\r\n".join(lines).encode() + data


class Polling:
    """Devices that each ask for latest.json every second, and report as often as a real one.

    A few threads with plain sockets ask for all, because they share the processors with the trainer that is measured:
    this costs them least. An answer's time counts from when its device was to ask: a wait behind others is in it.
    """

    def __init__(self, port: int, count: int) -> None:
        self._place = ("127.0.0.1", port)
        self._names = [f"sim-{number}" for number in range(count)]
        self._polls = {name: request("/latest.json", **{"Device-Id": name}) for name in self._names}
        self.answers: list[tuple[str, float]] = []  # status, or what went wrong, and seconds

    def run(self, seconds: int) -> None:
        begun = time.monotonic()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(partial(self._ask_for_some, begun, seconds), range(THREADS)))

    def _ask_for_some(self, begun: float, seconds: int, thread: int) -> None:
        for second in range(seconds):
            for number in range(thread, len(self._names), THREADS):
                device = self._names[number]
                due = begun + second + number / len(self._names)  # spread, as devices are
                time.sleep(max(0.0, due - time.monotonic()))
                self._poll(device, due)
                if (second + number) % REPORT_SECONDS == 0:
                    data = json.dumps(report(device)).encode()
                    asked = request(f"/devices/{device}/report", "POST", data)
                    self._answer(asked, time.monotonic())

    def _poll(self, device: str, due: float) -> None:
        head = self._answer(self._polls[device], due)
        if head.startswith(b"HTTP/1.1 200"):
            etag = re.search(r"(?im)^etag: (\S+)", head.decode("latin-1"))
            headers = {"Device-Id": device} | ({"If-None-Match": etag[1]} if etag else {})
            self._polls[device] = request("/latest.json", **headers)

    def _answer(self, asked: bytes, due: float) -> bytes:
        """The head of what the server says; nothing if it does not."""
        try:
            with socket.socket() as connection:
                connection.settimeout(TIMEOUT)
                connection.connect(self._place)
                connection.sendall(asked)
                said = connection.recv(65_536)
                status = said[9:12].decode()
        except OSError as error:
            said, status = b"", type(error).__name__
        self.answers.append((status, time.monotonic() - due))
        return said.partition(b"\r\n\r\n")[0]


def report(name: str) -> dict[str, Any]:
    counts = {"frames": 100, "unknown": 3, "unsure_waiting": 0, "unsure_dropped": 0}
    return {"device": name, "version": 1, **counts, "problem": None}


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
    took = 1e3 * np.array([each for _, each in polling.answers])
    p50, p95 = map(float, np.percentile(took, [50, 95]))
    errors = Counter(status for status, _ in polling.answers if status not in ("200", "204", "304"))
    return {
        "devices": DEVICES,
        "requests": len(took),
        "requests_per_second": len(took) / (ROUNDS * SECONDS),
        "answer_ms": {"p50": p50, "p95": p95, "max": float(max(took))},
        "errors": errors,
        "steps_per_second": {"asked": rates[True], "left_alone": rates[False]},
        "slowdown": slowdown,
        "rounds": ROUNDS,
        "seconds": SECONDS,
        "passed": p95 < P95_MS and slowdown <= MOST_SLOWDOWN and not errors,
        "said": [
            f"{DEVICES} devices: p50 {p50:.1f} ms, p95 {p95:.1f} ms, errors {errors or 'none'}",
            f"learning slowed by {slowdown:.1%} (median of {ROUNDS} rounds of {SECONDS} s)",
        ],
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
    said = [f"{name}: after {took:.1f} s" for name, took in zip(new, taken, strict=True)]
    return {"seconds": taken, "slowest": slowest, "passed": slowest < LABEL_SECONDS, "said": said}


def _label(trainer: Trainer, log: Path, frames: Path, name: str, image: np.ndarray) -> float:
    """A device has sent this picture back; somebody labels it, while the device goes on seeing the same."""
    address = f"{trainer.address}/devices/bench/frames/{name.replace(' ', '-')}"
    headers = {"Authorization": f"Bearer {TOKEN}", "Reason": "unsure"}
    httpx.post(address, content=encoded(image), headers=headers).raise_for_status()
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


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.fleet"))
