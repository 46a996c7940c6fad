"""The first page, while PyTorch and Gradio are still being loaded: where pictures shall come from can be chosen already.

A small server of the standard library has the port until the real one takes it over. It knows nothing of the workspace but
whether a source was chosen before, and asks nobody for a password: there is nothing to see.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
LONGEST_REQUEST = 10.0  # seconds
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Edge HPCR</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/edge/static/style.css"><link rel="stylesheet" href="/edge/static/teach.css">
<link rel="stylesheet" href="/edge/static/door.css"><script type="module" src="/edge/static/door.js"></script></head>
<body><main class="gradio-container"><div id="strip"><strong>Edge HPCR</strong> <span class="phase">● starting</span></div>
<div id="teach" data-choose="{choose}"></div></main></body></html>
"""


class Door:
    """Open from its making until `close`."""

    def __init__(self, host: str, port: int, choose: bool) -> None:
        page = PAGE.format(choose="yes" if choose else "no").encode()

        class Answer(BaseHTTPRequestHandler):
            timeout = LONGEST_REQUEST

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                script = STATIC / path.removeprefix("/edge/static/")
                if path == "/":
                    self._say(200, page, "text/html; charset=utf-8")
                elif script.parent == STATIC and script.suffix in MEDIA_TYPES and script.is_file():
                    self._say(200, script.read_bytes(), MEDIA_TYPES[script.suffix])
                else:
                    self._say(503, b"not ready\n", "text/plain")

            def _say(self, status: int, content: bytes, media_type: str) -> None:
                self.send_response(status)
                fields = {
                    "Content-Type": media_type,
                    "Content-Length": str(len(content)),
                    "Connection": "close",
                }
                for name, value in (fields | HEADERS).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="door", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give the port free."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
