"""The frames with their labels: in a window, or as motion JPEG on a page of this machine."""

import threading
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Shown:
    frame: Frame
    result: Result
    version: int
    number: int


class Page:
    """A page on 127.0.0.1 whose picture moves. Each viewer's thread draws for itself: the frames wait for nobody."""

    def __init__(self, port: int) -> None:
        self._changed = threading.Condition()
        self._newest: _Shown | None = None
        self._closed = False
        self.viewers = threading.BoundedSemaphore(MOST_VIEWERS)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"--display {port}: {error.strerror}; choose another port") from None
        self._server.page = self
        self.port: int = self._server.server_address[1]
        self.name = f"http://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    def show(self, frame: Frame, result: Result, version: int) -> None:
        with self._changed:
            number = self._newest.number + 1 if self._newest else 1
            self._newest = _Shown(frame, result, version, number)
            self._changed.notify_all()

    def next(self, after: int, timeout: float) -> _Shown | None:
        """What is shown, once it is newer than picture `after`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number > after, timeout)
            return self._newest if self._number > after and not self._closed else None

    @property
    def _number(self) -> int:
        return self._newest.number if self._newest else 0

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    page: Page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = VIEWER_SECONDS
    server: _Server

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
        page = self.server.page
        if not page.viewers.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers")
            return
        try:
            self._answer("multipart/x-mixed-replace; boundary=frame")
            seen = 0
            while not page.closed:
                shown = page.next(seen, timeout=1.0)
                if shown is not None:
                    seen = shown.number
                    self._send(draw(shown.frame, shown.result, shown.version))
        except OSError:
            self.close_connection = True  # the viewer has left, or does not read any more
        finally:
            page.viewers.release()

    def _send(self, picture: np.ndarray) -> None:
        data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
        head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
        self.wfile.write(head.encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet: stderr is for what the device has to say."""
