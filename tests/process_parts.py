"""Processes and servers that a test starts and talks to."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socketserver import BaseServer
from threading import Thread, Timer
from typing import Any

ROOT = Path(__file__).parents[1]
PIPE = subprocess.PIPE


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
