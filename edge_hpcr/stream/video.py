"""A video file: every frame, once, in order."""

import threading
import time
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.captures import is_image, open_ffmpeg, refuse_undecodable, starts_like_video
from edge_hpcr.stream.contract import FileStream, Frame

# OpenCV says the same of a damaged frame and of the end; after so many in a row it is the end.
MOST_DAMAGED_IN_A_ROW = 100


class Video(FileStream):
    """A file that OpenCV's FFmpeg can read, turned upright as its metadata says."""

    def __init__(self, path: Path, fps: float | None = None) -> None:
        super().__init__(as_text(path), fps)
        refuse_undecodable(str(path), self.name)
        if not path.is_file():
            raise UserError(f"{self.name}: there is no such video file")
        refusal = UserError(
            f"{self.name}: cannot be read as a video: is it whole, readable, and MP4, MOV, MKV, WebM, AVI, MPEG, FLV, "
            "WMV or Ogg? (A single image goes into a folder.)"
        )
        if not starts_like_video(path):
            raise refusal
        # Absolute, so that a file called "http:x" is not taken for an address.
        self._capture = open_ffmpeg(str(path.absolute()))
        if not self._capture.is_open():
            raise refusal
        self._expected = self._capture.expected_frames()
        self._reading = threading.Lock()
        self._damaged = 0  # in a row

    def _next(self) -> Frame | None:
        with self._reading:
            if self._closed.is_set():
                return None
            came, image = self._capture.read()
        if is_image(image):
            self._bad += self._damaged
            self._damaged = 0
            return Frame(image, self.name, None, None, time.time())
        if came:
            self._bad += 1  # certainly damaged, where a `_damaged` one may be the end
        else:
            self._damaged += 1
        if self._damaged >= MOST_DAMAGED_IN_A_ROW:
            self._end = f"ended after {self._frames}{self._of_expected()} frames"
        return None

    def _progress(self) -> str:
        return f"live, frame {self._frames}{self._of_expected()}"

    def _of_expected(self) -> str:
        return f" of {self._expected}" if self._expected > self._frames else ""

    def close(self) -> None:
        super().close()
        with self._reading:
            self._capture.release()
