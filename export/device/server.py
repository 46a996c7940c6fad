"""A device over HTTP: what its camera sees, and how it is.

    GET /frame.jpg   the newest frame
    GET /healthz     200 while frames are answered, else 503; with the token also what runs and what is wrong

Where there is a token, /frame.jpg needs it; a browser asks for it as a password. An address of the network needs one.
"""

import json
import re
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from export.device.health import Health
from export.device.identity import is_local, listen, shows_token, url_of
from export.device.unsure import encoded

MOST_CONNECTIONS = 64
PATIENCE = 10.0  # seconds for a client to send the next bytes, or to take a picture
# A page of another site may not show the camera's picture either: a browser sends no Origin for an image or a frame.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class DeviceServer(ThreadingHTTPServer):
    """Answers beside the frames, a thread per connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, place: tuple[str, int], health: Health, token: str | None = None) -> None:
        listening = listen(*place, token is not None, "--http", MOST_CONNECTIONS)
        address = listening.getsockname()
        super().__init__(address, Handler, bind_and_activate=False)
        self.socket.close()  # which was made for nothing
        self.listening = self.socket = listening
        self.port = int(address[1])
        self.is_local, self.url = is_local(address[0]), url_of(place[0], listening)
        self.health, self.token = health, token
        self.newest: np.ndarray | None = None  # the frame that was answered last
        threading.Thread(target=self.serve_forever, name="device server", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report anything but a client that hung up."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: DeviceServer
    server_version, sys_version = "edge-hpcr", ""
    timeout = PATIENCE

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: stderr is for a program's own lines."""

    def do_GET(self) -> None:
        # Another site's page must not read the camera, neither by leading its own name to 127.0.0.1 nor through the
        # browser of somebody who may.
        host, origin = self.headers.get("Host") or "", self.headers.get("Origin")
        named = re.sub(r":\d+$", "", host) in ("127.0.0.1", "localhost", "[::1]")
        if (self.server.is_local and not named) or (origin and origin.partition("://")[2] != host):
            self._send_json(HTTPStatus.FORBIDDEN, {"error": "requests from other sites are refused"})
        elif self.path == "/healthz":
            self._healthz()
        elif not self._has_token():
            self._send_json(HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or wrong"})
        elif self.path == "/frame.jpg" and (newest := self.server.newest) is not None:
            self._send(HTTPStatus.OK, "image/jpeg", encoded(newest))
        else:
            there = "ask for /healthz, or after the first frame for /frame.jpg"
            self._send_json(HTTPStatus.NOT_FOUND, {"error": there})

    def _has_token(self) -> bool:
        return shows_token(self.headers.get("Authorization"), self.server.token)

    def _healthz(self) -> None:
        health = self.server.health
        facts = {"ok": health.is_at_work, **(health.facts() if self._has_token() else {})}
        self._send_json(HTTPStatus.OK if facts["ok"] else HTTPStatus.SERVICE_UNAVAILABLE, facts)

    def _send_json(self, status: HTTPStatus, facts: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(facts, allow_nan=False).encode())

    def _send(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="the token as the password"')
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
