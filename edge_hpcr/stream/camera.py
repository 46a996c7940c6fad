"""Cameras at this computer or in the network, reopened as often as it takes.

A reader thread calls OpenCV, which may hang for minutes and cannot be interrupted. The keeper thread never does: it
starts a reader, watches it, abandons it when no frame comes, waits, and starts the next one. What an abandoned reader
delivers later is ignored, because it is no longer the camera's current attempt.
"""

import atexit
import os
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import cv2

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import shown_address
from edge_hpcr.stream.captures import (
    Capture,
    is_image,
    open_camera,
    open_ffmpeg,
    refuse_redirects,
    refuse_undecodable,
)
from edge_hpcr.stream.contract import LiveStream
from edge_hpcr.stream.passwords import refusal
from edge_hpcr.stream.rules import Rules

SCHEMES = ("rtsp", "rtsps", "http", "https")
MISSES_IN_A_ROW = 5  # a single damaged frame is no reason to reopen; so many are
MOST_ABANDONED = 4  # readers that hang each keep a thread and a device: their number must be limited
RATE_FRAMES = 30
CLOSE_SECONDS = 0.5
REFUSAL_SECONDS = 3.0  # to ask a camera that cannot be opened whether its password is wrong
DEVICE = re.compile(r"/dev/(?:video\d{1,3}|v4l/by-(?:id|path)/[^/\0]{1,200})", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """How long to wait for a camera, in seconds."""

    stall_seconds: float = 5.0  # without a frame for so long, it is called stalled
    give_up_seconds: float = 15.0  # and after so long, it is opened again
    waits: tuple[float, ...] = (1, 2, 4, 8, 16, 30)  # before each try; the last one from then on

    @property
    def library_seconds(self) -> float:
        """FFmpeg's own limit, below ours so that its thread mostly ends by itself instead of being abandoned."""
        return 0.8 * self.give_up_seconds


@dataclass
class _Attempt:
    """One opening of the camera and its reader."""

    started: float
    opened: float | None = None
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_FRAMES))
    ended: str | None = None  # why
    reader: threading.Thread | None = None

    @property
    def last_sign(self) -> float:
        return self.times[-1] if self.times else self.opened or self.started


