"""What tests of the trainer's server share: a server on a real workspace, and devices that talk to it over sockets."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
from workspace_parts import SMALL

from edge_hpcr.workspace.workspace import Workspace
from export.publish.serve import ModelServer

TOKEN = "a-token-of-good-length"


@contextmanager
def running(workspace: Path, token: str | None = TOKEN) -> Iterator[ModelServer]:
    server = ModelServer(workspace, "127.0.0.1", 0, token)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield server  # its socket listens already: who asks now waits until it runs
    finally:
        server.stop()
        thread.join()


def make_workspace(path: Path, **settings: object) -> Path:
    with Workspace.open(path) as workspace:
        workspace.change_settings(**{**SMALL, **settings})
    return path


def ask(
    server: ModelServer | int,
    path: str,
    method: str = "GET",
    data: bytes | None = None,
    token: str | None = TOKEN,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request over a connection of its own; `server` may be a port."""
    port = server if isinstance(server, int) else server.port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, data, sent)
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


def report_of(device: str, **changes: object) -> bytes:
    facts = {
        "device": device,
        "version": 1,
        "frames": 200,
        "unknown": 10,
        "unsure_waiting": 3,
        "unsure_dropped": 0,
        "problem": None,
    }
    return json.dumps({**facts, **changes}).encode()


def picture(seed: int = 0, side: int = 48, kind: str = ".jpg") -> bytes:
    """Another picture for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    _, data = cv2.imencode(kind, cv2.resize(pixels, (side, side), interpolation=cv2.INTER_NEAREST))
    return data.tobytes()


def send_frame(server: ModelServer, device: str, frame: object, data: bytes, **headers: str):
    sent = {"Content_Type": "image/jpeg", "Reason": "unknown", **headers}
    return ask(server, f"/devices/{device}/frames/{frame}", "POST", data, **sent)
