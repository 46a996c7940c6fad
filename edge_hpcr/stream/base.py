"""What a stream is: frames one after the other, a state that people can read, and a prompt close.

>>> from edge_hpcr.stream import open_stream
>>> with open_stream("workbench:7") as stream:
...     frame = stream.read(timeout=1.0)
>>> frame.image.shape, frame.origin
((480, 640, 3), 'workbench')
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

LABELS = ("none", "folders")

# Told of each file that cannot be used, with a sentence that names it and says why.
BadFile = Callable[[Path, str], None]


@dataclass(eq=False)
class Frame:
    """One picture, on its way from a source through the gate and the learner to the workspace: each fills in its part."""

    image: np.ndarray  # uint8 RGB [H, W, 3]; from the gate on as it would be stored
    origin: str  # "camera 0", an address without credentials, or a file's path
    label: str | None = None  # a class name, when the source knows it
    digest: str | None = None  # SHA-256 of the file's bytes; None for cameras and video
    at: float = field(default_factory=time.time)
    whole: np.ndarray | None = None  # what `image` was cut from; None: it is all of it
    hash64: int = 0  # how it looks, for the gate; 0: not known
    verdict: str = ""  # whether it was queued, or why not
    seen: tuple[object, np.ndarray] | None = None  # what an encoder made of it; None: it was not asked
    answer: Any = None  # the learner's answer; None: it was not asked
    priority: float = 0.0  # how much a label would teach
    sample_id: int | None = None  # once it is in the workspace


class EndOfStream(Exception):
    """A finite source has shown everything, or the stream was closed."""


@dataclass(frozen=True)
class StreamState:
    """How a stream is doing."""

    phase: str  # opening | live | stalled | reconnecting | ended | closed
    message: str  # for people
    frames: int  # read from the source
    dropped: int  # overwritten by newer ones before anybody looked
    bad: int  # unreadable files or frames
    size: tuple[int, int] | None  # width and height of the last frame


class Stream(ABC):
    """A source of frames. One thread reads; any thread may ask for the state or close."""

    live = False  # True: frames pass by whether or not anybody looks; otherwise every frame is delivered

    def __init__(self, name: str, on_bad_file: BadFile | None = None) -> None:
        self.name = name  # for people, and the origin of a camera's frames
        self._on_bad_file = on_bad_file
        self._closed = threading.Event()
        self._frames = self._dropped = self._bad = 0
        self._size: tuple[int, int] | None = None

    @abstractmethod
    def read(self, timeout: float) -> Frame | None:
        """The next frame, or None if there was none within `timeout` seconds; `EndOfStream` at the end."""

    @abstractmethod
    def _doing(self) -> tuple[str, str]:
        """Phase and message at this moment, while it is not closed."""

    def close(self) -> None:
        """Release the source, promptly even if that hangs; a `read` that waits ends with `EndOfStream`."""
        self._closed.set()

    def state(self) -> StreamState:
        phase, message = ("closed", "closed") if self._closed.is_set() else self._doing()
        return StreamState(phase, message, self._frames, self._dropped, self._bad, self._size)

    def _counted(self, frame: Frame) -> Frame:
        self._frames += 1
        self._size = frame.image.shape[1], frame.image.shape[0]
        return frame

    def _refuse(self, path: Path, reason: str) -> None:
        """Count and report a file that cannot be used."""
        self._bad += 1
        if self._on_bad_file is not None:
            self._on_bad_file(path, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LiveStream(Stream):
    """The newest frame of a source that does not wait: one that nobody took is overwritten and counted."""

    live = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._changed = threading.Condition()
        self._newest: Frame | None = None

    def _put(self, image: np.ndarray) -> None:
        """Never waits for the reader."""
        with self._changed:
            self._dropped += self._newest is not None
            self._newest = self._counted(Frame(image, self.name))
            self._changed.notify_all()

    def read(self, timeout: float) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._closed.is_set(), timeout)
            if self._closed.is_set():
                raise EndOfStream("closed")
            frame, self._newest = self._newest, None
            return frame

    def close(self) -> None:
        super().close()
        with self._changed:
            self._changed.notify_all()


class FileStream(Stream):
    """Every frame of what can wait, once and in order, at most `fps` per second."""

    def __init__(self, name: str, fps: float | None = None, on_bad_file: BadFile | None = None) -> None:
        super().__init__(name, on_bad_file)
        self._gap = 1 / fps if fps else 0.0
        self._due = time.monotonic()  # of the next frame
        self._end: str | None = None

    def read(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._end is not None and not self._closed.is_set():
                raise EndOfStream(self._end)
            now = time.monotonic()
            self._closed.wait(max(0.0, min(self._due, deadline) - now))
            if self._closed.is_set():
                raise EndOfStream("closed")
            if self._due > max(now, deadline):
                return None
            frame = self._next()
            if frame is not None:
                # Time lost before is not caught up with a burst.
                self._due = max(self._due + self._gap, time.monotonic())
                return self._counted(frame)
            if self._end is None and time.monotonic() >= deadline:
                return None

    @abstractmethod
    def _next(self) -> Frame | None:
        """The next frame; None if it is a bad one, if it sets `_due` to wait, or at the end, for which it sets `_end`."""

    def _doing(self) -> tuple[str, str]:
        return ("live", self._progress()) if self._end is None else ("ended", self._end)

    @abstractmethod
    def _progress(self) -> str: ...
