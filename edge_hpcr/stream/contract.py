"""What a stream is: frames one after the other, a state that people can read, and a prompt close.

>>> from edge_hpcr.stream import open_stream
>>> with open_stream("digits") as stream:
...     frame = stream.read(timeout=1.0)
>>> frame.image.shape, frame.origin
((8, 8, 3), 'digits')
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

LABELS = ("none", "folders")

# Told of each file that cannot be used and why; whether it is put into quarantine is the caller's business.
BadFile = Callable[[Path, str], None]


@dataclass(frozen=True)
class Frame:
    """One picture of a stream."""

    image: np.ndarray  # uint8 RGB [H, W, 3]
    origin: str  # "camera 0", an address without credentials, or a file's path
    label: str | None  # a class name, when the source knows it
    digest: str | None  # SHA-256 of the file's bytes; None for cameras and video
    at: float  # time.time()


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

    name: str  # for people, and the origin of a camera's frames
    live: bool  # frames pass by whether or not anybody looks; otherwise every frame is delivered

    @abstractmethod
    def read(self, timeout: float) -> Frame | None:
        """The next frame, or None if there was none within `timeout` seconds; `EndOfStream` at the end."""

    @abstractmethod
    def state(self) -> StreamState:
        """How it is doing at this moment."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the source, promptly even if that hangs; a `read` that waits ends with `EndOfStream`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def size_of(image: np.ndarray) -> tuple[int, int]:
    """Width and height."""
    return image.shape[1], image.shape[0]
