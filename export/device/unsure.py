"""Frames that are worth a label, sent back to the trainer: those that are unknown or unsure.

A frame that passes the gate is on this device's disk before it counts as taken, and stays there until the trainer has
acknowledged it. Its id goes with it, so that the trainer knows one that it has already. What does not fit into the
bound on the disk is dropped and counted: what is stored stays.
"""

import contextlib
import json
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np

from edge_hpcr.common.files import WRITING, reason_of, sha256, write_atomically
from edge_hpcr.stream import Frame
from edge_hpcr.stream.gate import Gate, perceptual_hash
from export.device.errors import Unavailable
from export.device.health import Health
from export.device.http_client import Server
from export.device.model import Result

PART = "frames for the trainer"
LARGEST_SIDE = 1280  # pixels; every backbone looks at far less
JPEG_QUALITY = 92
DISTANCE = 6  # bits of the hash, as a workspace's gate has it
ROOM_AGAIN = 0.9  # of the bound: at its very edge it would be told with every frame
HANDED_OVER = 8  # frames that wait to be stored: the rate limit keeps them few
WAITS = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds until the next try
LONG_WAIT = 60.0  # when the trainer is full, or refuses this device
SEND_SECONDS = 60.0
_FILE = re.compile(r"(\d{9})-[0-9a-f]{16}\.frame")


@dataclass(frozen=True)
class Choice:
    """Which frames are sent, and how many."""

    below: float = 0.6  # the best class's confidence
    margin: float = 0.2  # its lead over the second
    per_minute: float = 30.0
    most_bytes: int = 50_000_000  # on this device's disk

    def reason(self, result: Result) -> str | None:
        """unknown, unsure, or None for a frame that is neither; `result` has the two best classes."""
        if result.unknown:
            return "unknown"
        best = result.top[0].confidence
        second = result.top[1].confidence if len(result.top) > 1 else 0.0
        return "unsure" if best < self.below or best - second < self.margin else None