class Camera(LiveStream):
    """The newest frame of a camera; `open_capture` runs in a separate thread and may hang."""

    def __init__(
        self, name: str, open_capture: Callable[[], Capture], patience: Patience | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self._open_capture = open_capture
        self._patience = patience or Patience()
        self._attempt: _Attempt | None = None
        self._abandoned: list[threading.Thread] = []
        self._reason: str | None = None  # why it was lost the last time; None before the first failure
        self._failures = 0
        self._next_try = 0.0
        self._keeper = threading.Thread(target=self._keep, name=f"keeper of {name}", daemon=True)
        self._keeper.start()
        # A thread that comes back from OpenCV while Python shuts down ends the process with an abort.
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        with self._changed:
            attempt, self._attempt = self._attempt, None
            super().close()
        self._keeper.join()
        if attempt is not None and attempt.reader is not None:
            # A healthy camera is released within a frame's time; one that hangs is not waited for.
            attempt.reader.join(CLOSE_SECONDS)

    def _doing(self) -> tuple[str, str]:
        with self._changed:
            return self._phase(self._attempt, time.monotonic())

    def _phase(self, attempt: _Attempt | None, now: float) -> tuple[str, str]:
        if self._closed:
            return "closed", "closed"
        if attempt is None:
            if self._reason is None:
                return "opening", "opening"
            wait = max(0, ceil(self._next_try - now))
            return "reconnecting", f"reconnecting: {self._reason}, next try in {wait} s"
        silence = now - attempt.last_sign
        if attempt.opened is None:
            tried = f" for {silence:.0f} s" if silence >= self._patience.stall_seconds else ""
            if self._reason is None:
                return "opening", f"opening{tried}"
            return "reconnecting", f"reconnecting: {self._reason}, trying{tried or ' now'}"
        if silence >= self._patience.stall_seconds:
            return "stalled", f"stalled for {silence:.0f} s"
        if not attempt.times:
            return "opening", "opened, no frame yet"
        return "live", f"live{_rate(attempt.times)}"

    # The keeper's thread.

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._abandoned = [reader for reader in self._abandoned if reader.is_alive()]
                if len(self._abandoned) >= MOST_ABANDONED:
                    reason = f"{MOST_ABANDONED} earlier tries still hang in the driver"
                else:
                    reason = self._watch(self._start())
                if not self._pause(reason):
                    return

    def _start(self) -> _Attempt:
        attempt = _Attempt(started=time.monotonic())
        attempt.reader = threading.Thread(
            target=self._run_reader, args=(attempt,), name=f"reader of {self.name}", daemon=True
        )
        if not self._closed:
            self._attempt = attempt
            attempt.reader.start()
        return attempt

    def _watch(self, attempt: _Attempt) -> str:
        """Until the attempt fails; why it did."""
        while not self._closed and attempt.ended is None:
            left = attempt.last_sign + self._patience.give_up_seconds - time.monotonic()
            if left <= 0:
                if attempt.reader is not None:
                    self._abandoned.append(attempt.reader)
                return f"no answer for {self._patience.give_up_seconds:g} s"
            self._changed.wait(left)
        return attempt.ended or "closed"

    def _pause(self, reason: str) -> bool:
        """Wait before the next try; False once the camera is closed."""
        waits = self._patience.waits
        self._attempt = None
        self._reason = reason
        self._next_try = time.monotonic() + waits[min(self._failures, len(waits) - 1)]
        self._failures += 1
        self._changed.wait_for(lambda: self._closed, self._next_try - time.monotonic())
        return not self._closed

    # The reader's thread.

    def _run_reader(self, attempt: _Attempt) -> None:
        reason = "closed"
        try:
            capture = self._open_capture()
            try:
                reason = self._read_frames(attempt, capture)
            finally:
                capture.release()
        except UserError as error:
            reason = str(error)
        except cv2.error as error:
            # Its text may hold the address and thus a password.
            reason = f"OpenCV reports error {error.code}"
        except Exception as error:  # whatever it is, the camera must be reopened and its state must say why
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            reason = f"its reader broke down ({type(error).__name__}, {where})"
        finally:
            with self._changed:
                attempt.ended = reason
                self._changed.notify_all()

    def _read_frames(self, attempt: _Attempt, capture: Capture) -> str:
        """Deliver frames until there are no more; why there are none."""
        if not capture.is_open():
            return "cannot open"
        with self._changed:
            attempt.opened = time.monotonic()
        misses = 0
        while misses < MISSES_IN_A_ROW:
            came, image = capture.read()
            good = came and is_image(image)
            with self._changed:
                if self._attempt is not attempt:
                    return "given up"
                if good:
                    attempt.times.append(time.monotonic())
                    self._failures = 0
                    self._put(image)
                elif came:
                    self._bad += 1
            misses = 0 if good else misses + 1
        return "it sends only damaged frames" if came else "it sends no more frames"


def _rate(times: deque[float]) -> str:
    seconds = times[-1] - times[0]
    return f", {(len(times) - 1) / seconds:.1f} frames/s" if seconds > 0 else ""


def usb_camera(index: int, patience: Patience | None = None) -> Camera:
    """A camera at this computer: 0 is mostly the built-in or the only one. One that is not there yet is waited for."""
    return Camera(f"camera {index}", lambda: open_camera(index), patience)


def device_camera(path: str, patience: Patience | None = None) -> Camera:
    """A camera by its file: /dev/video0, or /dev/v4l/by-id/…, which stays the same in another socket."""

    def opened() -> Capture:
        real = os.path.realpath(path)  # each time: after it was plugged in again, the link leads elsewhere
        if not re.fullmatch(r"/dev/video\d+", real, re.ASCII):
            raise UserError("there is no camera")
        return open_camera(real)

    return Camera(path, opened, patience)


def network_camera(url: str, patience: Patience | None = None, rules: Rules | None = None) -> Camera:
    """A camera by its RTSP or motion-JPEG address; nothing secret in it is ever shown."""
    patience, rules = patience or Patience(), rules or Rules()
    name = shown_address(url, SCHEMES)
    if name is None:
        choices = ", ".join(f"{each}://" for each in SCHEMES)
        raise UserError(
            f"the camera's address is not understood: write it as {choices} and then HOST:PORT/PATH "
            "(special characters in a password as %40 for @, %2F for /)"
        )
    refuse_undecodable(url, name)
    rules.check_address(url)
    if not rules.private:
        refuse_redirects()

    def opened() -> Capture:
        rules.check_address(url)  # each time: a name may lead elsewhere by now
        capture = open_ffmpeg(url, patience.library_seconds)
        if not capture.is_open() and (reason := refusal(url, REFUSAL_SECONDS)):
            raise UserError(reason)
        return capture

    return Camera(name, opened, patience)
