"""Frames for a device: a camera, a network camera, a video file, or a folder of images.

A live source never ends and never fails for good: a thread reads it, keeps the newest frame only, and opens it again
after growing waits. Files are delivered one by one, every one of them.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel
from export.device.manifest import read_plain_file, reason_of

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # before a camera is opened again; the last one for ever
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
WATCH_SECONDS = 0.3
LARGEST_FILE = 100_000_000
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SCHEMES = ("rtsp", "rtsps", "http", "https")

# FFmpeg and OpenCV would print addresses with their passwords; FFmpeg's "-8" is quiet.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
if "OPENCV_LOG_LEVEL" not in os.environ:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

Report = Callable[[str], None]


@dataclass(frozen=True)
class Frame:
    """One picture."""

    image: np.ndarray  # uint8 RGB [H, W, 3]
    origin: str  # "camera 0", an address without its password, or a file's path
    at: float  # time.time()


class EndOfFrames(Exception):
    """A finite source has shown everything."""


class Frames(Protocol):
    name: str

    def read(self, timeout: float) -> Frame | None:
        """The next frame, None if there was none in time, `EndOfFrames` at the end."""

    def close(self) -> None: ...


def open_frames(spec: str, report: Report, watch: bool = False) -> Frames:
    """A whole number is a camera, an address a network camera; anything else the path of a video or a folder."""
    if spec.isascii() and spec.isdecimal() and len(spec) < 5:
        return _live_only(watch, lambda: LiveCamera(f"camera {spec}", lambda: _camera(int(spec)), report))
    if "://" in spec:
        name = shown_address(spec)
        return _live_only(watch, lambda: LiveCamera(name, lambda: _capture(spec), report))
    path = Path(spec)
    try:
        is_folder, is_file = bool(spec) and path.is_dir(), path.is_file()
    except OSError as error:
        raise UserError(f"{shown_path(path)}: cannot be read: {reason_of(error)}") from None
    if is_folder:
        return ImageFolder(path, report, watch)
    if not is_file:
        raise UserError(
            f"{shown_path(path)}: there is no such file or folder, and it is no camera's number or address"
        )
    return _live_only(watch, lambda: VideoFile(path))


def _live_only(watch: bool, make: Callable[[], Frames]) -> Frames:
    if watch:
        raise UserError("--watch is for a folder of images")
    return make()


def shown_address(url: str) -> str:
    """The address without user, password, query, and `name=value` parts of the path, any of which may be secret.

    >>> shown_address("rtsp://admin:p@ss/word@10.0.0.7:554/cam?token=abc")
    'rtsp://10.0.0.7:554/cam?…'
    """
    scheme, _, rest = url.partition("://")
    # A password may hold an unescaped @ or /: everything before the last @ goes.
    rest = rest.rpartition("@")[2]
    try:
        parts = urlsplit(f"{scheme.lower()}://{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if scheme.lower() not in SCHEMES or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise UserError(
            f"the camera's address is not understood: it begins with {', '.join(SCHEMES)}:// and a host"
        )
    path = "/".join("…" if "=" in part else part for part in parts.path.split("/"))
    hidden = "?…" if parts.query or parts.fragment else ""
    return f"{scheme.lower()}://{host}{f':{port}' if port is not None else ''}{path}{hidden}"


def shown_path(path: Path) -> str:
    """The path as text that prints anywhere: on Linux a name is bytes, and not always UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _camera(number: int) -> cv2.VideoCapture:
    return cv2.VideoCapture(number)


def _capture(place: str) -> cv2.VideoCapture:
    limit = int(OPEN_SECONDS * 1000)
    options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
    return cv2.VideoCapture(place, cv2.CAP_FFMPEG, options)


