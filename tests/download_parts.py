"""A local server that offers what torchvision downloads, and misbehaves as it is told."""

import gc
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from process_parts import answering


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks_after: list[int] = field(default_factory=list)  # bytes of each coming file before the line is cut
    asked: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        site, name = self.site, self.path.strip("/")
        site.asked.append(name)
        if name not in site.files:
            self.send_error(404)
            return
        content = site.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not self.headers.get("Method"):  # torchvision first asks only for the address behind redirects
            content = content[: site.breaks_after.pop(0)] if site.breaks_after else content
        self.wfile.write(content)

    def log_message(self, *_args):
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, *request):
        if not isinstance(sys.exception(), ConnectionError):  # whoever asked may have given up
            super().handle_error(*request)


@pytest.fixture
def site() -> Iterator[Site]:
    offered = Site()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": offered}))
    offered.address = f"http://127.0.0.1:{server.server_port}/"
    with answering(server):
        yield offered
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # torchvision leaves the sockets of refused requests to Python
