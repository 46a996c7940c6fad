"""Pictures, videos, a shelf of frames and a camera with a mood: what tests of sources and of devices share."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import cv2
import numpy as np
from process_parts import http_server, send

from edge_hpcr.stream import EndOfStream, Stream
from edge_hpcr.stream.camera import Patience

QUICK = Patience(stall_seconds=0.5, give_up_seconds=2.0, waits=(0.05,))
FRAMES = 12  # of a video


def png(value: int = 0) -> bytes:
    return cv2.imencode(".png", np.full((5, 7, 3), value, np.uint8))[1].tobytes()


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_video(path, code: str = "MJPG") -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*code), 10, (64, 48))
    assert writer.isOpened()
    for number in range(FRAMES):
        image = np.zeros((48, 64, 3), np.uint8)
        image[..., 2] = 20 * number  # red, in OpenCV's order
        writer.write(image)
    writer.release()


def packets(data: bytes) -> list[int]:
    """Where the frames of the AVI file begin (its header and its index name them too)."""
    places, place = [], data.find(b"00dc", data.find(b"movi"))
    while 0 <= place < data.find(b"idx1"):
        places.append(place)
        place = data.find(b"00dc", place + 1)
    assert len(places) == FRAMES
    return places


def jpeg(value: int, width: int, height: int) -> bytes:
    """Red on the left, blue on the right."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, : width // 2, 2] = value  # in OpenCV's order of colours
    image[:, width // 2 :, 0] = value
    return cv2.imencode(".jpg", image)[1].tobytes()


class MotionJpeg:
    """Sends frames of `size` for ever; `mood` is what it does next, to every connection."""

    def __init__(self) -> None:
        self.url = ""
        self.mood, self.size = "well", (64, 48)
        self.asked: list[str] = []  # the path of each connection
        self.text = ""  # instead of frames
        self.password: bytes | None = None  # asked for, if there is one
        self.stopping = threading.Event()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if self.text:
            return send(handler, self.text.encode())
        if self.password and handler.headers.get("Authorization") != f"Basic {self.password.decode()}":
            return send(handler, b"", 401, WWW_Authenticate='Basic realm="camera"')
        if self.mood == "refuses":
            return send(handler, b"", 503)
        handler.send_response(200)
        handler.send_header("Content-Type", "multipart/x-mixed-replace; boundary=edge")
        handler.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not self.stopping.wait(0.02) and self.mood not in ("cut", "refuses"):
                handler.wfile.write(self._part())
        return None

    def _part(self) -> bytes:
        if self.mood == "hangs":
            return b""
        data = jpeg(200, *self.size)
        if self.mood == "half":
            data = data[: len(data) // 2]
        head = f"--edge\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data + b"\r\n"


@contextlib.contextmanager
def serving() -> Iterator[MotionJpeg]:
    camera = MotionJpeg()
    with http_server(camera.answer) as (address, camera.asked):
        camera.url = f"{address}/video"
        yield camera
        camera.stopping.set()


class Shelf(Stream):
    """Frames that a test has put there."""

    name = "shelf"

    def __init__(self, frames=(), live=False):
        super().__init__(self.name)
        self.live = live
        self._left = list(frames)

    def read(self, timeout):
        if not self._left:
            if self.live:
                return None
            raise EndOfStream
        return self._counted(self._left.pop(0))

    def _doing(self):
        return "live", ""
