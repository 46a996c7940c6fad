"""`python -m export serve`: the exports folder of a workspace over HTTP, for devices in the field.

It gives out latest.json and the files that the manifests of published versions name, and nothing else; it takes in what
devices report and the frames that they send back (`from_devices.py`). Standard library only. It speaks plain HTTP: on an
open network put a server with TLS in front of it; to give out models, any static file server does as well.
"""

import hashlib
import io
import os
import re
import signal
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.devices import ID, Registry
from edge_hpcr.workspace.layout import Layout
from export.device import manifest as files
from export.device.errors import BadModel
from export.device.limited_server import LimitedServer, address_to_listen_on
from export.publish import from_devices, polls
from export.publish.intake import Intake
from export.publish.staging import FILE as STAGED
from export.publish.staging import Staged, staged
from export.publish.tokens import NEEDED, Tokens

DEFAULT_PORT = 8081
HEALTH = "/healthz"
BODY_SECONDS = 60.0  # until a picture has come whole
SEND_SECONDS = 30.0  # for each block of an answer
BLOCK = 2**18
MOST_DISCARDED = 2**16  # bytes of a stranger's body, which are read so that the answer arrives
NOSNIFF = {"X-Content-Type-Options": "nosniff"}
_VERSION_FILE = re.compile(r"/(v[0-9]{6,15})/([A-Za-z0-9_][A-Za-z0-9._-]{0,99})")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def serve(workspace: Path, host: str, port: int, token: Path | None, with_parent: bool = False) -> None:
    """Serve a workspace until Ctrl-C or SIGTERM; `with_parent` also until standard input ends."""
    server = make_server(workspace, host, port, Tokens.read(token))
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.server_address[1]}"
    print(f"serving {server.exports} at {address}", file=sys.stderr, flush=True)

    def stop(*_: object) -> None:
        # Not by an exception: one that is raised while garbage is collected would be lost. `shutdown` waits for the loop.
        threading.Thread(target=server.shutdown, daemon=True).start()

    def stop_with_parent() -> None:
        sys.stdin.read()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if with_parent:
        threading.Thread(target=stop_with_parent, daemon=True).start()
    with server:
        server.serve_forever()


