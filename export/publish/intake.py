"""Frames that devices send back because they are unknown or unsure: checked, and put into the workspace's queue.

Any process may do this, beside the one that learns. A flood is held off: by rates, and by a share of the queue that
devices' frames may fill, so that they cannot push out everything else.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from edge_hpcr.common.files import sha256
from edge_hpcr.live.saving import is_disk_full, make_room
from edge_hpcr.stream.decode import BadImage, decode_image
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.devices import ID, PLAUSIBLE_SECONDS
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.label_queue import UNKNOWN
from edge_hpcr.workspace.sample_files import shrink
from edge_hpcr.workspace.settings import Settings

LARGEST_FRAME = 5_000_000  # bytes, as it is sent
DEVICE_RATE, DEVICE_BURST = 2.0, 20  # frames a second of one device, and how many at once
RATE, BURST = 20.0, 100  # of all devices together
QUEUE_SHARE, DEVICE_QUEUE_SHARE = 0.5, 0.25  # of the queue that may be frames of devices, and of one device
AT_ONCE = 16  # frames on their way in: each is in memory
DECODED_AT_ONCE = 2  # pictures: others want the processor too
MOST_BUCKETS = 10_000
# A device does not say how unsure it was: as unsure as can be, until the learner has looked by itself.
PRIORITIES = {"unknown": UNKNOWN, "unsure": 1.0}
AHEAD_SECONDS = 300.0  # that the clock of a device may be, to be believed
_ORIGIN = re.compile(rf"(device {ID.pattern}), (?:{'|'.join(PRIORITIES)})\b.*", re.DOTALL)


class TooMany(Exception):
    """Frames come too fast."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many frames: try again in {seconds:.0f} s")
        self.seconds = seconds  # until there is room again


class Full(Exception):
    """There is no room for frames of devices now."""


class Bucket:
    """So many a second on average, and `burst` at once."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), now

    def wait(self, now: float) -> float:
        """Seconds until the next may come; 0 if it may come now."""
        self._left = min(float(self._burst), self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._left) / self._rate)

    def take(self) -> None:
        self._left -= 1

    @property
    def is_full(self) -> bool:
        return self._left >= self._burst


class Rates:
    """How fast frames may come, of each device and of all together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all = Bucket(RATE, BURST, clock())
        self._devices: dict[str, Bucket] = {}

    def check(self, device: str) -> None:
        """Count a frame of this device, or raise `TooMany`."""
        with self._lock:
            now = self._clock()
            own = self._devices.get(device)
            if own is None:
                self._forget(now)
                own = self._devices[device] = Bucket(DEVICE_RATE, DEVICE_BURST, now)
            if seconds := max(own.wait(now), self._all.wait(now)):
                raise TooMany(seconds)
            own.take()
            self._all.take()

    def _forget(self, now: float) -> None:
        """Devices that have sent nothing for a while are as new ones; of too many, all are."""
        if len(self._devices) >= MOST_BUCKETS:
            for bucket in self._devices.values():
                bucket.wait(now)
            self._devices = {name: each for name, each in self._devices.items() if not each.is_full}
        if len(self._devices) >= MOST_BUCKETS:
            self._devices.clear()


def origin_of(device: str) -> str:
    """Where a sample is from, as Review and `samples list` show it."""
    return f"device {device}"


def sender_in(origin: str) -> str | None:
    """The device that a sample is from, without what it said of the frame; None if it is from elsewhere.

    >>> sender_in("device cam-1, unsure at 2026-11-17 09:30:00 UTC: mug/cup"), sender_in("camera 0")
    ('device cam-1', None)
    """
    match = _ORIGIN.fullmatch(origin)
    return match[1] if match else None


def when_captured(at: float | None, now: float) -> str:
    """In words; nothing if the device does not say, or has a clock that cannot be right.

    >>> when_captured(1_700_000_000.0, 1_700_000_060.0), when_captured(12.5, 1_700_000_060.0)
    (' at 2023-11-14 22:13:20 UTC', '')
    """
    if at is None or not now - PLAUSIBLE_SECONDS <= at <= now + AHEAD_SECONDS:
        return ""
    return f" at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


class Intake:
    """Puts frames of devices into a workspace's queue. Thread-safe."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace
        self._rates = Rates()
        self._arriving = threading.BoundedSemaphore(AT_ONCE)
        self._decoding = threading.Semaphore(DECODED_AT_ONCE)
        self._lock = threading.Lock()  # of the workspace
        self._workspace: Workspace | None = None
        self._journal_file: tuple[int, int] | None = None

    @contextmanager
    def admitted(self, device: str) -> Iterator[None]:
        """While a frame of this device is received and taken; `TooMany` if it may not come now."""
        self._rates.check(device)
        if not self._arriving.acquire(blocking=False):
            raise TooMany(1)
        try:
            yield
        finally:
            self._arriving.release()

    def take(
        self, device: str, frame: str, data: bytes, reason: str, answer: str, captured: float | None = None
    ) -> bool:
        """Queue a frame; False if it is there already. `BadImage`, `Full` or another `UserError` say why not.

        `captured` is Unix time by the device's clock.
        """
        digest = sha256(f"{origin_of(device)}/{frame}".encode())
        with self._lock:
            workspace = self._open()
            if workspace.journal.known_source(digest) is not None:
                return False
            self._check_room(workspace, device)
        image = self._decode(data, f"frame {frame} of {device}")
        hash64 = perceptual_hash(image)
        when = when_captured(captured, time.time())
        origin = f"{origin_of(device)}, {reason}{when}" + (f": {answer}" if answer else "")
        with self._lock:
            workspace = self._open()
            make_room(workspace)
            workspace.take(image, origin, digest, hash64, PRIORITIES[reason])
        return True

    def _decode(self, data: bytes, name: str) -> np.ndarray:
        if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
            raise BadImage(f"{name} is neither a JPEG nor a PNG")
        with self._decoding:
            return shrink(decode_image(data, name))

    def _check_room(self, workspace: Workspace, device: str) -> None:
        journal, settings = workspace.journal, workspace.settings
        if is_disk_full(settings, journal.counts().image_bytes):
            raise Full("the disk budget of the workspace is full: raise disk_bytes or delete samples")
        # With the comma: cam-1 is not cam-10.
        for whose, origin, share in (
            ("devices", origin_of(""), QUEUE_SHARE),
            (device, f"{origin_of(device)},", DEVICE_QUEUE_SHARE),
        ):
            count, size = journal.queued_from(origin)
            if count >= max(1, share * settings.queue_samples) or size >= share * settings.queue_bytes:
                raise Full(f"{share:.0%} of the queue are frames of {whose}: label or dismiss some of them")

    def _open(self) -> Workspace:
        """The workspace, opened again when its journal has been replaced, and with the settings of now."""
        if self._workspace is None or self._journal_file != self._journal_now():
            self._close()
            self._workspace = Workspace.open(self._path, create=False, learning=False)
            self._journal_file = self._journal_now()
        self._workspace.settings = Settings.load(self._workspace.layout.settings)
        return self._workspace

    def _journal_now(self) -> tuple[int, int] | None:
        try:
            state = (self._path / "journal.sqlite").stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino

    def _close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()
        self._workspace = None

    def close(self) -> None:
        with self._lock:
            self._close()
