"""A device over HTTP: classify a picture, look at what the camera sees, and ask how the device is.

    POST /classify       a JPEG or PNG; the same JSON as a line of stdout
    GET  /               a page with the moving picture; /stream is its motion JPEG, /frame.jpg the newest frame alone
    GET  /healthz        200 while frames are answered, else 503
    GET  /metrics        for Prometheus

On an address of the network every request but /healthz needs the token; a browser asks for it as a password.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from edge_hpcr.stream.decode import BadImage, decode_image
from export.device.display import as_jpeg, draw
from export.device.errors import BadModel
from export.device.health import Health
from export.device.heartbeat import MOST_SECONDS
from export.device.limited_server import LimitedHandler, LimitedServer, address_to_listen_on, is_loopback
from export.device.line import result_line
from export.device.model import Classifier, Result

MOST_VIEWERS = 8
VIEWER_SECONDS = 10.0
LARGEST_PICTURE = 10_000_000  # bytes
MOST_WAITING = 8  # pictures to classify, one of which is being classified
WAIT_SECONDS = 20.0  # for its turn
_PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Edge HPCR</title>
<body style="margin:0;background:#111"><img src="/stream" alt="what the camera sees, with labels"
style="width:100vw;height:100vh;object-fit:contain"></body></html>"""
_METRICS = (
    ("frames_total", "counter", "frames answered", lambda health: health.frames),
    ("unknown_total", "counter", "of them unknown", lambda health: health.unknown),
    ("requests_total", "counter", "pictures classified over HTTP", lambda health: health.requests),
    ("latency_seconds", "gauge", "resize and model, of the last frame", lambda health: health.latency_ms / 1000),
    ("model_version", "gauge", "version in use", lambda health: health.version or 0),
    ("model_since_seconds", "gauge", "Unix time of the last change of the model", lambda health: health.since),
    ("problem", "gauge", "1 while something is wrong; /healthz says what", lambda health: int(bool(health.problem))),
    ("mqtt_dropped_total", "counter", "results that no broker took", lambda health: health.mqtt_dropped),
    ("unsure_waiting", "gauge", "frames that wait for the trainer", lambda health: health.unsure_waiting),
    ("unsure_sent_total", "counter", "frames that the trainer has", lambda health: health.unsure_sent),
    ("unsure_dropped_total", "counter", "frames that were not kept for it", lambda health: health.unsure_dropped),
)  # fmt: skip


def parse_place(text: str, option: str) -> tuple[str, int]:
    """Host and port: `8090` is on this machine only, `:8090` on all addresses.

    >>> parse_place("8090", "--http"), parse_place(":8090", "--http")
    (('127.0.0.1', 8090), ('0.0.0.0', 8090))
    """
    host, colon, port = text.rpartition(":")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 65536
    if number > 65535 or (host.count(":") and not re.fullmatch(r"\[[^\[\]]+\]", host)):
        raise UserError(f"{option} {text[:60]!r}: write PORT, :PORT or HOST:PORT, a port from 0 to 65535")
    return host.strip("[]") or ("0.0.0.0" if colon else "127.0.0.1"), number


class DeviceServer(LimitedServer):
    """Answers beside the frames. Each viewer's thread draws, so that frames do not wait."""

    def __init__(
        self,
        place: tuple[str, int],
        health: Health,
        token: str | None = None,
        option: str = "--http",
        top: int = 3,
    ) -> None:
        family, address = address_to_listen_on(*place, token is not None, option)
        self.health, self.top = health, top
        self.token = None if is_loopback(address[0]) else token
        self.viewers = threading.BoundedSemaphore(MOST_VIEWERS)
        self.waiting = threading.BoundedSemaphore(MOST_WAITING)
        self.turn = threading.Lock()
        self.classifier: Callable[[], Classifier] | None = None  # once there is a model
        self._changed = threading.Condition()
        self._newest: tuple[Frame, Result, int] | None = None
        self._number = 0
        self._closed = False
        try:
            super().__init__(family, address, _Handler)
        except OSError as error:
            raise UserError(f"{option} {place[1]}: {error.strerror}; choose another port") from None
        self.port: int = self.server_address[1]
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        self.name = f"http://{shown}:{self.port}/"
        threading.Thread(target=self.serve_forever, name="device server", daemon=True).start()

    def show(self, frame: Frame, result: Result, version: int) -> None:
        with self._changed:
            self._newest = (frame, result, version)
            self._number += 1
            self._changed.notify_all()

    def newest(self) -> np.ndarray | None:
        shown = self._newest
        return None if shown is None else draw(*shown)

    def pictures(self) -> Iterator[np.ndarray]:
        """The newest picture, again whenever there is another, until the server is closed."""
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

    def metrics(self) -> str:
        device = f'{{device="{self.health.device}"}}'
        lines = []
        for name, kind, about, value in _METRICS:
            full = f"edge_hpcr_device_{name}"
            lines += [
                f"# HELP {full} {about}",
                f"# TYPE {full} {kind}",
                f"{full}{device} {value(self.health):.15g}",
            ]
        return "\n".join(lines) + "\n"


