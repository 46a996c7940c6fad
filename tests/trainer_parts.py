"""A trainer's routes for devices, as docs/device.md describes them, on a real socket."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from process_parts import answering

TOKEN = "a-token-of-good-length"
_PATH = re.compile(r"/devices/([A-Za-z0-9._-]{1,64})/(report|frames/([A-Za-z0-9._-]{1,64}))")


class Trainer(ThreadingHTTPServer):
    """Keeps frames and reports. `answers` are given to the next frames instead of taking them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, exports: Path | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.exports = exports
        self.token = TOKEN
        self.frames: dict[str, tuple[dict[str, str], bytes]] = {}
        self.asked: list[str] = []  # ids of frames, as they came
        self.reports: list[dict[str, Any]] = []
        self.devices: list[str | None] = []  # that asked for latest.json
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.takes_reports = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A device may hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: Trainer

    def do_GET(self) -> None:
        trainer = self.server
        if self.path == "/latest.json":
            trainer.devices.append(self.headers.get("Device-Id"))
        file = trainer.exports / self.path[1:] if trainer.exports else Path("nowhere")
        self._say(200, file.read_bytes()) if file.is_file() else self._say(404)

    def do_POST(self) -> None:
        trainer, match = self.server, _PATH.fullmatch(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {trainer.token}":
            self._say(401)
        elif match is None or (match[3] is None and not trainer.takes_reports):
            self._say(405)
        elif match[3] is None:
            trainer.reports.append(json.loads(body))
            self._say(204)
        else:
            self._take(match[3], body)

    def _take(self, frame: str, body: bytes) -> None:
        trainer = self.server
        trainer.asked.append(frame)
        if trainer.answers:
            status, headers = trainer.answers.pop(0)
            self._say(status, b"", headers)
        elif frame in trainer.frames:
            self._say(200)
        else:
            trainer.frames[frame] = (dict(self.headers), body)
            self._say(201)

    def _say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@contextmanager
def trainer(exports: Path | None = None, port: int = 0) -> Iterator[Trainer]:
    server = Trainer(exports, port)
    with answering(server):
        yield server
