"""Video files, and OpenCV's captures made safe: quiet, with time limits, and honest about motion JPEG.

OpenCV 5.0 holds on to the size of a motion-JPEG stream's first frame: a camera that changes its resolution is scaled in
silence, and half a frame may pass as a whole one. Its users report crashes when the chroma format changes (opencv issue
29699; not seen here). So the packets of motion JPEG are taken as they come and decoded one by one.
"""

import os
import threading
from pathlib import Path

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.base import FileStream, Frame
from edge_hpcr.stream.decode import BadImage, decode_image

# What goes wrong with a camera is in its state. The libraries' own lines on stderr tear a status line apart, and may
# hold an address with its password. FFmpeg reads this when the first capture is made; "-8" is its "quiet".
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
# A text opened as a video would become a picture of its letters, and a playlist would lead anywhere: FFmpeg takes only
# containers of video and what cameras send. What a person has set comes first; over TCP is OpenCV's own default.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg"
_LIMITS = (
    f"format_whitelist;{_CONTAINERS},rtsp,mpjpeg,mjpeg,jpeg_pipe"
    "|protocol_whitelist;file,http,https,httpproxy,tcp,tls,udp,rtp,srtp,rtsp,rtsps"
)
_OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
if _LIMITS not in os.environ.get(_OPTIONS, ""):
    os.environ[_OPTIONS] = f"{os.environ.get(_OPTIONS) or 'rtsp_transport;tcp'}|{_LIMITS}"

# OpenCV says the same of a damaged frame and of the end; after so many in a row it is the end.
MOST_DAMAGED_IN_A_ROW = 100

if "OPENCV_LOG_LEVEL" not in os.environ:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


class Capture:
    """A camera, an address or a video file; frames come as uint8 RGB."""

    def __init__(self, capture: cv2.VideoCapture, packets: bool = False) -> None:
        self._capture = capture
        self._packets = packets and _is_upright_motion_jpeg(capture) and capture.set(cv2.CAP_PROP_FORMAT, -1)

    def is_open(self) -> bool:
        return self._capture.isOpened()

    def read(self) -> tuple[bool, np.ndarray | None]:
        """False: nothing came. True without a picture: garbage came."""
        came, data = self._capture.read()
        if not came or data is None:
            return came, None
        if not self._packets:
            return True, cv2.cvtColor(data, cv2.COLOR_BGR2RGB) if _is_image(data) else None
        try:
            return True, decode_image(data.tobytes(), "a frame")
        except BadImage:
            return True, None

    def frames(self) -> int:
        """As a video file's header says; 0 or less if it does not."""
        return int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))

    def release(self) -> None:
        self._capture.release()


def open_camera(which: int | str) -> Capture:
    """A camera at this computer by its number, or by the name of its file."""
    return Capture(cv2.VideoCapture(which, cv2.CAP_V4L2 if isinstance(which, str) else cv2.CAP_ANY))


def open_ffmpeg(place: str, timeout: float | None = None) -> Capture:
    """A video file, or an address with a limit in seconds on the opening and on each frame."""
    options = []
    if timeout is not None:
        limit = int(timeout * 1000)
        options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
    return Capture(cv2.VideoCapture(place, cv2.CAP_FFMPEG, options), packets=True)


def _is_image(data: np.ndarray) -> bool:
    """A picture as every camera should send it: uint8, three channels, at least a pixel."""
    return data.dtype == np.uint8 and data.ndim == 3 and data.shape[2] == 3 and data.size > 0


def _is_upright_motion_jpeg(capture: cv2.VideoCapture) -> bool:
    # OpenCV turns a video that was filmed on its side only if it decodes it itself.
    code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little", signed=True)
    return code.upper() == b"MJPG" and capture.get(cv2.CAP_PROP_ORIENTATION_META) == 0


class Video(FileStream):
    """A file that OpenCV's FFmpeg can read, turned upright as its metadata says."""

    def __init__(self, path: Path, fps: float | None = None) -> None:
        super().__init__(as_text(path), fps)
        if not path.is_file():
            raise UserError(f"{self.name}: there is no such video file")
        # Absolute, so that a file called "http:x" is not taken for an address.
        self._capture = open_ffmpeg(str(path.absolute()))
        if not self._capture.is_open():
            raise UserError(
                f"{self.name}: cannot be read as a video: is it whole, readable, and MP4, MOV, MKV, WebM, AVI, MPEG, FLV, "
                "WMV or Ogg? (A single image goes into a folder.)"
            )
        self._expected = self._capture.frames()
        self._reading = threading.Lock()
        self._damaged = 0  # in a row

    def _next(self) -> Frame | None:
        with self._reading:
            if self._closed.is_set():
                return None
            came, image = self._capture.read()
        if image is not None:
            self._bad += self._damaged
            self._damaged = 0
            return Frame(image, self.name)
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
