"""`python -m export serve`: the exports folder of a workspace over HTTP, read-only, for devices in the field.

It gives out latest.json and the files that the manifests of published versions name, and nothing else. Standard library
only. It speaks plain HTTP: on an open network put a server with TLS in front of it; any static file server does as well.
"""

import hashlib
import hmac
import io
import ipaddress
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of, sha256
from export.device import manifest as files
from export.device.access_token import VARIABLE, read_token
from export.device.errors import BadModel

DEFAULT_PORT = 8081
MOST_CONNECTIONS, MOST_OF_AN_ADDRESS = 64, 32
LONGEST_WAIT = 15.0  # seconds until a request has come whole
SEND_SECONDS = 30.0  # for each block of an answer
BLOCK = 2**18
_VERSION_FILE = re.compile(r"/(v[0-9]{6,15})/([A-Za-z0-9_][A-Za-z0-9._-]{0,99})")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def serve(workspace: Path, host: str, port: int, token: Path | None) -> None:
    """Serve the exports of a workspace until Ctrl-C or SIGTERM."""
    server = make_server(workspace, host, port, read_token(token))
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.server_address[1]}"
    print(f"serving {server.exports} at {address}", file=sys.stderr, flush=True)

    def stop(number: int, frame: object) -> None:
        # Not by an exception: one that is raised while garbage is collected would be lost. `shutdown` waits for the loop.
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with server:
        server.serve_forever()


def make_server(workspace: Path, host: str, port: int, token: str | None = None) -> "ExportsServer":
    if not workspace.is_dir():
        raise UserError(f"{workspace}: there is no such workspace")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: {reason_of(error)}") from None
    if token is None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UserError(f"--host {host} is open to the network: give a token (--token FILE or {VARIABLE})")
    try:
        return ExportsServer(family, (str(address[0]), port), workspace / "exports", token)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}") from None


@dataclass
class _Connection:
    address: str
    waiting_since: float | None  # for a request; None while it is answered


class ExportsServer(ThreadingHTTPServer):
    """A thread per connection. Where there are too many, the one that has said least for longest makes place."""

    daemon_threads = True
    request_queue_size = 128  # with socketserver's 5, a crowd costs a device seconds
    block_on_close = False

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], exports: Path, token: str | None
    ) -> None:
        self.address_family = family
        self.exports = exports
        self.token = token
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, _Connection] = {}
        self._digests: dict[Path, tuple[tuple[int, ...], str]] = {}
        super().__init__(address, _Handler)

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
        if len(crowd) < MOST_OF_AN_ADDRESS:
            if len(self._connections) < MOST_CONNECTIONS:
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
                if of.waiting_since is not None and now - of.waiting_since > LONGEST_WAIT:
                    self._close(connection)

    def note(self, connection: socket.socket, waiting_since: float | None) -> None:
        with self._lock:
            if connection in self._connections:
                self._connections[connection].waiting_since = waiting_since

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report anything but a device that hung up."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def open(self, path: str) -> tuple[io.BufferedReader | io.BytesIO, str]:
        """The file behind a request's path and its SHA-256; `BadModel` if it is not one to give out."""
        if path == f"/{files.LATEST}":
            # Read whole: it is replaced while devices ask for it.
            data = files.read_plain_file(self.exports / files.LATEST, files.LARGEST_LATEST)
            return io.BytesIO(data), sha256(data)
        match = _VERSION_FILE.fullmatch(path)
        if match is None:
            raise BadModel(f"{path}: not a published file")
        folder, name = self.exports / match[1], match[2]
        published = files.read_manifest(folder)
        if name != files.MANIFEST and name not in {each.file for each in published.files}:
            raise BadModel(f"{path}: its manifest does not name it")
        limit = files.LARGEST_MANIFEST if name == files.MANIFEST else files.LARGEST_MODEL
        file = files.open_plain_file(folder / name, limit)
        return file, self._digest(folder / name, file)

    def _digest(self, path: Path, file: io.BufferedReader) -> str:
        """The SHA-256 of the file, not what its manifest says: a repaired file must not look unchanged."""
        state = os.fstat(file.fileno())
        identity = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
        known = self._digests.get(path)
        if known is None or known[0] != identity:
            known = (identity, hashlib.file_digest(file, "sha256").hexdigest())
            if len(self._digests) > 1000:
                self._digests.clear()
            self._digests[path] = known
        return known[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "edge-hpcr"
    sys_version = ""
    timeout = SEND_SECONDS
    server: ExportsServer

    def handle_one_request(self) -> None:
        self.server.note(self.connection, waiting_since=time.monotonic())
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        self.server.note(self.connection, waiting_since=None)
        if not self._is_allowed():
            self._head(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
            return
        try:
            file, digest = self.server.open(self.path)
        except BadModel:
            # Without the reason, which could tell a stranger what is here.
            self._head(HTTPStatus.NOT_FOUND, {})
            return
        with file:
            self._send(file, f'"{digest}"', with_body)

    def _is_allowed(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.server.token.encode())
        return same and scheme.lower() == "bearer"

    def _head(self, status: HTTPStatus, headers: dict[str, str], length: int | None = 0) -> None:
        self.send_response(status)
        lengths = {} if length is None else {"Content-Length": str(length)}
        for name, value in {"X-Content-Type-Options": "nosniff", **lengths, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, file: io.BufferedReader | io.BytesIO, etag: str, with_body: bool) -> None:
        size = file.seek(0, os.SEEK_END)
        headers = {"ETag": etag, "Cache-Control": "no-cache", "Accept-Ranges": "bytes"}
        if _matches(self.headers.get("If-None-Match"), etag):
            self._head(HTTPStatus.NOT_MODIFIED, headers, length=None)
            return
        part: tuple[int, int] | None = (0, size)
        asked = self.headers.get("Range")
        if asked is not None and self.headers.get("If-Range") in (None, etag):
            part = parse_range(asked, size)
        if part is None:
            self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
            return
        start, end = part
        kind = "json" if self.path.endswith(".json") else "octet-stream"
        headers["Content-Type"] = f"application/{kind}"
        status = HTTPStatus.OK
        if part != (0, size):
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._head(status, headers, end - start)
        if with_body:
            self._copy(file, start, end)

    def _copy(self, file: io.BufferedReader | io.BytesIO, start: int, end: int) -> None:
        file.seek(start)
        left = end - start
        while left and (block := file.read(min(BLOCK, left))):
            self.wfile.write(block)
            left -= len(block)
        if left:
            # The file became shorter on the way: the promised length cannot be kept, and the connection says so.
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a fleet asks every few seconds."""


def _matches(header: str | None, etag: str) -> bool:
    """Whether If-None-Match names this ETag; a weak one counts, as a proxy may have made it."""
    if header is None:
        return False
    return not {"*", etag}.isdisjoint(name.strip().removeprefix("W/") for name in header.split(","))


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of a single range; all of it if the header asks for something else; None beyond the end.

    >>> parse_range("bytes=2-5", 10), parse_range("bytes=-3", 10), parse_range("bytes=10-", 10)
    ((2, 6), (7, 10), None)
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match[1], match[2]
    if not first:
        length = min(int(last), size)
        return (size - length, size) if length else None
    start, end = int(first), min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return 0, size
    return (start, end) if start < size else None
