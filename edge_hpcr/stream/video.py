"""A video file: every frame, once, in order."""

import threading
import time
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.captures import is_image, open_ffmpeg, refuse_undecodable
from edge_hpcr.stream.contract import EndOfStream, Frame, Stream, StreamState, size_of
from edge_hpcr.stream.pace import Pace

# OpenCV says the same of a damaged frame and of the end; after so many in a row it is the end.
MOST_DAMAGED_IN_A_ROW = 100


class Video(Stream):
    """A file that OpenCV's FFmpeg can read, turned upright as its metadata says."""

    live = False

    def __init__(self, path: Path, fps: float | None = None) -> None:
        self.name = as_text(path)
        refuse_undecodable(str(path), self.name)
        if not path.is_file():
            raise UserError(f"{self.name}: there is no such video file")
        # Absolute, so that a file called "http:x" is not taken for an address.
        self._capture = open_ffmpeg(str(path.absolute()))
        if not self._capture.is_open():
            raise UserError(
                f"{self.name}: cannot be read as a video: is it whole, of a kind that FFmpeg knows, and readable?"
            )
        self._expected = self._capture.expected_frames()
        self._pace = Pace(fps)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ended = False
        self._frames = 0
        self._bad = 0
        self._size: tuple[int, int] | None = None

    def read(self, timeout: float) -> Frame | None:
        if not self._ended and not self._pace.wait(timeout, self._closed):
            return None
        with self._lock:
            if self._closed.is_set():
                raise EndOfStream("closed")
            damaged = 0
            while not self._ended and damaged < MOST_DAMAGED_IN_A_ROW:
                came, image = self._capture.read()
                if is_image(image):
                    self._bad += damaged
                    self._frames += 1
                    self._size = size_of(image)
                    self._pace.delivered()
                    return Frame(image, self.name, None, None, time.time())
                if came:
                    self._bad += 1  # certainly damaged, where a `damaged` one may be the end
                else:
                    damaged += 1
            self._ended = True
        raise EndOfStream(self.state().message)

    def state(self) -> StreamState:
        phase, message = "live", f"live, frame {self._frames}{self._of_expected()}"
        if self._closed.is_set():
            phase, message = "closed", "closed"
        elif self._ended:
            phase, message = "ended", f"ended after {self._frames}{self._of_expected()} frames"
        return StreamState(phase, message, self._frames, 0, self._bad, self._size)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._capture.release()

    def _of_expected(self) -> str:
        return f" of {self._expected}" if self._expected > self._frames else ""
