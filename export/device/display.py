"""The frames with their labels: in a window, or as motion JPEG on a page of this machine."""

import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from export.device.model import Result

SMALLEST_WIDTH = 480
LARGEST_WIDTH = 1280
MOST_VIEWERS = 8
VIEWER_SECONDS = 10.0
_FONT_PIXELS = 20
_PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Edge HPCR</title>
<body style="margin:0;background:#111"><img src="/stream" alt="what the camera sees, with labels"
style="width:100vw;height:100vh;object-fit:contain"></body></html>"""


class Display(Protocol):
    def show(self, frame: Frame, result: Result, version: int) -> None: ...

    def close(self) -> None: ...


def open_display(spec: str) -> Display:
    """`window`, or the number of a port on 127.0.0.1."""
    if spec == "window":
        return Window()
    if not (spec.isascii() and spec.isdecimal() and len(spec) <= 5 and int(spec) <= 65535):
        raise UserError(f"--display takes window or a port from 0 to 65535, and not {spec!r}")
    return Page(int(spec))


def draw(frame: Frame, result: Result, version: int) -> np.ndarray:
    """A BGR picture of a good size with the answers on a bar below."""
    image = cv2.cvtColor(frame.image, cv2.COLOR_RGB2BGR)
    height, width = image.shape[:2]
    wanted = min(max(width, SMALLEST_WIDTH), LARGEST_WIDTH)
    if wanted != width:
        how = cv2.INTER_AREA if wanted < width else cv2.INTER_NEAREST
        image = cv2.resize(image, (wanted, max(1, round(height * wanted / width))), interpolation=how)
    lines = [f"{label.name}  {label.confidence:.0%}" for label in result.top]
    if result.unknown:
        lines.insert(0, "unknown")
    lines.append(f"model v{version}")
    row = round(1.5 * _FONT_PIXELS)
    bar = np.zeros((row * len(lines) + row // 2, wanted, 3), np.uint8)
    font = cv2.FontFace("sans")
    for place, line in enumerate(lines, 1):
        brightness = (255, 255, 255) if place == 1 else (160, 160, 160)
        cv2.putText(bar, line, (12, place * row), brightness, font, _FONT_PIXELS, 400)
    return np.vstack([image, bar])


class Window:
    """A window of the desktop."""

    def __init__(self) -> None:
        try:
            cv2.namedWindow("Edge HPCR", cv2.WINDOW_NORMAL)
        except cv2.error:
            raise UserError(
                "--display window: this OpenCV has no windows (opencv-python-headless) or there is no screen; "
                "--display 8082 shows a page instead"
            ) from None

    def show(self, frame: Frame, result: Result, version: int) -> None:
        cv2.imshow("Edge HPCR", draw(frame, result, version))
        cv2.waitKey(1)

    def close(self) -> None:
        cv2.destroyAllWindows()


class Page(ThreadingHTTPServer):
    """A page on 127.0.0.1 whose picture moves. Each viewer's thread draws, so that frames do not wait."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        self.viewers = threading.BoundedSemaphore(MOST_VIEWERS)
        self._changed = threading.Condition()
        self._newest: tuple[Frame, Result, int] | None = None
        self._number = 0
        self._closed = False
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"--display {port}: {error.strerror}; choose another port") from None
        self.port: int = self.server_address[1]
        self.name = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.serve_forever, name="page", daemon=True).start()

    def show(self, frame: Frame, result: Result, version: int) -> None:
        with self._changed:
            self._newest = (frame, result, version)
            self._number += 1
            self._changed.notify_all()

    def pictures(self) -> Iterator[np.ndarray]:
        """The newest picture, again whenever there is another, until the page is closed."""
        seen = 0
        while True:
            with self._changed:
                while not self._closed and self._number == seen:
                    self._changed.wait()
                if self._closed or self._newest is None:
                    return
                seen, shown = self._number, self._newest
            yield draw(*shown)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a viewer went away."""


class _Handler(BaseHTTPRequestHandler):
    timeout = VIEWER_SECONDS
    server: Page

    def do_GET(self) -> None:
        # Another site's page must not read the camera by giving its own name to 127.0.0.1.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._answer("text/html; charset=utf-8", len(_PAGE))
            self.wfile.write(_PAGE)
        elif self.path == "/stream":
            self._stream()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, kind: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _stream(self) -> None:
        if not self.server.viewers.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers")
            return
        try:
            self._answer("multipart/x-mixed-replace; boundary=frame")
            for picture in self.server.pictures():
                data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data + b"\r\n")
        except OSError:
            self.close_connection = True  # the viewer has left, or does not read any more
        finally:
            self.server.viewers.release()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: stderr is for the runtime's own lines."""
