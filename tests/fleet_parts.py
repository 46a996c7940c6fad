"""What tests of the trainer's server share: a server on a real workspace, and devices that talk to it over sockets."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from process_parts import answering
from workspace_parts import SMALL

from edge_hpcr.workspace.folder import Workspace
from export.publish.serve import ExportsServer, make_server
from export.publish.tokens import Tokens

TOKEN = "a-token-of-good-length"


@contextmanager
def running(workspace: Path, tokens: Path | str | None = TOKEN) -> Iterator[ExportsServer]:
    """With a file of tokens, one token, or none."""
    server = make_server(
        workspace, "127.0.0.1", 0, Tokens.read(tokens) if isinstance(tokens, Path) else tokens
    )
    with answering(server):
        yield server


def make_workspace(path: Path, **settings: object) -> Path:
    with Workspace.open(path) as workspace:
        workspace.change_settings(**{**SMALL, **settings})
    return path


def ask(
    server: ExportsServer | int,
    path: str,
    method: str = "GET",
    data: bytes | None = None,
    token: str | None = TOKEN,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request over a connection of its own; `server` may be a port."""
    port = server if isinstance(server, int) else server.server_address[1]
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
        "since": 1000.0,
        "started": 990.0,
        "now": 1060.0,
        "frames": 200,
        "unknown": 10,
        "unsure_waiting": 3,
        "unsure_dropped": 0,
        "problem": None,
        "software": "edge_hpcr 1",
    }
    return json.dumps({**facts, **changes}).encode()


def picture(seed: int = 0, side: int = 48, kind: str = ".jpg") -> bytes:
    """Another picture for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    _, data = cv2.imencode(kind, cv2.resize(pixels, (side, side), interpolation=cv2.INTER_NEAREST))
    return data.tobytes()


def send_frame(server: ExportsServer, device: str, frame: object, data: bytes, **headers: str):
    sent = {"Content_Type": "image/jpeg", "Reason": "unknown", "Captured_At": "12.5", **headers}
    return ask(server, f"/devices/{device}/frames/{frame}", "POST", data, **sent)
