"""Cameras at this computer or in the network, reopened as often as it takes.

A thread reads, because OpenCV waits for the next frame. Over the network it has a time limit, after which the camera is
opened again.
"""

import atexit
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import shown_address
from edge_hpcr.stream.base import LiveStream
from edge_hpcr.stream.captures import Capture, open_camera, open_ffmpeg

SCHEMES = ("rtsp", "rtsps", "http", "https")
MISSES_IN_A_ROW = 5  # a single damaged frame is no reason to reopen; so many are
RATE_FRAMES = 30
CLOSE_SECONDS = 0.5
DEVICE = re.compile(r"/dev/(?:video\d{1,3}|v4l/by-(?:id|path)/[^/\0]{1,200})", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """How long to wait for a camera, in seconds."""

    stall_seconds: float = 5.0  # without a frame for so long, it is called stalled
    give_up_seconds: float = 15.0  # and after so long, it is opened again
    waits: tuple[float, ...] = (1, 2, 4, 8, 16, 30)  # before each try; the last one from then on


class Camera(LiveStream):
    """The newest frame of a camera; `open_capture` runs in a separate thread and may take long."""

    def __init__(
        self, name: str, open_capture: Callable[[], Capture], patience: Patience | None = None
    ) -> None:
        super().__init__(name)
        self._open_capture = open_capture
        self._patience = patience or Patience()
        self._last_sign = time.monotonic()  # of life: a try or a frame
        self._times: deque[float] = deque(maxlen=RATE_FRAMES)  # of the last frames since it was opened
        self._reason: str | None = None  # why it was lost the last time; None before the first failure
        self._failures = 0
        self._next_try: float | None = None  # while the reader waits for it
        self._reader = threading.Thread(target=self._keep_reading, name=f"reader of {name}", daemon=True)
        self._reader.start()
        # A thread that comes back from OpenCV while Python shuts down ends the process with an abort.
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()
        # A healthy camera is released within a frame's time; one that hangs is not waited for.
        self._reader.join(CLOSE_SECONDS)

    def _doing(self) -> tuple[str, str]:
        with self._changed:
            now = time.monotonic()
            silence = now - self._last_sign
            if self._next_try is not None:
                wait = max(0, ceil(self._next_try - now))
                return "reconnecting", f"reconnecting: {self._reason}, next try in {wait} s"
            if not self._times:
                if self._reason is None:
                    return "opening", "opening"
                return "reconnecting", f"reconnecting: {self._reason}, trying now"
            if silence >= self._patience.stall_seconds:
                return "stalled", f"stalled for {silence:.0f} s"
            seconds = self._times[-1] - self._times[0]
            rate = f", {(len(self._times) - 1) / seconds:.1f} frames/s" if seconds > 0 else ""
            return "live", f"live{rate}"

    # The reader's thread.

    def _keep_reading(self) -> None:
        while not self._closed.is_set():
            reason = self._read_frames()
            with self._changed:
                waits = self._patience.waits
                wait = waits[min(self._failures, len(waits) - 1)]
                self._failures += 1
                self._reason, self._next_try = reason, time.monotonic() + wait
                self._times.clear()
                self._changed.wait_for(self._closed.is_set, wait)
                self._next_try, self._last_sign = None, time.monotonic()

    def _read_frames(self) -> str:
        """Open the camera and deliver frames until there are no more; why there are none."""
        try:
            capture = self._open_capture()
            try:
                return self._deliver(capture)
            finally:
                capture.release()
        except UserError as error:
            return str(error)
        except Exception as error:  # whatever it is, the camera must be reopened
            # Not its text, which may hold the address and thus a password.
            return f"its reader failed ({type(error).__name__})"

    def _deliver(self, capture: Capture) -> str:
        if not capture.is_open():
            return "cannot open"
        misses, came, opened = 0, False, time.monotonic()
        while misses < MISSES_IN_A_ROW:
            came, image = capture.read()
            with self._changed:
                if self._closed.is_set():
                    return "closed"
                if image is not None:
                    self._last_sign = time.monotonic()
                    self._times.append(self._last_sign)
                    self._failures = 0
                    self._put(image)
                elif time.monotonic() - max(opened, self._last_sign) > self._patience.give_up_seconds:
                    return f"no frame for {self._patience.give_up_seconds:g} s"
                self._bad += came and image is None
            misses = misses + 1 if image is None else 0
        return "it sends only damaged frames" if came else "it sends no more frames"


def local_camera(which: str) -> Camera:
    """A camera at this computer, which is waited for if it is not there yet: 0 is mostly the built-in or the only one.

    Or by its file: /dev/video0, or /dev/v4l/by-id/…, which stays the same in another socket.
    """
    if which.isdecimal():
        return Camera(f"camera {which}", lambda: open_camera(int(which)))
    return Camera(which, lambda: open_camera(which))


def network_camera(url: str, patience: Patience | None = None) -> Camera:
    """A camera by its RTSP or motion-JPEG address; nothing secret in it is ever shown."""
    patience = patience or Patience()
    name = shown_address(url, SCHEMES)
    if name is None:
        choices = ", ".join(f"{each}://" for each in SCHEMES)
        raise UserError(
            f"the camera's address is not understood: write it as {choices} and then HOST:PORT/PATH "
            "(special characters in a password as %40 for @, %2F for /)"
        )

    def opened() -> Capture:
        capture = open_ffmpeg(url, 0.8 * patience.give_up_seconds)
        if not capture.is_open():
            raise UserError(
                "cannot open: check the address, and the user name and password if the camera asks for them"
            )
        return capture

    return Camera(name, opened, patience)
