"""An HTTP server with limits: on connections, on the time that a request may take to come, and on who may ask."""

import base64
import binascii
import hmac
import ipaddress
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from export.device.access_token import VARIABLE

MOST_DISCARDED = 2**16  # bytes of a body that nobody wants, so that the answer arrives


def address_to_listen_on(
    host: str,
    port: int,
    has_token: bool,
    option: str,
    needed: str = f"give a token (--token FILE or {VARIABLE})",
) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """A `UserError` if the address is none, or open to the network while nobody is asked for a token."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"{option} {host}: {reason_of(error)}") from None
    if not has_token and not is_loopback(str(address[0])):
        raise UserError(f"{option} {host} is open to the network: {needed}")
    return family, (str(address[0]), port)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


@dataclass
class _Connection:
    address: str
    waiting_since: float | None  # for a request; None while it is answered
    patience: float = 0.0  # seconds beyond the usual


class LimitedServer(ThreadingHTTPServer):
    """A thread per connection. Where there are too many, the one that has said least for longest makes place."""

    daemon_threads = True
    request_queue_size = 128  # with socketserver's 5, a crowd costs seconds
    block_on_close = False
    most_connections, most_of_an_address = 64, 32
    longest_wait = 15.0  # seconds until a request has come whole

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, _Connection] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        address = str(client_address[0])
        with self._lock:
            room = self._make_room(address)
            if room:
                self._connections[request] = _Connection(address, time.monotonic())
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self, address: str) -> bool:
        """Whether there is room for another connection; one that waits for a request is closed for it."""
        crowd = [each for each, of in self._connections.items() if of.address == address]
        if len(crowd) < self.most_of_an_address:
            if len(self._connections) < self.most_connections:
                return True
            crowd = [*self._connections]
        waits = {
            each: since for each in crowd if (since := self._connections[each].waiting_since) is not None
        }
        if waits:
            self._close(min(waits, key=waits.__getitem__))
        return bool(waits)

    def _close(self, connection: socket.socket) -> None:
        del self._connections[connection]
        with suppress(OSError):  # it may have gone by itself
            connection.shutdown(socket.SHUT_RDWR)  # which ends its thread's reading

    def service_actions(self) -> None:
        """Close, twice a second, what has waited for a request for too long, however many bytes of it trickled in."""
        now = time.monotonic()
        with self._lock:
            for connection, of in [*self._connections.items()]:
                if of.waiting_since is not None and now - of.waiting_since > self.longest_wait + of.patience:
                    self._close(connection)

    def note(self, connection: socket.socket, waiting_since: float | None, patience: float = 0.0) -> None:
        with self._lock:
            if connection in self._connections:
                self._connections[connection].waiting_since = waiting_since
                self._connections[connection].patience = patience

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report anything but a client that hung up."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class LimitedHandler(BaseHTTPRequestHandler):
    """What requests to such a server have in common."""

    protocol_version = "HTTP/1.1"
    server_version = "edge-hpcr"
    sys_version = ""
    timeout = 30.0  # for each block of an answer
    server: LimitedServer

    def handle_one_request(self) -> None:
        self.server.note(self.connection, waiting_since=time.monotonic())
        super().handle_one_request()

    def is_allowed(self, token: str | None) -> bool:
        """Whether the token came with the request: as a bearer's, or as the password of a browser."""
        if token is None:
            return True
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        secret = given.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            with suppress(binascii.Error, ValueError):
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, token.encode())

    def body(self, limit: int) -> bytes | None:
        """What was sent, all of it before the deadline; None if it is too much or was cut off, which has been told."""
        given = self.headers.get("Content-Length") or ""
        if not (given.isascii() and given.isdecimal() and len(given) < 16):
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
            return None
        if int(given) > limit:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit:,} bytes are taken")
            return None
        self.server.note(self.connection, waiting_since=time.monotonic())
        data = self.rfile.read(int(given))
        self.server.note(self.connection, None)
        if len(data) < int(given):
            self.close_connection = True
            return None
        return data

    def refuse(self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None) -> None:
        """Say why not, and hang up: a body that was not read would be taken for the next request."""
        self.close_connection = True
        data = json.dumps({"error": reason}).encode()
        self.send(status, "application/json", data, {"Connection": "close", **(headers or {})})
        if self.command != "POST":
            return
        with suppress(OSError):
            # A little of the body, else the client's system throws the answer away.
            self.connection.settimeout(0.2)
            left = MOST_DISCARDED
            while left > 0 and (block := self.rfile.read1(left)):
                left -= len(block)

    def send(self, status: HTTPStatus, kind: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        usual = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**usual, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: stderr is for a program's own lines."""
