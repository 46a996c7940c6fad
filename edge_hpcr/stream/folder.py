"""A folder of images: every one of them, once, in natural order."""

import threading
import time
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.contract import BadFile, EndOfStream, Frame, Stream, StreamState, size_of
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.image_files import read_frame, walk
from edge_hpcr.stream.pace import Pace


def require_folder(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"{as_text(path)}: there is no such folder")


class Folder(Stream):
    """All images below a folder; with `labels="folders"`, a first-level sub-folder's name is its images' class."""

    live = False

    def __init__(
        self,
        path: Path,
        labels: str = "none",
        on_bad_file: BadFile | None = None,
        fps: float | None = None,
    ) -> None:
        require_folder(path)
        self.name = as_text(path)
        self._root = path
        self._labels = labels
        self._on_bad_file = on_bad_file
        self._pace = Pace(fps)
        self._files = walk(path, self._refuse)
        self._closed = threading.Event()
        self._end: str | None = None
        self._frames = 0
        self._bad = 0
        self._size: tuple[int, int] | None = None

    def read(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._closed.is_set():
                raise EndOfStream("closed")
            if self._end is not None:
                raise EndOfStream(self._end)
            if not self._pace.wait(max(0.0, deadline - time.monotonic()), self._closed):
                return None
            frame = None if self._closed.is_set() else self._next()
            if frame is not None or time.monotonic() >= deadline:
                return frame

    def _next(self) -> Frame | None:
        """The next file's frame; None if it is a bad one, or if that was the end."""
        try:
            path = next(self._files, None)
        except OSError as error:
            self._stop(f": the folder {self.name} cannot be listed: {error.strerror}")
            return None
        if path is None:
            self._stop()
            return None
        try:
            frame = read_frame(path, self._root, self._labels)
        except BadImage as error:
            # When the whole folder is gone, that is the one thing to say, and not each of its files.
            if self._root.is_dir():
                self._refuse(path, str(error))
            else:
                self._stop()
            return None
        self._frames += 1
        self._size = size_of(frame.image)
        self._pace.delivered()
        return frame

    def _stop(self, problem: str = "") -> None:
        if not self._root.is_dir():
            problem = f": the folder {self.name} has disappeared: is its disk still connected?"
        self._end = f"ended after {self._frames} images{problem}"

    def _refuse(self, path: Path, reason: str) -> None:
        self._bad += 1
        if self._on_bad_file is not None:
            self._on_bad_file(path, reason)

    def state(self) -> StreamState:
        phase, message = "live", f"live, {self._frames} images so far"
        if self._closed.is_set():
            phase, message = "closed", "closed"
        elif self._end is not None:
            phase, message = "ended", self._end
        return StreamState(phase, message, self._frames, 0, self._bad, self._size)

    def close(self) -> None:
        self._closed.set()
