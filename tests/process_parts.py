"""Processes and servers that a test starts and talks to."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from threading import Thread, Timer
from typing import Any

ROOT = Path(__file__).parents[1]
PIPE = subprocess.PIPE


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def answering(server: BaseServer) -> Iterator[None]:
    """While a thread of its own answers; then it is closed."""
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def started(*arguments: object, patience: float = 120, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """
    This Python with these arguments, its output as text. However the test ends, the process is killed and waited for
    and its pipes are closed: else another test, in which they are collected, would fail.
    """
    options = {"cwd": ROOT, "text": True, "stdout": PIPE, "stderr": PIPE, **options}
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # in the background of a shell; a child would ignore it too
        options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([sys.executable, *map(str, arguments)], **options) as process:
        watchdog = Timer(patience, process.kill)  # one that says nothing must not hold up the test for ever
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


# A server over HTTP ---------------------------------------------------------------------------------------------------

Answer = Callable[[BaseHTTPRequestHandler], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address) -> None:
        """The client hangs up; that is what some tests are about."""


@contextmanager
def http_server(answer: Answer, port: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every request with this function: its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer(self)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = _Server(("127.0.0.1", port), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", asked


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, length: int | None = None, **headers
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
