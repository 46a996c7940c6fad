"""The product as a measurement meets it: commands and servers in processes of their own, asked over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np

from benchmarks.runner import ROOT

PATIENCE = 600.0
# A small learner from scratch that starts at once.
QUICK_NETWORK = (
    *("--set", "image_size=8", "--set", "backbone=reduced_resnet18"),
    *("--set", "threads=1", "--set", "idle_steps=0"),
)


def command(*arguments: object) -> str:
    """What `python -m ARGUMENTS…` prints."""
    parts = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(parts, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(parts[2:5])} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


@contextmanager
def running(*arguments: object, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m ARGUMENTS…` in the background; interrupted at the end, as by Ctrl-C."""
    with log.open("ab") as said:
        parts = [sys.executable, "-m", *map(str, arguments)]
        process = subprocess.Popen(parts, cwd=ROOT, stdout=said, stderr=said, env=os.environ | environment)
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(120)
        finally:
            process.kill()
            process.wait()


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)
    return found


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class App:
    """A running `python -m app`."""

    def __init__(self, workspace: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.workspace, self.process, self.port = workspace, process, port
        self.address = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self.address, timeout=60)

    @property
    def link(self) -> str:
        return f"{self.address}/?token={(self.workspace / 'token').read_text()}"

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the app has ended with {self.process.returncode}")
        with suppress(httpx.HTTPError):
            return self._client.get("/healthz").status_code == 200
        return False

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        token = (self.workspace / "token").read_text().strip()
        answer = self._client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **options)
        answer.raise_for_status()
        return answer

    def state(self) -> dict[str, Any]:
        return dict(self.ask("GET", "/edge/state").json())

    def act(self, do: str, **fields: object) -> dict[str, Any]:
        return dict(self.ask("POST", "/edge/act", json={"do": do, **fields}).json())

    def show(self, picture: bytes) -> dict[str, Any]:
        """Bring a picture, and ask what it is: its number and the answer."""
        return dict(self.ask("POST", "/edge/picture?ask=1", content=picture).json())


@contextmanager
def running_app(workspace: Path) -> Iterator[App]:
    port = free_port()
    where = ("--workspace", workspace, "--port", port)
    with running("app", *where, log=workspace.with_suffix(".log")) as process:
        app = App(workspace, process, port)
        until(app.is_ready, "the app")
        yield app


def encoded(image: np.ndarray, kind: str = ".jpg") -> bytes:
    """Of an RGB image."""
    return bytes(cv2.imencode(kind, image[..., ::-1])[1])


def write_noise(folder: Path, classes: int, each: int, seed: int = 0) -> None:
    """A folder per class with pictures of 8x8; no two are alike."""
    rng = np.random.default_rng(seed)
    for number in range(classes):
        place = folder / f"class {number}"
        place.mkdir(parents=True)
        for picture in range(each):
            (place / f"{picture}.png").write_bytes(encoded(rng.integers(0, 256, (8, 8, 3), np.uint8), ".png"))


def spread(values: list[float], digits: int = 1) -> dict[str, float]:
    found = dict(zip(("p50", "p95", "max"), np.percentile(values, [50, 95, 100]), strict=True))
    return {name: round(float(value), digits) for name, value in found.items()}


def read_json(path: Path) -> Any:
    """Of a file that another process may just be writing; None while it is not there."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None
