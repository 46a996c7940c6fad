"""What runs beside `learn`: publishing by itself, and the server that gives models to devices.

`edge_hpcr` names this module and does not import it: the export builds on the learner, not the other way round. The
server is a process of its own, so that two hundred devices that ask every second do not slow the learning down, nor can
what they send end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import export
from edge_hpcr.common.errors import UserError
from export.publish.serve import check_address, listen_once
from export.publish.tokens import Tokens

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

SERVED_SECONDS = 5.0  # between two publications where devices wait for them and nothing else was asked for
STOP_SECONDS = 10.0
MOST_PAUSE = 30.0  # seconds until a server that ended is started again


@dataclass(frozen=True)
class Serving:
    """Where to serve, checked before anything is learned."""

    host: str
    port: int
    token: Path | None

    @classmethod
    def parse(cls, address: str, token: Path | None) -> Serving:
        """`HOST:PORT`, `[HOST]:PORT` or `:PORT`, which is this machine only."""
        host, separator, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not separator or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
            raise UserError(f"--serve {address}: write it as HOST:PORT, like 0.0.0.0:8081")
        family, place = check_address(host, int(port), Tokens.read(token), option="--serve")
        return cls(host, listen_once(family, place), token)


def beside(
    serve: str | None, token: Path | None
) -> Callable[[LiveLearner, Path], AbstractContextManager[None]]:
    """What to enter while a learner runs, with the path of its workspace; bad input is refused now."""
    if token is not None and serve is None:
        raise UserError("--token: it is for devices; give --serve HOST:PORT too")
    serving = Serving.parse(serve, token) if serve is not None else None

    @contextmanager
    def running(live: LiveLearner, workspace: Path) -> Iterator[None]:
        with ExitStack() as stack:
            if serving:
                stack.enter_context(_server(workspace, serving))
            settings = live.workspace.settings
            if serving or settings.publish_steps or settings.publish_seconds:
                stack.enter_context(_publisher(live, SERVED_SECONDS if serving else None))
            yield

    return running


@contextmanager
def _publisher(live: LiveLearner, default_seconds: float | None) -> Iterator[None]:
    from export.publish.publisher import publisher_of  # ONNX takes a second, and a plain `learn` needs none

    publisher = publisher_of(live, default_seconds, say)
    assert publisher is not None
    publisher.start()
    finished = False
    try:
        yield
        finished = not live.failed
    finally:
        publisher.stop(publish=finished)  # what was learned last, if nothing has gone wrong


@contextmanager
def _server(workspace: Path, serving: Serving) -> Iterator[None]:
    server = ServerProcess(workspace, serving)
    server.start()
    try:
        yield
    finally:
        server.stop()


def say(sentence: str) -> None:
    print(f"edge_hpcr: {sentence}", file=sys.stderr, flush=True)


class ServerProcess:
    """`python -m export serve`, started again if it ends; it ends with this process, however that ends."""

    def __init__(self, workspace: Path, serving: Serving) -> None:
        self._command = [
            *(sys.executable, "-P", "-m", "export", "serve", "--workspace", os.fspath(workspace)),
            *("--host", serving.host, "--port", str(serving.port), "--with-parent"),
            *(("--token", os.fspath(serving.token)) if serving.token else ()),
        ]
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="server's keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()  # which ends it
        self._thread.join(STOP_SECONDS)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _run(self) -> None:
        pause = 1.0
        while not self._stopping.is_set():
            begun = time.monotonic()
            code = self._serve()
            if self._stopping.is_set():
                return
            pause = min(MOST_PAUSE, 2 * pause) if time.monotonic() - begun < MOST_PAUSE else 1.0
            say(f"the server of models ended with {code}: it is started again in {pause:.0f} s")
            self._stopping.wait(pause)

    def _serve(self) -> int:
        # The same packages as here, however they were found.
        root = os.fspath(Path(export.__file__).parents[1])
        places = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": places},
            start_new_session=True,  # Ctrl-C is for the learner, which ends the server last
        ) as process:
            self._process = process
            if self._stopping.is_set() and process.stdin is not None:
                process.stdin.close()
            return process.wait()