class UnsureFrames:
    """Takes frames from the loop without making it wait; one thread stores them, another sends the oldest first."""

    def __init__(self, url: str, token: str | None, cache: Path, choice: Choice, health: Health) -> None:
        self._server = Server(url, token)
        self._choice = choice
        self._health = health
        self._folder = cache / "unsure" / sha256(f"{health.device} {self._server.url}".encode())[:16]
        self._gate = Gate(DISTANCE, sure=2.0, stable=1, per_second=choice.per_minute / 60)
        self._handed: queue.Queue[tuple[Frame, str, str] | None] = queue.Queue(HANDED_OVER)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._bytes = 0
        self._next = 1
        self._done: set[str] = set()  # sent, and still on a disk that lets nothing be removed
        self._look()
        for work, name in ((self._store_all, "storing"), (self._send_all, "sending")):
            threading.Thread(target=work, name=f"{name} unsure frames", daemon=True).start()

    def _look(self) -> None:
        """What an earlier start has left."""
        with contextlib.suppress(OSError):  # told when a frame is to be stored
            self._folder.mkdir(parents=True, exist_ok=True)
            for half in self._folder.glob(f"*{WRITING}"):
                half.unlink()
            for path in self._files():
                self._bytes += path.stat().st_size
                self._next = int(path.name[:9]) + 1
                self._health.unsure_waiting += 1

    def _files(self) -> list[Path]:
        """The stored frames, the oldest first: by their number, as a clock may be wrong."""
        names = (path for path in self._folder.iterdir() if _FILE.fullmatch(path.name))
        return sorted(path for path in names if path.name not in self._done)

    def offer(self, frame: Frame, result: Result) -> bool:
        """Take the frame if it is worth a label and no look-alike was taken; never waits."""
        reason = self._choice.reason(result)
        if (
            reason is None
            or self._gate.judge(perceptual_hash(frame.image), None, time.monotonic()) != "queue"
        ):
            return False
        try:
            self._handed.put_nowait((frame, reason, result.top[0].name))
        except queue.Full:
            self._gate.withdraw()
            self._health.unsure_dropped += 1
            return False
        return True

    def close(self) -> None:
        """Store what was handed over; the rest is sent after the next start."""
        with contextlib.suppress(queue.Full):
            self._handed.put(None, timeout=2.0)
        with self._changed:
            self._changed.wait_for(self._stop.is_set, 5.0)
        self._stop.set()

    # Storing ------------------------------------------------------------------------------------------------------

    def _store_all(self) -> None:
        while (handed := self._handed.get()) is not None:
            self._store(*handed)
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def _store(self, frame: Frame, reason: str, answer: str) -> None:
        head = {"at": round(frame.at, 3), "reason": reason, "answer": answer}
        data = json.dumps(head).encode() + b"\n" + encoded(frame.image)
        if self._bytes + len(data) > self._choice.most_bytes:
            self._drop(
                f"no more frames for the trainer are stored: {self._bytes:,} bytes wait (--unsure-disk)"
            )
            return
        path = self._folder / f"{self._next:09d}-{secrets.token_hex(8)}.frame"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            self._drop(f"frames for the trainer cannot be stored in {self._folder}: {reason_of(error)}")
            return
        if self._bytes < ROOM_AGAIN * self._choice.most_bytes:
            self._health.trouble(f"{PART}, disk", None, "frames for the trainer are stored again")
        with self._changed:
            self._next += 1
            self._bytes += len(data)
            self._health.unsure_waiting += 1
            self._changed.notify_all()

    def _drop(self, problem: str) -> None:
        self._health.unsure_dropped += 1
        # Its figures differ from frame to frame: told once, until a frame is stored again.
        if not self._health.has(f"{PART}, disk"):
            self._health.trouble(f"{PART}, disk", problem)

    # Sending ------------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        for path in self._oldest_first():
            failures = 0
            while not self._stop.is_set():
                wait = self._send(path)
                if wait is None:
                    break
                self._stop.wait(wait or WAITS[min(failures, len(WAITS) - 1)])
                failures += 1

    def _oldest_first(self) -> Iterator[Path]:
        while not self._stop.is_set():
            waiting: list[Path] = []
            with contextlib.suppress(OSError):
                waiting = self._files()
            if waiting:
                yield waiting[0]
                continue
            with self._changed:
                self._changed.wait(1.0)

    def _send(self, path: Path) -> float | None:
        """Seconds until the next try, 0 for the usual ones; None when this frame is done with."""
        try:
            line, _, picture = path.read_bytes().partition(b"\n")
            head = json.loads(line)
            headers = {
                "Content-Type": "image/jpeg",
                "Captured-At": str(head["at"]),
                "Reason": head["reason"],
                "Answer": quote(head["answer"], safe=""),
            }
        except (OSError, ValueError, KeyError, TypeError):
            self._forget(path)  # a disk that gives back something else than was written
            self._health.unsure_dropped += 1
            return None
        place = f"devices/{self._health.device}/frames/{path.stem}"
        try:
            status, retry = self._server.post(place, picture, headers, SEND_SECONDS)
        except Unavailable as error:
            self._health.trouble(PART, f"frames for the trainer wait: {error}")
            return LONG_WAIT if "token" in str(error) else 0.0
        return self._after(path, status, retry)

    def _after(self, path: Path, status: int, retry: str | None) -> float | None:
        if status in (200, 201):
            self._forget(path)
            self._health.unsure_sent += 1
            self._health.trouble(PART, None, "frames reach the trainer again")
            return None
        if status in (413, 415):
            self._forget(path)
            self._health.unsure_dropped += 1
            return None
        if status == 429:
            return min(max(float(retry), 1.0), 3600.0) if retry and retry.isdecimal() else LONG_WAIT
        why = {404: "it takes none", 405: "it takes none", 507: "it has no room for them"}
        self._health.trouble(PART, f"frames for the trainer wait: {why.get(status, f'it answers {status}')}")
        return LONG_WAIT if status in why else 0.0

    def _forget(self, path: Path) -> None:
        with self._changed:
            self._health.unsure_waiting -= 1
            try:
                size = path.stat().st_size
                path.unlink()
            except OSError:
                self._done.add(path.name)
            else:
                self._bytes -= size


def encoded(image: np.ndarray) -> bytes:
    """A JPEG; of this size and quality even noise stays below the 5 MB that the trainer takes."""
    side = max(image.shape[:2])
    if side > LARGEST_SIDE:
        height, width = (max(1, round(each * LARGEST_SIDE / side)) for each in image.shape[:2])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    picture = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