class _Handler(LimitedHandler):
    server: DeviceServer

    def do_GET(self) -> None:  # noqa: N802
        self.server.note(self.connection, None)
        if self.path == "/healthz":
            self._healthz()
        elif self._may_ask():
            pages = {
                "/": self._page,
                "/stream": self._stream,
                "/frame.jpg": self._frame,
                "/metrics": self._metrics,
            }
            pages.get(self.path, self._nothing)()

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:  # noqa: N802
        self.server.note(self.connection, None)
        if not self._may_ask():
            return
        if self.path != "/classify":
            self.refuse(HTTPStatus.NOT_FOUND, "POST a picture to /classify")
        elif self.headers.get("Origin") is not None:
            # A page of anybody's could ask in the name of who has it open.
            self.refuse(HTTPStatus.FORBIDDEN, "requests of a browser's page are refused")
        elif not self.server.waiting.acquire(blocking=False):
            self._busy()
        else:
            try:
                self._classify()
            finally:
                self.server.waiting.release()

    def _may_ask(self) -> bool:
        if self.server.token is not None:
            if not self.is_allowed(self.server.token):
                asks = {"WWW-Authenticate": 'Basic realm="the token as the password"'}
                self.refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong", asks)
                return False
            return True
        # Another site's page must not read the camera by giving its own name to 127.0.0.1.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            self.refuse(HTTPStatus.FORBIDDEN, "asked by another name than this machine's")
            return False
        return True

    def _classify(self) -> None:
        data = self.body(LARGEST_PICTURE)
        if data is None:
            return
        classifier = self.server.classifier
        if classifier is None:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "there is no model yet", {"Retry-After": "5"})
            return
        try:
            image = decode_image(data, "the picture")
        except BadImage as error:
            self.refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error))
            return
        # One at a time: the frames of the camera come first, and need the rest of the processor.
        if not self.server.turn.acquire(timeout=WAIT_SECONDS):
            self._busy()
            return
        try:
            used, begun = classifier(), time.perf_counter()
            result = used.predict([image], self.server.top)[0]
        except BadModel as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            return
        finally:
            self.server.turn.release()
        health = self.server.health
        health.requests += 1
        milliseconds = 1000 * (time.perf_counter() - begun)
        answer = None if result.unknown else result.top[0]
        facts = (health.requests, time.time(), "request", health.device, result, answer)
        line = result_line(*facts, used.info.version, milliseconds)
        self.send(HTTPStatus.OK, "application/json", json.dumps(line, allow_nan=False).encode())

    def _busy(self) -> None:
        self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pictures at once", {"Retry-After": "1"})

    def _healthz(self) -> None:
        health = self.server.health
        seconds = health.seconds_since_answer()
        good = seconds is not None and seconds <= MOST_SECONDS
        facts: dict[str, object] = {"ok": good}
        if self.is_allowed(self.server.token):
            facts |= {
                "device": health.device,
                "version": health.version,
                "frames": health.frames,
                "seconds_since_answer": None if seconds is None else round(seconds, 1),
                "problem": health.problem,
            }
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self.send(status, "application/json", json.dumps(facts).encode())

    def _metrics(self) -> None:
        self.send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self.server.metrics().encode())

    def _page(self) -> None:
        self.send(HTTPStatus.OK, "text/html; charset=utf-8", _PAGE)

    def _frame(self) -> None:
        picture = self.server.newest()
        if picture is None:
            self.refuse(HTTPStatus.NOT_FOUND, "there was no frame yet")
        else:
            self.send(HTTPStatus.OK, "image/jpeg", as_jpeg(picture))

    def _nothing(self) -> None:
        self.refuse(
            HTTPStatus.NOT_FOUND, "there is /, /frame.jpg, /healthz and /metrics; pictures go to /classify"
        )

    def _stream(self) -> None:
        if not self.server.viewers.acquire(blocking=False):
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers")
            return
        try:
            self.connection.settimeout(VIEWER_SECONDS)
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "HEAD":
                return
            for picture in self.server.pictures():
                data = as_jpeg(picture)
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data + b"\r\n")
        except OSError:
            pass  # the viewer has left, or does not read any more
        finally:
            self.server.viewers.release()