def check_address(
    host: str, port: int, tokens: Tokens, option: str = "--host"
) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Where to listen; a `UserError` if the address is none, or open to the network while nobody is asked for a token."""
    return address_to_listen_on(host, port, tokens.are_wanted, option, NEEDED)


def listen_once(family: socket.AddressFamily, address: tuple[str, int]) -> int:
    """The port, a free one for 0; a `UserError` if a server could not listen there."""
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise _taken(*address, error) from None
        return int(probe.getsockname()[1])


def _taken(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"cannot listen on {host} port {port}: {error.strerror}")


def make_server(workspace: Path, host: str, port: int, tokens: Tokens | str | None = None) -> "ExportsServer":
    if not workspace.is_dir():
        raise UserError(f"{workspace}: there is no such workspace")
    if not isinstance(tokens, Tokens):
        tokens = Tokens.only(tokens)
    family, address = check_address(host, port, tokens)
    try:
        return ExportsServer(family, address, workspace, tokens)
    except OSError as error:
        raise _taken(host, port, error) from None


class ExportsServer(LimitedServer):
    """The exports of a workspace, and what devices send."""

    request_queue_size = 512
    # Devices ask and leave; only downloads stay, and after a publication all of them download at once, perhaps from
    # behind one address.
    most_connections, most_of_an_address = 400, 256

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], workspace: Path, tokens: Tokens
    ) -> None:
        layout = Layout(workspace)
        self.exports = layout.exports
        self.tokens = tokens
        self.registry = Registry(layout.devices)
        self.intake = Intake(workspace)
        self._hashing = threading.Lock()  # once for all of a fleet that asks for a new version
        self._digests: dict[Path, tuple[tuple[int, ...], str]] = {}
        self._paths = (self.exports / files.LATEST, self.exports / STAGED)  # looked at for every request
        self._latest: tuple[tuple[int, ...] | None, bytes, str] = (None, b"", "")
        self._staged: tuple[tuple[int, ...] | None, Staged | None] = (None, None)
        super().__init__(family, address, Handler)

    def server_bind(self) -> None:
        super().server_bind()
        polls.accept_with_request(self.socket)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            answered = self._answer_poll(request)
        except OSError:  # it hung up
            answered = True
        if answered:
            self.close_request(request)
        else:
            super().process_request(request, client_address)

    def _answer_poll(self, request: socket.socket) -> bool:
        """Tell a device which version is current, or that it has it; False if this is anything else, not answered yet."""
        poll = polls.waiting_poll(request)
        if poll is None or self.refusal(poll.authorization, poll.device) is not None:
            return False
        try:
            data, digest = self._current(poll.device)
        except BadModel:
            return False
        if len(data) > polls.LARGEST_ANSWER:
            return False
        headers = {"Server": Handler.server_version, **NOSNIFF, **_of_a_file(f'"{digest}"')}
        if _matches(poll.has, headers["ETag"]):
            polls.answer(request, HTTPStatus.NOT_MODIFIED, headers, b"")
        else:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
            polls.answer(request, HTTPStatus.OK, headers, data)
        return True

    def refusal(self, authorization: str | None, device: str | None) -> HTTPStatus | None:
        """Why who asks may not, or not as this device; None if they may."""
        if device is not None and ID.fullmatch(device) is None:
            return HTTPStatus.BAD_REQUEST
        if not self.tokens.are_wanted:
            return None
        scheme, _, given = (authorization or "").partition(" ")
        valid, owner = self.tokens.owner(given.strip())
        if not valid or scheme.lower() != "bearer":
            return HTTPStatus.UNAUTHORIZED
        return HTTPStatus.FORBIDDEN if owner is not None and device not in (None, owner) else None

    def server_close(self) -> None:
        super().server_close()
        self.registry.close()
        self.intake.close()

    def open(self, path: str, device: str | None) -> tuple[io.BufferedReader | io.BytesIO, str]:
        """The file behind a request's path and its SHA-256; `BadModel` if it is not one to give out."""
        if path == f"/{files.LATEST}":
            data, digest = self._current(device)
            return io.BytesIO(data), digest
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

    def _current(self, device: str | None) -> tuple[bytes, str]:
        """latest.json as this device gets it, and its SHA-256."""
        trial = self._trial()
        if trial is not None and device in trial.devices:
            data = trial.latest.encode()
            return data, sha256(data)
        path = self._paths[0]
        try:
            identity = _identity(path.lstat())
        except OSError:
            identity = None
        known = self._latest
        if identity is None or known[0] != identity:
            # Read whole: it is replaced while devices ask for it.
            data = files.read_plain_file(path, files.LARGEST_LATEST)
            self._latest = known = (identity, data, sha256(data))
        return known[1:]

    def _trial(self) -> Staged | None:
        """The staged roll-out, read again when its file has changed."""
        try:
            identity = _identity(self._paths[1].stat())
        except OSError:
            return None
        if self._staged[0] != identity:
            self._staged = (identity, staged(self.exports))
        return self._staged[1]

    def _digest(self, path: Path, file: io.BufferedReader) -> str:
        """The SHA-256 of the file, not what its manifest says: a repaired file must not look unchanged."""
        identity = _identity(os.fstat(file.fileno()))
        with self._hashing:
            known = self._digests.get(path)
            if known is None or known[0] != identity:
                known = (identity, hashlib.file_digest(file, "sha256").hexdigest())
                if len(self._digests) > 1000:
                    self._digests.clear()
                self._digests[path] = known
            return known[1]


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "edge-hpcr"
    sys_version = ""
    timeout = SEND_SECONDS
    # An answer in one packet: head and body apart would wait for each other.
    wbufsize = BLOCK
    disable_nagle_algorithm = True
    server: ExportsServer

    def handle_one_request(self) -> None:
        self._has_read = False  # the body
        self.server.note(self.connection, waiting_since=time.monotonic())
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_POST(self) -> None:
        route = from_devices.route(self.path)
        if not self._let_in(route.device if route else None):
            return
        if route is None:
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "published files can be read only")
        elif self.headers.get("Origin") is not None:
            # No device sends one. Of a browser, a page of anybody's could ask in the name of who has it open.
            self.refuse(HTTPStatus.FORBIDDEN, "requests of a browser's page are refused")
        else:
            route.answer(self)

    def _answer(self, with_body: bool) -> None:
        self.server.note(self.connection, waiting_since=None)
        if self.path == HEALTH:  # for whoever watches over the server, which has no token
            self.head(HTTPStatus.OK, {})
            return
        device = self.headers.get("Device-Id")
        if not self._let_in(device):
            return
        try:
            file, digest = self.server.open(self.path, device)
        except BadModel:
            # Without the reason, which could tell a stranger what is here.
            self.head(HTTPStatus.NOT_FOUND, {})
            return
        with file:
            self._send(file, f'"{digest}"', with_body)

    def _let_in(self, device: str | None) -> bool:
        """Whether who asks may, and as this device; if not, it has been told."""
        refusal = self.server.refusal(self.headers.get("Authorization"), device)
        if refusal == HTTPStatus.BAD_REQUEST:
            self.refuse(refusal, "the id of a device has 1 to 64 letters, digits, . _ and -")
        elif refusal == HTTPStatus.UNAUTHORIZED:
            self.discard(MOST_DISCARDED)
            self.head(refusal, {"WWW-Authenticate": "Bearer"})
        elif refusal is not None:
            self.refuse(refusal, f"this token is not that of {device}")
        return refusal is None

    def body(self, limit: int) -> bytes | None:
        """What was sent; None if it is too much or was cut off, which has been told."""
        length = self._length()
        if length is None:
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
            return None
        if length > limit:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit:,} bytes are taken")
            return None
        self._has_read = True
        self.server.note(self.connection, time.monotonic(), BODY_SECONDS - self.server.longest_wait)
        data = self.rfile.read(length)
        self.server.note(self.connection, None)
        if len(data) == length:
            return data
        self.close_connection = True
        return None

    def _length(self) -> int | None:
        text = self.headers.get("Content-Length") or ""
        if "Transfer-Encoding" in self.headers:
            return None  # with both, a proxy and this server might not agree where the next request begins
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None

    def discard(self, most: int) -> None:
        """Read a body that nobody wants, if it is not too long: a connection closed before loses the answer."""
        length = 0 if self._has_read else self._length() or 0
        if length > most or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        if length:
            self.server.note(self.connection, time.monotonic(), BODY_SECONDS - self.server.longest_wait)
        left = min(length, most)
        while left and (block := self.rfile.read(min(BLOCK, left))):
            left -= len(block)

    def refuse(self, status: HTTPStatus, why: str, headers: dict[str, str] | None = None) -> None:
        """Say no in a line, to somebody who is let in."""
        self.discard(from_devices.MOST_DISCARDED)
        text = f"{why}\n".encode()
        self.head(status, {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}, len(text))
        if self.command != "HEAD":
            self.wfile.write(text)

    def head(self, status: HTTPStatus, headers: dict[str, str], length: int | None = 0) -> None:
        self.send_response(status)
        lengths = {} if length is None else {"Content-Length": str(length)}
        closing = {"Connection": "close"} if self.close_connection else {}
        for name, value in {**NOSNIFF, **lengths, **closing, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, file: io.BufferedReader | io.BytesIO, etag: str, with_body: bool) -> None:
        size = file.seek(0, os.SEEK_END)
        headers = _of_a_file(etag)
        if _matches(self.headers.get("If-None-Match"), etag):
            self.head(HTTPStatus.NOT_MODIFIED, headers, length=None)
            return
        part: tuple[int, int] | None = (0, size)
        asked = self.headers.get("Range")
        if asked is not None and self.headers.get("If-Range") in (None, etag):
            part = parse_range(asked, size)
        if part is None:
            self.head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
            return
        start, end = part
        kind = "json" if self.path.endswith(".json") else "octet-stream"
        headers["Content-Type"] = f"application/{kind}"
        status = HTTPStatus.OK
        if part != (0, size):
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.head(status, headers, end - start)
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


def _of_a_file(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Cache-Control": "no-cache", "Accept-Ranges": "bytes", "Vary": "Device-Id"}


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
