"""OpenCV's captures, made safe: quiet, with time limits, and honest about motion JPEG.

OpenCV 5.0 holds on to the size of a motion-JPEG stream's first frame: a camera that changes its resolution is scaled in
silence, and half a frame may pass as a whole one. Its users report crashes when the chroma format changes (opencv issue
29699; not seen here). So the packets of motion JPEG are taken as they come and decoded one by one.
"""

import os
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
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


def open_camera(which: int | str) -> OpenCVCapture:
    """A camera at this computer by its number, or by the name of its file."""
    if isinstance(which, str):
        return OpenCVCapture(cv2.VideoCapture(which, cv2.CAP_V4L2))
    return OpenCVCapture(cv2.VideoCapture(which))


def open_ffmpeg(place: str, timeout: float | None = None) -> OpenCVCapture:
    """A video file, or an address with a limit in seconds on the opening and on each frame."""
    options = []
    if timeout is not None:
        limit = int(timeout * 1000)
        options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
    return OpenCVCapture(cv2.VideoCapture(place, cv2.CAP_FFMPEG, options), packets=True)


def refuse_redirects() -> None:
    """Follow no redirection of an address from now on, in the whole process: FFmpeg cannot be told for one alone."""
    if "max_redirects" not in os.environ[_OPTIONS]:
        os.environ[_OPTIONS] += "|max_redirects;0"


def starts_like_video(path: Path) -> bool:
    """Whether the first bytes are those of a container that may be opened as a video."""
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError:
        return False
    return (
        head.startswith((b"\x1aE\xdf\xa3", b"FLV\x01", b"0&\xb2u\x8ef\xcf\x11", b"OggS\0", b"\0\0\1\xba"))
        or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")
        # The length of the first part: no text begins with so small a byte.
        or (
            head[:1] < b"\x09"
            and head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
        )
        or (
            head[:1] == b"G" and head[188:189] == b"G"
        )  # MPEG transport streams, with and without time stamps
        or (head[4:5] == b"G" and head[196:197] == b"G")
    )


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
