"""OpenCV's captures, made safe: quiet, with time limits, and honest about motion JPEG.

OpenCV 5.0 holds on to the size of a motion-JPEG stream's first frame: a camera that changes its resolution is scaled in
silence, and half a frame may pass as a whole one. Its users report crashes when the chroma format changes (opencv issue
29699; not seen here). So the packets of motion JPEG are taken as they come and decoded one by one.
"""

import os
from typing import Any, Protocol

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.decode import BadImage, decode_image

# What goes wrong with a camera is in its state. The libraries' own lines on stderr tear a status line apart, and may
# hold an address with its password. FFmpeg reads this when the first capture is made; "-8" is its "quiet".
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
if "OPENCV_LOG_LEVEL" not in os.environ:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


class Capture(Protocol):
    """What the machinery needs of a camera; frames come as uint8 RGB, anything else counts as garbage."""

    def is_open(self) -> bool: ...

    def read(self) -> tuple[bool, Any]:
        """False: nothing came. True with something that is not an image: garbage came."""

    def release(self) -> None: ...


class OpenCVCapture:
    """A camera, an address or a video file."""

    def __init__(self, capture: cv2.VideoCapture, packets: bool = False) -> None:
        self._capture = capture
        self._packets = packets and _is_upright_motion_jpeg(capture) and capture.set(cv2.CAP_PROP_FORMAT, -1)

    def is_open(self) -> bool:
        return self._capture.isOpened()

    def read(self) -> tuple[bool, Any]:
        came, data = self._capture.read()
        if not came or data is None:
            return came, None
        if self._packets:
            return True, _decoded(data)
        return True, cv2.cvtColor(data, cv2.COLOR_BGR2RGB) if is_image(data) else None

    def expected_frames(self) -> int:
        """As a video file's header says; 0 if it does not."""
        return max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def release(self) -> None:
        self._capture.release()


def open_camera(index: int) -> OpenCVCapture:
    return OpenCVCapture(cv2.VideoCapture(index))


def open_ffmpeg(place: str, timeout: float | None = None) -> OpenCVCapture:
    """A video file, or an address with a limit in seconds on the opening and on each frame."""
    options = []
    if timeout is not None:
        limit = int(timeout * 1000)
        options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
    return OpenCVCapture(cv2.VideoCapture(place, cv2.CAP_FFMPEG, options), packets=True)


def refuse_undecodable(place: str, shown: str) -> None:
    """OpenCV ends the whole process when a name is not text (a byte that is not UTF-8, on Linux)."""
    try:
        place.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{shown}: OpenCV cannot open a name that is not valid UTF-8: rename it") from error


def is_image(data: Any) -> bool:
    """A picture as every camera should send it: uint8, three channels, at least a pixel."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        return False
    return data.ndim == 3 and data.shape[2] == 3 and data.size > 0


def _is_upright_motion_jpeg(capture: cv2.VideoCapture) -> bool:
    # OpenCV turns a video that was filmed on its side only if it decodes it itself.
    code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little", signed=True)
    return code.upper() == b"MJPG" and capture.get(cv2.CAP_PROP_ORIENTATION_META) == 0


def _decoded(packet: np.ndarray) -> np.ndarray | None:
    try:
        return decode_image(packet.tobytes(), "a frame")
    except BadImage:
        return None
