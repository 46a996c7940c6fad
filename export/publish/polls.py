"""The request that a fleet makes all day long: a device asks for latest.json, with the ETag of what it has.

It is read and answered in the thread that accepts connections: a thread for each, and the standard library's reading of
headers, cost several times as much processor time, which the learner beside the server would like to have.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from export.device.manifest import LATEST

LARGEST = 4096  # bytes of a request
LARGEST_ANSWER = 8192  # bytes of a latest.json: with its headers, a new connection takes it at once
REMEMBERED = 2048  # requests: a device sends the same bytes every time
DEFERRED_SECONDS = 1  # that the system keeps back a connection on which nothing has been sent
_FIRST_LINE = f"GET /{LATEST} HTTP/1.1"
_LEFT_TO_OTHERS = ("content-length", "transfer-encoding", "range")


class Poll(NamedTuple):
    """What a device says when it asks."""

    authorization: str | None
    device: str | None
    has: str | None  # If-None-Match


def accept_with_request(listening: socket.socket) -> None:
    """Let the system hand over a connection once its request is there, where it can: only then is it looked for."""
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFERRED_SECONDS)


def waiting_poll(connection: socket.socket) -> Poll | None:
    """The poll that is there, whole and alone, and stays there; None if there is anything else, or nothing yet."""
    if sys.platform != "linux":
        return None
    try:
        return parse_poll(connection.recv(LARGEST, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return None


@lru_cache(REMEMBERED)
def parse_poll(data: bytes) -> Poll | None:
    r"""None for all that is not as plain as a device's request; what that means is for the standard library to say.

    >>> parse_poll(b'GET /latest.json HTTP/1.1\r\nDevice-Id: cam-1\r\nIf-None-Match: "x"\r\n\r\n')
    Poll(authorization=None, device='cam-1', has='"x"')
    """
    first, *lines = data.decode("latin-1").split("\r\n")
    if first != _FIRST_LINE or lines[-2:] != ["", ""]:
        return None
    pairs = [line.partition(":") for line in lines[:-2]]
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    # Not with one that is there twice, a line that continues the one before, or another request behind this one.
    is_plain = len(headers) == len(pairs) and all(name.replace("-", "").isalnum() for name in headers)
    if not is_plain or any(name in headers for name in _LEFT_TO_OTHERS):
        return None
    return Poll(*(headers.get(name) for name in ("authorization", "device-id", "if-none-match")))


def answer(connection: socket.socket, status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> None:
    """Answer the poll that waits on the connection; it is the last answer on it."""
    sent = {"Date": _date(int(time.time())), **headers, "Connection": "close"}
    head = [f"HTTP/1.1 {status:d} {status.phrase}", *(f"{name}: {value}" for name, value in sent.items())]
    # Taken first: a connection that is closed with something unread would take the answer back.
    connection.recv(LARGEST, socket.MSG_DONTWAIT)
    connection.send("\r\n".join([*head, "", ""]).encode("latin-1") + body, socket.MSG_DONTWAIT)


@lru_cache(1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
