"""Frames that are worth a label, sent back to the trainer: those that are unknown or unsure.

A frame that passes the gate is on this device's disk, for its user alone, before it counts as taken, and stays there
until the trainer has acknowledged it. Its id goes with it, so that the trainer knows one that it has already. What does
not fit into the bound on the disk is dropped and counted: what is stored stays.
"""

import contextlib
import json
import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np

from edge_hpcr.common.files import WRITING, reason_of, sha256, write_atomically
from edge_hpcr.stream import Frame
from edge_hpcr.stream.gate import Gate, perceptual_hash
from export.device import Unavailable
from export.device.health import Health
from export.device.http_client import Server
from export.device.model import Result

PART, DISK = "frames for the trainer", "frames for the trainer, disk"
LARGEST_SIDE = 1280  # pixels; every backbone looks at far less
JPEG_QUALITY = 92
DISTANCE = 6  # bits of the hash, as a workspace's gate has it
WAIT = 10.0  # seconds until the next try
LONG_WAIT = 60.0  # when the trainer is full, or refuses this device
_FILE = re.compile(r"(\d{9})-[0-9a-f]{16}\.frame")


@dataclass(frozen=True)
class Choice:
    """Which frames are sent, and how many."""

    below: float = 0.6  # the best class's confidence
    per_minute: float = 30.0
    margin: float = 0.2  # its lead over the second
    most_bytes: int = 50_000_000  # on this device's disk

    def reason(self, result: Result) -> str | None:
        """unknown, unsure, or None for a frame that is neither; `result` has the two best classes."""
        if result.unknown:
            return "unknown"
        best = result.top[0].confidence
        second = result.top[1].confidence if len(result.top) > 1 else 0.0
        return "unsure" if best < self.below or best - second < self.margin else None


class UnsureFrames:
    """Stores frames as they come; a thread sends them, the oldest first."""

    def __init__(self, url: str, token: str | None, cache: Path, choice: Choice, health: Health) -> None:
        self._server = Server(url, token)
        self._choice = choice
        self._health = health
        self._folder = cache / "unsure" / sha256(f"{health.device} {self._server.url}".encode())[:16]
        self._gate = Gate(DISTANCE, sure=2.0, stable=1, per_second=choice.per_minute / 60)
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of the two counts
        self._bytes = 0
        self._next = 1
        with contextlib.suppress(OSError):  # told when a frame is to be stored
            for half in self._folder.glob(f"*{WRITING}"):
                half.unlink()
            for path in self._files():  # of an earlier start
                self._next = int(path.name[:9]) + 1
                self._count(1, path.stat().st_size)
        threading.Thread(target=self._send_all, name="sending unsure frames", daemon=True).start()

    def _files(self) -> list[Path]:
        """The stored frames, the oldest first: by their number, as a clock may be wrong."""
        return sorted(path for path in self._folder.iterdir() if _FILE.fullmatch(path.name))

    def _count(self, frames: int, size: int) -> None:
        with self._lock:
            self._health.unsure_waiting += frames
            self._bytes += size

    def offer(self, frame: Frame, result: Result) -> bool:
        """Store the frame if it is worth a label and no look-alike was taken."""
        reason = self._choice.reason(result)
        if reason is None:
            return False
        hash64 = perceptual_hash(frame.image)
        if self._gate.judge(hash64, None, time.monotonic()) != "queue":
            return False
        head = {"reason": reason, "answer": result.top[0].name}
        data = json.dumps(head).encode() + b"\n" + encoded(frame.image)
        problem = ""
        if self._bytes + len(data) > self._choice.most_bytes:
            problem = f"no more frames for the trainer are stored: {self._bytes:,} bytes wait"
        else:
            try:
                self._store(data)
                self._gate.admit(hash64)
            except OSError as error:
                problem = f"frames for the trainer cannot be stored in {self._folder}: {reason_of(error)}"
        if problem:
            self._health.unsure_dropped += 1
            # Its figures differ from frame to frame: told once, until the trainer has taken one.
            if not self._health.has(DISK):
                self._health.trouble(DISK, problem)
        return not problem

    def _store(self, data: bytes) -> None:
        path = self._folder / f"{self._next:09d}-{secrets.token_hex(8)}.frame"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        write_atomically(path, data, mode=0o600)  # it shows somebody's room
        self._next += 1
        self._count(1, len(data))
        self._changed.set()

    def close(self) -> None:
        """What waits is sent after the next start."""
        self._stop.set()
        self._changed.set()

    # Sending ------------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while not self._stop.is_set():
            self._changed.clear()
            waiting: list[Path] = []
            with contextlib.suppress(OSError):
                waiting = self._files()
            if not waiting:
                self._changed.wait()
            elif wait := self._send(waiting[0]):
                self._stop.wait(wait)

    def _send(self, path: Path) -> float:
        """Seconds until the next try; 0 when this frame is done with."""
        try:
            line, _, picture = path.read_bytes().partition(b"\n")
            head = json.loads(line)
            answer = quote(head["answer"], safe="")
            headers = {"Content-Type": "image/jpeg", "Reason": head["reason"], "Answer": answer}
        except (OSError, ValueError, KeyError, TypeError):
            self._health.unsure_dropped += 1
            return self._forget(path)  # a disk that gives back something else than was written
        place = f"devices/{self._health.device}/frames/{path.stem}"
        try:
            status = self._server.post(place, picture, headers)
        except Unavailable as error:
            self._health.trouble(PART, f"frames for the trainer wait: {error}")
            return LONG_WAIT if error.code == "token" else WAIT
        if status in (200, 201):
            self._health.trouble(PART, None, "frames reach the trainer again")
            self._health.trouble(DISK, None)
            return self._forget(path)
        if status in (413, 415):
            self._health.unsure_dropped += 1
            return self._forget(path)
        why = {404: "it takes none", 405: "it takes none", 507: "it has no room for them"}
        self._health.trouble(PART, f"frames for the trainer wait: {why.get(status, f'it answers {status}')}")
        return LONG_WAIT if status in why else WAIT

    def _forget(self, path: Path) -> float:
        """Remove it; a disk that lets nothing be removed makes the next try late."""
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError:
            return LONG_WAIT
        self._count(-1, -size)
        return 0.0


def encoded(image: np.ndarray) -> bytes:
    """A JPEG; of this size and quality even noise stays below the 5 MB that the trainer takes."""
    side = max(image.shape[:2])
    if side > LARGEST_SIDE:
        height, width = (max(1, round(each * LARGEST_SIDE / side)) for each in image.shape[:2])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    picture = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
