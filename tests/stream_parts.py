"""Pictures, videos, a shelf of frames and a camera with a mood: what tests of sources and of devices share."""

import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from process_parts import answering

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


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


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


class MotionJpeg(http.server.ThreadingHTTPServer):
    """Sends frames of `size` for ever; `mood` is what it does next, to every connection."""

    daemon_threads = True

    def __init__(self, port: int = 0):
        super().__init__(("127.0.0.1", port), _Connection)
        self.mood, self.size = "well", (64, 48)
        self.asked: list[str] = []  # the path of each connection
        self.answer = ""  # a text, instead of frames
        self.password: bytes | None = None  # asked for, if there is one
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/video"


class _Connection(http.server.BaseHTTPRequestHandler):
    server: MotionJpeg

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        server.asked.append(self.path)
        if server.answer:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.answer.encode())
            return
        if server.password and self.headers.get("Authorization") != f"Basic {server.password.decode()}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()
            return
        if server.mood == "refuses":
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=edge")
        self.end_headers()
        try:
            while not server.stopping.wait(0.02) and server.mood not in ("cut", "refuses"):
                self._send_one()
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _send_one(self):
        if self.server.mood == "hangs":
            return
        data = jpeg(200, *self.server.size)
        if self.server.mood == "half":
            data = data[: len(data) // 2]
        head = f"--edge\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
        self.wfile.write(head.encode() + data + b"\r\n")


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[MotionJpeg]:
    running = MotionJpeg(port)
    with answering(running):
        yield running
        running.stopping.set()


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