def _rgb(image: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


class LiveCamera:
    """The newest frame of a camera; what nobody looked at in time is overwritten."""

    def __init__(
        self,
        name: str,
        open_capture: Callable[[], cv2.VideoCapture],
        report: Report,
        waits: tuple[float, ...] = WAITS,
    ) -> None:
        self.name = name
        self._open_capture = open_capture
        self._report = report
        self._waits = waits
        self._changed = threading.Condition()
        self._newest: Frame | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {name}", daemon=True)
        self._thread.start()

    def read(self, timeout: float) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._stop.is_set(), timeout)
            frame, self._newest = self._newest, None
        return frame

    def close(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        # A camera that hangs in its driver is not waited for.
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        failures, lost = 0, False
        while not self._stop.is_set():
            problem, frames = self._read_until_it_fails(lost)
            if self._stop.is_set():
                return
            failures = 0 if frames else failures
            wait = self._waits[min(failures, len(self._waits) - 1)]
            if frames or not lost:
                self._report(f"{self.name}: {problem}; tried again until it works, next in {wait:g} s")
            failures, lost = failures + 1, True
            self._stop.wait(wait)

    def _read_until_it_fails(self, lost: bool) -> tuple[str, int]:
        """Why there are no more frames, and how many there were."""
        frames = 0
        try:
            capture = self._open_capture()
            try:
                if not capture.isOpened():
                    return "cannot be opened", 0
                while not self._stop.is_set():
                    came, image = capture.read()
                    if not came or image is None:
                        return "sends no more frames" if frames else "was opened, but sends no frames", frames
                    if lost and not frames:
                        self._report(f"{self.name}: works again")
                    frames += 1
                    self._put(Frame(_rgb(image), self.name, time.time()))
            finally:
                capture.release()
        except cv2.error as error:
            # Its text may hold the address and thus a password.
            return f"OpenCV reports error {error.code}", frames
        return "closed", frames

    def _put(self, frame: Frame) -> None:
        with self._changed:
            self._newest = frame
            self._changed.notify_all()


class VideoFile:
    """Every frame of a video, once, as fast as they are taken."""

    def __init__(self, path: Path) -> None:
        self.name = shown_path(path)
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise UserError(f"{self.name}: the name is not valid UTF-8, which OpenCV cannot open") from None
        self._capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise UserError(
                f"{self.name}: not a video that OpenCV can read (a single image goes into a folder)"
            )

    def read(self, timeout: float) -> Frame | None:
        try:
            came, image = self._capture.read()
        except cv2.error:
            came, image = False, None
        if not came or image is None:
            raise EndOfFrames
        return Frame(_rgb(image), self.name, time.time())

    def close(self) -> None:
        self._capture.release()


class ImageFolder:
    """Every image below a folder in natural order; with `watch`, then those that come, for ever."""

    def __init__(self, path: Path, report: Report, watch: bool) -> None:
        self.name = shown_path(path)
        self._path = path
        self._report = report
        self._watch = watch
        self._waiting: Iterator[Path] = iter(())
        self._seen: dict[Path, tuple[int, int]] = {}  # the state in which each was taken
        self._young: dict[Path, tuple[int, int]] = {}  # the state that each had at the last look
        self._stop = threading.Event()
        self._looked = False
        self._next_look = 0.0  # time.monotonic()
        if not watch:
            images = self._look()
            if not images:
                raise UserError(f"{self.name}: there is no image in it (--watch waits for some)")
            self._waiting = iter(images)

    def read(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        while not self._stop.is_set():
            path = next(self._waiting, None)
            if path is not None:
                if (frame := self._load(path)) is not None:
                    return frame
            elif self._looked and not self._watch:
                raise EndOfFrames
            elif self._next_look <= time.monotonic():
                self._waiting = iter(self._look())
                self._next_look = time.monotonic() + WATCH_SECONDS
            elif time.monotonic() >= deadline:
                return None
            else:
                self._stop.wait(max(0.0, min(self._next_look, deadline) - time.monotonic()))
        return None

    def close(self) -> None:
        self._stop.set()

    def _look(self) -> list[Path]:
        """Files that are new or changed, and not being written at this moment."""
        states: dict[Path, tuple[int, int]] = {}
        for folder, folders, names in os.walk(self._path):
            folders.sort(key=_natural)
            for name in sorted(names, key=_natural):
                path = Path(folder, name)
                if path.suffix.lower() in SUFFIXES and not name.startswith("."):
                    with contextlib.suppress(OSError):
                        state = path.stat()
                        states[path] = (state.st_mtime_ns, state.st_size)
        if self._looked:
            ready = [p for p, s in states.items() if self._seen.get(p) != s and self._young.get(p) == s]
        else:
            # What is there at the start is whole, except perhaps what was touched a moment ago in a watched folder.
            fresh = time.time_ns() - int(2 * WATCH_SECONDS * 1e9) if self._watch else None
            ready = [p for p, s in states.items() if fresh is None or s[0] < fresh]
        self._looked = True
        self._young = states
        self._seen = {path: state for path, state in self._seen.items() if path in states}
        self._seen |= {path: states[path] for path in ready}
        return ready

    def _load(self, path: Path) -> Frame | None:
        try:
            data = read_plain_file(path, LARGEST_FILE, follow=True)
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
        except BadModel as error:
            self._report(str(error).encode("utf-8", "backslashreplace").decode())
            return None
        except (cv2.error, MemoryError) as error:
            self._report(
                f"{shown_path(path)}: too large, or not an image ({reason_of(error).split(chr(10))[0][:100]})"
            )
            return None
        if image is None:
            self._report(f"{shown_path(path)}: not an image that OpenCV can read")
            return None
        return Frame(_rgb(image), shown_path(path), time.time())


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """img9 comes before img10."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], name
